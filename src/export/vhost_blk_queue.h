/* One virtqueue of a disk: what vhost_blk.c (hot path) and vhost_blk_ctrl.c (control) share. */
#ifndef EXPORT_VHOST_BLK_QUEUE_H
#define EXPORT_VHOST_BLK_QUEUE_H

#include <semaphore.h>

#include "bdev/bdev.h"
#include "virtio/virtq.h"

#define VHOST_BLK_SEG_MAX 254
#define VHOST_BLK_RANGES  8  /* of one DISCARD or WRITE_ZEROES */
#define VHOST_BLK_BATCH	  32 /* requests one ring may start per turn */

/* What requests need to know of the disk. */
struct vhost_blk_disk {
	uint64_t size;
	uint32_t max_discard, max_zeroes; /* bytes per range, as in the configuration space */
	bool readonly, discard;
	char id[VIRTIO_BLK_ID_BYTES];
};

struct vhost_blk_queue {
	/* hot */
	struct poller poller;
	struct task flush;
	struct virtq *vq;
	struct bdev_queue *bq;
	const struct vhost_blk_disk *disk;
	char *reqs;
	size_t req_stride;
	uint32_t inflight;
	bool write_through; /* set by the session's thread, read relaxed */
	sem_t *drained;	    /* posted when inflight falls to 0 */

	/* cold */
	struct iovec *iovs; /* VIRTQ_IOV_MAX per head, for requests of many pieces; untouched until
			       used */
	size_t iovs_len;
	uint8_t scratch_status; /* takes the status bytes of an abandoned ring */
	void *scratch;
	bool started; /* by the first kick, or because there is none to wait for */
	bool paused;
	struct watch kick;
	int kick_fd;
	struct reactor *reactor;
	uint64_t kicks;
};

/*
 * Make a queue for vq and serve it on r. write_through may be changed later with WRITE_ONCE.
 * Session thread. Errors: -ENOMEM, the bdev's.
 */
int vhost_blk_queue_start(struct bdev *b, const struct vhost_blk_disk *disk, struct virtq *vq,
			  int kick_fd, struct reactor *r, bool write_through,
			  struct vhost_blk_queue **out, struct err *e);
/* Take nothing more; wait until nothing is in flight; destroy. name is for the log. Session thread.
 */
void vhost_blk_queue_stop(struct vhost_blk_queue *q, const char *name);
/* The guest is gone: no byte of its memory is written any more but by I/O that is under way.
 * scratch: see virtq_abandon(). */
void vhost_blk_queue_abandon(struct vhost_blk_queue *q, void *scratch);
void vhost_blk_queue_pause(struct vhost_blk_queue *q);
void vhost_blk_queue_resume(struct vhost_blk_queue *q);

#endif
