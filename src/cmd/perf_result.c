/* What the numbers of a result say: times in microseconds, and Little's law. */
#include <math.h>

#include "cmd/perf.h"
#include "util/ticks.h"

/* More than this from Little's law is said. */
#define LITTLE_TOLERANCE 0.1

/* Ticks of the clock are not whole nanoseconds. */
double perf_us(double ticks)
{
	return ticks * 1e6 / (double)ticks_hz();
}

double perf_percentile_us(const struct hist *h, double percent)
{
	return perf_us((double)hist_percentile(h, percent));
}

double perf_mean_us(const struct hist *h)
{
	return h->count ? perf_us((double)h->sum / (double)h->count) : 0;
}

double perf_in_flight(const struct perf_result *r)
{
	return r->iops * perf_mean_us(&r->latency) / 1e6;
}

/* Latencies are known to one turn: on a disk that takes no time, that is most of them. */
bool perf_little_holds(const struct perf_result *r)
{
	double want = (double)r->depth * r->workers, turn = r->iops * r->turn_ns / 1e9;

	return fabs(perf_in_flight(r) - want) <= LITTLE_TOLERANCE * want + turn;
}
