#include "reactor/uring.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "reactor/internal.h"
#include "util/ticks.h"

#define SQ_ENTRIES 256
#define CQ_ENTRIES 4096
#define REAP_BATCH 64

/*
 * DEFER_TASKRUN lets completions wait until we ask, and a flag in shared memory says when to ask: a
 * spinning reactor that has nothing to collect makes no system call and is never interrupted. Older
 * kernels get what they know.
 */
static const unsigned setup_flags[] = {
	IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN |
		IORING_SETUP_TASKRUN_FLAG,		       /* 6.1 */
	IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG, /* 5.19 */
	0,
};

int uring_init(struct reactor *r)
{
	for (size_t i = 0; i < ARRAY_SIZE(setup_flags); i++) {
		struct io_uring_params p = {
			.flags = setup_flags[i] | IORING_SETUP_CQSIZE,
			.cq_entries = CQ_ENTRIES,
		};

		r->uring.error = io_uring_queue_init_params(SQ_ENTRIES, &r->uring.ring, &p);
		if (r->uring.error != -EINVAL)
			break;
	}
	if (r->uring.error == 0 && r->uring.ring.features & IORING_FEAT_CQE_SKIP)
		r->uring.skip_success = IOSQE_CQE_SKIP_SUCCESS;
	return r->uring.error;
}

void uring_exit(struct reactor *r)
{
	if (r->uring.error == 0)
		io_uring_queue_exit(&r->uring.ring);
}

bool uring_usable(const struct reactor *r)
{
	return r->uring.error == 0;
}

const char *uring_why_not(const struct reactor *r)
{
	switch (r->uring.error) {
	case 0:
		return "io_uring works";
	case -EPERM:
	case -EACCES:
		return "the kernel denies io_uring: set kernel.io_uring_disabled=0, or allow io_uring_setup in the "
		       "container's seccomp profile";
	case -ENOSYS:
		return "this kernel has no io_uring: Linux 5.15 or newer is needed";
	case -ENOMEM:
		return "there is no memory for an io_uring: raise the locked-memory limit (ulimit -l)";
	default:
		return err_words(r->uring.error);
	}
}

struct io_uring_sqe *uring_sqe(struct reactor *r)
{
	struct io_uring_sqe *sqe;

	while (unlikely(!(sqe = io_uring_get_sqe(&r->uring.ring))))
		io_uring_submit(&r->uring.ring);
	r->uring.pending++;
	return sqe;
}

void uring_signal(struct reactor *r, int fd)
{
	static const uint64_t one = 1;
	struct io_uring_sqe *sqe;

	if (!r || r->uring.error) {
		/* Who it belongs to may miss it: that is its own loss. */
		if (write(fd, &one, sizeof(one)) < 0)
			return;
		return;
	}
	sqe = uring_sqe(r);
	io_uring_prep_write(sqe, fd, &one, sizeof(one), 0);
	sqe->flags |= r->uring.skip_success;
	sqe->user_data = URING_IGNORE;
}

/* The turn's flush: one system call for all SQEs. */
void uring_submit(struct reactor *r)
{
	r->uring.pending = 0;
	/* -EBUSY and -EAGAIN leave SQEs in the ring; the next turn sends them again. */
	if (unlikely(io_uring_submit(&r->uring.ring) < 0) ||
	    unlikely(io_uring_sq_ready(&r->uring.ring)))
		r->uring.pending = io_uring_sq_ready(&r->uring.ring);
}

/* Kernel I/O has ended: the reactor stays awake for a while in case there is more. */
static void stay_awake(struct reactor *r)
{
	if (r->uring.slept)
		patience_adapt(&r->uring.patience, r->turn.now - r->uring.last_busy);
	r->uring.slept = false;
	r->uring.last_busy = r->turn.now;
}

/* true: an operation; false: a wake-up, or nothing */
static bool complete(struct reactor *r, const struct io_uring_cqe *cqe)
{
	uint64_t tag = cqe->user_data;

	if (tag & 1) {
		wake_fire(r, tag, cqe->res, !(cqe->flags & IORING_CQE_F_MORE));
	} else if (tag != URING_IGNORE) {
		struct uring_op *op = (struct uring_op *)(uintptr_t)tag;

		op->done(op, cqe->res);
		return true;
	}
	return false;
}

static noinline unsigned reap(struct reactor *r)
{
	struct io_uring_cqe *cqes[REAP_BATCH];
	unsigned n = io_uring_peek_batch_cqe(&r->uring.ring, cqes, REAP_BATCH);

	bool io = false;

	for (unsigned i = 0; i < n; i++)
		io |= complete(r, cqes[i]);
	io_uring_cq_advance(&r->uring.ring, n);
	if (io)
		stay_awake(r);
	return n;
}

/* hot. With nothing to reap, two loads of shared memory: are there completions, or does the kernel
 * keep some back? */
unsigned uring_reap(struct reactor *r)
{
	const struct io_uring *ring = &r->uring.ring;

	if (unlikely(r->uring.error))
		return wake_poll(r);
	if (likely(io_uring_cq_ready(ring) == 0 &&
		   !(READ_ONCE(*ring->sq.kflags) & (IORING_SQ_CQ_OVERFLOW | IORING_SQ_TASKRUN))))
		return 0;
	return reap(r);
}

/* One system call: submits what is pending and waits for so many completions or the time. */
void uring_sleep(struct reactor *r, unsigned completions, uint64_t timeout_ns)
{
	struct __kernel_timespec ts = {
		.tv_sec = (long long)(timeout_ns / 1000000000),
		.tv_nsec = (long long)(timeout_ns % 1000000000),
	};
	struct io_uring_cqe *cqe;

	/* What a full or busy ring leaves is sent again by the next turn. */
	io_uring_submit_and_wait_timeout(&r->uring.ring, &cqe, completions,
					 timeout_ns == UINT64_MAX ? NULL : &ts, NULL);
	r->uring.pending = io_uring_sq_ready(&r->uring.ring);
}
