/* The journey of a request: virtqueue -> bdev -> virtqueue. Virtio 1.2, 5.2.6. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "export/vhost_blk_queue.h"
#include "util/iov.h"
#include "util/log.h"

#define DRAIN_LOG_S 5

struct vhost_blk_req {
	struct vhost_blk_queue *q;
	const struct guest_mem *mem; /* holds the buffers; counted in mem->use */
	uint8_t *status;	     /* in guest memory */
	uint32_t written;	     /* used.len when all goes well */
	uint16_t head;
	uint8_t range, ranges; /* DISCARD, WRITE_ZEROES: the one that runs, and how many */
	union {
		struct iovec iov[VHOST_BLK_RANGES];
		struct virtio_blk_range seg[VHOST_BLK_RANGES];
	};
	alignas(CACHE_LINE) struct bdev_io io; /* last: the driver's room follows */
};

static struct vhost_blk_req *req_at(struct vhost_blk_queue *q, uint16_t head)
{
	return (struct vhost_blk_req *)(void *)(q->reqs + head * q->req_stride);
}

static uint32_t *use_of(const struct vhost_blk_req *req)
{
	return &req->mem->use[req->q->vq->index].inflight;
}

/* --- the end of a request --- */

static noinline void log_written(const struct vhost_blk_req *req, uint8_t status)
{
	struct virtq *vq = req->q->vq;
	struct iovec byte = { req->status, 1 };

	if (status == VIRTIO_BLK_S_OK && req->io.op == BDEV_READ && req->ranges == 0)
		virtq_log_iov(vq, req->mem, req->io.iov, req->io.iovcnt, req->written);
	virtq_log_iov(vq, req->mem, &byte, 1, 1);
}

/* hot. Give the head back with used.len written. */
static inline void give_back(struct vhost_blk_req *req, uint32_t written)
{
	struct vhost_blk_queue *q = req->q;

	virtq_push(q->vq, req->head, written);
	store_release(use_of(req),
		      *use_of(req) - 1); /* the buffers must not be touched after this */
	q->inflight--;
	reactor_flush(&q->flush);
}

/* hot */
static inline void finish(struct vhost_blk_req *req, uint8_t status)
{
	WRITE_ONCE(*req->status, status);
	if (unlikely(req->q->vq->log))
		log_written(req, status);
	give_back(req, status == VIRTIO_BLK_S_OK ? req->written : 1);
}

static void submit_range(struct vhost_blk_req *req);

/* hot. The bdev has ended the request. */
static void vhost_blk_done(struct task *t)
{
	struct vhost_blk_req *req = container_of(t, struct vhost_blk_req, io.task);

	if (likely(req->io.status == 0)) {
		if (unlikely(req->range + 1 < req->ranges)) {
			req->range++;
			submit_range(req);
			return;
		}
		finish(req, VIRTIO_BLK_S_OK);
	} else {
		finish(req,
		       req->io.status == -EOPNOTSUPP ? VIRTIO_BLK_S_UNSUPP : VIRTIO_BLK_S_IOERR);
	}
}

/* hot: once per turn and ring */
static void vhost_blk_flush(struct task *t)
{
	struct vhost_blk_queue *q = container_of(t, struct vhost_blk_queue, flush);

	virtq_flush(q->vq);
	if (unlikely(q->drained) && q->inflight == 0) {
		sem_t *drained = q->drained;

		q->drained = NULL;
		sem_post(drained);
	}
}

/* --- its beginning --- */

/* hot. [first, first + n) of the chain becomes the request's own list, without the first `skip` and
 * the last `drop` bytes. */
static inline void keep_iov(struct vhost_blk_req *req, const struct virtq_chain *c, unsigned first,
			    unsigned n, size_t skip, size_t drop)
{
	const struct iovec *iov = c->iov + first;
	struct vhost_blk_queue *q = req->q;
	struct iovec *own = req->iov;

	while (n > 0 && unlikely(skip >= iov->iov_len)) {
		skip -= iov->iov_len;
		iov++;
		n--;
	}
	if (n > 0 && iov[n - 1].iov_len == drop) {
		n--;
		drop = 0;
	}
	if (unlikely(n > ARRAY_SIZE(req->iov)))
		own = q->iovs + (size_t)req->head * VIRTQ_IOV_MAX;
	for (unsigned i = 0; i < n; i++)
		own[i] = iov[i];
	if (n > 0) {
		own[0].iov_base = (char *)own[0].iov_base + skip;
		own[0].iov_len -= skip;
		own[n - 1].iov_len -= drop;
	}
	req->io.iov = own;
	req->io.iovcnt = (uint16_t)n;
}

