/*
 * libFuzzer target: rings and requests. The input is guest memory: its first bytes are the
 * descriptor table, then the avail ring, then whatever the chains point to. The device's side is
 * the real one, vhost_blk on a RAM disk, turned by hand.
 *
 * Layout, in 64 KiB of guest memory at GPA 0: input byte 0 chooses features and the ring's format,
 * the rest lies from 0 on; desc at 0, avail at 0x400, used at 0x800 (16 entries); of a packed ring
 * (13 entries) these are the ring, the driver's and the device's event area. With bit 4 there is an
 * in-flight region at 0xc00, which another back-end may have left, or nobody.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "bdev/registry.h"
#include "ctl/drivers.h"
#include "export/vhost_blk_queue.h"
#include "util/log.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);

#define NUM	    16
#define NUM_PACKED  13
#define MEM	    (64u << 10)
#define AVAIL_AT    0x400
#define USED_AT	    0x800
#define INFLIGHT_AT 0xc00
#define DISK	    (64u << 10)

static struct reactor *reactor;
static struct bdev *bdev;
static struct guest_mem *guest;
static char *memory;
static struct vhost_blk_disk disk = {
	.max_discard = DISK, .max_zeroes = DISK, .discard = true, .id = "fuzz"
};

/* A ring of either format; the one that an input is not for is broken, and lies still. */
static struct rig {
	struct virtq_setup setup;
	struct virtq *vq;
	struct vhost_blk_queue *queue;
} rigs[2] = {
	{ .setup = { .num = NUM, .avail_user = AVAIL_AT, .used_user = USED_AT } },
	{ .setup = { .num = NUM_PACKED,
		     .avail_user = AVAIL_AT,
		     .used_user = USED_AT,
		     .base = 0x80008000, /* slot 0 and wrap counter 1, twice */
		     .features = FEATURE(VIRTIO_F_RING_PACKED) } },
};

static void make_disk(void)
{
	const struct bdev_driver *d = driver_find("malloc");
	void *args = calloc(1, d->args_size);
	struct err e = { 0 };

	if (param_parse_spec(d->params, args, "name=fuzz,size=64K,block_size=512", &e) ||
	    bdev_create(d, args, NULL, &e) || bdev_get("fuzz", &bdev, &e))
		abort();
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	struct guest_range range = { 0, MEM, 0, 0 };
	struct err e = { 0 };
	int fd = memfd_create("fuzz", 0);

	(void)argc;
	(void)argv;
	log_set_level(LOG_SILENT);
	if (reactor_create(&reactor) || ftruncate(fd, MEM) < 0 ||
	    guest_mem_map(&range, &fd, 1, 1, &guest, &e))
		abort();
	memory = guest->region[0]->host;
	make_disk();
	for (struct rig *r = rigs; r < rigs + 2; r++) {
		if (virtq_create(&r->setup, &r->vq) || virtq_map(r->vq, &r->setup, guest, &e) ||
		    virtq_begin(r->vq, &r->setup, NULL, &e) ||
		    vhost_blk_queue_start(bdev, &disk, r->vq, -1, reactor, POLL_ALWAYS, false,
					  &r->queue, &e))
			abort();
		virtq_break(r->vq, "not its turn");
	}
	return 0;
}

/* No chain may lose its head: what was taken from the avail ring is in the used ring, each once. */
static void check_used(const struct virtq *vq, uint16_t first)
{
	if (!vq->packed && !vq->broken && /* the head that broke it counts as taken */
	    (vq->last_avail != (uint16_t)(vq->used_idx - first) || vq->published != vq->used_idx))
		abort();
	for (unsigned i = 0; i < vq->num; i++)
		if (vq->packed ? vq->chain_n[i] : vq->busy[i])
			abort();
}

/* The region is the front-end's to forge. */
static bool open_inflight(struct rig *r, struct virtq_inflight *f)
{
	const uint16_t num = (uint16_t)r->setup.num;
	void *region = memory + INFLIGHT_AT;
	struct err e = { 0 };

	if (r->vq->packed)
		return !inflight_packed_open(region, num, num, r->setup.base, r->vq->ring, f, &e);
	return !inflight_open(region, num, num, from_le16(r->vq->used->idx), f, &e);
}

static void run(struct rig *r, struct virtq_inflight *f)
{
	struct err e = { 0 };
	uint16_t used;

	if (virtq_begin(r->vq, &r->setup, f, &e))
		return;
	vhost_blk_set_format(r->queue);
	used = r->vq->used_idx;
	for (int turn = 0; turn < 4; turn++)
		reactor_turn(reactor);
	if (!f) /* what is resubmitted was taken before */
		check_used(r->vq, used);
	if (guest->use[0].inflight || r->queue->inflight)
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct virtq_inflight f = { 0 };
	struct rig *r;

	if (size < 1)
		return 0;
	r = &rigs[data[0] >> 3 & 1];
	memset(memory, 0, MEM);
	memcpy(memory, data + 1, MIN(size - 1, MEM));
	r->setup.features = (data[0] & 1 ? FEATURE(VIRTIO_F_EVENT_IDX) : 0) |
			    (r->vq->packed ? FEATURE(VIRTIO_F_RING_PACKED) : 0);
	disk.readonly = data[0] & 2;
	r->queue->write_through = data[0] & 4;
	if (!(data[0] & 16)) {
		run(r, NULL);
	} else if (open_inflight(r, &f)) {
		run(r, &f);
		virtq_break(r->vq, "its region goes");
		inflight_close(&f);
	}
	virtq_break(r->vq, "not its turn");
	return 0;
}
