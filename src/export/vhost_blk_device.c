/* The disk as a session sees it: rings, features, configuration space, write cache mode.
 * Virtio 1.2, 5.2. */
#include <errno.h>
#include <string.h>

#include "bdev/registry.h"
#include "export/vhost_blk_ctrl.h"

#define WITHOUT_LIMIT_MAX (4u << 20) /* bytes of zeroes per range where the driver writes them */

/*
 * The write cache mode as the driver believes it to be. One that has read the configuration space
 * in this connection, or in an earlier one of this process, knows what we know. One that reconnects
 * after a restart of the daemon (QEMU does not read it again then) may have turned the cache off:
 * the note in the in-flight region says so, and without a note it is taken to be off.
 */
static void recall_writeback(struct vhost_blk *v)
{
	int note = vhost_session_note_get(v->session);

	if (v->mode_known)
		return;
	v->config.writeback = note == 1;
	v->mode_known = note >= 0;
}

/* 5.2.6.2: is a completed write durable at once? */
static void set_write_through(struct vhost_blk *v)
{
	bool flush = v->features & FEATURE(VIRTIO_BLK_F_FLUSH),
	     wce = v->features & FEATURE(VIRTIO_BLK_F_CONFIG_WCE);

	if (wce)
		recall_writeback(v);
	WRITE_ONCE(v->write_through, wce ? !v->config.writeback : !flush);
	if (wce && v->mode_known)
		vhost_session_note_set(v->session, v->config.writeback);
	for (uint64_t i = 0; i < v->args->num_queues; i++)
		if (v->queue[i])
			WRITE_ONCE(v->queue[i]->write_through, v->write_through);
}

static int ring_start(void *device, struct virtq *vq, int kick_fd, struct err *e)
{
	struct vhost_blk *v = device;
	struct reactor *r;
	struct vhost_blk_queue *q;
	uint64_t poll_us =
		v->args->poll_us == VHOST_BLK_POLL_DAEMON ? reactor_poll_us() : v->args->poll_us;
	int rc;

	set_write_through(v); /* the in-flight region may have come since the features */
	registry_lock();
	r = vhost_blk_place(v);
	registry_unlock();
	rc = vhost_blk_queue_start(v->bdev, &v->disk, vq, kick_fd, r, poll_us, v->write_through, &q,
				   e);
	if (rc)
		return rc;
	registry_lock(); /* those who list controllers look at queues under it */
	v->queue[vq->index] = q;
	vhost_blk_seat(r, 1);
	registry_unlock();
	return 0;
}

static void ring_pause(void *device, struct virtq *vq)
{
	struct vhost_blk *v = device;

	vhost_blk_queue_pause(v->queue[vq->index]);
}

static void ring_resume(void *device, struct virtq *vq)
{
	struct vhost_blk *v = device;

	vhost_blk_queue_resume(v->queue[vq->index]);
}

static void ring_abandon(void *device, struct virtq *vq, void *scratch)
{
	struct vhost_blk *v = device;

	vhost_blk_queue_abandon(v->queue[vq->index], scratch);
}

static void ring_stop(void *device, struct virtq *vq)
{
	struct vhost_blk *v = device;
	struct vhost_blk_queue *q = v->queue[vq->index];

	registry_lock();
	v->queue[vq->index] = NULL;
	vhost_blk_totals_add(&v->gone, q);
	vhost_blk_seat(q->reactor, -1);
	registry_unlock();
	vhost_blk_queue_stop(q, v->args->ctrlr);
}

static void features_set(void *device, uint64_t features)
{
	struct vhost_blk *v = device;

	v->features = features;
	if (features & FEATURE(VIRTIO_BLK_F_CONFIG_WCE) &&
	    !(features & FEATURE(VIRTIO_BLK_F_FLUSH))) {
		v->config.writeback = 0;
		v->mode_known = true;
	}
	set_write_through(v);
}

static void config_get(void *device, uint32_t offset, void *data, uint32_t len)
{
	struct vhost_blk *v = device;
	uint8_t space[256] = { 0 };

	if (v->features ==
	    0) { /* before the features: a new driver, which starts with the default */
		v->config.writeback = 1;
		v->mode_known = true;
	}
	memcpy(space, &v->config, sizeof(v->config));
	memcpy(data, space + offset, len);
}

