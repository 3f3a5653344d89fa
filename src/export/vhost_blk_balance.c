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

#define OVERLOADED 80 /* per cent of a reactor's time that it is busy */
#define GAP	   20 /* per cent that another must be less busy */
#define WORTH	   2  /* per cent that a ring must need to be worth moving */

static struct load loads[CPU_SETSIZE];

struct choice {
	struct vhost_blk *v;
	unsigned ring, percent;
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

static void consider(struct choice *c, struct vhost_blk *v, unsigned ring, int hottest)
{
	struct vhost_blk_queue *q = v->queue[ring];
	unsigned need = ring_percent(q);
	int to = coolest_for(v);

	if (reactor_index(q->reactor) != hottest || to < 0 || need < WORTH || need <= c->percent)
		return;
	if (loads[to].percent + GAP > loads[hottest].percent ||
	    loads[to].percent + need >= loads[hottest].percent)
		return;
	*c = (struct choice){ .v = v, .ring = ring, .percent = need, .to = reactors_at(to) };
}

/* Under the registry's lock. c.v is NULL when all is well. */
static struct choice choose(void)
{
	struct choice c = { 0 };
	struct vhost_blk *v;
	int hottest = 0;

	for (int i = 0; i < reactors_count(); i++)
		load_look(&loads[i], reactors_at(i));
	for (int i = 1; i < reactors_count(); i++)
		if (loads[i].percent > loads[hottest].percent)
			hottest = i;
	list_for_each (v, &vhost_blk_controllers, node)
		for (unsigned i = 0; i < v->args->num_queues; i++)
			if (v->queue[i] && !v->deleting)
				consider(&c, v, i, hottest);
	if (loads[hottest].percent < OVERLOADED)
		c.v = NULL;
	return c;
}

static void balance_once(void)
{
	struct err e = { 0 };
	struct choice c;

	pthread_mutex_lock(&vhost_blk_changing);
	registry_lock();
	c = choose();
	registry_unlock();
	if (c.v && vhost_blk_move_ring(c.v, c.ring, c.to, &e) == 0)
		log_note("balance: ring %u of %s, which needs %u %% of a CPU, goes to CPU %d",
			 c.ring, c.v->args->ctrlr, c.percent, reactor_cpu(c.to));
	else if (c.v)
		log_warn("balance: %s", e.text);
	pthread_mutex_unlock(&vhost_blk_changing);
}

static struct ticker ticker = { .fn = balance_once, .seconds = 1, .name = "balance" };

int vhost_blk_balance_start(struct err *e)
{
	return ticker_start(&ticker, e);
}

void vhost_blk_balance_stop(void)
{
	ticker_stop(&ticker);
}
