/*
 * Counts of allocations per thread of another program, in a file both map.
 *
 * alloc_count.c is a shared object for LD_PRELOAD. The program it is loaded into maps the file
 * that $ALLOC_COUNT_FILE names (sizeof(struct alloc_table) bytes, zeroed by whoever made it) and
 * gives every thread that allocates a slot. A thread without a slot has never allocated.
 */
#ifndef FAKE_ALLOC_COUNT_H
#define FAKE_ALLOC_COUNT_H

#include <stdint.h>

#define ALLOC_COUNT_ENV	  "ALLOC_COUNT_FILE"
#define ALLOC_COUNT_SLOTS 512

struct alloc_slot {
	int32_t tid;
	uint32_t pad;
	uint64_t allocs;   /* malloc, calloc, realloc, memalign and its kin */
	uint64_t frees;	   /* of something */
	uint64_t maps;	   /* mmap, munmap */
	uint64_t spare[4]; /* a cache line of its own */
};

_Static_assert(sizeof(struct alloc_slot) == 64, "one cache line");

struct alloc_table {
	uint32_t used; /* slots given out; may exceed what there are */
	uint32_t pad[15];
	struct alloc_slot slot[ALLOC_COUNT_SLOTS];
};

#endif
