/*
 * cost CASE COUNT [DEPTH]: run one piece of the data path COUNT times in this thread, for counting
 *instructions. All the work happens inside reactor_turn(), so `valgrind --tool=callgrind
 *--toggle-collect=reactor_turn` counts the daemon's side alone; scripts/cost does that and divides.
 *
 *	bdev-null, bdev-malloc	submit and completion of a 4 KiB read, 128 in flight
 *	bdev-nvme		the same to an NVMe controller in memory and back
 *	vhost-null		a 4 KiB read from ring to null and back: split ring, indirect, 128
 *in flight vhost-null-direct	the same with three descriptors in the ring, 85 in flight
 *	vhost-null-inflight	the same as vhost-null with the in-flight region
 *	vhost-null-pieces	the same as vhost-null with 8 buffers of 4 KiB
 *	vhost-null-packed	packed ring, indirect; vhost-null-packed-inflight: with the region
 *	vhost-malloc		to a RAM disk
 *	empty-poll		a turn with one ring that has nothing (less empty-turn)
 *	empty-turn		a turn with no ring
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "backend/list.h"
#include "bdev/registry.h"
#include "ctl/drivers.h"
#include "export/vhost_blk_queue.h"
#include "fake/fake_nvme.h"
#include "util/log.h"
#include "virtio/inflight.h"

#define NUM   256
#define DEPTH 128
#define MEM   (4u << 20)

#define DESC_AT	 0
#define AVAIL_AT (64u << 10)
#define USED_AT	 (128u << 10)
#define TABLE_AT (192u << 10)
#define HDR_AT	 (256u << 10)
#define DATA_AT	 (1u << 20)

static struct reactor *reactor;
static struct bdev *bdev;
static char *memory;
static struct guest_mem *guest;
static struct virtq *vq;

static void die(const char *what)
{
	fprintf(stderr, "cost: %s\n", what);
	exit(1);
}

static void open_disk(const char *kind)
{
	const struct bdev_driver *d = driver_find(kind);
	void *args = calloc(1, d->args_size);
	struct err e = { 0 };

	param_defaults(d->params, args);
	if (param_parse_spec(d->params, args, "name=cost,size=64M,block_size=512", &e) ||
	    bdev_create(d, args, NULL, &e) || bdev_get("cost", &bdev, &e))
		die(e.text);
}

/* --- an NVMe controller in memory --- */

static struct fake_nvme *nvme;

static void nothing_to_close(struct nvme_hw *hw)
{
	(void)hw;
}

static struct nvme_attach_args *nvme_args(void)
{
	struct nvme_attach_args *a = calloc(1, sizeof(*a));

	param_defaults(nvme_attach_params, a);
	a->name = strdup("Nvme");
	a->trtype = strdup("PCIe");
	a->traddr = strdup("0000:00:00.0");
	return a;
}

/* It answers by itself while queues are made, and by hand later. */
static void open_nvme(void)
{
	struct fake_nvme_config c = fake_nvme_defaults();
	struct err e = { 0 };
	char **names;
	unsigned n;

	c.iommu = fake_iommu_create(0x1000, UINT64_MAX / 2);
	nvme = fake_nvme_create(&c);
	if (!nvme || iommu_attach(fake_iommu_hw(c.iommu), &e) || fake_nvme_start(nvme) ||
	    nvme_attach_hw(nvme_args(), fake_nvme_hw(nvme), nothing_to_close, -1, &names, &n, &e) ||
	    bdev_get(names[0], &bdev, &e))
		die(e.text);
}

/* --- bdev alone --- */

struct slot {
	struct iovec iov;
	struct slot *next;
	alignas(CACHE_LINE) struct bdev_io io;
};

static struct {
	struct poller poller;
	struct slot *free;
	long left, in_flight;
} user;

static void slot_done(struct task *t)
{
	struct slot *s = container_of(t, struct slot, io.task);

	s->next = user.free;
	user.free = s;
	user.in_flight--;
}

static unsigned user_poll(struct poller *p)
{
	unsigned n = 0;

	(void)p;
	for (; user.free && user.left > 0; n++, user.left--) {
		struct slot *s = user.free;

		user.free = s->next;
		user.in_flight++;
		bdev_submit(&s->io);
	}
	return n;
}

