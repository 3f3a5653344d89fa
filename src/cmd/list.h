/* The parts of riffle list. */
#ifndef CMD_LIST_H
#define CMD_LIST_H

#include <stdbool.h>

#include "util/err.h"

/* Print a configuration that attaches all NVMe devices that a process may drive itself; with
 * subsystems, a file for `riffle serve -c`. Says on stderr when there is none. */
int list_config(const char *root, bool subsystems, struct err *e);

#endif
