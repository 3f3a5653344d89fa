#include "util/hist.h"

#include <string.h>

#include "util/compiler.h"

void hist_reset(struct hist *h)
{
	memset(h, 0, sizeof(*h));
	h->min = UINT64_MAX;
}

static unsigned bucket_of(uint64_t value)
{
	unsigned shift;

	if (value < 1u << HIST_SUB_BITS)
		return (unsigned)value;
	shift = 63u - HIST_SUB_BITS - (unsigned)__builtin_clzll(value);
	return (shift << HIST_SUB_BITS) + (unsigned)(value >> shift);
}

/* The middle of the values that share a bucket. */
uint64_t hist_bucket_value(unsigned bucket)
{
	unsigned shift = bucket >> HIST_SUB_BITS;
	uint64_t low;

	if (shift <= 1)
		return bucket;
	shift--;
	low = (uint64_t)(bucket - (shift << HIST_SUB_BITS)) << shift;
	return low + (1ull << shift) / 2;
}

void hist_add(struct hist *h, uint64_t value)
{
	h->count++;
	h->sum += value;
	h->min = MIN(h->min, value);
	h->max = MAX(h->max, value);
	h->bucket[bucket_of(value)]++;
}

uint64_t hist_percentile(const struct hist *h, double percent)
{
	uint64_t want = (uint64_t)((double)h->count * percent / 100.0 + 0.999999), seen = 0;

	if (h->count == 0)
		return 0;
	if (want >= h->count)
		return h->max;
	want = MAX(want, 1);
	for (unsigned i = 0; i < HIST_BUCKETS; i++) {
		seen += h->bucket[i];
		if (seen >= want)
			return MIN(MAX(hist_bucket_value(i), h->min), h->max);
	}
	return h->max;
}

uint64_t hist_mean(const struct hist *h)
{
	return h->count ? h->sum / h->count : 0;
}

void hist_merge(struct hist *to, const struct hist *from)
{
	to->count += from->count;
	to->sum += from->sum;
	to->min = MIN(to->min, from->min);
	to->max = MAX(to->max, from->max);
	for (unsigned i = 0; i < HIST_BUCKETS; i++)
		to->bucket[i] += from->bucket[i];
}
