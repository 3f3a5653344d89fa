/* The journey of a request: virtqueue -> bdev -> virtqueue. Virtio 1.2, 5.2.6. */
#include <errno.h>
#include <string.h>

#include "export/vhost_blk_queue.h"
#include "util/iov.h"
#include "virtio/virtq_framed.h"

/* --- lists of many pieces --- */

/* There is one: take_any() starts nothing while all are in use. */
static noinline struct iovec *take_list(struct vhost_blk_req *req)
{
	struct vhost_blk_queue *q = req->q;
	uint16_t number = q->free_list[--q->lists_free];

	req->list = (uint16_t)(number + 1);
	return q->lists + (size_t)number * VIRTQ_IOV_MAX;
}

static noinline void drop_list(struct vhost_blk_req *req)
{
	struct vhost_blk_queue *q = req->q;

	q->free_list[q->lists_free++] = (uint16_t)(req->list - 1);
	req->list = 0;
}

/* --- the end of a request --- */

static noinline void log_written(const struct vhost_blk_req *req, uint8_t status)
{
	struct virtq *vq = req->q->vq;
	struct iovec byte = { req->status, 1 };

	if (status == VIRTIO_BLK_S_OK && req->io.op == BDEV_READ && req->ranges == 0)
		virtq_log_iov(vq, req->use->mem, req->io.iov, req->io.iovcnt, req->written);
	virtq_log_iov(vq, req->use->mem, &byte, 1, 1);
}

/* hot. The head has been pushed: the buffers are not touched any more. */
static inline void let_go(struct vhost_blk_queue *q, struct guest_mem_use *use)
{
	/* what was written to them must be visible before the table may go */
	store_release(&use->inflight, use->inflight - 1);
	reactor_flush(&q->flush);
}

/* Give the head back with used.len written. */
static void give_back(struct vhost_blk_req *req, uint32_t written)
{
	virtq_push(req->q->vq, req->head, written);
	let_go(req->q, req->use);
}

static noinline void finish(struct vhost_blk_req *req, uint8_t status)
{
	WRITE_ONCE(*req->status, status);
	if (req->q->vq->log)
		log_written(req, status);
	give_back(req, status == VIRTIO_BLK_S_OK ? req->written : 1);
}

static void submit_range(struct vhost_blk_req *req);

/* An error, a request of several ranges or with a list, or a guest that migrates. */
static noinline void done_oddly(struct vhost_blk_req *req)
{
	int error = req->io.status;

	if (error == 0 && req->range + 1 < req->ranges) {
		req->range++;
		submit_range(req);
		return;
	}
	finish(req, error == 0		   ? VIRTIO_BLK_S_OK
		    : error == -EOPNOTSUPP ? VIRTIO_BLK_S_UNSUPP
					   : VIRTIO_BLK_S_IOERR);
	req->range = req->ranges = 0;
	if (req->list)
		drop_list(req);
}

/* hot. The bdev has ended the request. */
static always_inline void done(struct task *t, bool packed)
{
	struct vhost_blk_req *req = container_of(t, struct vhost_blk_req, io.task);
	struct vhost_blk_queue *q = req->q;
	struct virtq *vq = q->vq;

	if (unlikely((uint32_t)req->io.status | req->odd) || unlikely(vq->log)) {
		done_oddly(req);
		return;
	}
	WRITE_ONCE(*req->status, VIRTIO_BLK_S_OK);
	if (packed)
		virtq_packed_push(vq, req->end);
	else
		virtq_split_push(vq, req->head, req->written);
	let_go(q, req->use);
}

static void done_split(struct task *t)
{
	done(t, false);
}

static void done_packed(struct task *t)
{
	done(t, true);
}

/* hot: once per turn and ring */
void vhost_blk_flush(struct task *t)
{
	struct vhost_blk_queue *q = container_of(t, struct vhost_blk_queue, flush);

	unsigned n = virtq_flush(q->vq);

	WRITE_ONCE(q->inflight, q->inflight - n);
	turn_bill(&q->bill, n);
	if (unlikely(q->drained) && q->inflight == 0) {
		sem_t *drained = q->drained;

		q->drained = NULL;
		sem_post(drained);
	}
}

/* --- its beginning --- */

/* n entries of the chain become the request's own list. */
static void keep_iov(struct vhost_blk_req *req, const struct iovec *iov, unsigned n)
{
	struct iovec *own = req->iov;

	if (unlikely(n > ARRAY_SIZE(req->iov)))
		own = take_list(req);
	for (unsigned i = 0; i < n; i++)
		own[i] = iov[i];
	req->io.iov = own;
	req->io.iovcnt = (uint16_t)n;
}

