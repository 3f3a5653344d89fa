/*
 * faulty: a bdev that does not keep what it is given, to see whether those who look for such faults
 * find them. One write in N goes wrong, and is answered as if it had not:
 *
 *	drop		it does not happen
 *	tear		only its first half happens
 *	misplace	it happens next to where it belongs
 *	duplicate	it happens again after the next write to its place, and undoes that
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "bdev/registry.h"
#include "filter/base.h"
#include "filter/list.h"
#include "util/bytes.h"
#include "util/iov.h"

#define TEAR_IOV 8
#define COPY_MAX (1u << 20)

struct faulty_args {
	char *base_bdev_name, *name, *kind;
	struct uuid uuid;
	uint64_t one_in;
};

static const struct param faulty_params[] = {
	PARAM_STRING(struct faulty_args, base_bdev_name, .required = true, .positional = true,
		     .min = 1, .help = "the bdev to spoil"),
	PARAM_STRING(struct faulty_args, name, .required = true, .min = 1, .max = 255,
		     .help = "name of the new disk"),
	PARAM_UUID(struct faulty_args, uuid, .help = "UUID (default: random)"),
	PARAM_STRING(struct faulty_args, kind, .required = true,
		     .help = "drop, tear, misplace or duplicate"),
	PARAM_UINT(struct faulty_args, one_in, .required = true, .min = 1, .def = 1000,
		   .max = UINT32_MAX, .help = "one write in so many goes wrong"),
	{ 0 }
};

enum faulty_kind { KIND_DROP, KIND_TEAR, KIND_MISPLACE, KIND_DUPLICATE };

static const char *const kind_names[] = { "drop", "tear", "misplace", "duplicate" };

struct faulty_bdev {
	struct bdev bdev;
	struct bdev *base;
	enum faulty_kind kind;
	uint64_t one_in;
};

struct faulty_queue {
	struct bdev_queue *base;
	uint64_t until; /* writes to the next that goes wrong; it waits for one that can */
	char *copy;	/* COPY_MAX; KIND_DUPLICATE only */
	uint64_t copy_offset;
	uint32_t copy_len; /* 0: there is none to be written again */
	bool repeating;
};

struct faulty_io {
	struct iovec iov[TEAR_IOV];
	struct bdev_io child; /* last: its room follows */
};

static struct faulty_bdev *to_faulty(struct bdev *b)
{
	return container_of(b, struct faulty_bdev, bdev);
}

static struct bdev_io *io_of(struct faulty_io *f)
{
	return container_of((void *)f, struct bdev_io, ctx);
}

static void faulty_base_done(struct task *t)
{
	struct faulty_io *f = container_of(t, struct faulty_io, child.task);

	bdev_io_end(io_of(f), f->child.status);
}

static void prepare(struct bdev_io *io, struct faulty_io *f)
{
	struct faulty_queue *fq = io->q->priv;

	f->child = (struct bdev_io){
		.task.fn = faulty_base_done,
		.q = fq->base,
		.iov = io->iov,
		.iovcnt = io->iovcnt,
		.offset = io->offset,
		.len = io->len,
		.op = io->op,
		.flags = io->flags & (uint8_t)~BDEV_PIECE,
	};
}

static void faulty_repeat_done(struct task *t)
{
	struct faulty_io *f = container_of(t, struct faulty_io, child.task);
	struct faulty_queue *fq = io_of(f)->q->priv;

	fq->copy_len = 0;
	fq->repeating = false;
	faulty_base_done(t);
}

/* Its place, or a part of it, has been written anew: now that of the old write once more. */
static void faulty_rewritten(struct task *t)
{
	struct faulty_io *f = container_of(t, struct faulty_io, child.task);
	struct faulty_queue *fq = io_of(f)->q->priv;

	if (f->child.status) {
		fq->repeating = false;
		faulty_base_done(t);
		return;
	}
	f->child.task.fn = faulty_repeat_done;
	f->iov[0] = (struct iovec){ fq->copy + (f->child.offset - fq->copy_offset), f->child.len };
	f->child.iov = f->iov;
	f->child.iovcnt = 1;
	bdev_submit(&f->child);
}

static bool rewrites(const struct faulty_queue *fq, const struct bdev_io *io)
{
	return fq->copy_len && !fq->repeating && io->offset >= fq->copy_offset &&
	       range_fits(io->offset - fq->copy_offset, io->len, fq->copy_len);
}

/* The faults. false: this write is not one that can go wrong so. */

static bool tear(const struct bdev_queue *q, struct bdev_io *io, struct faulty_io *f)
{
	uint32_t half = io->len / 2 & ~q->block_mask;
	int n = half ? iov_slice(io->iov, io->iovcnt, 0, half, f->iov, TEAR_IOV) : -1;

	if (n < 0)
		return false;
	f->child.iov = f->iov;
	f->child.iovcnt = (uint16_t)n;
	f->child.len = half;
	return true;
}

