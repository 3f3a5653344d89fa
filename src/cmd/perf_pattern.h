/*
 * Where and what a worker's next request is, and when it may go: the same sequence whoever carries
 * the requests out, so that riffle's paths and the kernel's are given the same work. Owner: the
 * worker's thread.
 */
#ifndef CMD_PERF_PATTERN_H
#define CMD_PERF_PATTERN_H

#include <stdbool.h>
#include <stdint.h>

#include "util/compiler.h"

struct perf_options;

struct perf_pattern {
	uint64_t blocks, next, seed;
	uint64_t next_at, interval;   /* ticks; with --rate */
	uint32_t io_size, read_share; /* of 2^32 - 1 */
	uint32_t depth;
	bool random;
};

/* index of workers: sequential jobs go round apart from each other. */
void perf_pattern_init(struct perf_pattern *p, const struct perf_options *o, uint64_t span,
		       unsigned index, unsigned workers);
/* A row begins. */
void perf_pattern_start(struct perf_pattern *p, uint32_t depth);

/* A target that has fallen behind the rate is owed one queue depth and no more. */
void perf_pattern_forgive(struct perf_pattern *p, uint64_t now);

/* Devices that compress or look for zeroes must not have it easy. len: a multiple of 8. */
void perf_pattern_fill(struct perf_pattern *p, void *data, size_t len);

static inline uint64_t perf_random(uint64_t *seed)
{
	/* xorshift64*: a few instructions, and good enough to spread I/O */
	*seed ^= *seed >> 12;
	*seed ^= *seed << 25;
	*seed ^= *seed >> 27;
	return *seed * UINT64_C(2685821657736338717);
}

static inline uint64_t perf_next_offset(struct perf_pattern *p)
{
	uint64_t block;

	if (p->random)
		return (uint64_t)((unsigned __int128)perf_random(&p->seed) * p->blocks >> 64) *
		       p->io_size;
	block = p->next++;
	if (p->next == p->blocks)
		p->next = 0;
	return block * p->io_size;
}

static inline bool perf_next_is_read(struct perf_pattern *p)
{
	return p->read_share == UINT32_MAX ||
	       (p->read_share && perf_random(&p->seed) >> 32 < p->read_share);
}

#endif