/* The writable part less its last byte, the status. */
static void keep_in(struct vhost_blk_req *req, const struct virtq_chain *c)
{
	struct iovec *iov = c->iov + c->out_n, *last = iov + c->in_n - 1;

	keep_iov(req, iov, c->in_n - (--last->iov_len == 0 ? 1 : 0));
}

/* The readable part less its first 16 bytes, the header, however they are cut. */
static void keep_out(struct vhost_blk_req *req, const struct virtq_chain *c)
{
	size_t skip = sizeof(struct virtio_blk_req_hdr);
	struct iovec *iov = c->iov;
	unsigned n = c->out_n;

	while (n > 0 && skip >= iov->iov_len) {
		skip -= iov->iov_len;
		iov++;
		n--;
	}
	if (n > 0) {
		iov->iov_base = (char *)iov->iov_base + skip;
		iov->iov_len -= skip;
	}
	keep_iov(req, iov, n);
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

/* hot. Data must be whole sectors, at an offset that has a byte count; bdev_submit() checks that
 * they are in the disk. */
static inline bool data_fits(uint64_t sector, uint32_t len)
{
	return len % VIRTIO_BLK_SECTOR_SIZE == 0 &&
	       sector < UINT64_C(1) << (63 - VIRTIO_BLK_SECTOR_SHIFT);
}

static void start_read(struct vhost_blk_req *req, const struct virtq_chain *c, uint64_t sector)
{
	uint32_t len = c->in_len - 1;

	if (unlikely(c->out_len != sizeof(struct virtio_blk_req_hdr) || !data_fits(sector, len))) {
		finish(req, VIRTIO_BLK_S_IOERR);
		return;
	}
	keep_in(req, c);
	req->written = len + 1;
	submit(req, BDEV_READ, 0, sector << VIRTIO_BLK_SECTOR_SHIFT, len);
}

static void start_write(struct vhost_blk_req *req, const struct virtq_chain *c, uint64_t sector)
{
	uint32_t len = c->out_len - (uint32_t)sizeof(struct virtio_blk_req_hdr);

	if (unlikely(c->in_len != 1 || req->q->disk->readonly || !data_fits(sector, len))) {
		finish(req, VIRTIO_BLK_S_IOERR);
		return;
	}
	keep_out(req, c);
	submit(req, BDEV_WRITE, READ_ONCE(req->q->write_through) ? BDEV_FUA : 0,
	       sector << VIRTIO_BLK_SECTOR_SHIFT, len);
}

static void start_get_id(struct vhost_blk_req *req, const struct virtq_chain *c)
{
	uint32_t len = MIN(c->in_len - 1, VIRTIO_BLK_ID_BYTES);

	iov_copy_in(c->iov + c->out_n, c->in_n, 0, req->q->disk->id, len);
	if (req->q->vq->log)
		virtq_log_iov(req->q->vq, req->use->mem, c->iov + c->out_n, c->in_n, len);
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
	if (sector > q->bq->size >> VIRTIO_BLK_SECTOR_SHIFT ||
	    !range_fits(sector << VIRTIO_BLK_SECTOR_SHIFT, len, q->bq->size))
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
	if (worst == VIRTIO_BLK_S_OK)
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

/* Any chain. */
static void start_chain(struct vhost_blk_req *req, const struct virtq_chain *c)
{
	struct virtio_blk_req_hdr hdr;
	const struct iovec *last;

	req->written = 1;
	req->io.op = BDEV_FLUSH;
	if (c->malformed || c->in_n == 0) {
		give_back(req, 0); /* no status byte to be trusted */
		return;
	}
	last = &c->iov[c->out_n + c->in_n - 1];
	req->status = (uint8_t *)last->iov_base + last->iov_len - 1;
	/* the copy is what is checked and used */
	if (iov_copy_out(c->iov, c->out_n, 0, &hdr, sizeof(hdr)) != sizeof(hdr))
		finish(req, VIRTIO_BLK_S_IOERR);
	else if (from_le32(hdr.type) == VIRTIO_BLK_T_IN)
		start_read(req, c, from_le64(hdr.sector));
	else if (from_le32(hdr.type) == VIRTIO_BLK_T_OUT)
		start_write(req, c, from_le64(hdr.sector));
	else
		start_other(req, c, from_le32(hdr.type));
}

/* Not one of those: req has its buffer and its status byte, which with the header make a chain. */
static noinline void start_framed_as_chain(struct vhost_blk_req *req, const void *header, bool in)
{
	struct iovec iov[] = { { (void *)(uintptr_t)header, sizeof(struct virtio_blk_req_hdr) },
			       req->iov[0],
			       { req->status, 1 } };
	uint32_t len = (uint32_t)req->iov[0].iov_len;
	struct virtq_chain c = {
		.out_n = in ? 1 : 2,
		.in_n = in ? 2 : 1,
		.out_len = (uint32_t)iov[0].iov_len + (in ? 0 : len),
		.in_len = 1 + (in ? len : 0),
		.iov = iov,
	};

	/* A sum that has wrapped is no length. */
	c.malformed = (in ? c.in_len : c.out_len) < len;
	start_chain(req, &c);
}

/* hot. Header, one buffer, status: all that is done for most reads and writes. */
static inline void start_framed(struct vhost_blk_req *req, const struct virtq_framed *f)
{
	const char *hdr = f->header;
	uint32_t type = (uint32_t)load_le64(hdr + offsetof(struct virtio_blk_req_hdr, type)),
		 len = (uint32_t)f->body.iov_len;
	uint64_t sector = load_le64(hdr + offsetof(struct virtio_blk_req_hdr, sector));

	req->status = f->trailer;
	req->iov[0] = f->body;
	if (unlikely(!data_fits(sector, len))) {
		start_framed_as_chain(req, hdr, f->in);
		return;
	}
	req->io.iov = req->iov;
	if (likely(f->in && type == VIRTIO_BLK_T_IN)) {
		req->written = len + 1;
		req->io.iovcnt = 1;
		submit(req, BDEV_READ, 0, sector << VIRTIO_BLK_SECTOR_SHIFT, len);
	} else if (likely(!f->in && type == VIRTIO_BLK_T_OUT && !req->q->disk->readonly)) {
		req->written = 1;
		req->io.iovcnt = 1;
		submit(req, BDEV_WRITE, READ_ONCE(req->q->write_through) ? BDEV_FUA : 0,
		       sector << VIRTIO_BLK_SECTOR_SHIFT, len);
	} else {
		start_framed_as_chain(req, hdr, f->in);
	}
}

/* hot. The request of a head, which holds the present memory from now on. */
static inline struct vhost_blk_req *take(struct vhost_blk_queue *q, uint16_t head)
{
	struct vhost_blk_req *req = vhost_blk_req_at(q, head);

	req->use = q->vq->use;
	req->use->inflight++;
	return req;
}

static noinline bool take_any(struct vhost_blk_queue *q)
{
	struct virtq_chain c;

	if (q->lists_free == 0 || virtq_pop(q->vq, &c) <= 0)
		return false;
	start_chain(take(q, c.head), &c);
	return true;
}

/* hot */
static always_inline unsigned take_batch(struct vhost_blk_queue *q, bool packed)
{
	const uint32_t header = sizeof(struct virtio_blk_req_hdr);
	struct virtq *vq = q->vq;
	struct virtq_framed f;
	unsigned n, most = this_turn->batch;

	for (n = 0; n < most; n++) {
		if (likely(packed ? virtq_packed_pop_framed(vq, header, 1, &f)
				  : virtq_split_pop_framed(vq, header, 1, &f)))
			start_framed(take(q, f.head), &f);
		else if (!take_any(q))
			break;
	}
	WRITE_ONCE(q->inflight, q->inflight + n);
	WRITE_ONCE(q->batches, q->batches + 1);
	turn_bill(&q->bill, n);
	return n;
}

static noinline unsigned take_split(struct vhost_blk_queue *q)
{
	return take_batch(q, false);
}

static noinline unsigned take_packed(struct vhost_blk_queue *q)
{
	return take_batch(q, true);
}

/* hot */
static unsigned poll_split(struct poller *p)
{
	struct vhost_blk_queue *q = container_of(p, struct vhost_blk_queue, poller);

	return virtq_split_has_work(q->vq) ? take_split(q) : 0;
}

/* hot */
static unsigned poll_packed(struct poller *p)
{
	struct vhost_blk_queue *q = container_of(p, struct vhost_blk_queue, poller);

	return virtq_packed_has_work(q->vq) ? take_packed(q) : 0;
}

/* First what was in flight at a crash, which no look at the ring tells of. */
static unsigned poll_after_crash(struct poller *p)
{
	struct vhost_blk_queue *q = container_of(p, struct vhost_blk_queue, poller);
	unsigned n = take_split(q); /* nothing is framed until all that is served */

	if (!q->vq->resubmitting)
		p->fn = q->vq->packed ? poll_packed : poll_split;
	return n;
}

void vhost_blk_set_format(struct vhost_blk_queue *q)
{
	bool packed = q->vq->packed;

	q->poller.fn = q->vq->resubmitting ? poll_after_crash : packed ? poll_packed : poll_split;
	for (unsigned i = 0; i < q->vq->num; i++)
		vhost_blk_req_at(q, (uint16_t)i)->io.task.fn = packed ? done_packed : done_split;
}
