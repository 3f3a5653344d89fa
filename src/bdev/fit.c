/*
 * Fit: requests that a driver cannot take in one piece or as they lie in memory.
 *
 * Such a request is taken apart. Its pieces are requests of their own from a small pool of the
 * queue; while the pool is empty requests wait in the order they came. A piece reads or writes the
 * caller's buffers directly where the driver's limits allow that, and goes through a bounce buffer
 * where they do not (buffers at odd addresses, reads of part of a block). WRITE_ZEROES that a
 * driver does not know becomes writes of zeroes.
 *
 * The state of a request lies in its own driver room, which the driver gets to see only of the
 * pieces.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "bdev/internal.h"
#include "mem/mem.h"
#include "util/iov.h"

#define PIECES	      8
#define PIECE_IOV_MAX 256
#define BOUNCE_SIZE   (128u << 10)
#define ZERO_SIZE     (64u << 10)
#define ZERO_REPEAT   16

struct fit_state {
	struct bdev_io *next; /* in the waiting line */
	uint32_t issued;      /* bytes that pieces were made for */
	uint32_t pieces;      /* in flight */
	int32_t status;	      /* the first error */
};

struct piece {
	struct piece *next_free;
	struct bdev_io *whole;
	struct iovec *iov; /* PIECE_IOV_MAX */
	void *bounce;	   /* BOUNCE_SIZE */
	uint32_t at;	   /* of the whole: first byte of this piece */
	uint32_t want;	   /* bytes of the whole that this piece stands for */
	bool bounced;
	struct bdev_io io; /* last: its room follows */
};

struct bdev_fit {
	struct piece *free;
	struct bdev_io *first, **last; /* waiting line */
	void *memory;		       /* the pieces */
	void *bounce;		       /* BOUNCE_SIZE for each */
	size_t stride;
};

static _Alignas(4096) const uint8_t zeroes[ZERO_SIZE];

static struct fit_state *state_of(struct bdev_io *io)
{
	return (struct fit_state *)(void *)io->ctx;
}

uint32_t bdev_fit_ctx_size(void)
{
	return sizeof(struct fit_state);
}

/* --- making a piece --- */

/*
 * As much of [at, at + len) of the whole's buffers as PIECE_IOV_MAX (or the driver's) entries hold,
 * in whole blocks, into p->iov. Returns the bytes; 0: not even one block.
 */
static uint32_t gather(struct piece *p, uint32_t len, const struct bdev_queue *q)
{
	const struct bdev_io *whole = p->whole;
	int max = MIN(PIECE_IOV_MAX, q->max_iov), n;

	for (;;) {
		n = iov_slice(whole->iov, whole->iovcnt, p->at, len, p->iov, max);
		if (n >= 0)
			break;
		/* Too many entries: what did fit, less the block that is cut. */
		len = (uint32_t)iov_len(p->iov, max) & ~q->block_mask;
		if (len == 0)
			return 0;
	}
	p->io.iov = p->iov;
	p->io.iovcnt = (uint16_t)n;
	return len;
}

/* A driver that cannot reach everything has no rule but what it reaches. */
static bool piece_fits(const struct piece *p, struct bdev_queue *q)
{
	bool (*reaches)(struct bdev_queue *, const struct iovec *, int) = q->bdev->driver->reaches;

	if (reaches)
		return reaches(q, p->io.iov, p->io.iovcnt);
	return iov_aligned(p->io.iov, p->io.iovcnt, q->align_mask + 1,
			   MAX(q->align_mask, q->block_mask) + 1);
}

/* Of len bytes from start on, those before the next place that no request may cross. */
static uint32_t within_boundary(const struct bdev_queue *q, uint64_t start, uint32_t len)
{
	return q->boundary ? (uint32_t)MIN(len, q->boundary - start % q->boundary) : len;
}