/* hot */
static inline void submit(struct vhost_blk_req *req, enum bdev_op op, uint8_t flags,
			  uint64_t offset, uint32_t len)
{
	req->io.op = (uint8_t)op;
	req->io.flags = flags;
	req->io.offset = offset;
	req->io.len = len;
	bdev_submit(&req->io);
}

/* hot. Data of a read or write must be whole sectors inside the disk; the whole chain is checked at
 * once. */
static inline bool data_fits(const struct vhost_blk_queue *q, uint64_t sector, uint32_t len)
{
	return len % VIRTIO_BLK_SECTOR_SIZE == 0 &&
	       sector <= q->disk->size >> VIRTIO_BLK_SECTOR_SHIFT &&
	       range_fits(sector << VIRTIO_BLK_SECTOR_SHIFT, len, q->disk->size);
}

/* hot */
static void start_read(struct vhost_blk_req *req, const struct virtq_chain *c, uint64_t sector)
{
	uint32_t len = c->in_len - 1;

	if (unlikely(c->out_len != sizeof(struct virtio_blk_req_hdr) ||
		     !data_fits(req->q, sector, len))) {
		finish(req, VIRTIO_BLK_S_IOERR);
		return;
	}
	keep_iov(req, c, c->out_n, c->in_n, 0, 1);
	req->written = len + 1;
	submit(req, BDEV_READ, 0, sector << VIRTIO_BLK_SECTOR_SHIFT, len);
}

/* hot */
static void start_write(struct vhost_blk_req *req, const struct virtq_chain *c, uint64_t sector)
{
	uint32_t len = c->out_len - (uint32_t)sizeof(struct virtio_blk_req_hdr);

	if (unlikely(c->in_len != 1 || req->q->disk->readonly || !data_fits(req->q, sector, len))) {
		finish(req, VIRTIO_BLK_S_IOERR);
		return;
	}
	keep_iov(req, c, 0, c->out_n, sizeof(struct virtio_blk_req_hdr), 0);
	submit(req, BDEV_WRITE, READ_ONCE(req->q->write_through) ? BDEV_FUA : 0,
	       sector << VIRTIO_BLK_SECTOR_SHIFT, len);
}

static void start_get_id(struct vhost_blk_req *req, const struct virtq_chain *c)
{
	uint32_t len = MIN(c->in_len - 1, VIRTIO_BLK_ID_BYTES);

	iov_copy_in(c->iov + c->out_n, c->in_n, 0, req->q->disk->id, len);
	if (req->q->vq->log)
		virtq_log_iov(req->q->vq, req->mem, c->iov + c->out_n, c->in_n, len);
	req->written = len + 1;
	req->io.op = BDEV_FLUSH; /* not a read: nothing more to log */
	finish(req, VIRTIO_BLK_S_OK);
}

static void submit_range(struct vhost_blk_req *req)
{
	const struct virtio_blk_range *r = &req->seg[req->range];
	bool unmap = from_le32(r->flags) & VIRTIO_BLK_WRITE_ZEROES_F_UNMAP;
	uint8_t flags = 0;

	if (req->io.op == BDEV_WRITE_ZEROES)
		flags = (uint8_t)((unmap ? 0 : BDEV_NO_UNMAP) |
				  (READ_ONCE(req->q->write_through) ? BDEV_FUA : 0));
	submit(req, req->io.op, flags, from_le64(r->sector) << VIRTIO_BLK_SECTOR_SHIFT,
	       from_le32(r->num_sectors) << VIRTIO_BLK_SECTOR_SHIFT);
}

/* The status that the range deserves before anything is done. */
static uint8_t check_seg(const struct vhost_blk_queue *q, const struct virtio_blk_range *r,
			 enum bdev_op op)
{
	uint32_t flags = from_le32(r->flags),
		 allowed = op == BDEV_DISCARD ? 0 : VIRTIO_BLK_WRITE_ZEROES_F_UNMAP;
	uint64_t sector = from_le64(r->sector), len = (uint64_t)from_le32(r->num_sectors)
						      << VIRTIO_BLK_SECTOR_SHIFT;

