/*
 * virtio: a disk behind somebody's vhost-user-blk socket: the initiator. It drives riffle itself,
 * qemu-storage-daemon and SPDK, as a guest would, without a guest.
 *
 * Data goes straight from buffers that were made to be shared (dma_zalloc_shared) before the first
 * queue was opened; others are copied through a bounce buffer. One connection per disk, one ring
 * per bdev_queue. A control thread waits for the connection's end: then everything in flight fails,
 * and so does what comes later.
 */
#include "backend/virtio.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "backend/list.h"
#include "util/log.h"
#include "virtio/vhost_front.h"

#define QUEUES_MAX \
	(VIRTIO_SHARED_MAX - 2) /* each has a region of its own; the others are for buffers */
#define SIZE_DEFAULT 256
/* Where the device names no limit of its own. */
#define RANGE_MAX (1u << 30)

struct virtio_args {
	char *name, *trtype, *traddr, *dev_type;
	uint64_t vq_count, vq_size;
	struct uuid uuid;
};

static const struct param virtio_params[] = {
	PARAM_STRING(struct virtio_args, traddr, .required = true, .positional = true, .min = 1,
		     .help = "path of the vhost-user-blk socket"),
	PARAM_STRING(struct virtio_args, name, .required = true, .min = 1, .max = 255,
		     .help = "name of the new disk"),
	PARAM_STRING(struct virtio_args, trtype, .help = "user (the only one)"),
	PARAM_STRING(struct virtio_args, dev_type, .help = "blk (the only one)"),
	PARAM_UINT(struct virtio_args, vq_count, .max = QUEUES_MAX,
		   .help = "queues (default: what the device has, at most 6)"),
	PARAM_UINT(struct virtio_args, vq_size, .min = 8, .max = 1024, .def = SIZE_DEFAULT,
		   .help = "entries of a queue, a power of 2"),
	PARAM_UUID(struct virtio_args, uuid, .help = "UUID (default: random)"),
	{ 0 }
};

struct virtio_bdev {
	struct bdev bdev;
	struct vhost_front front;
	struct virtio_blk_config config;
	unsigned queues_n, vq_size;

	/* Of the rings: open_lock guards what follows. */
	pthread_mutex_t lock;
	struct virtio_queue *queue[QUEUES_MAX];
	void *arena[QUEUES_MAX];
	struct dma_shared shared[VIRTIO_SHARED_MAX];
	unsigned shared_n;
	bool gone;

	pthread_t thread;
	int stop_fd;
};

static struct virtio_bdev *to_virtio(struct bdev *b)
{
	return container_of(b, struct virtio_bdev, bdev);
}

/* --- queues --- */

static unsigned slots_of(const struct virtio_bdev *v)
{
	bool indirect = v->front.features & FEATURE(VIRTIO_F_INDIRECT_DESC);

	return indirect ? v->vq_size : v->vq_size / (VIRTIO_DIRECT_IOV + 2);
}

static size_t arena_size(const struct virtio_bdev *v)
{
	return vring_size(v->vq_size) + slots_of(v) * sizeof(struct virtio_area);
}

/* Everything that is shared when the first ring starts stays so; the device is told once. Under the
 * lock. */
static int share_memory(struct virtio_bdev *v, struct err *e)
{
	struct vhost_front_range ranges[VIRTIO_SHARED_MAX];

	v->shared_n = dma_shared_list(v->shared, VIRTIO_SHARED_MAX);
	for (unsigned i = 0; i < v->shared_n; i++)
		ranges[i] = (struct vhost_front_range){ v->shared[i].base, v->shared[i].len,
							v->shared[i].fd };
	return vhost_front_share(&v->front, ranges, v->shared_n, e);
}

static bool arm(struct poller *p)
{
	return vring_enable_call(&container_of(p, struct virtio_queue, poller)->ring);
}

static void disarm(struct poller *p)
{
	vring_disable_call(&container_of(p, struct virtio_queue, poller)->ring);
}

static void called(struct watch *w)
{
	struct virtio_queue *vq = container_of(w, struct virtio_queue, call);

	counter_add(&vq->q->stats.interrupts, 1);
	poller_wake(&vq->poller);
}