static bool misplace(const struct bdev_queue *q, struct bdev_io *io, struct faulty_io *f)
{
	if (io->offset + 2 * (uint64_t)io->len <= q->size)
		f->child.offset = io->offset + io->len;
	else if (io->offset >= io->len)
		f->child.offset = io->offset - io->len;
	else
		return false;
	return true;
}

static bool remember(struct faulty_queue *fq, const struct bdev_io *io)
{
	if (fq->copy_len || io->len > COPY_MAX)
		return false;
	iov_copy_out(io->iov, io->iovcnt, 0, fq->copy, io->len);
	fq->copy_offset = io->offset;
	fq->copy_len = io->len;
	return true;
}

/* Returns false when nothing is to be written. */
static bool spoil(struct bdev_queue *q, struct bdev_io *io, struct faulty_io *f)
{
	struct faulty_queue *fq = q->priv;
	struct faulty_bdev *b = to_faulty(q->bdev);
	bool done = true;

	if (rewrites(fq, io)) {
		fq->repeating = true;
		f->child.task.fn = faulty_rewritten;
		return true;
	}
	if (fq->until > 1) {
		fq->until--;
		return true;
	}
	if (b->kind == KIND_TEAR)
		done = tear(q, io, f);
	else if (b->kind == KIND_MISPLACE)
		done = misplace(q, io, f);
	else if (b->kind == KIND_DUPLICATE)
		done = remember(fq, io);
	if (done)
		fq->until = b->one_in;
	return b->kind != KIND_DROP;
}

static void faulty_submit(struct bdev_io *io)
{
	struct faulty_io *f = (struct faulty_io *)(void *)io->ctx;

	prepare(io, f);
	if (io->op == BDEV_WRITE && !spoil(io->q, io, f))
		bdev_io_end(io, 0);
	else
		bdev_submit(&f->child);
}

static int faulty_queue_open(struct bdev_queue *q, struct err *e)
{
	struct faulty_bdev *b = to_faulty(q->bdev);
	struct faulty_queue *fq = calloc(1, sizeof(*fq));
	int rc;

	if (!fq)
		return err_set(e, -ENOMEM, "Out of memory.");
	fq->until = b->one_in;
	if (b->kind == KIND_DUPLICATE) {
		fq->copy = aligned_alloc(4096, COPY_MAX);
		if (!fq->copy) {
			rc = err_set(e, -ENOMEM, "Out of memory.");
			goto out_free;
		}
	}
	rc = bdev_queue_open(b->base, q->reactor, &fq->base, e);
	if (rc)
		goto out_free;
	q->priv = fq;
	return 0;
out_free:
	free(fq->copy);
	free(fq);
	return rc;
}

static void faulty_queue_close(struct bdev_queue *q)
{
	struct faulty_queue *fq = q->priv;

	bdev_queue_close(fq->base);
	free(fq->copy);
	free(fq);
}

static int find_kind(const char *name, enum faulty_kind *kind, struct err *e)
{
	for (unsigned i = 0; name && i < ARRAY_SIZE(kind_names); i++) {
		if (strcmp(name, kind_names[i]) == 0) {
			*kind = (enum faulty_kind)i;
			return 0;
		}
	}
	return err_field(e, -EINVAL, "kind", name, "drop, tear, misplace, duplicate",
			 "Parameter 'kind' must be drop, tear, misplace or duplicate, not '%.40s'.",
			 name ? name : "");
}

static int faulty_create(const void *args, struct bdev **out, struct err *e)
{
	const struct faulty_args *a = args;
	struct faulty_bdev *f = calloc(1, sizeof(*f));
	int rc;

	if (!f)
		return err_set(e, -ENOMEM, "Out of memory.");
	f->one_in = a->one_in;
	rc = find_kind(a->kind, &f->kind, e);
	if (rc == 0)
		rc = bdev_get(a->base_bdev_name, &f->base, e);
	if (rc) {
		free(f);
		return rc;
	}
	filter_take_over(&f->bdev, f->base, sizeof(struct faulty_io));
	/* Whole writes are wanted here, not pieces; the base fits what it is given. */
	f->bdev.limits.max_len = UINT32_MAX;
	f->bdev.limits.max_iov = UINT16_MAX;
	*out = &f->bdev;
	return 0;
}

static void faulty_destroy(struct bdev *b)
{
	struct faulty_bdev *f = to_faulty(b);

	bdev_put(f->base);
	free(f);
}

const struct bdev_driver faulty_driver = {
	.name = "faulty",
	.product_name = "faulty",
	.help = "another bdev, with lost, torn, misplaced or repeated writes, for testing",
	.params = faulty_params,
	.args_size = sizeof(struct faulty_args),
	.create = faulty_create,
	.destroy = faulty_destroy,
	.queue_open = faulty_queue_open,
	.queue_close = faulty_queue_close,
	.submit = faulty_submit,
};
