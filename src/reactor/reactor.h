/*
 * reactor: one thread per core that turns.
 *
 * A turn is `posted -> pollers -> tasks -> flushes -> timers` (reactor.c, reactor_turn). Work is
 * pulled in by pollers, completions climb as tasks, and everything that tells the outside world -
 * used indexes, doorbells, io_uring_enter - is a flush, once per turn. Reactors share nothing;
 * other threads reach them with reactor_post() and reactor_call() only.
 *
 * A source of work is polled or armed. A poller whose patience ends (struct patience) is asked to
 * arm: it requests a wake-up from its other side, looks once more, and leaves the poll list; the
 * wake-up (a struct watch on an eventfd, usually) calls poller_wake() and puts it back. A reactor
 * whose poll list is empty sleeps in one system call.
 *
 * Each reactor has one door to the kernel, an io_uring (uring.c); where the kernel denies it, epoll
 * (wake.c) takes its place for wake-ups and file disks are refused with a sentence.
 *
 * Threads: unless stated otherwise a function here is called on the reactor's own thread.
 */
#ifndef REACTOR_REACTOR_H
#define REACTOR_REACTOR_H

#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>

#include "util/err.h"
#include "util/list.h"
#include "util/mpsc.h"

struct reactor;

/* A deferred call. In one place at a time: next is NULL exactly when it is on no list. */
struct task {
	void (*fn)(struct task *t);
	struct task *next;
};

enum poller_state { POLLER_STOPPED, POLLER_POLLED, POLLER_ARMED };

/*
 * How long a source may find nothing before it arms, in ticks: `most` after a wake-up that came so
 * soon that so much patience would have spared it, half of that after one that came later.
 */
struct patience {
	uint64_t now, most;
};

#define POLL_ALWAYS UINT64_MAX /* as us or as patience.most: never arm */

struct poller {
	struct list node;
	unsigned (*fn)(struct poller *p); /* how many items it moved; 0: idle */
	bool (*arm)(
		struct poller *p); /* ask to be woken; false: work came meanwhile, stay polled */
	void (*disarm)(struct poller *p); /* the wake-up is no longer needed */
	struct patience patience;
	uint64_t last_busy; /* ticks */
	uint64_t since;	    /* the turn in which polling began */
	uint64_t turns;	    /* polled, before that */
	enum poller_state state;
};

/* Who is charged with the time of turns: a disk's ring, say. Only its reactor writes it. */
struct bill {
	uint64_t ticks;
	struct bill *next;
	uint32_t items; /* of this turn */
};

struct timer {
	void (*fn)(struct timer *t);
	uint64_t at; /* ticks */
	struct list node;
};

/* Calls fn each time fd becomes readable (edge-triggered; fn need not read the fd). */
struct watch {
	void (*fn)(struct watch *w);
	int fd;
	uint32_t slot; /* wake.c's */
};

/* Counters, written by the reactor, read relaxed by control threads. */
struct reactor_stats {
	uint64_t busy_ticks, idle_ticks; /* turns that moved something, and all other time */
	uint64_t asleep_ticks;		 /* of the idle ones */
	uint64_t turns, sleeps, wakeups;
	bool asleep; /* now */
};

/* --- Life. Control threads. --- */

/* Start one pinned thread per CPU in set. Errors: -EINVAL with a sentence when a CPU does not exist
 * or is not allowed. */
int reactors_start(const cpu_set_t *set, struct err *e);
/* Stop and join all reactors. Nothing may poll any more. */
void reactors_stop(void);
int reactors_count(void);
struct reactor *reactors_at(int i); /* 0 <= i < reactors_count() */
void reactors_cpus(cpu_set_t *set); /* the CPUs that have a reactor */

/*
 * A reactor without a thread, turned by its creator's thread: for perf tools and tests. One per
 * thread. Errors: -errno of the kernel; without io_uring it still works (epoll).
 */
int reactor_create(struct reactor **out);
void reactor_destroy(struct reactor *r);
unsigned reactor_turn(struct reactor *r); /* returns how much it moved; 0: idle */
/*
 * Instead of turning in vain while kernel I/O is in flight: sleep until so many completions have
 * come, a timer is due or 1 ms has passed. More than one at a time saves wake-ups at the price of
 * latency.
 */
void reactor_rest(struct reactor *r, unsigned completions);

/* --- Any thread. --- */

void reactor_post(struct reactor *r, struct task *t); /* lock-free; wakes r when it sleeps */
/* Run fn(arg) on r and wait for its result; on r's own thread it just calls. A stuck reactor is
 * logged every 5 s. */