static void queue_init(struct virtio_queue *vq, struct virtio_bdev *v, struct bdev_queue *q,
		       unsigned index, char *arena)
{
	bool event_idx = v->front.features & FEATURE(VIRTIO_F_EVENT_IDX);

	vq->poller = (struct poller){ .fn = virtio_poll,
				      .arm = arm,
				      .disarm = disarm,
				      .patience.most = poll_ticks(reactor_poll_us()) };
	vq->flush.fn = virtio_flush;
	vq->call.fn = called;
	vq->waiting_last = &vq->waiting;
	vq->indirect = v->front.features & FEATURE(VIRTIO_F_INDIRECT_DESC);
	vq->can_flush = v->front.features & FEATURE(VIRTIO_BLK_F_FLUSH);
	vq->max_iov = v->bdev.limits.max_iov;
	vq->index = index;
	vq->q = q;
	vq->shared = v->shared;
	vq->shared_n = v->shared_n;
	vring_init(&vq->ring, arena, (uint16_t)v->vq_size, event_idx);
	for (unsigned i = 0; i < vq->slots_n; i++)
		vq->slots[i] = (struct virtio_slot){
			.area = (struct virtio_area *)(void *)(arena + vring_size(v->vq_size)) + i,
			.head = (uint16_t)(vq->indirect ? i : i * (VIRTIO_DIRECT_IOV + 2)),
			.next_free = (uint16_t)(i + 1),
		};
}

static void queue_free(struct virtio_queue *vq)
{
	if (vq->kick_fd >= 0)
		close(vq->kick_fd);
	if (vq->call_fd >= 0)
		close(vq->call_fd);
	free(vq->slots);
	free(vq);
}

static int queue_alloc(struct virtio_bdev *v, struct virtio_queue **out, struct err *e)
{
	struct virtio_queue *vq = calloc(1, sizeof(*vq));

	if (!vq)
		return err_set(e, -ENOMEM, "Out of memory.");
	vq->slots_n = (uint16_t)slots_of(v);
	vq->slots = calloc(vq->slots_n, sizeof(*vq->slots));
	vq->kick_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	vq->call_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (!vq->slots || vq->kick_fd < 0 || vq->call_fd < 0) {
		queue_free(vq);
		return err_set(e, -ENOMEM, "Out of memory or file descriptors.");
	}
	*out = vq;
	return 0;
}

static int begin(void *arg)
{
	struct virtio_queue *vq = arg;
	int rc = watch_start(&vq->call, vq->call_fd);

	if (rc == 0)
		poller_add(&vq->poller);
	return rc;
}

static int end(void *arg)
{
	struct virtio_queue *vq = arg;

	watch_stop(&vq->call);
	poller_del(&vq->poller);
	return 0;
}

/* Under the lock. */
static int free_index(const struct virtio_bdev *v, unsigned *index, struct err *e)
{
	if (v->gone)
		return err_set(e, -ENOTCONN,
			       "The device behind '%.80s' has gone. Delete it and attach it again.",
			       v->bdev.name);
	for (*index = 0; *index < v->queues_n; ++*index)
		if (!v->queue[*index])
			return 0;
	return err_set(e, -EBUSY, "All %u queues of '%.80s' are in use.", v->queues_n,
		       v->bdev.name);
}

/* Under the lock. */
static int ring_start(struct virtio_bdev *v, struct virtio_queue *vq, unsigned index,
		      struct bdev_queue *q, struct err *e)
{
	int rc;

	if (v->shared_n == 0) {
		rc = share_memory(v, e);
		if (rc)
			return rc;
	}
	memset(v->arena[index], 0, vring_size(v->vq_size));
	queue_init(vq, v, q, index, v->arena[index]);
	rc = vhost_front_ring_start(&v->front, index, v->vq_size, vq->ring.desc, vq->ring.avail,
				    vq->ring.used, vq->kick_fd, vq->call_fd, e);
	if (rc == 0)
		rc = reactor_call(q->reactor, begin, vq);
	return rc;
}

static int virtio_queue_open(struct bdev_queue *q, struct err *e)
{
	struct virtio_bdev *v = to_virtio(q->bdev);
	struct virtio_queue *vq = NULL;
	unsigned index = 0;
	int rc = queue_alloc(v, &vq, e);

	if (rc)
		return rc;
	reactor_mutex_lock(&v->lock);
	rc = free_index(v, &index, e);
	if (rc == 0)
		rc = ring_start(v, vq, index, q, e);
	if (rc == 0) {
		v->queue[index] = vq;
		q->priv = vq;
	}
	pthread_mutex_unlock(&v->lock);
	if (rc)
		queue_free(vq);
	return rc;
}

