/*
 * lean WHERE DEPTH SECONDS: the smallest driver of a virtio-blk ring, to see what a device can do:
 * 4 KiB random reads on one split ring with indirect tables that are built once, polled from the
 * last CPU we may use. WHERE is a vhost-user-blk socket, or "ring": then a thread on the first CPU
 * plays the device, and does no more than following the ring, looking at its addresses and
 * answering. No device can be faster than that on the machine, at that moment.
 *
 * Prints the IOPS and, for depth 1, the median latency in nanoseconds (else 0).
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/driver.h"
#include "util/ticks.h"

#define BATCH	  32 /* requests that are published at once */
#define LATENCIES (1u << 20)
#define GIVE_UP_S 5

static struct driver driver;
static _Atomic bool stop;
static uint32_t *latency;
static size_t latency_n;
/* --- the device of "ring" --- */

static void *at(uint64_t gpa, uint32_t len)
{
	uint64_t offset = gpa - (uintptr_t)driver.shared;

	if (offset >= sizeof(*driver.shared) || len > sizeof(*driver.shared) - offset)
		driver_die("an address is not shared");
	return (char *)driver.shared + offset;
}

static void answer(uint16_t head, uint16_t used)
{
	const struct virtq_desc *d = &driver.ring.desc[head],
				*t = at(from_le64(d->addr), from_le32(d->len));
	const struct virtio_blk_req_hdr *hdr = at(from_le64(t[0].addr), from_le32(t[0].len));
	uint32_t len = from_le32(t[1].len);
	struct virtq_used_elem *u = &driver.ring.used->ring[used & driver.ring.mask];
	uint8_t *status = at(from_le64(t[2].addr), from_le32(t[2].len));

	at(from_le64(t[1].addr), len);
	*status =
		from_le32(hdr->type) != VIRTIO_BLK_T_IN || from_le64(hdr->sector) >= driver.sectors;
	u->id = to_le32(head);
	u->len = to_le32(len + 1);
}

static void *follow_ring(void *arg)
{
	uint16_t last = 0;

	driver_pin(true);
	while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
		uint16_t end = from_le16(load_acquire(&driver.ring.avail->idx));

		for (unsigned n = 0; last != end && n < BATCH; n++, last++)
			answer(from_le16(driver.ring.avail->ring[last & driver.ring.mask]), last);
		if (from_le16(driver.ring.used->idx) != last)
			store_release(&driver.ring.used->idx, to_le16(last));
	}
	return arg;
}

/* --- the driver --- */

/* Returns the requests that were done in that time. */
static uint64_t drive(unsigned depth, uint64_t until)
{
	uint16_t free_heads[DRIVER_NUM], free_n = 0;
	uint64_t done = 0, began = 0, now = ticks();
	unsigned in_flight = 0;

	for (; free_n < depth; free_n++)
		free_heads[free_n] = free_n;
	for (unsigned turn = 0; now < until || in_flight; turn++) {
		unsigned n;

		if (turn % 16 == 0 || depth == 1)
			now = ticks();
		if (now > until + GIVE_UP_S * ticks_hz())
			driver_die("the device does not answer");
		for (n = 0; now < until && free_n && n < BATCH; n++, in_flight++)
			driver_send(&driver, free_heads[--free_n]);
		if (n)
			began = now;
		driver_publish(&driver);
		for (n = vring_used_n(&driver.ring); n > 0; n--, in_flight--, done++) {
			free_heads[free_n++] = driver_take(&driver);
			if (depth == 1 && latency_n < LATENCIES)
				latency[latency_n++] = (uint32_t)ticks_to_ns(ticks() - began);
		}
	}
	return done;
}

static int by_size(const void *a, const void *b)
{
	const uint32_t *x = a, *y = b;

	return *x < *y ? -1 : *x > *y;
}

static void run(unsigned depth, double seconds)
{
	uint64_t start = ticks(), took = (uint64_t)(seconds * (double)ticks_hz()), done;

	drive(depth, start + took / 5); /* to warm up */
	latency_n = 0;
	start = ticks();
	done = drive(depth, start + took);
	took = ticks_to_ns(ticks() - start);
	qsort(latency, latency_n, sizeof(*latency), by_size);
	printf("%.0f %u\n", (double)done * 1e9 / (double)took,
	       latency_n ? latency[latency_n / 2] : 0);
}

int main(int argc, char **argv)
{
	unsigned depth = argc == 4 ? (unsigned)atoi(argv[2]) : 0;
	double seconds = argc == 4 ? atof(argv[3]) : 0;
	pthread_t device;

	if (depth < 1 || depth > DRIVER_NUM || !(seconds > 0))
		driver_die("usage: lean SOCKET|ring DEPTH SECONDS");
	latency = calloc(LATENCIES, sizeof(*latency));
	if (!latency)
		driver_die("out of memory");
	driver_init(&driver);
	driver_pin(false);
	if (strcmp(argv[1], "ring") != 0) {
		driver_open(&driver, argv[1]);
		run(depth, seconds);
		driver_close(&driver);
		return 0;
	}
	driver.ring.used->flags = to_le16(VIRTQ_USED_F_NO_NOTIFY);
	if (pthread_create(&device, NULL, follow_ring, NULL))
		driver_die("no thread");
	run(depth, seconds);
	atomic_store(&stop, true);
	pthread_join(device, NULL);
	return 0;
}
