#include "cmd/perf_pattern.h"

#include "cmd/perf.h"
#include "util/ticks.h"

void perf_pattern_init(struct perf_pattern *p, const struct perf_options *o, uint64_t span,
		       unsigned index, unsigned workers)
{
	p->io_size = (uint32_t)o->io_size;
	p->blocks = span / p->io_size;
	p->next = p->blocks / workers * index;
	p->random = o->random;
	p->read_share = (uint32_t)((uint64_t)UINT32_MAX * o->read_percent / 100);
	p->interval = o->rate ? ticks_hz() * workers / o->rate : 0;
	p->seed = UINT64_C(0x9e3779b97f4a7c15) * (index + 1) ^ ticks() << 1;
}

void perf_pattern_start(struct perf_pattern *p, uint32_t depth)
{
	p->depth = depth;
	p->next_at = p->interval ? ticks() : 0;
}

void perf_pattern_forgive(struct perf_pattern *p, uint64_t now)
{
	uint64_t most = p->interval * p->depth;

	if (now > p->next_at + most)
		p->next_at = now - most;
}

void perf_pattern_fill(struct perf_pattern *p, void *data, size_t len)
{
	uint64_t *words = data;

	for (size_t i = 0; i < len / sizeof(*words); i++)
		words[i] = perf_random(&p->seed);
}
