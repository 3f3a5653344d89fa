/* The cheapest clock the machine has: a constant-rate counter, read in about 10 ns. Read it once
 * per turn, not per I/O. */
#ifndef UTIL_TICKS_H
#define UTIL_TICKS_H

#include <stdint.h>
#include <time.h>

static inline uint64_t ticks(void)
{
#if defined(__x86_64__)
	return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
	uint64_t t;

	__asm__ __volatile__("mrs %0, cntvct_el0" : "=r"(t));
	return t;
#else
#error "ticks() has no counter for this architecture"
#endif
}

/* Ticks per second; measured on the first call (about 10 ms), then constant. Any thread. */
uint64_t ticks_hz(void);

static inline uint64_t ticks_from_us(uint64_t us)
{
	return (uint64_t)((unsigned __int128)us * ticks_hz() / 1000000);
}

static inline uint64_t ticks_to_ns(uint64_t t)
{
	return (uint64_t)((unsigned __int128)t * 1000000000 / ticks_hz());
}

/* That moment on CLOCK_REALTIME, for waits that end there. */
struct timespec time_in_ms(unsigned ms);

#endif
