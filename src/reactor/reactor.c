#include "reactor/reactor.h"

#include <errno.h>
#include <stdalign.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "reactor/internal.h"
#include "util/ticks.h"

/* What fast disks need at depth: with 100 us a file at depth 8, whose requests take 120 us, lost a
 * quarter of its IOPS; with more nothing more was won (docs/performance.md). */
#define POLL_US 200

/*
 * The part of the most that it falls to. A gap that ends in a wake-up is as long as the
 * wake-up takes, too: with little patience left, a busy guest on a machine that wakes slowly looks
 * like an idle one for ever. (With an eighth, a guest that shared its CPU with a tracer of our
 * system calls caused 50 times as many sleeps.)
 */
#define PATIENCE_LEAST 2

/* Turns in which one source has UNEVEN times as much to do as another shall last so long, and so
 * shall those that come within EVEN_AFTER_US of them. */
#define SLICE_NS      300
#define UNEVEN	      4
#define UNEVEN_TURNS  4 /* in a row, of those that are shared */
#define EVEN_AFTER_US 1000

#define TASK_PASSES 8
#define REST_NS	    1000000

__thread struct turn *this_turn;
struct task task_list_end;

static uint64_t poll_us = POLL_US;

static struct reactor *this_reactor(void)
{
	return container_of(this_turn, struct reactor, turn);
}

struct reactor *reactor_this(void)
{
	return this_turn ? this_reactor() : NULL;
}

/* --- the turn --- */

static inline unsigned run_posted(struct reactor *r)
{
	unsigned n = 0;

	if (likely(mpsc_empty(&r->mailbox)))
		return 0;
	for (struct mpsc_node *node = mpsc_take(&r->mailbox), *next; node; node = next, n++) {
		/* A task's next and a mailbox node are the same pointer: see reactor_post(). */
		struct task *t = container_of(node, struct task, next);

		next = node->next;
		t->next = NULL;
		t->fn(t);
	}
	return n;
}

void patience_adapt(struct patience *p, uint64_t gap)
{
	WRITE_ONCE(p->now, gap <= p->most ? p->most : p->most / PATIENCE_LEAST);
}

static void stop_counting(const struct reactor *r, struct poller *p)
{
	WRITE_ONCE(p->turns, p->turns + r->stats.turns - p->since);
}

static noinline void poller_arm(struct reactor *r, struct poller *p)
{
	if (!p->arm(p)) {
		p->last_busy = r->turn.now;
		return;
	}
	list_del(&p->node);
	list_add_tail(&r->armed, &p->node);
	stop_counting(r, p);
	WRITE_ONCE(p->state, POLLER_ARMED);
}

/* hot */
static unsigned run_pollers(struct reactor *r)
{
	unsigned total = uring_reap(r);

	for (struct list *node = r->polled.next; node != &r->polled; node = r->cursor) {
		struct poller *p = list_entry(node, struct poller, node);
		unsigned n;

		r->cursor = node->next;
		n = p->fn(p);
		if (n) {
			p->last_busy = r->turn.now;
			total += n;
		} else if (unlikely(r->turn.now - p->last_busy >= p->patience.now) &&
			   p->state == POLLER_POLLED) {
			poller_arm(r, p);
		}
	}
	r->cursor = &r->polled;
	return total;
}

/* hot. The whole list at once; what is added meanwhile makes the next one. */
static unsigned run_list(struct task **first, struct task ***last)
{
	struct task *t = *first;
	unsigned n = 0;

	*first = &task_list_end;
	*last = first;
	while (t != &task_list_end) {
		struct task *next = t->next;

		t->next = NULL;
		t->fn(t);
		t = next;
		n++;
	}
	return n;
}

/* hot */
static unsigned run_tasks(struct reactor *r)
{
	unsigned n = 0;

	/* As deep as a stack of filters may be; who goes on for ever goes on in the next turn. */
	for (int pass = 0; pass < TASK_PASSES && r->turn.soon != &task_list_end; pass++)
		n += run_list(&r->turn.soon, &r->turn.soon_last);
	return n;
}

