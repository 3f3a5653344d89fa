#include <errno.h>

#include "bdev/internal.h"
#include "util/bytes.h"
#include "util/iov.h"

/* May it be done at all? 0 or -errno. */
static int check(const struct bdev_queue *q, const struct bdev_io *io)
{
	const struct bdev *b = q->bdev;

	if (io->op == BDEV_FLUSH)
		return 0;
	if (io->op >= BDEV_OPS)
		return -EINVAL;
	if (io->op == BDEV_DISCARD && b->limits.max_discard == 0)
		return -EOPNOTSUPP;
	if (io->op == BDEV_WRITE_ZEROES && b->limits.no_zeroes)
		return -EOPNOTSUPP;
	if (io->op != BDEV_READ && q->readonly)
		return -EROFS;
	if (!range_fits(io->offset, io->len, q->size))
		return -ERANGE;
	/*
	 * A read of part of a block is fitted. Part of a block cannot be written without racing
	 * with those who write the rest of it.
	 */
	return io->op != BDEV_READ && (io->offset | io->len) & q->block_mask ? -EINVAL : 0;
}

/* Beyond what the driver takes in one request? */
static bool must_fit(const struct bdev_queue *q, const struct bdev_io *io)
{
	const struct bdev_limits *l = &q->bdev->limits;

	switch (io->op) {
	case BDEV_FLUSH:
		return false;
	case BDEV_DISCARD:
		return io->len > l->max_discard;
	case BDEV_WRITE_ZEROES:
		return io->len > l->max_zeroes ||
		       (l->zeroes_unmap_only && io->flags & BDEV_NO_UNMAP);
	default:
		return true; /* it would have been submitted as it is */
	}
}

static noinline void submit_oddly(struct bdev_io *io)
{
	struct bdev_queue *q = io->q;
	int rc = check(q, io);

	if (rc || (io->len == 0 && io->op != BDEV_FLUSH))
		bdev_io_end(io, rc);
	else if (must_fit(q, io))
		bdev_fit_submit(io);
	else
		q->submit(io);
}

static bool crosses_boundary(const struct bdev_queue *q, const struct bdev_io *io)
{
	return q->boundary && io->offset / q->boundary != (io->offset + io->len - 1) / q->boundary;
}

/* The driver takes buffers at multiples of something, or requests between multiples of something.
 */
static noinline void submit_picky(struct bdev_io *io)
{
	struct bdev_queue *q = io->q;

	if (!crosses_boundary(q, io) && iov_aligned(io->iov, io->iovcnt, q->align_mask + 1,
						    MAX(q->align_mask, q->block_mask) + 1))
		q->submit(io);
	else
		bdev_fit_submit(io);
}

/* hot. Whole blocks inside the disk, as many as the driver takes. max_len is not larger than the
 * disk. */
static always_inline bool range_is_plain(const struct bdev_queue *q, const struct bdev_io *io)
{
	return likely(io->len - 1 < q->max_len) && likely(io->offset <= q->size - io->len) &&
	       likely(((io->offset | io->len) & q->block_mask) == 0);
}

/* All but one plain buffer. */
static noinline void submit_other(struct bdev_io *io)
{
	struct bdev_queue *q = io->q;

	if (io->op > BDEV_WRITE || (io->op == BDEV_WRITE && q->readonly) ||
	    io->iovcnt > q->max_iov || !range_is_plain(q, io))
		submit_oddly(io);
	else if (q->picky)
		submit_picky(io);
	else
		q->submit(io);
}

/* hot */
void bdev_submit(struct bdev_io *io)
{
	struct bdev_queue *q = io->q;

	io->start = reactor_now();
	q->inflight++;
	if (likely((io->shape & q->one_mask) == q->one_shape) && range_is_plain(q, io))
		q->submit_one(io);
	else
		submit_other(io);
}

void bdev_refit(struct bdev_io *io)
{
	if (io->flags & BDEV_PIECE) /* fit asked before: memory has gone meanwhile */
		bdev_io_end(io, -EFAULT);
	else
		bdev_fit_submit(io);
}

void bdev_io_end_oddly(struct bdev_io *io)
{
	if (!(io->flags & BDEV_PIECE)) {
		if (io->op < BDEV_OPS)
			counter_add(&io->q->stats.op[io->op].errors, 1);
		io->q->inflight--;
	}
	reactor_soon(&io->task);
}

/* hot */
void bdev_io_end(struct bdev_io *io, int status)
{
	if (likely(status == 0)) {
		bdev_io_end_well(io, this_turn);
		return;
	}
	io->status = status;
	bdev_io_end_oddly(io);
}
