#include "bench/driver.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "mem/mem.h"

#define DRIVERS_MAX 64

static cpu_set_t allowed;

void driver_die(const char *why)
{
	fprintf(stderr, "%s: %s\n", program_invocation_short_name, why);
	exit(1);
}

void driver_pin(bool first)
{
	int cpu = first ? 0 : CPU_SETSIZE - 1;
	cpu_set_t one;

	if (CPU_COUNT(&allowed) == 0)
		sched_getaffinity(0, sizeof(allowed), &allowed);
	while (!CPU_ISSET(cpu, &allowed))
		cpu += first ? 1 : -1;
	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	pthread_setaffinity_np(pthread_self(), sizeof(one), &one);
}

static void put(struct virtq_desc *at, const void *p, size_t len, uint16_t flags, uint16_t next)
{
	*at = (struct virtq_desc){ to_le64((uintptr_t)p), to_le32((uint32_t)len), to_le16(flags),
				   to_le16(next) };
}

static void build(struct driver *d)
{
	for (unsigned i = 0; i < DRIVER_NUM; i++) {
		struct driver_slot *s = &d->shared->slot[i];

		s->hdr.type = to_le32(VIRTIO_BLK_T_IN);
		put(&s->table[0], &s->hdr, sizeof(s->hdr), VIRTQ_DESC_F_NEXT, 1);
		put(&s->table[1], d->shared->data[i], sizeof(d->shared->data[i]),
		    VIRTQ_DESC_F_NEXT | VIRTQ_DESC_F_WRITE, 2);
		put(&s->table[2], &s->status, 1, VIRTQ_DESC_F_WRITE, 0);
		put(&d->ring.desc[i], s->table, sizeof(s->table), VIRTQ_DESC_F_INDIRECT, 0);
	}
}

void driver_init(struct driver *d)
{
	struct dma_shared all[DRIVERS_MAX];
	struct err e = { 0 };
	char *memory;
	unsigned n;

	*d = (struct driver){ .sectors = 1 << 21, .seed = 0x9e3779b97f4a7c15, .kick = -1 };
	d->size = vring_size(DRIVER_NUM) + sizeof(*d->shared);
	if (dma_zalloc_shared(d->size, true, (void **)&memory, &e))
		driver_die(e.text);
	n = dma_shared_list(all, DRIVERS_MAX);
	d->fd = n > 0 && all[n - 1].base == memory ? all[n - 1].fd : -1;
	d->shared = (struct driver_shared *)(void *)(memory + vring_size(DRIVER_NUM));
	vring_init(&d->ring, memory, DRIVER_NUM, false);
	build(d);
}

void driver_open(struct driver *d, const char *path)
{
	struct virtio_blk_config config;
	struct vhost_front_range range = { d->ring.desc, d->size, d->fd };
	struct err e = { 0 };

	d->kick = eventfd(0, EFD_NONBLOCK);
	if (vhost_front_open(path, FEATURE(VIRTIO_F_INDIRECT_DESC), &d->front, &e) ||
	    vhost_front_config(&d->front, &config, &e) ||
	    vhost_front_share(&d->front, &range, 1, &e) ||
	    vhost_front_ring_start(&d->front, 0, DRIVER_NUM, d->ring.desc, d->ring.avail,
				   d->ring.used, d->kick, eventfd(0, EFD_NONBLOCK), &e))
		driver_die(e.text);
	if (!(d->front.features & FEATURE(VIRTIO_F_INDIRECT_DESC)))
		driver_die("the device knows no indirect tables");
	d->sectors = from_le64(config.capacity);
}

void driver_close(struct driver *d)
{
	struct err e = { 0 };

	vhost_front_ring_stop(&d->front, 0, &e);
	vhost_front_close(&d->front);
}

/* --- requests --- */

static uint64_t random_sector(struct driver *d)
{
	d->seed = d->seed * UINT64_C(6364136223846793005) + 1442695040888963407;
	return (d->seed >> 33) % (d->sectors / 8) * 8;
}

void driver_send(struct driver *d, uint16_t head)
{
	struct driver_slot *s = &d->shared->slot[head];

	s->hdr.sector = to_le64(random_sector(d));
	s->status = 0xff;
	vring_add(&d->ring, head);
}

bool driver_publish(struct driver *d)
{
	static const uint64_t one = 1;

	if (!vring_publish(&d->ring))
		return false;
	if (write(d->kick, &one, sizeof(one)) < 0)
		driver_die("cannot kick");
	return true;
}

uint16_t driver_take(struct driver *d)
{
	uint32_t head = vring_next_used(&d->ring);

	if (head >= DRIVER_NUM || d->shared->slot[head].status)
		driver_die("a request failed");
	return (uint16_t)head;
}