static void run_bdev(const char *kind, long count, unsigned depth)
{
	struct bdev_queue *q;
	struct err e = { 0 };
	size_t stride;
	char *slots;

	if (strcmp(kind, "nvme") == 0)
		open_nvme();
	else
		open_disk(kind);
	if (bdev_queue_open(bdev, reactor, &q, &e))
		die(e.text);
	if (nvme)
		fake_nvme_stop(nvme);
	stride = ROUND_UP(sizeof(struct slot) + bdev->ctx_size, CACHE_LINE);
	slots = aligned_alloc(CACHE_LINE, depth * stride);
	memset(slots, 0, depth * stride);
	/* for scripts/cost-lines: the first line of each is the user's */
	printf("slots %p size 0x%zx stride 0x%zx\n", (void *)slots, depth * stride, stride);
	fflush(stdout);
	for (unsigned i = 0; i < depth; i++) {
		struct slot *s = (void *)(slots + i * stride);

		s->iov = (struct iovec){ memory + DATA_AT + i * 4096, 4096 };
		s->io = (struct bdev_io){ .task.fn = slot_done,
					  .q = q,
					  .iov = &s->iov,
					  .iovcnt = 1,
					  .len = 4096,
					  .offset = (uint64_t)i * 4096,
					  .op = BDEV_READ };
		s->next = user.free;
		user.free = s;
	}
	user.left = count;
	user.poller = (struct poller){ .fn = user_poll, .patience.most = POLL_ALWAYS };
	poller_add(&user.poller);
	while (user.left > 0 || user.in_flight > 0) {
		reactor_turn(reactor);
		if (nvme)
			fake_nvme_turn(nvme);
	}
}

/* --- from ring to ring --- */

static void put_desc(struct virtq_desc *d, uint64_t addr, uint32_t len, uint16_t flags,
		     uint16_t next)
{
	*d = (struct virtq_desc){ to_le64(addr), to_le32(len), to_le16(flags), to_le16(next) };
}

static unsigned pieces = 1; /* buffers of a request */

static void put_request(struct virtq_desc *table, uint16_t first, unsigned i)
{
	struct virtio_blk_req_hdr *h = (void *)(memory + HDR_AT + i * 64);
	unsigned n = 0;

	h->type = to_le32(VIRTIO_BLK_T_IN);
	h->sector = to_le64(i * 8);
	put_desc(&table[n++], HDR_AT + i * 64, 16, VIRTQ_DESC_F_NEXT, (uint16_t)(first + 1));
	for (unsigned k = 0; k < pieces; k++, n++)
		put_desc(&table[n], DATA_AT + ((i + k) % DEPTH) * 4096, 4096,
			 VIRTQ_DESC_F_NEXT | VIRTQ_DESC_F_WRITE, (uint16_t)(first + n + 1));
	put_desc(&table[n], HDR_AT + i * 64 + 16, 1, VIRTQ_DESC_F_WRITE, 0);
}

/* Returns how many requests fit. */
static unsigned fill_ring(bool indirect)
{
	struct virtq_desc *ring = (void *)(memory + DESC_AT);
	unsigned n = indirect ? DEPTH : NUM / 3;

	for (unsigned i = 0; i < n; i++) {
		uint64_t at = TABLE_AT + i * 64 * pieces;

		if (indirect) {
			put_request((void *)(memory + at), 0, i);
			put_desc(&ring[i], at, 16 * (pieces + 2), VIRTQ_DESC_F_INDIRECT, 0);
		} else {
			put_request(&ring[i * 3], (uint16_t)(i * 3), i);
		}
	}
	return n;
}

static void start_queue(bool packed, bool inflight)
{
	static const struct vhost_blk_disk disk = { .id = "cost" };
	struct virtq_setup setup = {
		.num = NUM,
		.avail_user = AVAIL_AT,
		.used_user = USED_AT,
		.base = packed ? VIRTQ_WRAP | (uint32_t)VIRTQ_WRAP << 16 : 0,
		.features = packed ? FEATURE(VIRTIO_F_RING_PACKED) : 0,
	};
	static struct virtq_inflight tracked;
	void *region = calloc(1, inflight_stride(NUM, packed));
	struct vhost_blk_queue *q;
	struct err e = { 0 };

	if (virtq_create(&setup, &vq) || virtq_map(vq, &setup, guest, &e))
		die(e.text);
	if (inflight &&
	    (packed ? inflight_packed_open(region, NUM, NUM, setup.base, vq->ring, &tracked, &e)
		    : inflight_open(region, NUM, NUM, 0, &tracked, &e)))
		die(e.text);
	if (virtq_begin(vq, &setup, inflight ? &tracked : NULL, &e))
		die(e.text);
	if (vhost_blk_queue_start(bdev, &disk, vq, -1, reactor, POLL_ALWAYS, false, &q, &e))
		die(e.text);
}

static void run_vhost(const char *kind, long count, bool indirect, bool inflight, unsigned n)
{
	struct virtq_avail *avail = (void *)(memory + AVAIL_AT);
	struct virtq_used *used = (void *)(memory + USED_AT);
	uint16_t idx = 0, seen = 0;
	unsigned depth;

	pieces = n;
	depth = fill_ring(indirect);
	open_disk(kind);
	avail->flags = to_le16(VIRTQ_AVAIL_F_NO_INTERRUPT);
	start_queue(false, inflight);
	for (unsigned i = 0; i < depth; i++)
		avail->ring[idx++ % NUM] = to_le16((uint16_t)(indirect ? i : i * 3));
	store_release(&avail->idx, to_le16(idx));
	while (count > 0) { /* the driver: give each head back as soon as it comes */
		reactor_turn(reactor);
		for (; seen != from_le16(load_acquire(&used->idx)); seen++, count--)
			avail->ring[idx++ % NUM] =
				to_le16((uint16_t)from_le32(used->ring[seen % NUM].id));
		store_release(&avail->idx, to_le16(idx));
	}
}

