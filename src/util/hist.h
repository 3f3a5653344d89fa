/*
 * Latency histogram with bounded relative error: 64 linear sub-buckets per power of two; the middle
 * of one is reported, so a reported value is at most 1/128 (0.8 %) from the sample. Fixed 30 KiB,
 * no allocation. Owner: one thread.
 */
#ifndef UTIL_HIST_H
#define UTIL_HIST_H

#include <stdint.h>

#define HIST_SUB_BITS 6
#define HIST_BUCKETS  ((64 - HIST_SUB_BITS + 1) << HIST_SUB_BITS)

struct hist {
	uint64_t count, sum, min, max;
	uint64_t bucket[HIST_BUCKETS];
};

void hist_reset(struct hist *h);
void hist_add(struct hist *h, uint64_t value);
uint64_t hist_percentile(const struct hist *h, double percent); /* 0..100; 0 when empty */
uint64_t hist_mean(const struct hist *h);
void hist_merge(struct hist *to, const struct hist *from);
/* The value that stands for all in a bucket. */
uint64_t hist_bucket_value(unsigned bucket);

#endif