	if (flags & ~allowed)
		return VIRTIO_BLK_S_UNSUPP;
	if (len > (op == BDEV_DISCARD ? q->disk->max_discard : q->disk->max_zeroes))
		return VIRTIO_BLK_S_IOERR;
	if (sector > q->disk->size >> VIRTIO_BLK_SECTOR_SHIFT ||
	    !range_fits(sector << VIRTIO_BLK_SECTOR_SHIFT, len, q->disk->size))
		return VIRTIO_BLK_S_IOERR;
	return VIRTIO_BLK_S_OK;
}

/* Copies the ranges into the request; the status they deserve. */
static uint8_t take_ranges(struct vhost_blk_req *req, const struct virtq_chain *c, enum bdev_op op)
{
	uint32_t len = c->out_len - (uint32_t)sizeof(struct virtio_blk_req_hdr),
		 n = len / sizeof(req->seg[0]);
	uint8_t worst = VIRTIO_BLK_S_OK;

	if (req->q->disk->readonly)
		return VIRTIO_BLK_S_IOERR;
	if (op == BDEV_DISCARD ? !req->q->disk->discard : !req->q->disk->max_zeroes)
		return VIRTIO_BLK_S_UNSUPP;
	if (n == 0 || n > VHOST_BLK_RANGES || len % sizeof(req->seg[0]) || c->in_len != 1)
		return VIRTIO_BLK_S_IOERR;
	iov_copy_out(c->iov, c->out_n, sizeof(struct virtio_blk_req_hdr), req->seg, len);
	for (uint32_t i = 0; i < n; i++)
		worst = MAX(worst, check_seg(req->q, &req->seg[i], op));
	req->ranges = (uint8_t)n;
	return worst;
}

static void start_ranges(struct vhost_blk_req *req, const struct virtq_chain *c, enum bdev_op op)
{
	uint8_t status = take_ranges(req, c, op);

	if (status != VIRTIO_BLK_S_OK) {
		finish(req, status);
		return;
	}
	req->io.op = (uint8_t)op;
	req->io.iovcnt = 0;
	submit_range(req);
}

static noinline void start_other(struct vhost_blk_req *req, const struct virtq_chain *c,
				 uint32_t type)
{
	switch (type) {
	case VIRTIO_BLK_T_FLUSH:
		req->io.iovcnt = 0;
		submit(req, BDEV_FLUSH, 0, 0, 0);
		break;
	case VIRTIO_BLK_T_GET_ID:
		start_get_id(req, c);
		break;
	case VIRTIO_BLK_T_DISCARD:
		start_ranges(req, c, BDEV_DISCARD);
		break;
	case VIRTIO_BLK_T_WRITE_ZEROES:
		start_ranges(req, c, BDEV_WRITE_ZEROES);
		break;
	default:
		finish(req, VIRTIO_BLK_S_UNSUPP);
	}
}

/* hot. A copy of the header, however the driver has cut it; false: there is none. */
static inline bool copy_header(const struct virtq_chain *c, struct virtio_blk_req_hdr *hdr)
{
	if (likely(c->out_n && c->iov[0].iov_len >= sizeof(*hdr))) {
		memcpy(hdr, c->iov[0].iov_base, sizeof(*hdr));
		/* The copy is what is checked and used: the compiler must not go back to the
		 * guest's. */
		__asm__ __volatile__("" ::: "memory");
		return true;
	}
	return iov_copy_out(c->iov, c->out_n, 0, hdr, sizeof(*hdr)) == sizeof(*hdr);
}

/* hot */
static void vhost_blk_start(struct vhost_blk_queue *q, const struct virtq_chain *c)
{
	struct vhost_blk_req *req = req_at(q, c->head);
	struct virtio_blk_req_hdr hdr;
	const struct iovec *last;

	q->inflight++;
	req->mem = q->vq->mem;
	*use_of(req) += 1;
	req->head = c->head;
	req->written = 1;
	req->range = req->ranges = 0;
	if (unlikely(c->malformed || c->in_n == 0)) {
		give_back(req, 0); /* no status byte to be trusted */
		return;
	}
	last = &c->iov[c->out_n + c->in_n - 1];
	req->status = (uint8_t *)last->iov_base + last->iov_len - 1;
	req->io.op = BDEV_FLUSH;
	if (unlikely(!copy_header(c, &hdr))) {
		finish(req, VIRTIO_BLK_S_IOERR);
		return;
	}
	if (likely(from_le32(hdr.type) == VIRTIO_BLK_T_IN))
		start_read(req, c, from_le64(hdr.sector));
	else if (likely(from_le32(hdr.type) == VIRTIO_BLK_T_OUT))
		start_write(req, c, from_le64(hdr.sector));
	else
		start_other(req, c, from_le32(hdr.type));
}

