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
#include <sched.h>
#include <stdalign.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "mem/mem.h"
#include "util/ticks.h"
#include "virtio/vhost_front.h"
#include "virtio/vring.h"

#define NUM	  256
#define BATCH	  32 /* requests that are published at once */
#define LATENCIES (1u << 20)
#define GIVE_UP_S 5

/* What a request needs besides its data; header and status share a line, as in Linux's driver. */
struct slot {
	alignas(CACHE_LINE) struct virtio_blk_req_hdr hdr;
	uint8_t status;
	alignas(CACHE_LINE) struct virtq_desc table[3];
};

struct shared {
	struct slot slot[NUM];
	alignas(4096) char data[NUM][4096];
};

static struct shared *shared;
static struct vring ring;
static uint64_t sectors = 1 << 21;
static _Atomic bool stop;
static uint32_t *latency;
static size_t latency_n;
static cpu_set_t allowed;

static void die(const char *why)
{
	fprintf(stderr, "lean: %s\n", why);
	exit(1);
}

static void pin(bool first)
{
	int cpu = first ? 0 : CPU_SETSIZE - 1;
	cpu_set_t one;

	while (!CPU_ISSET(cpu, &allowed))
		cpu += first ? 1 : -1;
	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	pthread_setaffinity_np(pthread_self(), sizeof(one), &one);
}

/* --- the device of "ring" --- */

static void *at(uint64_t gpa, uint32_t len)
{
	uint64_t offset = gpa - (uintptr_t)shared;

	if (offset >= sizeof(*shared) || len > sizeof(*shared) - offset)
		die("an address is not shared");
	return (char *)shared + offset;
}

static void answer(uint16_t head, uint16_t used)
{
	const struct virtq_desc *d = &ring.desc[head],
				*t = at(from_le64(d->addr), from_le32(d->len));
	const struct virtio_blk_req_hdr *hdr = at(from_le64(t[0].addr), from_le32(t[0].len));
	uint32_t len = from_le32(t[1].len);
	struct virtq_used_elem *u = &ring.used->ring[used & ring.mask];
	uint8_t *status = at(from_le64(t[2].addr), from_le32(t[2].len));

	at(from_le64(t[1].addr), len);
	*status = from_le32(hdr->type) != VIRTIO_BLK_T_IN || from_le64(hdr->sector) >= sectors;
	u->id = to_le32(head);
	u->len = to_le32(len + 1);
}

static void *follow_ring(void *arg)
{
	uint16_t last = 0;

	pin(true);
	while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
		uint16_t end = from_le16(load_acquire(&ring.avail->idx));

		for (unsigned n = 0; last != end && n < BATCH; n++, last++)
			answer(from_le16(ring.avail->ring[last & ring.mask]), last);
		if (from_le16(ring.used->idx) != last)
			store_release(&ring.used->idx, to_le16(last));
	}
	return arg;
}

/* --- the driver --- */

static void put(struct virtq_desc *d, const void *p, size_t len, uint16_t flags, uint16_t next)
{
	*d = (struct virtq_desc){ to_le64((uintptr_t)p), to_le32((uint32_t)len), to_le16(flags),
				  to_le16(next) };
}

static void build(void)
{
	for (unsigned i = 0; i < NUM; i++) {
		struct slot *s = &shared->slot[i];

		s->hdr.type = to_le32(VIRTIO_BLK_T_IN);
		put(&s->table[0], &s->hdr, sizeof(s->hdr), VIRTQ_DESC_F_NEXT, 1);
		put(&s->table[1], shared->data[i], sizeof(shared->data[i]),
		    VIRTQ_DESC_F_NEXT | VIRTQ_DESC_F_WRITE, 2);
		put(&s->table[2], &s->status, 1, VIRTQ_DESC_F_WRITE, 0);
		put(&ring.desc[i], s->table, sizeof(s->table), VIRTQ_DESC_F_INDIRECT, 0);
	}
}

static uint64_t random_sector(void)
{
	static uint64_t seed = 0x9e3779b97f4a7c15;

	seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407;
	return (seed >> 33) % (sectors / 8) * 8;
}

static void send_one(uint16_t head)
{
	struct slot *s = &shared->slot[head];

	s->hdr.sector = to_le64(random_sector());
	s->status = 0xff;
	vring_add(&ring, head);
}