static void shape_bounced(struct piece *p, uint32_t rest, struct bdev_queue *q)
{
	uint64_t start = p->whole->offset + p->at, first = start & ~(uint64_t)q->block_mask, end;

	end = MIN(start + rest, first + MIN(BOUNCE_SIZE, q->max_len));
	p->want = (uint32_t)(end - start);
	p->bounced = true;
	p->io.offset = first;
	p->io.len = (uint32_t)(((end + q->block_mask) & ~(uint64_t)q->block_mask) - first);
	p->iov[0].iov_base = p->bounce;
	p->iov[0].iov_len = p->io.len;
	p->io.iov = p->iov;
	p->io.iovcnt = 1;
	if (p->io.op == BDEV_WRITE)
		iov_copy_out(p->whole->iov, p->whole->iovcnt, p->at, p->bounce, p->want);
}

static void shape_data(struct piece *p, uint32_t left, struct bdev_queue *q)
{
	uint64_t start = p->whole->offset + p->at;
	uint32_t rest = within_boundary(q, start, left);
	bool blocks = ((start | rest) & q->block_mask) == 0;

	p->want = blocks ? gather(p, MIN(rest, q->max_len & ~q->block_mask), q) : 0;
	if (p->want == 0 || !piece_fits(p, q)) {
		shape_bounced(p, rest, q);
		return;
	}
	p->io.offset = start;
	p->io.len = p->want;
}

static void shape_zero_write(struct piece *p, uint32_t rest, struct bdev_queue *q)
{
	bool bounce =
		q->bdev->driver->reaches != NULL; /* the zeroes are nothing a device reaches */
	uint32_t size = bounce ? BOUNCE_SIZE : ZERO_SIZE,
		 most = MIN(size * MIN(ZERO_REPEAT, q->max_iov), q->max_len & ~q->block_mask), left;

	p->want = p->io.len = within_boundary(q, p->io.offset, MIN(rest, most));
	if (bounce)
		memset(p->bounce, 0, MIN(p->want, size));
	p->io.op = BDEV_WRITE;
	p->io.iov = p->iov;
	p->io.iovcnt = 0;
	for (left = p->want; left > 0; left -= MIN(left, size)) {
		p->iov[p->io.iovcnt].iov_base = bounce ? p->bounce : (void *)(uintptr_t)zeroes;
		p->iov[p->io.iovcnt].iov_len = MIN(left, size);
		p->io.iovcnt++;
	}
}

static void shape_range(struct piece *p, uint32_t rest, uint32_t most, const struct bdev_queue *q)
{
	p->want = p->io.len = MIN(rest, most & ~q->block_mask);
	p->io.iovcnt = 0;
}

/* Fill p with the next part of its whole. */
static void shape(struct piece *p, struct bdev_queue *q)
{
	struct bdev_io *whole = p->whole;
	const struct bdev_limits *l = &q->bdev->limits;
	uint32_t rest = whole->len - p->at;

	p->bounced = false;
	p->io.op = whole->op;
	p->io.flags = whole->flags | BDEV_PIECE;
	p->io.offset = whole->offset + p->at;
	if (whole->op <= BDEV_WRITE)
		shape_data(p, rest, q);
	else if (whole->op == BDEV_DISCARD)
		shape_range(p, rest, l->max_discard, q);
	else if (l->max_zeroes && !(l->zeroes_unmap_only && whole->flags & BDEV_NO_UNMAP))
		shape_range(p, rest, l->max_zeroes, q);
	else
		shape_zero_write(p, rest, q);
}

/* --- running --- */

/* Give free pieces to the requests in line, oldest first. */
static void run(struct bdev_queue *q)
{
	struct bdev_fit *f = q->fit;

	while (f->first && f->free) {
		struct bdev_io *whole = f->first;
		struct fit_state *s = state_of(whole);
		struct piece *p = f->free;

		f->free = p->next_free;
		p->whole = whole;
		p->at = s->issued;
		p->io.start = reactor_now();
		shape(p, q);
		s->issued += p->want;
		s->pieces++;
		if (s->issued == whole->len) {
			f->first = s->next;
			if (!f->first)
				f->last = &f->first;
		}
		q->submit(&p->io);
	}
}

