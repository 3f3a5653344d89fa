/* Shared by the files of this room. */
#ifndef RIFFLE_MEM_INTERNAL_H
#define RIFFLE_MEM_INTERNAL_H

#include <stddef.h>

#include "util/err.h"

/* 0, or -ENOMEM with a sentence when the machine would have to swap for so many bytes. */
int mem_check_available(size_t len, struct err *e);

#endif
