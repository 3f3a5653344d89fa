/*
 * A job: one worker's requests to one target. The poller keeps the wanted number in flight;
 * completions only put slots on a list.
 *
 * Time is not read per request, since that would cost more than a whole block layer: once per pass
 * of the poller, for all that it submits, and once per batch, in the flush at the end of the turn,
 * for all that has completed. A latency is thus exact to one turn, and both ends err to the long
 * side.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "bdev/registry.h"
#include "cmd/perf.h"
#include "mem/mem.h"
#include "reactor/uring.h"
#include "util/ticks.h"

/* --- the pass --- */

/* hot */
static unsigned job_poll(struct poller *p)
{
	struct perf_job *j = container_of(p, struct perf_job, poller);
	struct perf_slot *s;
	unsigned n = 0;
	uint64_t now;

	if (!j->free || unlikely(j->stopping))
		return 0;
	now = ticks();
	if (unlikely(j->pattern.interval))
		perf_pattern_forgive(&j->pattern, now);
	while ((s = j->free) && now >= j->pattern.next_at) {
		j->free = s->next;
		j->pattern.next_at += j->pattern.interval;
		s->io.op = perf_next_is_read(&j->pattern) ? BDEV_READ : BDEV_WRITE;
		s->io.iov = &s->iov[s->io.op];
		s->io.offset = perf_next_offset(&j->pattern);
		s->submitted = now;
		n++;
		bdev_submit(&s->io);
	}
	j->inflight += n;
	return n;
}

/* --- completions --- */

/* hot */
static void slot_done(struct task *t)
{
	struct perf_slot *s = container_of(t, struct perf_slot, io.task);
	struct perf_job *j = s->job;

	s->next = j->finished;
	j->finished = s;
	reactor_flush(&j->batch);
}

static noinline void slot_failed(struct perf_job *j, const struct perf_slot *s)
{
	if (j->error == 0)
		j->error = s->io.status;
}

/* hot. All that has completed in this turn. */
static void batch_over(struct task *t)
{
	struct perf_job *j = container_of(t, struct perf_job, batch);
	struct perf_slot *s = j->finished, *next;
	uint64_t now = ticks(), bytes = 0;
	unsigned n = 0;

	for (; s; s = next, n++) {
		next = s->next;
		hist_add(&j->latency, now - s->submitted);
		bytes += s->io.len;
		if (unlikely(s->io.status))
			slot_failed(j, s);
		s->next = j->free;
		j->free = s;
	}
	j->finished = NULL;
	j->inflight -= n;
	j->bytes += bytes;
	WRITE_ONCE(j->done, j->done + n);
}

/* What completes after the end of the measurement. */
static void batch_over_uncounted(struct task *t)
{
	struct perf_job *j = container_of(t, struct perf_job, batch);

	while (j->finished) {
		struct perf_slot *s = j->finished;

		j->finished = s->next;
		if (unlikely(s->io.status))
			slot_failed(j, s);
		s->next = j->free;
		j->free = s;
		j->inflight--;
	}
}

/* --- life --- */

static struct perf_slot *slot_at(const struct perf_job *j, size_t i)
{
	return (struct perf_slot *)(void *)(j->slots + i * j->stride);
}

/* Buffers to write from stay random only if nothing is read into them. */
static bool needs_both(const struct perf_options *o)
{
	return !o->verify && o->read_percent > 0 && o->read_percent < 100;
}

static size_t buffer_len(const struct perf_options *o, const struct perf_target *t)
{
	return o->verify ? perf_verify_max(o, t->bdev) : o->io_size;
}

static size_t most_slots(const struct perf_options *o)
{
	size_t most = 0;

	for (unsigned i = 0; i < o->depths.n; i++)
		most = MAX(most, o->depths.v[i]);
	return most;
}

size_t perf_job_room(const struct perf_options *o, const struct perf_target *t)
{
	return ROUND_UP(buffer_len(o, t) * most_slots(o) * (needs_both(o) ? 2 : 1), (size_t)4096);
}

