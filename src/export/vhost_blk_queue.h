/* One virtqueue of a disk: what vhost_blk.c (hot path) and vhost_blk_ctrl.c (control) share. */
#ifndef EXPORT_VHOST_BLK_QUEUE_H
#define EXPORT_VHOST_BLK_QUEUE_H

#include <semaphore.h>

#include "bdev/bdev.h"
#include "virtio/virtq.h"

#define VHOST_BLK_SEG_MAX 254
#define VHOST_BLK_RANGES  8   /* of one DISCARD or WRITE_ZEROES */
#define VHOST_BLK_LISTS	  256 /* requests of many pieces that one ring may have in flight */

/* What requests need to know of the disk. */
struct vhost_blk_disk {
	uint32_t max_discard, max_zeroes; /* bytes per range, as in the configuration space */
	bool readonly, discard;
	char id[VIRTIO_BLK_ID_BYTES];
};

/* One per head. A free one has neither list nor ranges. */
struct vhost_blk_req {
	struct vhost_blk_queue *q;
	struct guest_mem_use *use; /* of the table that holds the buffers */
	uint8_t *status;	   /* in guest memory */
	union {
		struct {
			uint32_t written; /* used.len when all goes well */
			uint16_t head;
			uint16_t zero;
		};
		uint64_t end; /* both, for virtq_packed_push() */
	};
	union {
		struct {
			uint16_t list;	/* of many pieces: 1 + its number; 0: none */
			uint8_t range;	/* DISCARD, WRITE_ZEROES: the one that runs */
			uint8_t ranges; /* how many; 0: another request */
		};
		uint32_t odd; /* 0: none of that */
	};
	union {
		struct iovec iov[VHOST_BLK_RANGES];
		struct virtio_blk_range seg[VHOST_BLK_RANGES];
	};
	alignas(CACHE_LINE) struct bdev_io io; /* last: the driver's room follows */
};

struct vhost_blk_queue {
	/* hot */
	struct poller poller;
	struct task flush;
	struct bill bill;
	uint64_t batches;
	struct virtq *vq;
	struct bdev_queue *bq;
	const struct vhost_blk_disk *disk;
	char *reqs;
	size_t req_stride;
	uint32_t inflight;
	uint32_t lists_free;
	bool write_through; /* set by the session's thread, read relaxed */
	sem_t *drained;	    /* posted when inflight falls to 0 */

	/* cold */
	struct iovec *lists; /* VHOST_BLK_LISTS of VIRTQ_IOV_MAX entries, for requests of many
				pieces; untouched until used */
	size_t lists_len;
	uint16_t free_list[VHOST_BLK_LISTS];
	uint8_t scratch_status; /* takes the status bytes of an abandoned ring */
	void *scratch;
	bool started; /* by the first kick, or because there is none to wait for */
	bool paused;
	struct watch kick;
	int kick_fd;
	struct reactor *reactor;
	uint64_t kicks, moves;
	bool stale_kick; /* after a move: the eventfd tells of kicks that the last reactor has seen
			  */

	/* The balancer's. */
	uint64_t billed;   /* bill.ticks at its last look */
	uint64_t leave_at; /* ticks: not to be moved before, since it could not leave */
};

static inline struct vhost_blk_req *vhost_blk_req_at(struct vhost_blk_queue *q, uint16_t head)
{
	return (struct vhost_blk_req *)(void *)(q->reqs + head * q->req_stride);
}

/* vhost_blk.c, the journey of requests: sets the functions that poll the ring and take requests
 * back, by the ring's format; and the flush's function. */
void vhost_blk_set_format(struct vhost_blk_queue *q);
void vhost_blk_flush(struct task *t);

/*
 * Make a queue for vq and serve it on r. write_through may be changed later with WRITE_ONCE.
 * poll_us: how long it is polled in vain at most, see reactor_set_poll_us(). Session thread.
 * Errors: -ENOMEM, the bdev's.
 */
int vhost_blk_queue_start(struct bdev *b, const struct vhost_blk_disk *disk, struct virtq *vq,
			  int kick_fd, struct reactor *r, uint64_t poll_us, bool write_through,
			  struct vhost_blk_queue **out, struct err *e);
/*
 * Serve it on reactor `to` from now on: what is in flight ends where it began, and meanwhile
 * nothing new is taken. Under the session's lock. Errors: -EBUSY when that lasts longer than
 * drain_ms, the bdev's; then it stays where it is, with a sentence.
 */
int vhost_blk_queue_move(struct vhost_blk_queue *q, struct reactor *to, unsigned drain_ms,
			 struct err *e);
/* Take nothing more; wait until nothing is in flight; destroy. name is for the log. Session thread.
 */
void vhost_blk_queue_stop(struct vhost_blk_queue *q, const char *name);
/* The guest is gone: no byte of its memory is written any more but by I/O that is under way.
 * scratch: see virtq_abandon(). */
void vhost_blk_queue_abandon(struct vhost_blk_queue *q, void *scratch);
void vhost_blk_queue_pause(struct vhost_blk_queue *q);
void vhost_blk_queue_resume(struct vhost_blk_queue *q);

#endif
