#include "util/ticks.h"

#include <pthread.h>
#include <time.h>

static uint64_t hz;

static uint64_t monotonic_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

#if defined(__aarch64__)
static void measure(void)
{
	__asm__ __volatile__("mrs %0, cntfrq_el0" : "=r"(hz));
}
#else
static void measure(void)
{
	uint64_t ns0 = monotonic_ns(), t0 = ticks(), ns1, t1;

	do {
		ns1 = monotonic_ns();
		t1 = ticks();
	} while (ns1 - ns0 < 10000000);
	hz = (uint64_t)((unsigned __int128)(t1 - t0) * 1000000000 / (ns1 - ns0));
}
#endif

uint64_t ticks_hz(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, measure);
	return hz;
}

struct timespec time_in_ms(unsigned ms)
{
	struct timespec t;

	clock_gettime(CLOCK_REALTIME, &t);
	t.tv_sec += ms / 1000;
	t.tv_nsec += ms % 1000 * 1000000l;
	if (t.tv_nsec >= 1000000000) {
		t.tv_sec++;
		t.tv_nsec -= 1000000000;
	}
	return t;
}
