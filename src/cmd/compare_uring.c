/* io_uring at its best: one system call submits a batch, waits for a completion and runs the
 * kernel's deferred work; the file and the buffers are registered. */
#include <errno.h>
#include <liburing.h>
#include <stdlib.h>

#include "cmd/compare_kernel.h"
#include "util/ticks.h"

#define REGISTERED_MAX ((size_t)1 << 30) /* the kernel's limit for one buffer */

struct uring {
	struct io_uring ring;
	bool fixed; /* buffers are registered */
};

static const unsigned setup_flags[] = {
	IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN |
		IORING_SETUP_TASKRUN_FLAG,		       /* 6.1 */
	IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG, /* 5.19 */
	0,
};

static int ring_open(struct io_uring *ring, unsigned entries)
{
	int rc = 0;

	for (size_t i = 0; i < ARRAY_SIZE(setup_flags); i++) {
		struct io_uring_params p = { .flags = setup_flags[i] };

		rc = io_uring_queue_init_params(entries, ring, &p);
		if (rc != -EINVAL)
			break;
	}
	return rc;
}

static int uring_open(struct kernel_job *j, struct err *e)
{
	struct iovec all = { j->data, j->data_len };
	struct uring *u = calloc(1, sizeof(*u));
	int rc;

	if (!u)
		return err_set(e, -ENOMEM, "Out of memory.");
	rc = ring_open(&u->ring, j->depth);
	if (rc) {
		free(u);
		return err_set(
			e, rc,
			"The kernel gives no io_uring: %s. See kernel.io_uring_disabled and the "
			"container's seccomp profile.",
			err_words(rc));
	}
	j->engine = u;
	rc = io_uring_register_files(&u->ring, &j->fd, 1);
	if (rc)
		return err_set(e, rc, "io_uring cannot register the file: %s.", err_words(rc));
	/* Locked memory is limited for who is not root: then it is done without, and said. */
	u->fixed =
		j->data_len <= REGISTERED_MAX && io_uring_register_buffers(&u->ring, &all, 1) == 0;
	j->unregistered = !u->fixed;
	return 0;
}

static void uring_close(struct kernel_job *j)
{
	struct uring *u = j->engine;

	if (!u)
		return;
	/* The kernel takes a ring down when it comes to it: until then the file would be held. */
	io_uring_unregister_files(&u->ring);
	io_uring_queue_exit(&u->ring);
	free(u);
}

/* hot. The ring has as many entries as there are slots. */
static void uring_stage(struct kernel_job *j, uint32_t slot, bool read, uint64_t offset)
{
	struct uring *u = j->engine;
	struct io_uring_sqe *sqe = io_uring_get_sqe(&u->ring);
	char *data = kernel_job_buffer(j, slot, read);

	io_uring_prep_rw(read ? IORING_OP_READ : IORING_OP_WRITE, sqe, 0, data, j->pattern.io_size,
			 offset);
	if (likely(u->fixed))
		sqe->opcode = read ? IORING_OP_READ_FIXED : IORING_OP_WRITE_FIXED;
	sqe->flags = IOSQE_FIXED_FILE;
	sqe->user_data = slot;
}

/* hot. Without a wait the kernel is entered only for what is staged or what it keeps back. */
static int enter(struct io_uring *ring, unsigned wait)
{
	if (wait)
		return io_uring_submit_and_wait(ring, wait);
	if (io_uring_sq_ready(ring) ||
	    READ_ONCE(*ring->sq.kflags) & (IORING_SQ_CQ_OVERFLOW | IORING_SQ_TASKRUN))
		return io_uring_submit_and_get_events(ring);
	return 0;
}

/* hot */
static int uring_turn(struct kernel_job *j, unsigned wait)
{
	struct uring *u = j->engine;
	struct io_uring_cqe *cqe;
	unsigned head, n = 0;
	int rc = 0;

	if (j->inflight > 0)
		rc = enter(&u->ring, wait);
	j->now = ticks();
	if (unlikely(rc < 0 && rc != -EINTR && rc != -EAGAIN && rc != -EBUSY))
		return rc;
	io_uring_for_each_cqe(&u->ring, head, cqe)
	{
		kernel_job_done(j, (uint32_t)cqe->user_data, cqe->res);
		n++;
	}
	io_uring_cq_advance(&u->ring, n);
	return 0;
}

const struct kernel_engine uring_engine = {
	.what = "io_uring, registered file and buffers; sleeps until an eighth of the depth is done",
	.open = uring_open,
	.close = uring_close,
	.stage = uring_stage,
	.turn = uring_turn,
};

const struct kernel_engine uring_spin_engine = {
	.what = "io_uring, registered file and buffers; spins while it waits, as riffle does",
	.spins = true,
	.open = uring_open,
	.close = uring_close,
	.stage = uring_stage,
	.turn = uring_turn,
};