/* Touched here, by the thread that uses them. */
static int alloc_buffers(struct perf_job *j, struct err *e)
{
	void *data;
	int rc;

	j->data_len = perf_job_room(j->options, j->target);
	if (j->shared) {
		j->data = j->shared;
		memset(j->data, 0, j->data_len);
		return 0;
	}
	rc = dma_zalloc(j->data_len, 4096, &data, e);
	if (rc == 0)
		j->data = data;
	return rc;
}

static int alloc_slots(struct perf_job *j, struct err *e)
{
	const struct bdev *b = j->target->bdev;
	bool both = needs_both(j->options);

	j->stride = ROUND_UP(sizeof(struct perf_slot) + b->ctx_size, CACHE_LINE);
	j->slots = aligned_alloc(CACHE_LINE, j->stride * j->slots_n);
	if (!j->slots)
		return err_set(e, -ENOMEM, "Out of memory.");
	memset(j->slots, 0, j->stride * j->slots_n);
	for (size_t i = 0; i < j->slots_n; i++) {
		struct perf_slot *s = slot_at(j, i);

		s->job = j;
		s->iov[BDEV_READ] =
			(struct iovec){ j->data + i * j->buffer_len, j->options->io_size };
		s->iov[BDEV_WRITE] = s->iov[BDEV_READ];
		if (both)
			s->iov[BDEV_WRITE].iov_base = j->data + (j->slots_n + i) * j->buffer_len;
		s->io.task.fn = slot_done;
		s->io.q = j->q;
		s->io.iov = s->iov;
		s->io.iovcnt = 1;
		s->io.len = j->options->verify ? 0 : (uint32_t)j->options->io_size;
	}
	return 0;
}

int perf_job_open(struct perf_job *j, const struct perf_options *o, const struct perf_target *t,
		  struct reactor *r, unsigned index, unsigned workers, struct err *e)
{
	int rc;

	j->options = o;
	j->target = t;
	j->buffer_len = buffer_len(o, t);
	j->slots_n = most_slots(o);
	perf_pattern_init(&j->pattern, o, t->span, index, workers);
	rc = bdev_queue_open(t->bdev, r, &j->q, e);
	if (rc == 0)
		rc = alloc_buffers(j, e);
	if (rc == 0 && t->bdev->kernel_io)
		uring_memory_add(r, j->data, j->data_len);
	if (rc == 0)
		rc = alloc_slots(j, e);
	if (rc == 0 && o->verify)
		rc = perf_verify_open(j, index, workers, e);
	if (rc == 0 && o->read_percent < 100)
		perf_pattern_fill(&j->pattern, j->data, j->data_len);
	return rc;
}

void perf_job_close(struct perf_job *j)
{
	perf_verify_close(j);
	if (j->data && !j->shared)
		dma_free(j->data, j->data_len);
	free(j->slots);
	if (j->q)
		bdev_queue_close(j->q);
}

void perf_job_measure(struct perf_job *j)
{
	hist_reset(&j->latency);
	j->bytes = 0;
	j->warm = j->done;
	j->doorbells = j->q->stats.doorbells;
	j->interrupts = j->q->stats.interrupts;
}

void perf_job_start(struct perf_job *j, uint32_t depth)
{
	perf_pattern_start(&j->pattern, depth);
	j->free = NULL;
	for (size_t i = depth; i > 0; i--) {
		slot_at(j, i - 1)->next = j->free;
		j->free = slot_at(j, i - 1);
	}
	j->stopping = false;
	j->batch.fn = batch_over;
	perf_job_measure(j);
	if (j->verify)
		perf_verify_start(j);
	j->poller = (struct poller){
		.fn = j->verify ? perf_verify_poll : job_poll,
		.patience.most = POLL_ALWAYS, /* a measurement polls */
	};
	poller_add(&j->poller);
}

void perf_job_end(struct perf_job *j, uint64_t took)
{
	j->took = took;
	j->doorbells = j->q->stats.doorbells - j->doorbells;
	j->interrupts = j->q->stats.interrupts - j->interrupts;
	j->stopping = true;
	j->batch.fn = batch_over_uncounted;
}

void perf_job_stop(struct perf_job *j)
{
	poller_del(&j->poller);
}