/* The driver's place in a packed ring. */
struct place {
	uint16_t slot;
	bool wrap;
};

static void step(struct place *p)
{
	if (++p->slot == NUM) {
		p->slot = 0;
		p->wrap = !p->wrap;
	}
}

static void put_packed(struct virtq_packed_desc *ring, struct place *p, uint16_t id)
{
	struct virtq_packed_desc *d = &ring[p->slot];

	d->addr = to_le64(TABLE_AT + id * 64u);
	d->len = to_le32(48);
	d->id = to_le16(id);
	store_release(&d->flags,
		      to_le16((uint16_t)(VIRTQ_DESC_F_INDIRECT |
					 (p->wrap ? VIRTQ_DESC_F_AVAIL : VIRTQ_DESC_F_USED))));
	step(p);
}

static void run_packed(long count, bool inflight)
{
	struct virtq_packed_desc *ring = (void *)(memory + DESC_AT);
	struct virtq_event *driver = (void *)(memory + AVAIL_AT);
	struct place next = { 0, true }, used = { 0, true };

	for (unsigned i = 0; i < DEPTH; i++) {
		struct virtq_packed_desc *t = (void *)(memory + TABLE_AT + i * 64);

		put_request((struct virtq_desc *)(void *)t, 0, i);
		for (unsigned k = 0; k < 3; k++)
			t[k].flags = to_le16(k ? VIRTQ_DESC_F_WRITE : 0);
	}
	open_disk("null");
	driver->flags = to_le16(VIRTQ_EVENT_DISABLE);
	start_queue(true, inflight);
	for (uint16_t i = 0; i < DEPTH; i++)
		put_packed(ring, &next, i);
	while (count > 0) {
		reactor_turn(reactor);
		while ((from_le16(load_acquire(&ring[used.slot].flags)) & VIRTQ_LAP) ==
		       (used.wrap ? VIRTQ_LAP : 0)) {
			put_packed(ring, &next, from_le16(ring[used.slot].id));
			step(&used);
			count--;
		}
	}
}

static void run_empty(long count, bool ring)
{
	open_disk("null");
	if (ring)
		start_queue(false, false);
	for (; count > 0; count--)
		reactor_turn(reactor);
}

static void map_memory(void)
{
	struct guest_range range = { 0, MEM, 0, 0 };
	int fd = memfd_create("cost", 0);
	struct err e = { 0 };

	if (ftruncate(fd, MEM) < 0 || guest_mem_map(&range, &fd, 1, 1, &guest, &e))
		die("no memory");
	memory = guest->region[0]->host;
	/* for scripts/cost-lines */
	printf("guest memory %p size 0x%x reactor_turn %p stack %p\n", (void *)memory, MEM,
	       (void *)(uintptr_t)reactor_turn, (void *)&range);
	fflush(stdout);
}

int main(int argc, char **argv)
{
	long count = argc >= 3 ? atol(argv[2]) : 0;
	unsigned depth = argc == 4 ? (unsigned)atoi(argv[3]) : DEPTH; /* of bdev cases */
	const char *what = argc >= 3 ? argv[1] : "";

	log_set_level(LOG_ERROR);
	if (count <= 0 || depth == 0 || depth > DEPTH || reactor_create(&reactor))
		die("usage: cost CASE COUNT [DEPTH]");
	map_memory();
	if (strcmp(what, "bdev-null") == 0)
		run_bdev("null", count, depth);
	else if (strcmp(what, "bdev-malloc") == 0)
		run_bdev("malloc", count, depth);
	else if (strcmp(what, "bdev-nvme") == 0)
		run_bdev("nvme", count, depth);
	else if (strcmp(what, "vhost-null") == 0)
		run_vhost("null", count, true, false, 1);
	else if (strcmp(what, "vhost-null-direct") == 0)
		run_vhost("null", count, false, false, 1);
	else if (strcmp(what, "vhost-null-inflight") == 0)
		run_vhost("null", count, true, true, 1);
	else if (strcmp(what, "vhost-null-pieces") == 0)
		run_vhost("null", count, true, false, 8);
	else if (strcmp(what, "vhost-null-packed") == 0)
		run_packed(count, false);
	else if (strcmp(what, "vhost-null-packed-inflight") == 0)
		run_packed(count, true);
	else if (strcmp(what, "vhost-malloc") == 0)
		run_vhost("malloc", count, true, false, 1);
	else if (strcmp(what, "empty-poll") == 0)
		run_empty(count, true);
	else if (strcmp(what, "empty-turn") == 0)
		run_empty(count, false);
	else
		die("there is no such case");
	return 0;
}
