/* In place of compare_aio.c where libaio was not there to build with. */
#include "cmd/compare_kernel.h"

const struct kernel_engine *const aio_engine = NULL;
