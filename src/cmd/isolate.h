/*
 * isolate: says when reactors do not have their CPUs to themselves. Once at the start, of CPUs that
 * the scheduler may use for others; then every 10 s, of reactors that others have taken the CPU
 * from.
 */
#ifndef CMD_ISOLATE_H
#define CMD_ISOLATE_H

#include "util/err.h"

/* Main thread, while the reactors run. Errors: the kernel's, with a sentence. */
int isolate_start(struct err *e);
void isolate_stop(void); /* harmless when it was not started */

#endif
