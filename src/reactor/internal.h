/* What the files of this room share and nobody else sees. */
#ifndef REACTOR_INTERNAL_H
#define REACTOR_INTERNAL_H

#include <liburing.h>
#include <pthread.h>
#include <stdalign.h>

#include "reactor/reactor.h"
#include "util/compiler.h"

/* Older liburing headers lack these (kernel ABI, include/uapi/linux/io_uring.h). */
#ifndef IORING_SETUP_COOP_TASKRUN
#define IORING_SETUP_COOP_TASKRUN (1U << 8)
#endif
#ifndef IORING_SETUP_TASKRUN_FLAG
#define IORING_SETUP_TASKRUN_FLAG (1U << 9)
#endif
#ifndef IORING_SQ_TASKRUN
#define IORING_SQ_TASKRUN (1U << 2)
#endif
#ifndef IORING_FEAT_CQE_SKIP
#define IORING_FEAT_CQE_SKIP   (1U << 11)
#define IOSQE_CQE_SKIP_SUCCESS (1U << 6)
#endif
#ifndef IORING_SETUP_SINGLE_ISSUER
#define IORING_SETUP_SINGLE_ISSUER (1U << 12)
#endif
#ifndef IORING_SETUP_DEFER_TASKRUN
#define IORING_SETUP_DEFER_TASKRUN (1U << 13)
#endif

struct watch_slot {
	struct watch *watch; /* NULL: free */
	uint32_t generation; /* tells stale completions from live ones */
};

/*
 * user_data of a ring: a struct uring_op's address (bit 0 clear), or a watch's slot and generation
 * (bit 0 set), or URING_IGNORE.
 */
#define URING_IGNORE ((uint64_t)0)

#define URING_FILES  64
#define URING_RANGES 4

/* What the kernel has ready (uring_fixed.c). */
struct uring_fixed {
	struct iovec ranges[URING_RANGES]; /* by buffer index */
	unsigned ranges_n;
	uint64_t files; /* bit n: place n is taken */
	bool have_files, have_ranges;
};

struct uring {
	struct io_uring ring;
	int error;	      /* 0 when usable, -errno from setup otherwise */
	unsigned pending;     /* SQEs since the last submit */
	uint8_t skip_success; /* SQE flag: no completion unless it failed; 0: unknown to the kernel
			       */
	struct patience patience;
	uint64_t last_busy; /* ticks when kernel I/O last ended */
	bool slept;	    /* since then */
	struct uring_fixed fixed;
};

struct reactor {
	struct turn turn;
	struct list polled;
	struct list *cursor; /* next poller of the running pass; poller_del moves it on */
	struct uring uring;
	struct list armed, timers;
	struct reactor_stats stats;
	unsigned last_moved;

	int epoll_fd; /* -1 while io_uring works */
	struct watch_slot *slots;
	uint32_t slots_n;
	struct watch mail_watch;

	/* Written by other threads: a line of its own. */
	alignas(CACHE_LINE) struct mpsc mailbox;
	_Atomic bool sleeping;
	_Atomic bool stop;
	int mail_fd;

	alignas(CACHE_LINE) pthread_t thread;
	int cpu, numa_node, tid, index;
};

/* uring.c */
int uring_init(struct reactor *r);
void uring_exit(struct reactor *r);
unsigned uring_reap(struct reactor *r);
void uring_submit(struct reactor *r);
void uring_sleep(struct reactor *r, unsigned completions, uint64_t timeout_ns);

/* wake.c */
int wake_init(struct reactor *r);
void wake_exit(struct reactor *r);
void wake_fire(struct reactor *r, uint64_t tag, int res, bool ended);
unsigned wake_poll(struct reactor *r); /* epoll only */
/* Until `completions` wake-ups (epoll: one), or the time. */
void wake_sleep(struct reactor *r, unsigned completions,
		uint64_t timeout_ns); /* on whichever door there is */

/* reactor.c */
void patience_adapt(struct patience *p, uint64_t gap); /* a wake-up came so long after work */
void reactor_run(struct reactor *r);		       /* body of a reactor's thread */
void reactor_kick(struct reactor *r);		       /* any thread: end its sleep */

/* Tasks that other threads sent; their number. */
unsigned reactor_run_posted(struct reactor *r);

#endif