/* hot */
static void run_flushes(struct reactor *r)
{
	while (r->turn.flushes != &task_list_end)
		run_list(&r->turn.flushes, &r->turn.flushes_last);
	if (unlikely(r->uring.pending))
		uring_submit(r);
}

static unsigned run_timers(struct reactor *r)
{
	unsigned n = 0;

	while (unlikely(!list_empty(&r->timers))) {
		struct timer *t = list_entry(r->timers.next, struct timer, node);

		if ((int64_t)(r->turn.now - t->at) < 0)
			break;
		list_del(&t->node);
		t->fn(t);
		n++;
	}
	return n;
}

/* Short turns for a while. */
static void shorten_turns(struct turn *turn, uint64_t passed, uint64_t items)
{
	/* Each request is two items, its beginning and its end. */
	uint64_t batch = ticks_from_us(SLICE_NS) / 1000 * items / 2 / (passed + 1);

	turn->batch = (uint32_t)MIN(MAX(batch, 1), TURN_BATCH);
	turn->even_at = turn->now + ticks_from_us(EVEN_AFTER_US);
}

/*
 * The bill with by far the most items of this turn, beside another whose request began and ended in
 * it: only such a one is so fast that the length of a turn matters. NULL: there is none.
 */
static struct bill *much_beside_little(const struct turn *turn)
{
	struct bill *most = turn->bills;
	uint32_t least = UINT32_MAX;

	for (struct bill *b = turn->bills; b; b = b->next) {
		most = b->items > most->items ? b : most;
		least = MIN(least, b->items);
	}
	return least >= 2 && least < most->items / UNEVEN ? most : NULL;
}

static noinline void share_out(struct turn *turn, uint64_t passed)
{
	struct bill *most = much_beside_little(turn);
	uint64_t items = 0;

	for (const struct bill *b = turn->bills; b; b = b->next)
		items += b->items;
	turn->most_turns = most && most == turn->most ? turn->most_turns + 1 : 0;
	turn->most = most;
	if (turn->most_turns >= UNEVEN_TURNS)
		shorten_turns(turn, passed, items);
	for (struct bill *b = turn->bills; b; b = b->next) {
		WRITE_ONCE(b->ticks, b->ticks + passed * b->items / items);
		b->items = 0;
	}
}

/* hot */
static void settle_bills(struct turn *turn, uint64_t passed)
{
	struct bill *b = turn->bills;

	if (!b)
		return;
	if (unlikely(b->next)) {
		share_out(turn, passed);
	} else {
		WRITE_ONCE(b->ticks, b->ticks + passed);
		b->items = 0;
	}
	turn->bills = NULL;
}

void turn_unbill(struct bill *b)
{
	struct bill **at = &this_turn->bills;

	if (b->items == 0)
		return;
	while (*at != b)
		at = &(*at)->next;
	*at = b->next;
	b->items = 0;
}

static void account(struct reactor *r, uint64_t now)
{
	uint64_t passed = now - r->turn.now;

	settle_bills(&r->turn, passed);
	if (unlikely(r->turn.batch < TURN_BATCH) && now > r->turn.even_at)
		r->turn.batch = TURN_BATCH;
	if (r->last_moved)
		WRITE_ONCE(r->stats.busy_ticks, r->stats.busy_ticks + passed);
	else
		WRITE_ONCE(r->stats.idle_ticks, r->stats.idle_ticks + passed);
	WRITE_ONCE(r->stats.turns, r->stats.turns + 1);
	r->turn.now = now;
}

/* Whoever understands these lines understands the daemon. */
noinline unsigned reactor_turn(struct reactor *r)
{
	unsigned n;

	account(r, ticks()); /* time is read once per turn */
	n = run_posted(r);   /* tasks that other threads sent */
	n += run_pollers(r); /* pull: requests from exports, completions from backends */
	n += run_tasks(r);   /* completions climb */
	run_flushes(r);	     /* push: used rings, doorbells, sockets - once each */
	n += run_timers(r);
	r->last_moved = n;
	return n;
}

