/* A virtqueue's life: started on a reactor, polled or armed, paused, drained, stopped. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "export/vhost_blk_queue.h"
#include "util/log.h"
#include "util/ticks.h"

#define DRAIN_LOG_S 5

/* --- polled or armed --- */

static bool vhost_blk_arm(struct poller *p)
{
	struct vhost_blk_queue *q = container_of(p, struct vhost_blk_queue, poller);

	return q->kick_fd >= 0 && virtq_enable_kick(q->vq);
}

static void vhost_blk_disarm(struct poller *p)
{
	struct vhost_blk_queue *q = container_of(p, struct vhost_blk_queue, poller);

	virtq_disable_kick(q->vq);
}

static void begin_polling(struct vhost_blk_queue *q)
{
	virtq_disable_kick(q->vq);
	poller_add(&q->poller);
}

static noinline void hint_unshared(const struct vhost_blk_queue *q)
{
	log_warn(
		"%s: the driver kicks ring %u, but nothing can be seen in it. Is the guest's memory shared? "
		"QEMU needs: -object memory-backend-memfd,id=mem,size=SIZE,share=on -machine memory-backend=mem",
		q->vq->name, q->vq->index);
}

/* The first kick starts the ring (vhost-user, "Ring states"), those that follow end its sleep. */
static void vhost_blk_kicked(struct watch *w)
{
	struct vhost_blk_queue *q = container_of(w, struct vhost_blk_queue, kick);

	if (unlikely(q->stale_kick)) {
		/* Or a new one on top of it: waking is harmless, and a kick must not be missed. */
		q->stale_kick = false;
		poller_wake(&q->poller);
		return;
	}
	WRITE_ONCE(q->kicks, q->kicks + 1);
	if (likely(q->started)) {
		if (unlikely(q->kicks == 2) && virtq_looks_unshared(q->vq))
			hint_unshared(q);
		poller_wake(&q->poller);
		return;
	}
	q->started = true;
	if (!q->paused)
		begin_polling(q);
}

/* --- start, stop --- */

static void queue_free(struct vhost_blk_queue *q)
{
	if (q->lists)
		munmap(q->lists, q->lists_len);
	free(q->reqs);
	free(q);
}