static void virtio_queue_close(struct bdev_queue *q)
{
	struct virtio_bdev *v = to_virtio(q->bdev);
	struct virtio_queue *vq = q->priv;
	struct err e = { 0 };

	reactor_mutex_lock(&v->lock);
	v->queue[vq->index] = NULL;
	reactor_call(q->reactor, end, vq);
	if (!v->gone && vhost_front_ring_stop(&v->front, vq->index, &e))
		log_warn("bdev %s: %s", v->bdev.name, e.text);
	pthread_mutex_unlock(&v->lock);
	queue_free(vq);
}

/* --- the connection's end --- */

static int die(void *vq)
{
	virtio_queue_die(vq);
	return 0;
}

static void device_gone(struct virtio_bdev *v)
{
	log_error("bdev %s: the device has closed the connection; its I/O fails from now on",
		  v->bdev.name ? v->bdev.name : "");
	pthread_mutex_lock(&v->lock);
	v->gone = true;
	for (unsigned i = 0; i < v->queues_n; i++)
		if (v->queue[i])
			reactor_call(v->queue[i]->q->reactor, die, v->queue[i]);
	pthread_mutex_unlock(&v->lock);
}

static void *watch_connection(void *arg)
{
	struct virtio_bdev *v = arg;
	struct pollfd p[] = { { v->stop_fd, POLLIN, 0 }, { v->front.fd, POLLRDHUP, 0 } };

	while (poll(p, ARRAY_SIZE(p), -1) < 0 && errno == EINTR)
		;
	if (!p[0].revents)
		device_gone(v);
	return NULL;
}

/* --- attach, detach --- */

static int check_args(const struct virtio_args *a, struct err *e)
{
	if (a->trtype && strcasecmp(a->trtype, "user") != 0)
		return err_field(e, -EINVAL, "trtype", a->trtype, "user",
				 "Only vhost-user sockets (trtype user) can be attached.");
	if (a->dev_type && strcasecmp(a->dev_type, "blk") != 0)
		return err_field(e, -EINVAL, "dev_type", a->dev_type, "blk",
				 "Only block devices (dev_type blk) can be attached.");
	if (!IS_POWER_OF_2(a->vq_size))
		return err_field(e, -EINVAL, "vq_size", NULL, "8, 16, ... 1024",
				 "vq_size must be a power of 2.");
	return 0;
}

static uint32_t range_limit(uint32_t sectors)
{
	return (uint32_t)MIN((uint64_t)sectors << VIRTIO_BLK_SECTOR_SHIFT, RANGE_MAX);
}

static int take_config(struct virtio_bdev *v, struct err *e)
{
	const struct virtio_blk_config *c = &v->config;
	uint64_t f = v->front.features, capacity = from_le64(c->capacity);
	uint32_t block = f & FEATURE(VIRTIO_BLK_F_BLK_SIZE) ? from_le32(c->blk_size) : 512;
	uint32_t segs = f & FEATURE(VIRTIO_BLK_F_SEG_MAX) ? from_le32(c->seg_max) : 1;
	bool indirect = f & FEATURE(VIRTIO_F_INDIRECT_DESC);
	struct bdev *b = &v->bdev;

	if (!IS_POWER_OF_2(block) || block < 512 || block > 65536 || capacity == 0 ||
	    capacity > (UINT64_C(1) << 62) >> VIRTIO_BLK_SECTOR_SHIFT)
		return err_set(e, -EPROTO,
			       "The device says that it has %" PRIu64
			       " sectors and blocks of %u bytes.",
			       capacity, block);
	b->block_size = b->physical_block_size = block;
	b->size = (capacity << VIRTIO_BLK_SECTOR_SHIFT) / block * block;
	b->readonly = f & FEATURE(VIRTIO_BLK_F_RO);
	b->ctx_size = sizeof(struct virtio_io);
	b->shared_buffers = true;
	b->has_doorbells = true;
	b->limits = (struct bdev_limits){
		.max_len = VIRTIO_MAX_LEN,
		.max_iov =
			(uint16_t)MIN(MAX(segs, 1), indirect ? VIRTIO_MAX_IOV : VIRTIO_DIRECT_IOV),
		.buf_align = 1,
		.max_discard = f & FEATURE(VIRTIO_BLK_F_DISCARD)
				       ? range_limit(from_le32(c->max_discard_sectors))
				       : 0,
		.max_zeroes = f & FEATURE(VIRTIO_BLK_F_WRITE_ZEROES)
				      ? range_limit(from_le32(c->max_write_zeroes_sectors))
				      : 0,
	};
	return b->size ? 0 : err_set(e, -EPROTO, "The device is smaller than one of its blocks.");
}

