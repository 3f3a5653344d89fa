/*
 * Wake-ups: fds that end a reactor's sleep. Through io_uring they are multishot polls, through
 * epoll edge-triggered entries; either way each new event calls the watch once and nobody has to
 * read the fd.
 *
 * A completion names its watch by slot and generation, so that one which arrives after watch_stop()
 * is recognised as stale and a watch's memory may be freed at once.
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "reactor/internal.h"
#include "reactor/uring.h"
#include "util/ticks.h"

#define EPOLL_BATCH 32
/* A look at epoll is a system call: while spinning it is made this rarely. */
#define EPOLL_EVERY_TURNS 64

static uint64_t tag_of(const struct reactor *r, const struct watch *w)
{
	return (uint64_t)r->slots[w->slot].generation << 32 | (uint64_t)w->slot << 1 | 1;
}

int wake_init(struct reactor *r)
{
	r->epoll_fd = -1;
	r->mail_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (r->mail_fd < 0)
		return -errno;
	if (uring_init(r) == 0)
		return 0;
	r->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (r->epoll_fd < 0) {
		int rc = -errno;

		close(r->mail_fd);
		return rc;
	}
	return 0;
}

void wake_exit(struct reactor *r)
{
	uring_exit(r);
	if (r->epoll_fd >= 0)
		close(r->epoll_fd);
	close(r->mail_fd);
	free(r->slots);
}

/* Index of a free slot, growing the table when there is none; -ENOMEM. */
static int slot_find(struct reactor *r)
{
	struct watch_slot *bigger;
	uint32_t n = r->slots_n;

	for (uint32_t i = 0; i < n; i++)
		if (!r->slots[i].watch)
			return (int)i;
	bigger = realloc(r->slots, (n + 16) * sizeof(*bigger));
	if (!bigger)
		return -ENOMEM;
	memset(bigger + n, 0, 16 * sizeof(*bigger));
	r->slots = bigger;
	r->slots_n = n + 16;
	return (int)n;
}

static void poll_multishot(struct reactor *r, const struct watch *w)
{
	struct io_uring_sqe *sqe = uring_sqe(r);

	io_uring_prep_poll_add(sqe, w->fd, POLLIN);
	sqe->len |= IORING_POLL_ADD_MULTI;
	sqe->user_data = tag_of(r, w);
}

int watch_start(struct watch *w, int fd)
{
	struct reactor *r = reactor_this();
	int slot = slot_find(r);

	if (slot < 0)
		return slot;
	w->fd = fd;
	w->slot = (uint32_t)slot;
	if (r->epoll_fd >= 0) {
		struct epoll_event ev = { .events = EPOLLIN | EPOLLET, .data.u64 = tag_of(r, w) };

		if (epoll_ctl(r->epoll_fd, EPOLL_CTL_ADD, fd, &ev) < 0)
			return -errno;
	}
	r->slots[slot].watch = w;
	if (r->epoll_fd < 0)
		poll_multishot(r, w);
	return 0;
}

void watch_stop(struct watch *w)
{
	struct reactor *r = reactor_this();

	if (r->epoll_fd >= 0) {
		epoll_ctl(r->epoll_fd, EPOLL_CTL_DEL, w->fd, NULL);
	} else {
		struct io_uring_sqe *sqe = uring_sqe(r);

		io_uring_prep_nop(sqe);
		sqe->opcode = IORING_OP_POLL_REMOVE;
		sqe->addr = tag_of(r, w);
		sqe->user_data = URING_IGNORE;
	}
	r->slots[w->slot].watch = NULL;
	r->slots[w->slot].generation++;
}

/*
 * ended: the kernel has dropped the multishot poll, after a full completion queue (of which some
 * kernels make -ECANCELED) or, with another res < 0, for an fd that cannot be polled. The latter is
 * not tried again: it would end at once, for ever.
 */
void wake_fire(struct reactor *r, uint64_t tag, int res, bool ended)
{
	uint32_t slot = (uint32_t)tag >> 1;
	struct watch *w;

	if (slot >= r->slots_n || r->slots[slot].generation != (uint32_t)(tag >> 32))
		return;
	w = r->slots[slot].watch;
	if (!w)
		return;
	if (ended && (res >= 0 || res == -ECANCELED))
		poll_multishot(r, w);
	w->fn(w);
}

static unsigned epoll_collect(struct reactor *r, int timeout_ms)
{
	struct epoll_event ev[EPOLL_BATCH];
	int n = epoll_wait(r->epoll_fd, ev, EPOLL_BATCH, timeout_ms);

	for (int i = 0; i < n; i++)
		wake_fire(r, ev[i].data.u64, 0, false);
	return n > 0 ? (unsigned)n : 0;
}

unsigned wake_poll(struct reactor *r)
{
	if (r->stats.turns % EPOLL_EVERY_TURNS)
		return 0;
	return epoll_collect(r, 0);
}

void wake_sleep(struct reactor *r, unsigned completions, uint64_t timeout_ns)
{
	if (r->uring.error == 0)
		uring_sleep(r, completions, timeout_ns);
	else
		epoll_collect(r, timeout_ns > 1000000000 ? 1000
							 : (int)((timeout_ns + 999999) / 1000000));
}