unsigned reactor_run_posted(struct reactor *r)
{
	return run_posted(r);
}

/* --- sleep --- */

static bool may_sleep(const struct reactor *r)
{
	return list_empty(&r->polled) && r->turn.soon == &task_list_end &&
	       r->turn.flushes == &task_list_end &&
	       r->turn.now - r->uring.last_busy >= r->uring.patience.now;
}

static uint64_t ns_to_next_timer(const struct reactor *r)
{
	const struct timer *t;
	uint64_t now = ticks();

	if (list_empty(&r->timers))
		return UINT64_MAX;
	t = list_entry(r->timers.next, struct timer, node);
	return (int64_t)(t->at - now) <= 0 ? 0 : ticks_to_ns(t->at - now) + 1;
}

/* The reactor's half of the handshake in reactor_post(): say that we sleep, then look for mail. */
static void reactor_sleep(struct reactor *r, unsigned completions, uint64_t longest_ns)
{
	atomic_store_explicit(&r->sleeping, true, memory_order_relaxed);
	full_barrier(); /* sleeping must be visible before the mailbox is read */
	if (mpsc_empty(&r->mailbox) && !r->stop) {
		uint64_t start = ticks();

		r->uring.slept = true;
		WRITE_ONCE(r->stats.sleeps, r->stats.sleeps + 1);
		wake_sleep(r, completions, MIN(longest_ns, ns_to_next_timer(r)));
		WRITE_ONCE(r->stats.wakeups, r->stats.wakeups + 1);
		WRITE_ONCE(r->stats.asleep_ticks, r->stats.asleep_ticks + ticks() - start);
	}
	atomic_store_explicit(&r->sleeping, false, memory_order_relaxed);
}

void reactor_kick(struct reactor *r)
{
	static const uint64_t one = 1;

	while (write(r->mail_fd, &one, sizeof(one)) < 0 && errno == EINTR)
		;
}

void reactor_post(struct reactor *r, struct task *t)
{
	/* struct task links by next as struct mpsc_node does. */
	_Static_assert(sizeof(struct mpsc_node) == sizeof(((struct task *)0)->next), "same link");
	mpsc_push(&r->mailbox, (struct mpsc_node *)(void *)&t->next);
	full_barrier(); /* the mail must be visible before sleeping is read */
	if (atomic_load_explicit(&r->sleeping, memory_order_relaxed) && &r->turn != this_turn)
		reactor_kick(r);
}

void reactor_rest(struct reactor *r, unsigned completions)
{
	reactor_sleep(r, completions, REST_NS);
}

static void mail_arrived(struct watch *w)
{
	(void)w; /* being awake is enough: the turn looks into the mailbox */
}

void reactor_run(struct reactor *r)
{
	while (!atomic_load_explicit(&r->stop, memory_order_relaxed))
		if (reactor_turn(r) == 0 && may_sleep(r))
			reactor_sleep(r, 1, UINT64_MAX);
	reactor_turn(r);
}

/* --- pollers, timers --- */

uint64_t poller_turns(const struct poller *p, const struct reactor *r)
{
	uint64_t turns = READ_ONCE(p->turns), since = READ_ONCE(p->since);

	return READ_ONCE(p->state) == POLLER_POLLED ? turns + READ_ONCE(r->stats.turns) - since
						    : turns;
}

static void begin_polling(struct poller *p)
{
	WRITE_ONCE(p->since, this_reactor()->stats.turns);
	WRITE_ONCE(p->state, POLLER_POLLED);
	p->last_busy = this_turn->now;
	list_add_tail(&this_reactor()->polled, &p->node);
}

void poller_add(struct poller *p)
{
	WRITE_ONCE(p->patience.now, p->patience.most);
	begin_polling(p);
}

