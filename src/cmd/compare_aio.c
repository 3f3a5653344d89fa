/* libaio: one io_submit and one io_getevents per batch. */
#include <errno.h>
#include <libaio.h>
#include <stdlib.h>

#include "cmd/compare_kernel.h"
#include "util/ticks.h"

struct aio {
	io_context_t context;
	struct iocb *iocbs, **staged; /* by slot; the next batch */
	struct io_event *events;
	uint32_t staged_n;
};

static int aio_open(struct kernel_job *j, struct err *e)
{
	struct aio *a = calloc(1, sizeof(*a));
	int rc;

	if (!a)
		return err_set(e, -ENOMEM, "Out of memory.");
	j->engine = a;
	a->iocbs = calloc(j->depth, sizeof(*a->iocbs));
	a->staged = calloc(j->depth, sizeof(struct iocb *));
	a->events = calloc(j->depth, sizeof(*a->events));
	if (!a->iocbs || !a->staged || !a->events)
		return err_set(e, -ENOMEM, "Out of memory.");
	rc = io_setup((int)j->depth, &a->context);
	if (rc == -EAGAIN)
		return err_set(
			e, rc,
			"The kernel's limit of asynchronous requests does not admit %u more: "
			"raise fs.aio-max-nr (sysctl).",
			j->depth);
	return rc ? err_set(e, rc, "The kernel gives no libaio context: %s.", err_words(rc)) : 0;
}

static void aio_close(struct kernel_job *j)
{
	struct aio *a = j->engine;

	if (!a)
		return;
	if (a->context)
		io_destroy(a->context);
	free(a->iocbs);
	free(a->staged);
	free(a->events);
	free(a);
}

/* hot */
static void aio_stage(struct kernel_job *j, uint32_t slot, bool read, uint64_t offset)
{
	struct aio *a = j->engine;
	struct iocb *iocb = &a->iocbs[slot];
	char *data = kernel_job_buffer(j, slot, read);

	if (read)
		io_prep_pread(iocb, j->fd, data, j->pattern.io_size, (long long)offset);
	else
		io_prep_pwrite(iocb, j->fd, data, j->pattern.io_size, (long long)offset);
	a->staged[a->staged_n++] = iocb;
}

/* hot. What the kernel does not take now stays staged, in its order. */
static int aio_submit(struct aio *a)
{
	uint32_t sent = 0;
	int rc = 1;

	while (sent < a->staged_n && rc > 0) {
		rc = io_submit(a->context, (long)(a->staged_n - sent), a->staged + sent);
		if (rc > 0)
			sent += (uint32_t)rc;
	}
	a->staged_n -= sent;
	for (uint32_t i = 0; unlikely(i < a->staged_n); i++)
		a->staged[i] = a->staged[i + sent];
	return rc < 0 && rc != -EAGAIN && rc != -EINTR ? rc : 0;
}

/* hot */
static int aio_turn(struct kernel_job *j, unsigned wait)
{
	struct timespec none = { 0 };
	struct aio *a = j->engine;
	int rc = aio_submit(a), n = 0;

	if (j->inflight > a->staged_n)
		n = io_getevents(a->context, MIN(wait, j->inflight - a->staged_n), (long)j->depth,
				 a->events, wait ? NULL : &none);
	j->now = ticks();
	for (int i = 0; i < n; i++)
		kernel_job_done(j, (uint32_t)(a->events[i].obj - a->iocbs),
				(int64_t)a->events[i].res);
	if (rc == 0 && n < 0 && n != -EINTR)
		rc = n;
	return rc;
}

static const struct kernel_engine engine = {
	.what = "libaio; one io_submit per batch, io_getevents sleeps until an eighth of the depth is done",
	.open = aio_open,
	.close = aio_close,
	.stage = aio_stage,
	.turn = aio_turn,
};

const struct kernel_engine *const aio_engine = &engine;