/* Returns the requests that were done in that time. */
static uint64_t drive(unsigned depth, uint64_t until, int kick_fd)
{
	static const uint64_t one = 1;
	uint16_t free_heads[NUM], free_n = 0;
	uint64_t done = 0, began = 0, now = ticks();
	unsigned in_flight = 0;

	for (; free_n < depth; free_n++)
		free_heads[free_n] = free_n;
	for (unsigned turn = 0; now < until || in_flight; turn++) {
		unsigned n;

		if (turn % 16 == 0 || depth == 1)
			now = ticks();
		if (now > until + GIVE_UP_S * ticks_hz())
			die("the device does not answer");
		for (n = 0; now < until && free_n && n < BATCH; n++, in_flight++)
			send_one(free_heads[--free_n]);
		if (n)
			began = now;
		if (vring_publish(&ring) && write(kick_fd, &one, sizeof(one)) < 0)
			die("cannot kick");
		for (n = vring_used_n(&ring); n > 0; n--, in_flight--, done++) {
			uint32_t head = vring_next_used(&ring);

			if (head >= depth || shared->slot[head].status)
				die("a request failed");
			free_heads[free_n++] = (uint16_t)head;
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

static void run(unsigned depth, double seconds, int kick_fd)
{
	uint64_t start = ticks(), took = (uint64_t)(seconds * (double)ticks_hz()), done;

	drive(depth, start + took / 5, kick_fd); /* to warm up */
	latency_n = 0;
	start = ticks();
	done = drive(depth, start + took, kick_fd);
	took = ticks_to_ns(ticks() - start);
	qsort(latency, latency_n, sizeof(*latency), by_size);
	printf("%.0f %u\n", (double)done * 1e9 / (double)took,
	       latency_n ? latency[latency_n / 2] : 0);
}

static void run_socket(const char *path, void *memory, size_t size, unsigned depth, double seconds)
{
	int kick = eventfd(0, EFD_NONBLOCK), call = eventfd(0, EFD_NONBLOCK);
	struct virtio_blk_config config;
	struct vhost_front front;
	struct dma_shared area;
	struct err e = { 0 };

	if (dma_shared_list(&area, 1) != 1 || area.base != memory)
		die("the memory is not shared");
	if (vhost_front_open(path, FEATURE(VIRTIO_F_INDIRECT_DESC), &front, &e) ||
	    vhost_front_config(&front, &config, &e) ||
	    vhost_front_share(&front, &(struct vhost_front_range){ area.base, size, area.fd }, 1,
			      &e) ||
	    vhost_front_ring_start(&front, 0, NUM, ring.desc, ring.avail, ring.used, kick, call,
				   &e))
		die(e.text);
	if (!(front.features & FEATURE(VIRTIO_F_INDIRECT_DESC)))
		die("the device knows no indirect tables");
	sectors = from_le64(config.capacity);
	run(depth, seconds, kick);
	vhost_front_ring_stop(&front, 0, &e);
	vhost_front_close(&front);
}

int main(int argc, char **argv)
{
	unsigned depth = argc == 4 ? (unsigned)atoi(argv[2]) : 0;
	double seconds = argc == 4 ? atof(argv[3]) : 0;
	size_t size = vring_size(NUM) + sizeof(*shared);
	struct err e = { 0 };
	pthread_t device;
	char *memory;

	if (depth < 1 || depth > NUM || !(seconds > 0))
		die("usage: lean SOCKET|ring DEPTH SECONDS");
	if (dma_zalloc_shared(size, true, (void **)&memory, &e))
		die(e.text);
	sched_getaffinity(0, sizeof(allowed), &allowed);
	latency = calloc(LATENCIES, sizeof(*latency));
	if (!latency)
		die("out of memory");
	shared = (struct shared *)(void *)(memory + vring_size(NUM));
	vring_init(&ring, memory, NUM, false);
	build();
	pin(false);
	if (strcmp(argv[1], "ring") != 0) {
		run_socket(argv[1], memory, size, depth, seconds);
		return 0;
	}
	ring.used->flags = to_le16(VIRTQ_USED_F_NO_NOTIFY);
	if (pthread_create(&device, NULL, follow_ring, NULL))
		die("no thread");
	run(depth, seconds, -1);
	atomic_store(&stop, true);
	pthread_join(device, NULL);
	return 0;
}
