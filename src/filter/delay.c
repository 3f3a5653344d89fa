/*
 * delay: a bdev that completes later than the one below it, to see what slow disks do to those
 * above. One request in a hundred takes the p99 latency, the others the average. FLUSH, DISCARD and
 * WRITE_ZEROES count as writes.
 */
#include <errno.h>
#include <stdlib.h>

#include "bdev/registry.h"
#include "filter/base.h"
#include "filter/list.h"
#include "util/ticks.h"

struct delay_args {
	char *base_bdev_name, *name;
	struct uuid uuid;
	uint64_t avg_read_latency, p99_read_latency, avg_write_latency, p99_write_latency;
};

#define LATENCY_MAX_US (3600ull * 1000000)

static const struct param delay_params[] = {
	PARAM_STRING(struct delay_args, base_bdev_name, .required = true, .positional = true,
		     .min = 1, .help = "the bdev to slow down"),
	PARAM_STRING(struct delay_args, name, .required = true, .min = 1, .max = 255,
		     .help = "name of the new disk"),
	PARAM_UUID(struct delay_args, uuid, .help = "UUID (default: random)"),
	PARAM_UINT(struct delay_args, avg_read_latency, .required = true, .max = LATENCY_MAX_US,
		   .help = "microseconds"),
	PARAM_UINT(struct delay_args, p99_read_latency, .required = true, .max = LATENCY_MAX_US,
		   .help = "microseconds"),
	PARAM_UINT(struct delay_args, avg_write_latency, .required = true, .max = LATENCY_MAX_US,
		   .help = "microseconds"),
	PARAM_UINT(struct delay_args, p99_write_latency, .required = true, .max = LATENCY_MAX_US,
		   .help = "microseconds"),
	{ 0 }
};

struct delay_bdev {
	struct bdev bdev;
	struct bdev *base;
	uint64_t ticks[2][2]; /* [write][p99] */
};

struct delay_queue {
	struct bdev_queue *base;
	unsigned count;
};

struct delay_io {
	struct timer timer;
	struct bdev_io child; /* last: its room follows */
};

static struct delay_bdev *to_delay(struct bdev *b)
{
	return container_of(b, struct delay_bdev, bdev);
}

static struct bdev_io *io_of(struct delay_io *d)
{
	return container_of((void *)d, struct bdev_io, ctx);
}

static void delay_over(struct timer *t)
{
	struct delay_io *d = container_of(t, struct delay_io, timer);

	bdev_io_end(io_of(d), d->child.status);
}

static void delay_base_done(struct task *t)
{
	struct delay_io *d = container_of(t, struct delay_io, child.task);
	struct bdev_io *io = io_of(d);
	struct delay_queue *dq = io->q->priv;
	bool p99 = ++dq->count % 100 == 0;
	uint64_t wait = to_delay(io->q->bdev)->ticks[io->op != BDEV_READ][p99];

	d->timer.fn = delay_over;
	d->timer.node.next = NULL;
	timer_start(&d->timer, io->start + wait);
}

static void delay_submit(struct bdev_io *io)
{
	struct delay_io *d = (struct delay_io *)(void *)io->ctx;
	struct delay_queue *dq = io->q->priv;

	d->child = (struct bdev_io){
		.task.fn = delay_base_done,
		.q = dq->base,
		.iov = io->iov,
		.iovcnt = io->iovcnt,
		.offset = io->offset,
		.len = io->len,
		.op = io->op,
		.flags = io->flags & (uint8_t)~BDEV_PIECE,
	};
	bdev_submit(&d->child);
}

static int delay_queue_open(struct bdev_queue *q, struct err *e)
{
	struct delay_queue *dq = calloc(1, sizeof(*dq));
	int rc;

	if (!dq)
		return err_set(e, -ENOMEM, "Out of memory.");
	rc = bdev_queue_open(to_delay(q->bdev)->base, q->reactor, &dq->base, e);
	if (rc) {
		free(dq);
		return rc;
	}
	q->priv = dq;
	return 0;
}

static void delay_queue_close(struct bdev_queue *q)
{
	struct delay_queue *dq = q->priv;

	bdev_queue_close(dq->base);
	free(dq);
}

static int delay_create(const void *args, struct bdev **out, struct err *e)
{
	const struct delay_args *a = args;
	struct delay_bdev *d = calloc(1, sizeof(*d));
	int rc;

	if (!d)
		return err_set(e, -ENOMEM, "Out of memory.");
	rc = bdev_get(a->base_bdev_name, &d->base, e);
	if (rc) {
		free(d);
		return rc;
	}
	filter_take_over(&d->bdev, d->base, sizeof(struct delay_io));
	d->ticks[0][0] = ticks_from_us(a->avg_read_latency);
	d->ticks[0][1] = ticks_from_us(a->p99_read_latency);
	d->ticks[1][0] = ticks_from_us(a->avg_write_latency);
	d->ticks[1][1] = ticks_from_us(a->p99_write_latency);
	*out = &d->bdev;
	return 0;
}

static void delay_destroy(struct bdev *b)
{
	struct delay_bdev *d = to_delay(b);

	bdev_put(d->base);
	free(d);
}

const struct bdev_driver delay_driver = {
	.name = "delay",
	.product_name = "delay",
	.help = "another bdev, slowed down",
	.params = delay_params,
	.args_size = sizeof(struct delay_args),
	.create = delay_create,
	.destroy = delay_destroy,
	.queue_open = delay_queue_open,
	.queue_close = delay_queue_close,
	.submit = delay_submit,
};
