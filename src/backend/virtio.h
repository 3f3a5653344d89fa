/* What virtio.c (the driver: attach, queues, control) and virtio_ring.c (the journey of a request)
 * share. */
#ifndef BACKEND_VIRTIO_H
#define BACKEND_VIRTIO_H

#include "bdev/bdev.h"
#include "mem/mem.h"
#include "virtio/vring.h"

#define VIRTIO_MAX_IOV 62 /* pieces of one request: with header and status a table of 64 */
#define VIRTIO_DIRECT_IOV \
	6 /* the same where the device knows no indirect tables: 8 descriptors of the ring each */
#define VIRTIO_MAX_LEN	  (128u << 10)
#define VIRTIO_SHARED_MAX 8

/* A request's place in shared memory. The data area is a bounce buffer for buffers that the device
 * cannot see. */
struct virtio_area {
	struct virtio_blk_req_hdr hdr;
	struct virtio_blk_range range;
	uint8_t status;
	uint8_t padding[31];
	struct virtq_desc table[VIRTIO_MAX_IOV + 2];
	alignas(4096) uint8_t data[VIRTIO_MAX_LEN];
};

/* The same, as only we see it. */
struct virtio_slot {
	struct bdev_io *io; /* NULL: free */
	struct virtio_area *area;
	uint16_t head;
	uint16_t next_free;
	bool framed; /* its table is that of a request with one buffer, and the ring refers to it */
	bool bounced;
	bool flushing; /* the FLUSH that makes a FUA write durable */
};

struct virtio_queue {
	/* hot */
	struct poller poller;
	struct task flush;
	struct vring ring;
	struct virtio_slot *slots;
	uint16_t slots_n, free; /* first free slot; slots_n: none */
	unsigned max_iov;
	bool indirect, dead;
	bool can_flush;
	struct bdev_io *waiting, **waiting_last; /* for a slot, in the order they came */
	int kick_fd;

	/* cold */
	const struct dma_shared *shared;
	unsigned shared_n, shared_near;
	struct bdev_queue *q;
	struct watch call;
	int call_fd;
	unsigned index;
};

/* A waiting request's link lies in its own room. */
struct virtio_io {
	struct bdev_io *next;
};

/* On the queue's reactor. */
void virtio_submit(struct bdev_io *io);
unsigned virtio_poll(struct poller *p);
void virtio_flush(struct task *t);
/* The device is gone: everything ends with -EIO, now and later. */
void virtio_queue_die(struct virtio_queue *vq);

#endif
