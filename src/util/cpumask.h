/* Sets of CPUs as users write them: masks (0x3, 3) and lists ([0,2-4] or 0,2-4 with brackets
 * optional when it has , or -). */
#ifndef UTIL_CPUMASK_H
#define UTIL_CPUMASK_H

#include <sched.h>
#include <stddef.h>

#include "util/err.h"

/* -EINVAL with a sentence when text is neither a mask nor a list, or names no CPU. */
int cpumask_parse(const char *text, cpu_set_t *set, struct err *e);

/* "0x5". Returns buf. */
char *cpumask_format(const cpu_set_t *set, char *buf, size_t size);

/* "0,2-4". Returns buf. */
char *cpumask_format_list(const cpu_set_t *set, char *buf, size_t size);

/* The NUMA node of a CPU; -1: the kernel does not tell. */
int cpu_numa_node(int cpu);

#endif
