/*
 * hugepages: the machine's reserved hugepages, per NUMA node. Riffle takes memory from them when
 * there are any and does without when there are none; other programs (SPDK, QEMU) may need them.
 */
#ifndef CMD_HUGEPAGES_H
#define CMD_HUGEPAGES_H

#include <jansson.h>
#include <stdbool.h>

#include "util/err.h"

#define HUGEPAGES_ALL_NODES (-1) /* as the kernel spreads them */

/* A list of objects: node (-1: the machine has no nodes), size_kb, total, free. */
json_t *hugepages_describe(const char *root);

/* The size of a page when nobody says which, in KiB; 0: the kernel has none. */
unsigned long hugepages_default_kb(const char *root);

/*
 * See that at least `pages` of a size are reserved, or with `exactly` no more than that either.
 * Errors: -ENOENT (no such size or node), -ENOMEM (the kernel found fewer), the kernel's; each with
 * a sentence.
 */
int hugepages_reserve(const char *root, int node, unsigned long size_kb, unsigned long pages,
		      bool exactly, struct err *e);

#endif
