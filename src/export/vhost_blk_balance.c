/*
 * The balancer: a thread that looks once a second at how busy the reactors are, and moves one ring
 * from one that has too much to do to the one that has the least.
 *
 * A ring is worth moving when that makes the busier of the two less busy than the other was: a
 * single ring that needs a whole core stays.
 */
#include "bdev/registry.h"
#include "export/vhost_blk_ctrl.h"
#include "util/log.h"
#include "util/ticker.h"
#include "util/ticks.h"

#define GAP	  20 /* per cent that another must be less busy */
#define WORTH	  2  /* per cent that a ring must need to be worth moving */
#define LEAVE_MS  20 /* how long a ring may wait for its I/O */
#define PUT_OFF_S 60 /* when it could not leave */

static unsigned overloaded; /* per cent of a reactor's time that it is busy, from which on it is */
static struct load loads[CPU_SETSIZE];

struct choice {
	struct vhost_blk *v;
	unsigned ring, percent;
	unsigned hot; /* per cent that the ring's reactor is busy */
	struct reactor *to;
};

/* The ring's share of its reactor's time since the last look. */
static unsigned ring_percent(struct vhost_blk_queue *q)
{
	uint64_t ticks = READ_ONCE(q->bill.ticks), used = ticks - q->billed,
		 passed = loads[reactor_index(q->reactor)].passed;

	q->billed = ticks;
	return passed ? (unsigned)MIN(used * 100 / passed, 100) : 0;
}

/* The least busy reactor that may serve v. */
static int coolest_for(const struct vhost_blk *v)
{
	int best = -1;

	for (int i = 0; i < reactors_count(); i++)
		if (CPU_ISSET(reactor_cpu(reactors_at(i)), &v->cpus) &&
		    (best < 0 || loads[i].percent < loads[best].percent))
			best = i;
	return best;
}

/* Better than what was chosen so far: of the busiest reactor that can be relieved, the ring that
 * needs most. */
static void consider(struct choice *c, struct vhost_blk *v, unsigned ring)
{
	struct vhost_blk_queue *q = v->queue[ring];
	unsigned need = ring_percent(q), hot = loads[reactor_index(q->reactor)].percent;
	int to = coolest_for(v);

	if (hot < overloaded || to < 0 || need < WORTH || ticks() < q->leave_at)
		return;
	if (hot < c->hot || (hot == c->hot && need <= c->percent))
		return;
	if (loads[to].percent + GAP > hot || loads[to].percent + need >= hot)
		return;
	*c = (struct choice){ v, ring, need, hot, reactors_at(to) };
}

/* Under the registry's lock. v is NULL when there is nothing to do. */
static struct choice choose(void)
{
	struct choice c = { 0 };
	struct vhost_blk *v;

	for (int i = 0; i < reactors_count(); i++)
		load_look(&loads[i], reactors_at(i));
	list_for_each (v, &vhost_blk_controllers, node)
		for (unsigned i = 0; i < v->args->num_queues; i++)
			if (v->queue[i] && !v->deleting)
				consider(&c, v, i);
	return c;
}

/* Waiting in vain for its I/O has cost the guest that long: not again soon. */
static void put_off(const struct choice *c)
{
	registry_lock();
	if (c->v->queue[c->ring])
		c->v->queue[c->ring]->leave_at = ticks() + PUT_OFF_S * ticks_hz();
	registry_unlock();
}

static void balance_once(void)
{
	struct err e = { 0 };
	struct choice c;

	pthread_mutex_lock(&vhost_blk_changing);
	registry_lock();
	c = choose();
	registry_unlock();
	if (c.v && vhost_blk_move_ring(c.v, c.ring, c.to, LEAVE_MS, &e) == 0) {
		log_note("balance: ring %u of %s, which needs %u %% of a CPU, goes to CPU %d",
			 c.ring, c.v->args->ctrlr, c.percent, reactor_cpu(c.to));
	} else if (c.v) {
		log_note("balance: %s", e.text);
		put_off(&c);
	}
	pthread_mutex_unlock(&vhost_blk_changing);
}

static struct ticker ticker = { .fn = balance_once, .seconds = 1, .name = "balance" };

int vhost_blk_balance_start(unsigned percent, struct err *e)
{
	overloaded = percent;
	return ticker_start(&ticker, e);
}

void vhost_blk_balance_stop(void)
{
	ticker_stop(&ticker);
}