static int queue_alloc(struct bdev *b, struct virtq *vq, struct vhost_blk_queue **out)
{
	struct vhost_blk_queue *q = calloc(1, sizeof(*q));
	void *lists;

	if (!q)
		return -ENOMEM;
	q->req_stride = ROUND_UP(sizeof(struct vhost_blk_req) + b->ctx_size, CACHE_LINE);
	q->reqs = aligned_alloc(CACHE_LINE, q->req_stride * vq->num);
	q->lists_len = sizeof(struct iovec) * VIRTQ_IOV_MAX * VHOST_BLK_LISTS;
	lists = mmap(NULL, q->lists_len, PROT_READ | PROT_WRITE,
		     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (lists != MAP_FAILED)
		q->lists = lists;
	if (!q->reqs || !q->lists) {
		queue_free(q);
		return -ENOMEM;
	}
	memset(q->reqs, 0, q->req_stride * vq->num);
	for (; q->lists_free < VHOST_BLK_LISTS; q->lists_free++)
		q->free_list[q->lists_free] = (uint16_t)q->lists_free;
	*out = q;
	return 0;
}

static void queue_init(struct vhost_blk_queue *q, const struct vhost_blk_disk *disk,
		       struct virtq *vq, int kick_fd, struct reactor *r, uint64_t poll_us,
		       bool write_through)
{
	q->poller = (struct poller){ .arm = vhost_blk_arm,
				     .disarm = vhost_blk_disarm,
				     .patience.most = poll_ticks(poll_us) };
	q->flush.fn = vhost_blk_flush;
	q->kick.fn = vhost_blk_kicked;
	q->kick_fd = kick_fd;
	q->vq = vq;
	q->disk = disk;
	q->reactor = vq->reactor = r;
	q->write_through = write_through;
	for (unsigned i = 0; i < vq->num; i++) {
		struct vhost_blk_req *req = vhost_blk_req_at(q, (uint16_t)i);

		req->q = q;
		req->head = (uint16_t)i;
		req->io.q = q->bq;
	}
	vhost_blk_set_format(q);
}

static int start_here(void *arg)
{
	struct vhost_blk_queue *q = arg;

	if (q->kick_fd >= 0)
		return watch_start(&q->kick, q->kick_fd);
	q->started = true;
	begin_polling(q);
	return 0;
}

int vhost_blk_queue_start(struct bdev *b, const struct vhost_blk_disk *disk, struct virtq *vq,
			  int kick_fd, struct reactor *r, uint64_t poll_us, bool write_through,
			  struct vhost_blk_queue **out, struct err *e)
{
	struct vhost_blk_queue *q;
	int rc = queue_alloc(b, vq, &q);

	if (rc)
		return err_set(e, rc, "out of memory for a ring of %u entries", vq->num);
	rc = bdev_queue_open(b, r, &q->bq, e);
	if (rc)
		goto out_free;
	queue_init(q, disk, vq, kick_fd, r, poll_us, write_through);
	rc = reactor_call(r, start_here, q);
	if (rc) {
		err_set(e, rc, "the kick fd cannot be waited for: %s", err_words(rc));
		goto out_close;
	}
	*out = q;
	return 0;
out_close:
	bdev_queue_close(q->bq);
out_free:
	queue_free(q);
	return rc;
}

/* Taken from its reactor, to stop or to move. */
struct leave {
	struct vhost_blk_queue *q;
	sem_t drained;
};

/* 1: requests are in flight, and `drained` will be posted. */
static int leave_here(void *arg)
{
	struct leave *s = arg;
	struct vhost_blk_queue *q = s->q;

	poller_del(&q->poller);
	if (q->kick_fd >= 0)
		watch_stop(&q->kick);
	/* What ended in this turn is published by its flush, which has a request to be in flight
	 * still or has run. */
	if (q->inflight == 0 && !q->flush.next)
		return 0;
	q->drained = &s->drained;
	return 1;
}

/* Their buffers are the guest's memory: there is no leaving before the last has ended, only saying
 * so. */
static void wait_drained(struct leave *s, const char *name)
{
	for (unsigned waited = 0;;) {
		struct timespec until;

		clock_gettime(CLOCK_REALTIME, &until);
		until.tv_sec += DRAIN_LOG_S;
		if (sem_timedwait(&s->drained, &until) == 0)
			return;
		if (errno == EINTR)
			continue;
		waited += DRAIN_LOG_S;
		log_warn("%s: ring %u has waited %u s for %u requests that '%s' has not completed",
			 name, s->q->vq->index, waited, READ_ONCE(s->q->inflight),
			 s->q->bq->bdev->name);
	}
}

/* The turn of the last flush is over: nothing of q is on its reactor's stack any more. */
static int left_here(void *arg)
{
	turn_unbill(&((struct vhost_blk_queue *)arg)->bill);
	return 0;
}

void vhost_blk_queue_stop(struct vhost_blk_queue *q, const char *name)
{
	struct leave s = { .q = q };

	sem_init(&s.drained, 0, 0);
	if (reactor_call(q->reactor, leave_here, &s))
		wait_drained(&s, name);
	sem_destroy(&s.drained);
	reactor_call(q->reactor, left_here, q);
	bdev_queue_close(q->bq);
	queue_free(q);
}

/* --- move --- */

/* On its new reactor, or on the old one when it could not leave. What was kicked meanwhile is found
 * by polling; a ring that has not been kicked yet finds that in the eventfd, which nobody reads. */
static int arrive_here(void *arg)
{
	struct vhost_blk_queue *q = arg;

	if (q->kick_fd >= 0 && watch_start(&q->kick, q->kick_fd) < 0) {
		log_warn("%s: no memory to wait for ring %u: it is polled from now on", q->vq->name,
			 q->vq->index);
		q->kick_fd = -1;
		q->started = true;
	}
	q->stale_kick = q->started && q->kick_fd >= 0;
	if (q->started && !q->paused)
		begin_polling(q);
	return 0;
}

/* Too late to leave? 1: it is drained now and `drained` has been posted. */
static int stay_here(void *arg)
{
	struct vhost_blk_queue *q = arg;

	if (!q->drained)
		return 1;
	q->drained = NULL;
	return arrive_here(q);
}

/* true: nothing is in flight and nothing is polled. */
static bool leave(struct vhost_blk_queue *q, unsigned ms)
{
	struct leave s = { .q = q };
	struct timespec until;
	bool left = true;

	sem_init(&s.drained, 0, 0);
	if (reactor_call(q->reactor, leave_here, &s)) {
		until = time_in_ms(ms);
		while (sem_timedwait(&s.drained, &until) < 0) {
			if (errno != ETIMEDOUT)
				continue;
			left = reactor_call(q->reactor, stay_here, q);
			break;
		}
	}
	if (left)
		reactor_call(q->reactor, left_here, q);
	sem_destroy(&s.drained);
	return left;
}

int vhost_blk_queue_move(struct vhost_blk_queue *q, struct reactor *to, unsigned drain_ms,
			 struct err *e)
{
	struct bdev_queue *bq;
	int rc;

	if (q->reactor == to)
		return 0;
	rc = bdev_queue_open(q->bq->bdev, to, &bq, e);
	if (rc)
		return rc;
	if (!leave(q, drain_ms)) {
		bdev_queue_close(bq);
		return err_set(e, -EBUSY,
			       "Ring %u of '%.80s' stays on CPU %d: its I/O has not ended within "
			       "%u ms. Is '%.80s' stuck? Else try again later.",
			       q->vq->index, q->vq->name, reactor_cpu(q->reactor), drain_ms,
			       q->bq->bdev->name);
	}
	bdev_queue_close(q->bq);
	q->bq = bq;
	for (unsigned i = 0; i < q->vq->num; i++)
		vhost_blk_req_at(q, (uint16_t)i)->io.q = bq;
	WRITE_ONCE(q->reactor, to);
	q->vq->reactor = to;
	WRITE_ONCE(q->moves, q->moves + 1);
	return reactor_call(to, arrive_here, q);
}

/* --- the guest is gone --- */

static int abandon_here(void *arg)
{
	struct vhost_blk_queue *q = arg;

	for (unsigned i = 0; i < q->vq->num; i++)
		vhost_blk_req_at(q, (uint16_t)i)->status = &q->scratch_status;
	virtq_abandon(q->vq, q->scratch);
	return 0;
}

void vhost_blk_queue_abandon(struct vhost_blk_queue *q, void *scratch)
{
	q->scratch = scratch;
	reactor_call(q->reactor, abandon_here, q);
}

/* --- pause --- */

static int pause_here(void *arg)
{
	struct vhost_blk_queue *q = arg;

	q->paused = true;
	poller_del(&q->poller);
	return 0;
}

static int resume_here(void *arg)
{
	struct vhost_blk_queue *q = arg;

	q->paused = false;
	if (q->started)
		begin_polling(q);
	return 0;
}

void vhost_blk_queue_pause(struct vhost_blk_queue *q)
{
	reactor_call(q->reactor, pause_here, q);
}

void vhost_blk_queue_resume(struct vhost_blk_queue *q)
{
	reactor_call(q->reactor, resume_here, q);
}