static int make_arenas(struct virtio_bdev *v, const struct virtio_args *a, struct err *e)
{
	unsigned most = a->vq_count ? (unsigned)a->vq_count : QUEUES_MAX;
	int rc = 0;

	if (a->vq_count > v->front.queues)
		return err_field(e, -EINVAL, "vq_count", NULL, NULL,
				 "The device has %u queues, %" PRIu64 " are too many.",
				 v->front.queues, a->vq_count);
	v->queues_n = MIN(most, v->front.queues);
	for (unsigned i = 0; rc == 0 && i < v->queues_n; i++)
		rc = dma_zalloc_shared(arena_size(v), false, &v->arena[i], e);
	return rc;
}

static void virtio_free(struct virtio_bdev *v)
{
	vhost_front_close(&v->front);
	for (unsigned i = 0; i < QUEUES_MAX; i++)
		if (v->arena[i])
			dma_free_shared(v->arena[i]);
	if (v->stop_fd >= 0)
		close(v->stop_fd);
	pthread_mutex_destroy(&v->lock);
	free(v);
}

static int attach(struct virtio_bdev *v, const struct virtio_args *a, struct err *e)
{
	const uint64_t wanted = FEATURE(VIRTIO_BLK_F_SEG_MAX) | FEATURE(VIRTIO_BLK_F_RO) |
				FEATURE(VIRTIO_BLK_F_BLK_SIZE) | FEATURE(VIRTIO_BLK_F_FLUSH) |
				FEATURE(VIRTIO_BLK_F_MQ) | FEATURE(VIRTIO_BLK_F_DISCARD) |
				FEATURE(VIRTIO_BLK_F_WRITE_ZEROES) |
				FEATURE(VIRTIO_F_INDIRECT_DESC) | FEATURE(VIRTIO_F_EVENT_IDX);
	int rc = vhost_front_open(a->traddr, wanted, &v->front, e);

	if (rc == 0)
		rc = vhost_front_config(&v->front, &v->config, e);
	if (rc == 0)
		rc = take_config(v, e);
	if (rc == 0)
		rc = make_arenas(v, a, e);
	if (rc == 0) {
		v->stop_fd = eventfd(0, EFD_CLOEXEC);
		rc = v->stop_fd < 0 ? -errno
				    : -pthread_create(&v->thread, NULL, watch_connection, v);
		if (rc)
			err_set(e, rc, "Cannot watch the connection: %s.", err_words(rc));
	}
	return rc;
}

static int virtio_create(const void *args, struct bdev **out, struct err *e)
{
	const struct virtio_args *a = args;
	struct virtio_bdev *v;
	int rc = check_args(a, e);

	if (rc)
		return rc;
	v = calloc(1, sizeof(*v));
	if (!v)
		return err_set(e, -ENOMEM, "Out of memory.");
	v->front.fd = v->stop_fd = -1;
	v->vq_size = (unsigned)a->vq_size;
	pthread_mutex_init(&v->lock, NULL);
	rc = attach(v, a, e);
	if (rc) {
		virtio_free(v);
		return rc;
	}
	pthread_setname_np(v->thread, "virtio");
	*out = &v->bdev;
	return 0;
}

static void virtio_destroy(struct bdev *b)
{
	struct virtio_bdev *v = to_virtio(b);
	static const uint64_t one = 1;

	if (write(v->stop_fd, &one, sizeof(one)) < 0)
		log_error("bdev %s: its thread cannot be told to stop: %s", b->name,
			  err_words(errno));
	pthread_join(v->thread, NULL);
	virtio_free(v);
}

const struct bdev_driver virtio_driver = {
	.name = "virtio",
	.create_method = "bdev_virtio_attach_controller",
	.delete_method = "bdev_virtio_detach_controller",
	.lists_names = true,
	.product_name = "VirtioBlk Disk",
	.help = "a disk behind a vhost-user-blk socket",
	.params = virtio_params,
	.args_size = sizeof(struct virtio_args),
	.create = virtio_create,
	.destroy = virtio_destroy,
	.queue_open = virtio_queue_open,
	.queue_close = virtio_queue_close,
	.submit = virtio_submit,
};