/* hot */
static unsigned vhost_blk_poll(struct poller *p)
{
	struct vhost_blk_queue *q = container_of(p, struct vhost_blk_queue, poller);
	struct virtq_chain c;
	unsigned n;

	for (n = 0; n < VHOST_BLK_BATCH && virtq_pop(q->vq, &c) > 0; n++)
		vhost_blk_start(q, &c);
	return n;
}

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
	if (q->iovs)
		munmap(q->iovs, q->iovs_len);
	free(q->reqs);
	free(q);
}

static int queue_alloc(struct bdev *b, struct virtq *vq, struct vhost_blk_queue **out)
{
	struct vhost_blk_queue *q = calloc(1, sizeof(*q));
	void *iovs;

	if (!q)
		return -ENOMEM;
	q->req_stride = ROUND_UP(sizeof(struct vhost_blk_req) + b->ctx_size, CACHE_LINE);
	q->reqs = aligned_alloc(CACHE_LINE, q->req_stride * vq->num);
	q->iovs_len = sizeof(struct iovec) * VIRTQ_IOV_MAX * vq->num;
	iovs = mmap(NULL, q->iovs_len, PROT_READ | PROT_WRITE,
		    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (iovs != MAP_FAILED)
		q->iovs = iovs;
	if (!q->reqs || !q->iovs) {
		queue_free(q);
		return -ENOMEM;
	}
	memset(q->reqs, 0, q->req_stride * vq->num);
	*out = q;
	return 0;
}

static void queue_init(struct vhost_blk_queue *q, const struct vhost_blk_disk *disk,
		       struct virtq *vq, int kick_fd, struct reactor *r, bool write_through)
{
	q->poller = (struct poller){
		.fn = vhost_blk_poll,
		.arm = vhost_blk_arm,
		.disarm = vhost_blk_disarm,
	};
	q->flush.fn = vhost_blk_flush;
	q->kick.fn = vhost_blk_kicked;
	q->kick_fd = kick_fd;
	q->vq = vq;
	q->disk = disk;
	q->reactor = vq->reactor = r;
	q->write_through = write_through;
	for (unsigned i = 0; i < vq->num; i++) {
		struct vhost_blk_req *req = req_at(q, (uint16_t)i);

		req->q = q;
		req->io.q = q->bq;
		req->io.task.fn = vhost_blk_done;
	}
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
			  int kick_fd, struct reactor *r, bool write_through,
			  struct vhost_blk_queue **out, struct err *e)
{
	struct vhost_blk_queue *q;
	int rc = queue_alloc(b, vq, &q);

	if (rc)
		return err_set(e, rc, "out of memory for a ring of %u entries", vq->num);
	rc = bdev_queue_open(b, r, &q->bq, e);
	if (rc)
		goto out_free;
	queue_init(q, disk, vq, kick_fd, r, write_through);
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

struct stop {
	struct vhost_blk_queue *q;
	sem_t drained;
};

/* 1: requests are in flight, and `drained` will be posted. */
static int stop_here(void *arg)
{
	struct stop *s = arg;
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
static void wait_drained(struct stop *s, const char *name)
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

void vhost_blk_queue_stop(struct vhost_blk_queue *q, const char *name)
{
	struct stop s = { .q = q };

	sem_init(&s.drained, 0, 0);
	if (reactor_call(q->reactor, stop_here, &s))
		wait_drained(&s, name);
	sem_destroy(&s.drained);
	/* The flush that posted may still be on its reactor's stack. */
	reactor_quiesce();
	bdev_queue_close(q->bq);
	queue_free(q);
}

static int abandon_here(void *arg)
{
	struct vhost_blk_queue *q = arg;

	for (unsigned i = 0; i < q->vq->num; i++)
		req_at(q, (uint16_t)i)->status = &q->scratch_status;
	virtq_abandon(q->vq, q->scratch);
	return 0;
}

void vhost_blk_queue_abandon(struct vhost_blk_queue *q, void *scratch)
{
	q->scratch = scratch;
	reactor_call(q->reactor, abandon_here, q);
}

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
