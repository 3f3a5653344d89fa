/*
 * libFuzzer target: rings, in-flight regions and requests. The input is guest memory: its first
 * bytes are the descriptor table, then the avail ring, then whatever the chains point to. The
 * device's side is the real one, vhost_blk on a RAM disk, turned by hand.
 *
 * Layout, in 64 KiB of guest memory at GPA 0: input byte 0 chooses features, the ring's format and
 * whether there is an in-flight region, the rest lies from 0 on; desc at 0, avail at 0x400, used at
 * 0x800 (16 entries); of a packed ring these are the ring, the driver's and the device's event
 * area. The in-flight region lies at 0xc00.
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

#define NUM	 16
#define MEM	 (64u << 10)
#define AVAIL_AT 0x400
#define USED_AT	 0x800
#define DISK	 (64u << 10)

#define REGION_AT 0xc00

enum { EVENT_IDX = 1, READONLY = 2, WRITE_THROUGH = 4, PACKED = 8, INFLIGHT = 16, WRAP = 32 };

static struct reactor *reactor;
static struct bdev *bdev;
static struct guest_mem *guest;
static char *memory;
static struct vhost_blk_disk disk = {
	.size = DISK, .max_discard = DISK, .max_zeroes = DISK, .discard = true, .id = "fuzz"
};

/* One ring of each format, of which the other is paused. */
static struct side {
	struct virtq_setup setup;
	struct virtq *vq;
	struct vhost_blk_queue *queue;
} sides[2];

static void make_disk(void)
{
	const struct bdev_driver *d = driver_find("malloc");
	void *args = calloc(1, d->args_size);
	struct err e = { 0 };

	if (param_parse_spec(d->params, args, "name=fuzz,size=64K,block_size=512", &e) ||
	    bdev_create(d, args, NULL, &e) || bdev_get("fuzz", &bdev, &e))
		abort();
}

static void make_side(struct side *side, bool packed)
{
	struct err e = { 0 };

	side->setup = (struct virtq_setup){
		.num = NUM,
		.avail_user = AVAIL_AT,
		.used_user = USED_AT,
		.features = packed ? FEATURE(VIRTIO_F_RING_PACKED) : 0,
	};
	if (virtq_create(&side->setup, &side->vq) || virtq_map(side->vq, &side->setup, guest, &e) ||
	    vhost_blk_queue_start(bdev, &disk, side->vq, -1, reactor, false, &side->queue, &e))
		abort();
	vhost_blk_queue_pause(side->queue);
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
	make_side(&sides[0], false);
	make_side(&sides[1], true);
	return 0;
}

/* No chain may lose its head: what was taken is given back, and all of it is told. */
static void check_used(const struct virtq *vq)
{
	if (vq->packed ? vq->put_n || vq->staged_n : vq->published != vq->used_idx)
		abort();
	for (unsigned i = 0; i < NUM && !vq->broken; i++)
		if (vq->packed ? vq->chain_n[i] : vq->busy[i])
			abort();
}

/* The region that the input holds, if it is one for the ring. */
static bool open_region(const struct side *side, struct virtq_inflight *f)
{
	struct err e = { 0 };

	if (side->vq->packed)
		return inflight_packed_open(memory + REGION_AT, NUM, NUM, side->setup.base,
					    side->vq->ring, f, &e) == 0;
	return inflight_open(memory + REGION_AT, NUM, NUM,
			     from_le16(READ_ONCE(side->vq->used->idx)), f, &e) == 0;
}

static void run(struct side *side, uint8_t flags)
{
	struct virtq_inflight f;
	struct err e = { 0 };
	bool tracked;

	if (side->vq->packed && flags & WRAP)
		side->setup.base = VIRTQ_WRAP | (uint32_t)VIRTQ_WRAP << 16;
	else
		side->setup.base = 0;
	tracked = flags & INFLIGHT && open_region(side, &f);
	if (virtq_begin(side->vq, &side->setup, tracked ? &f : NULL, &e) == 0) {
		vhost_blk_set_format(side->queue);
		vhost_blk_queue_resume(side->queue);
		for (int turn = 0; turn < 4; turn++)
			reactor_turn(reactor);
		vhost_blk_queue_pause(side->queue);
		check_used(side->vq);
	}
	if (tracked)
		inflight_close(&f);
	if (guest->use[0].inflight || side->queue->inflight)
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct side *side;

	if (size < 1)
		return 0;
	side = &sides[data[0] & PACKED ? 1 : 0];
	memset(memory, 0, MEM);
	memcpy(memory, data + 1, MIN(size - 1, MEM));
	side->setup.features = (data[0] & EVENT_IDX ? FEATURE(VIRTIO_F_EVENT_IDX) : 0) |
			       (data[0] & PACKED ? FEATURE(VIRTIO_F_RING_PACKED) : 0);
	disk.readonly = data[0] & READONLY;
	side->queue->write_through = data[0] & WRITE_THROUGH;
	run(side, data[0]);
	return 0;
}