/* A request whose piece failed makes no further ones. */
static void abandon(struct bdev_fit *f, struct bdev_io *whole)
{
	struct bdev_io **link = &f->first;

	if (state_of(whole)->issued == whole->len)
		return;
	state_of(whole)->issued = whole->len;
	while (*link != whole)
		link = &state_of(*link)->next;
	*link = state_of(whole)->next;
	if (!*link)
		f->last = link;
}

static void piece_done(struct task *t)
{
	struct piece *p = container_of(t, struct piece, io.task);
	struct bdev_io *whole = p->whole;
	struct fit_state *s = state_of(whole);
	struct bdev_queue *q = whole->q;

	if (p->io.status == 0 && p->bounced && whole->op == BDEV_READ)
		iov_copy_in(whole->iov, whole->iovcnt, p->at,
			    (char *)p->bounce + (whole->offset + p->at - p->io.offset), p->want);
	if (p->io.status && s->status == 0)
		s->status = p->io.status;
	p->next_free = q->fit->free;
	q->fit->free = p;
	s->pieces--;
	if (s->status)
		abandon(q->fit, whole);
	if (s->issued == whole->len && s->pieces == 0)
		bdev_io_end(whole, s->status);
	run(q);
}

void bdev_fit_submit(struct bdev_io *io)
{
	struct bdev_fit *f = io->q->fit;
	struct fit_state *s = state_of(io);

	memset(s, 0, sizeof(*s));
	*f->last = io;
	f->last = &s->next;
	run(io->q);
}

/* --- the pool --- */

/* Page-aligned, which satisfies every driver; what no device has to reach is not touched before it
 * is used. */
static int bounce_alloc(struct bdev_queue *q, void **out, struct err *e)
{
	if (q->bdev->driver->reaches)
		return dma_zalloc(PIECES * BOUNCE_SIZE, 4096, out, e);
	*out = aligned_alloc(4096, PIECES * BOUNCE_SIZE);
	return *out ? 0 : err_set(e, -ENOMEM, "Out of memory.");
}

static void bounce_free(struct bdev_queue *q, void *bounce)
{
	if (q->bdev->driver->reaches)
		dma_free(bounce, PIECES * BOUNCE_SIZE);
	else
		free(bounce);
}

static struct piece *piece_at(const struct bdev_fit *f, size_t i)
{
	return (struct piece *)(void *)((char *)f->memory + i * f->stride);
}

static int pieces_init(struct bdev_fit *f, struct bdev_queue *q, struct err *e)
{
	for (size_t i = 0; i < PIECES; i++) {
		struct piece *p = piece_at(f, i);

		p->iov = calloc(PIECE_IOV_MAX, sizeof(*p->iov));
		if (!p->iov)
			return err_set(e, -ENOMEM, "Out of memory.");
		p->bounce = (char *)f->bounce + i * BOUNCE_SIZE;
		p->io.task.fn = piece_done;
		p->io.q = q;
		p->next_free = f->free;
		f->free = p;
	}
	return 0;
}

int bdev_fit_open(struct bdev_queue *q, struct err *e)
{
	struct bdev_fit *f = calloc(1, sizeof(*f));
	int rc;

	if (!f)
		return err_set(e, -ENOMEM, "Out of memory.");
	q->fit = f;
	f->last = &f->first;
	f->stride = ROUND_UP(sizeof(struct piece) + q->bdev->ctx_size, CACHE_LINE);
	f->memory = aligned_alloc(CACHE_LINE, f->stride * PIECES);
	if (f->memory)
		memset(f->memory, 0, f->stride * PIECES);
	rc = f->memory ? bounce_alloc(q, &f->bounce, e) : err_set(e, -ENOMEM, "Out of memory.");
	if (rc == 0)
		rc = pieces_init(f, q, e);
	if (rc)
		bdev_fit_close(q);
	return rc;
}

void bdev_fit_close(struct bdev_queue *q)
{
	struct bdev_fit *f = q->fit;

	if (!f)
		return;
	for (size_t i = 0; f->memory && i < PIECES; i++)
		free(piece_at(f, i)->iov);
	bounce_free(q, f->bounce);
	free(f->memory);
	free(f);
	q->fit = NULL;
}
