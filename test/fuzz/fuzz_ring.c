/*
 * libFuzzer target: rings and requests. The input is guest memory: its first bytes are the
 * descriptor table, then the avail ring, then whatever the chains point to. The device's side is
 * the real one, vhost_blk on a RAM disk, turned by hand.
 *
 * Layout, in 64 KiB of guest memory at GPA 0: input byte 0 chooses features and the ring's format,
 * the rest lies from 0 on; desc at 0, avail at 0x400, used at 0x800 (16 entries); of a packed ring
 * these are the ring, the driver's and the device's event area.
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

#define RING_PACKED FEATURE(34)

static struct reactor *reactor;
static struct bdev *bdev;
static struct guest_mem *guest;
static char *memory;
static struct vhost_blk_disk disk = {
	.size = DISK, .max_discard = DISK, .max_zeroes = DISK, .discard = true, .id = "fuzz"
};

static struct virtq *vq;
static struct vhost_blk_queue *queue;
static struct virtq_setup setup = { .num = NUM, .avail_user = AVAIL_AT, .used_user = USED_AT };

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
	log_set_level((enum log_level) - 1);
	if (reactor_create(&reactor) || ftruncate(fd, MEM) < 0 ||
	    guest_mem_map(&range, &fd, 1, 1, &guest, &e))
		abort();
	memory = guest->region[0]->host;
	make_disk();
	if (virtq_create(NUM, &vq) || virtq_map(vq, &setup, guest, &e) ||
	    vhost_blk_queue_start(bdev, &disk, vq, -1, reactor, false, &queue, &e))
		abort();
	return 0;
}

/* No chain may lose its head: what was taken from the avail ring is in the used ring, each once. */
static void check_used(uint16_t first, bool packed)
{
	if (!packed &&
	    (vq->last_avail != (uint16_t)(vq->used_idx - first) || vq->published != vq->used_idx))
		abort();
	for (unsigned i = 0; i < NUM; i++)
		if (vq->busy[i])
			abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct err e = { 0 };
	uint16_t used;
	bool packed;

	if (size < 1)
		return 0;
	packed = data[0] & 8;
	memset(memory, 0, MEM);
	memcpy(memory, data + 1, MIN(size - 1, MEM));
	setup.features = data[0] & 1 ? FEATURE(VIRTIO_F_EVENT_IDX) : 0;
	setup.features |= packed ? RING_PACKED : 0;
	disk.readonly = data[0] & 2;
	queue->write_through = data[0] & 4;
	if (virtq_map(vq, &setup, guest, &e))
		abort();
	virtq_begin(vq, &setup, NULL);
	used = vq->used_idx;
	for (int turn = 0; turn < 4; turn++)
		reactor_turn(reactor);
	check_used(used, packed);
	if (guest->use[0].inflight || queue->inflight)
		abort();
	return 0;
}
