#include <errno.h>

#include "bdev/internal.h"
#include "util/bytes.h"
#include "util/iov.h"

/* What DISCARD, WRITE_ZEROES and FLUSH need checked; 0 or -errno. */
static noinline int check_other(const struct bdev_queue *q, const struct bdev_io *io)
{
	const struct bdev *b = q->bdev;

	switch (io->op) {
	case BDEV_FLUSH:
		return 0;
	case BDEV_DISCARD:
		if (b->limits.max_discard == 0)
			return -EOPNOTSUPP;
		break;
	case BDEV_WRITE_ZEROES:
		if (b->limits.no_zeroes)
			return -EOPNOTSUPP;
		break;
	default:
		return -EINVAL;
	}
	if (q->readonly)
		return -EROFS;
	if (!range_fits(io->offset, io->len, q->size))
		return -ERANGE;
	return (io->offset | io->len) & q->block_mask ? -EINVAL : 0;
}

/* hot */
static inline int check(const struct bdev_queue *q, const struct bdev_io *io)
{
	if (unlikely(io->op > BDEV_WRITE))
		return check_other(q, io);
	if (unlikely(!range_fits(io->offset, io->len, q->size)))
		return -ERANGE;
	if (io->op == BDEV_READ)
		return 0; /* a read of part of a block is fitted */
	if (unlikely(q->readonly))
		return -EROFS;
	/* Part of a block cannot be written without racing with those who write the rest of it. */
	return unlikely((io->offset | io->len) & q->block_mask) ? -EINVAL : 0;
}

static noinline bool other_must_fit(const struct bdev_queue *q, const struct bdev_io *io)
{
	const struct bdev_limits *l = &q->bdev->limits;

	if (io->op == BDEV_DISCARD)
		return io->len > l->max_discard;
	if (io->op == BDEV_WRITE_ZEROES)
		return io->len > l->max_zeroes ||
		       (l->zeroes_unmap_only && io->flags & BDEV_NO_UNMAP);
	return false;
}

/* hot */
static inline bool must_fit(const struct bdev_queue *q, const struct bdev_io *io)
{
	if (unlikely(io->op > BDEV_WRITE))
		return other_must_fit(q, io);
	if (unlikely(io->len > q->max_len || io->iovcnt > q->max_iov))
		return true;
	if (unlikely((io->offset | io->len) & q->block_mask))
		return true;
	return q->align_mask && unlikely(!iov_aligned(io->iov, io->iovcnt, q->align_mask + 1,
						      MAX(q->align_mask, q->block_mask) + 1));
}

/* hot */
void bdev_submit(struct bdev_io *io)
{
	struct bdev_queue *q = io->q;
	int rc = check(q, io);

	io->start = reactor_now();
	q->inflight++;
	if (unlikely(rc))
		bdev_io_end(io, rc);
	else if (unlikely(io->len == 0 && io->op != BDEV_FLUSH))
		bdev_io_end(io, 0);
	else if (unlikely(must_fit(q, io)))
		bdev_fit_submit(io);
	else
		q->submit(q, io);
}

static noinline void count_error(struct bdev_queue *q, const struct bdev_io *io)
{
	if (io->op < BDEV_OPS)
		WRITE_ONCE(q->stats.op[io->op].errors, q->stats.op[io->op].errors + 1);
}

/* hot */
static inline void count(struct bdev_queue *q, const struct bdev_io *io)
{
	struct bdev_op_stats *s = &q->stats.op[io->op];
	uint64_t took = reactor_now() - io->start;

	if (unlikely(io->status)) {
		count_error(q, io);
		return;
	}
	WRITE_ONCE(s->ops, s->ops + 1);
	WRITE_ONCE(s->bytes, s->bytes + io->len);
	if (took) { /* what completes in the turn that it began in took nothing */
		WRITE_ONCE(s->ticks, s->ticks + took);
		if (unlikely(took > s->max_ticks))
			WRITE_ONCE(s->max_ticks, took);
	}
	if (unlikely(took < s->min_ticks))
		WRITE_ONCE(s->min_ticks, took);
}

/* hot */
void bdev_io_end(struct bdev_io *io, int status)
{
	io->status = status;
	if (likely(!(io->flags & BDEV_PIECE))) {
		count(io->q, io);
		io->q->inflight--;
	}
	reactor_soon(&io->task);
}