static void poller_unlink(struct poller *p)
{
	if (this_reactor()->cursor == &p->node)
		this_reactor()->cursor = p->node.next;
	list_del(&p->node);
}

void poller_del(struct poller *p)
{
	if (p->state == POLLER_STOPPED)
		return;
	if (p->state == POLLER_ARMED)
		p->disarm(p);
	poller_unlink(p);
	if (p->state == POLLER_POLLED)
		stop_counting(this_reactor(), p);
	WRITE_ONCE(p->state, POLLER_STOPPED);
}

void poller_wake(struct poller *p)
{
	if (p->state != POLLER_ARMED)
		return;
	patience_adapt(&p->patience, this_turn->now - p->last_busy);
	p->disarm(p);
	poller_unlink(p);
	begin_polling(p);
}

void timer_start(struct timer *t, uint64_t at_ticks)
{
	struct list *after;

	timer_stop(t);
	after = this_reactor()->timers.prev;
	t->at = at_ticks;
	while (after != &this_reactor()->timers &&
	       (int64_t)(list_entry(after, struct timer, node)->at - at_ticks) > 0)
		after = after->prev;
	list_add_tail(after->next, &t->node);
}

void timer_stop(struct timer *t)
{
	if (t->node.next)
		list_del(&t->node);
}

/* --- life --- */

void reactor_set_poll_us(uint64_t us)
{
	poll_us = us;
}

uint64_t reactor_poll_us(void)
{
	return poll_us;
}

uint64_t poll_ticks(uint64_t us)
{
	return us == POLL_ALWAYS ? POLL_ALWAYS : ticks_from_us(us);
}

int reactor_create(struct reactor **out)
{
	struct reactor *r = aligned_alloc(CACHE_LINE, sizeof(*r));
	int rc;

	if (!r)
		return -ENOMEM;
	memset(r, 0, sizeof(*r));
	list_init(&r->polled);
	list_init(&r->armed);
	list_init(&r->timers);
	r->cursor = &r->polled;
	r->turn.soon = r->turn.flushes = &task_list_end;
	r->turn.soon_last = &r->turn.soon;
	r->turn.flushes_last = &r->turn.flushes;
	/* with nothing that polls there is nothing to stay awake for */
	r->uring.patience.most = ticks_from_us(poll_us == POLL_ALWAYS ? POLL_US : poll_us);
	r->turn.now = ticks();
	r->turn.batch = TURN_BATCH;
	r->cpu = r->index = r->numa_node = -1;
	r->tid = gettid();
	this_turn = &r->turn;
	rc = wake_init(r);
	if (rc)
		goto out_free;
	r->mail_watch.fn = mail_arrived;
	rc = watch_start(&r->mail_watch, r->mail_fd);
	if (rc)
		goto out_wake;
	*out = r;
	return 0;
out_wake:
	wake_exit(r);
out_free:
	this_turn = NULL;
	free(r);
	return rc;
}

void reactor_destroy(struct reactor *r)
{
	wake_exit(r);
	if (this_turn == &r->turn)
		this_turn = NULL;
	free(r);
}

int reactor_cpu(const struct reactor *r)
{
	return r->cpu;
}

int reactor_numa_node(const struct reactor *r)
{
	return r->numa_node;
}

int reactor_tid(const struct reactor *r)
{
	return r->tid;
}

int reactor_index(const struct reactor *r)
{
	return r->index;
}

void reactor_get_stats(const struct reactor *r, struct reactor_stats *s)
{
	s->busy_ticks = READ_ONCE(r->stats.busy_ticks);
	s->idle_ticks = READ_ONCE(r->stats.idle_ticks);
	s->asleep = atomic_load_explicit(&r->sleeping, memory_order_relaxed);
	s->asleep_ticks = READ_ONCE(r->stats.asleep_ticks);
	s->turns = READ_ONCE(r->stats.turns);
	s->sleeps = READ_ONCE(r->stats.sleeps);
	s->wakeups = READ_ONCE(r->stats.wakeups);
}