/* Only `writeback` can be written. */
static int config_set(void *device, uint32_t offset, const void *data, uint32_t len, struct err *e)
{
	struct vhost_blk *v = device;
	uint8_t value;

	if (offset != offsetof(struct virtio_blk_config, writeback) || len != 1)
		return err_set(
			e, -EINVAL,
			"only the writeback byte of the configuration space can be written, not %u "
			"bytes at %u",
			len, offset);
	memcpy(&value, data, 1);
	if (value > 1)
		return err_set(e, -EINVAL, "writeback is 0 or 1, not %u", value);
	v->config.writeback = value;
	v->mode_known = true;
	set_write_through(v);
	return 0;
}

const struct vhost_device_ops vhost_blk_device_ops = {
	.ring_start = ring_start,
	.ring_pause = ring_pause,
	.ring_resume = ring_resume,
	.ring_abandon = ring_abandon,
	.ring_stop = ring_stop,
	.config_get = config_get,
	.config_set = config_set,
	.features_set = features_set,
};

uint64_t vhost_blk_device_features(const struct vhost_blk *v)
{
	uint64_t f = FEATURE(VIRTIO_BLK_F_SEG_MAX) | FEATURE(VIRTIO_BLK_F_BLK_SIZE) |
		     FEATURE(VIRTIO_BLK_F_FLUSH) | FEATURE(VIRTIO_BLK_F_TOPOLOGY) |
		     FEATURE(VIRTIO_BLK_F_CONFIG_WCE) | FEATURE(VIRTIO_BLK_F_MQ);

	if (v->args->packed_ring)
		f |= FEATURE(VIRTIO_F_RING_PACKED);
	if (v->disk.readonly)
		return f | FEATURE(VIRTIO_BLK_F_RO);
	if (v->disk.discard)
		f |= FEATURE(VIRTIO_BLK_F_DISCARD);
	if (v->disk.max_zeroes)
		f |= FEATURE(VIRTIO_BLK_F_WRITE_ZEROES);
	return f;
}

static void fill_disk(struct vhost_blk *v)
{
	const struct bdev *b = v->bdev;
	const char *serial = v->args->serial ? v->args->serial : v->args->ctrlr;

	v->disk.readonly = v->args->readonly || b->readonly;
	v->disk.discard = b->limits.max_discard > 0;
	v->disk.max_discard = ROUND_DOWN(b->limits.max_discard, b->block_size);
	if (!b->limits.no_zeroes)
		v->disk.max_zeroes = b->limits.zeroes_unmap_only || !b->limits.max_zeroes
					     ? WITHOUT_LIMIT_MAX
					     : ROUND_DOWN(b->limits.max_zeroes, b->block_size);
	memcpy(v->disk.id, serial, strnlen(serial, sizeof(v->disk.id)));
}

static void fill_config(struct vhost_blk *v)
{
	const struct bdev *b = v->bdev;
	uint32_t sectors = b->block_size >> VIRTIO_BLK_SECTOR_SHIFT;

	v->config = (struct virtio_blk_config){
		.capacity = to_le64(b->size >> VIRTIO_BLK_SECTOR_SHIFT),
		.seg_max = to_le32(VHOST_BLK_SEG_MAX),
		.blk_size = to_le32(b->block_size),
		.topology.physical_block_exp =
			(uint8_t)__builtin_ctz(b->physical_block_size / b->block_size),
		.topology.min_io_size = to_le16((uint16_t)(b->physical_block_size / b->block_size)),
		.writeback = 1,
		.num_queues = to_le16((uint16_t)v->args->num_queues),
		.max_discard_sectors = to_le32(v->disk.max_discard >> VIRTIO_BLK_SECTOR_SHIFT),
		.max_discard_seg = to_le32(VHOST_BLK_RANGES),
		.discard_sector_alignment = to_le32(sectors),
		.max_write_zeroes_sectors = to_le32(v->disk.max_zeroes >> VIRTIO_BLK_SECTOR_SHIFT),
		.max_write_zeroes_seg = to_le32(VHOST_BLK_RANGES),
		.write_zeroes_may_unmap = v->disk.discard,
	};
}

void vhost_blk_device_resize(struct vhost_blk *v)
{
	registry_lock();
	v->config.capacity = to_le64(v->bdev->size >> VIRTIO_BLK_SECTOR_SHIFT);
	registry_unlock();
}

void vhost_blk_device_init(struct vhost_blk *v)
{
	fill_disk(v);
	fill_config(v);
}