int reactor_call(struct reactor *r, int (*fn)(void *arg), void *arg);
/*
 * Lock a mutex that others hold while they call this thread's reactor: a thread that turns a
 * reactor of its own and does control work between turns (perf) answers them while it waits.
 */
void reactor_mutex_lock(pthread_mutex_t *m);
/* The same while it waits for anything else: run what others have sent to this thread's reactor. */
void reactor_answer(void);
/* Every reactor has passed a turn boundary since the call began: what reactors no longer see may be
 * freed. */
void reactor_quiesce(void);
int reactor_cpu(const struct reactor *r);	/* -1: not pinned */
int reactor_numa_node(const struct reactor *r); /* of its CPU; -1: not known */
int reactor_tid(const struct reactor *r);	/* thread id, for people who look at top */
int reactor_index(const struct reactor *r);	/* place in reactors_at() */
void reactor_get_stats(const struct reactor *r, struct reactor_stats *s);

/* --- The reactor's own thread. --- */

struct reactor *reactor_this(void); /* NULL on other threads */

/*
 * How many requests a source may take in a turn. Where one that has little to do shares the reactor
 * with one that has much, fewer: then the turns are short, and the former does not wait long.
 */
#define TURN_BATCH 32

/* The part of a reactor that every request touches, for the inline functions below. */
struct turn {
	uint64_t now;
	struct task *soon, **soon_last;
	struct task *flushes, **flushes_last;
	struct bill *bills;  /* of this turn */
	uint32_t batch;	     /* how much a source may take in it: at most TURN_BATCH */
	uint64_t even_at;    /* ticks: when it may be TURN_BATCH again */
	struct bill *most;   /* whose items were by far the most in the last shared turn, */
	unsigned most_turns; /* and in how many shared turns before it */
};

extern __thread struct turn *this_turn __attribute__((tls_model("local-exec")));

/* Ends every task list, so that "next is NULL" can mean "on no list". */
extern struct task task_list_end;

/* ticks() of this turn's start */
static inline uint64_t reactor_now(void)
{
	return this_turn->now;
}

/* hot. Later in this turn: completions travel this way. */
static inline void turn_soon(struct turn *turn, struct task *t)
{
	t->next = &task_list_end;
	*turn->soon_last = t;
	turn->soon_last = &t->next;
}

static inline void reactor_soon(struct task *t)
{
	turn_soon(this_turn, t);
}

/* hot. Once, at the end of this turn; calling it again before is harmless. */
static inline void reactor_flush(struct task *t)
{
	struct turn *turn = this_turn;

	if (t->next)
		return;
	t->next = &task_list_end;
	*turn->flushes_last = t;
	turn->flushes_last = &t->next;
}

/*
 * hot. n items of this turn were moved for b's owner. When the turn is over its time is shared out
 * by items: the clock is read once per turn, not once per owner.
 */
static inline void turn_bill(struct bill *b, unsigned n)
{
	struct turn *turn = this_turn;

	if (n == 0)
		return;
	if (b->items == 0) {
		b->next = turn->bills;
		turn->bills = b;
	}
	b->items += n;
}

/* b is about to go: what is outstanding of its turn is forgotten. */
void turn_unbill(struct bill *b);

void poller_add(struct poller *p);  /* starts polled; its patience.most is set */
void poller_del(struct poller *p);  /* disarms it; harmless when stopped */
void poller_wake(struct poller *p); /* armed -> polled; harmless otherwise */
/* In how many turns of r, its reactor, it was polled. Any thread. */
uint64_t poller_turns(const struct poller *p, const struct reactor *r);

void timer_start(struct timer *t, uint64_t at_ticks); /* restarts a running one */
void timer_stop(struct timer *t);		      /* harmless when stopped */

/* Errors: -ENOMEM, or what the kernel says of an fd that cannot be polled. */
int watch_start(struct watch *w, int fd);
void watch_stop(struct watch *w); /* no call after return; the fd may be closed */

/* --- Settings. --- */

/*
 * How long a source may find nothing before it arms, at most: 0 (always interrupts), POLL_ALWAYS,
 * or microseconds. Control thread, before reactors start; kernel I/O goes by it, and pollers that
 * have no time of their own.
 */
void reactor_set_poll_us(uint64_t us);
uint64_t reactor_poll_us(void);
/* The same in ticks, for patience.most. */
uint64_t poll_ticks(uint64_t us);

#endif
