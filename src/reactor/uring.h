/*
 * The reactor's io_uring for those who do kernel I/O: get an SQE, fill it with io_uring_prep_*(),
 * forget it. It is submitted by the turn's flush, and done() is called from a later turn's poll
 * phase.
 */
#ifndef REACTOR_URING_H
#define REACTOR_URING_H

#include <liburing.h>
#include <stdint.h>

#include "reactor/reactor.h"

/* One SQE in flight. done: res is the operation's result, >= 0 or -errno. */
struct uring_op {
	void (*done)(struct uring_op *op, int32_t res);
};

/* Can r do kernel I/O? If not, uring_why_not() says in words what to change. Any thread. */
bool uring_usable(const struct reactor *r);
const char *uring_why_not(const struct reactor *r);

/*
 * The next SQE. Never NULL on a usable ring: when the submission queue is full the batch so far is
 * submitted at once. Fill it with io_uring_prep_*(), then uring_tag() it.
 */
struct io_uring_sqe *uring_sqe(struct reactor *r);

/* io_uring_prep_*() clears user_data in some versions of liburing, so the tag is set after it. */
static inline void uring_tag(struct io_uring_sqe *sqe, struct uring_op *op)
{
	sqe->user_data = (uintptr_t)op;
}

/*
 * Files and memory that the kernel has ready, so that it need not look them up and pin them for
 * every request. A help, not a condition: when a table is full or the locked-memory limit is
 * reached, the plain way works as well. On r's own thread.
 */

/* A number for sqe->fd, with IOSQE_FIXED_FILE in sqe->flags; negative: none is left. */
int uring_file_add(struct reactor *r, int fd);
void uring_file_remove(struct reactor *r, int place);

/* Memory stays pinned until the reactor ends, and must not be unmapped before the last request. */
void uring_memory_add(struct reactor *r, void *base, size_t len);

/* hot. A read or write at offset, in the cheapest form that there is for these buffers. */
void uring_prep_rw(const struct reactor *r, struct io_uring_sqe *sqe, bool write, int fd,
		   const struct iovec *iov, unsigned iovcnt, uint64_t offset);

/*
 * Add 1 to an eventfd that others own, in this turn's flush: one system call for all signals and
 * all I/O of the turn, and never a wait, whatever its owner has done to it. r may be NULL (no
 * reactor): then at once.
 */
void uring_signal(struct reactor *r, int fd);

#endif
