/*
 * wake SOCKET ROUNDS: what a sleeping disk costs. The daemon sleeps on the first CPU, we spin on
 * the last one.
 *
 * First, in turns: a thread on the daemon's CPU that waits in epoll for an eventfd is woken, and so
 * is the disk, by a lone request. Printed: the medians of both in microseconds, from before the
 * write to the eventfd until the answer is seen, and of their differences.
 *
 * Then: after a sleep the disk gets a steady load at depth 32. Printed: the median of what it did
 * in the second window of 2 ms, relative to the windows that come later.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "bench/driver.h"
#include "util/ticks.h"

#define PAUSE_US   3000 /* far more than any patience */
#define ROUNDS_MAX 100000
#define WINDOW_US  2000
#define WINDOWS	   20
#define DEPTH	   32

static struct driver driver;
static _Atomic unsigned woken;
static int bare_fd;

static void *wait_bare(void *arg)
{
	int epoll = epoll_create1(0);
	struct epoll_event ev = { .events = EPOLLIN };
	uint64_t n;

	driver_pin(true);
	epoll_ctl(epoll, EPOLL_CTL_ADD, bare_fd, &ev);
	for (;;) {
		epoll_wait(epoll, &ev, 1, -1);
		if (read(bare_fd, &n, sizeof(n)) < 0)
			break;
		atomic_fetch_add(&woken, 1);
	}
	return arg;
}

static void spin_us(uint64_t us)
{
	uint64_t until = ticks() + ticks_from_us(us);

	while (ticks() < until)
		;
}

static uint64_t wake_bare(void)
{
	static const uint64_t one = 1;
	unsigned before = woken;
	uint64_t start = ticks();

	if (write(bare_fd, &one, sizeof(one)) < 0)
		driver_die("cannot write");
	while (woken == before)
		;
	return ticks() - start;
}

static uint64_t wake_disk(void)
{
	uint64_t start = ticks();

	driver_send(&driver, 0);
	if (!driver_publish(&driver))
		driver_die("the disk did not sleep: is it polled always?");
	while (vring_used_n(&driver.ring) == 0)
		;
	driver_take(&driver);
	return ticks() - start;
}

static int by_size(const void *a, const void *b)
{
	const double *x = a, *y = b;

	return *x < *y ? -1 : *x > *y;
}

static double median(double *v, unsigned n)
{
	qsort(v, n, sizeof(*v), by_size);
	return v[n / 2];
}

static void compare_wake_ups(unsigned rounds)
{
	static double bare[ROUNDS_MAX], disk[ROUNDS_MAX], more[ROUNDS_MAX];

	for (unsigned i = 0; i < rounds; i++) {
		spin_us(PAUSE_US);
		bare[i] = (double)ticks_to_ns(wake_bare()) / 1000;
		spin_us(PAUSE_US);
		disk[i] = (double)ticks_to_ns(wake_disk()) / 1000;
		more[i] = disk[i] - bare[i];
	}
	printf("%.1f %.1f %.1f\n", median(bare, rounds), median(disk, rounds),
	       median(more, rounds));
}

/* Requests done in each window, from the first one on. */
static void load_windows(unsigned done[WINDOWS])
{
	uint64_t start = ticks(), window = ticks_from_us(WINDOW_US), at;
	unsigned in_flight = 0;

	for (uint16_t i = 0; i < DEPTH; i++, in_flight++)
		driver_send(&driver, i);
	while (in_flight) {
		driver_publish(&driver);
		at = (ticks() - start) / window;
		for (unsigned n = vring_used_n(&driver.ring); n > 0; n--) {
			uint16_t head = driver_take(&driver);

			in_flight--;
			if (at >= WINDOWS)
				continue;
			done[at]++;
			in_flight++;
			driver_send(&driver, head);
		}
	}
}

static double come_back(void)
{
	unsigned done[WINDOWS] = { 0 };
	double later[WINDOWS / 2];

	spin_us(PAUSE_US);
	load_windows(done);
	for (unsigned i = 0; i < WINDOWS / 2; i++)
		later[i] = done[WINDOWS / 2 + i];
	return done[1] / median(later, WINDOWS / 2);
}

static void compare_windows(unsigned rounds)
{
	static double ratio[ROUNDS_MAX];

	for (unsigned i = 0; i < rounds; i++)
		ratio[i] = come_back();
	printf("%.3f\n", median(ratio, rounds));
}

int main(int argc, char **argv)
{
	unsigned rounds = argc == 3 ? (unsigned)atoi(argv[2]) : 0;
	pthread_t thread;

	if (rounds < 1 || rounds > ROUNDS_MAX)
		driver_die("usage: wake SOCKET ROUNDS");
	bare_fd = eventfd(0, 0);
	driver_init(&driver);
	driver_pin(false);
	driver_open(&driver, argv[1]);
	if (pthread_create(&thread, NULL, wait_bare, NULL))
		driver_die("no thread");
	spin_us(100000);
	compare_wake_ups(rounds);
	compare_windows(rounds / 4 + 1);
	driver_close(&driver);
	return 0;
}
