/* Which reactor serves which ring: chosen at the start, changed while they run. */
#include <errno.h>
#include <string.h>
#include <time.h>

#include "bdev/registry.h"
#include "export/vhost_blk_ctrl.h"
#include "util/cpumask.h"
#include "util/ticks.h"

#define LOAD_MS	 200
#define STALE_MS 10000 /* a look so old that it says nothing of now */

/* --- who may serve --- */

/* The reactors' CPUs that are on the device's NUMA node, if there are any. */
static void keep_near(const struct bdev *b, cpu_set_t *cpus)
{
	cpu_set_t near;

	if (!b->has_numa_node)
		return;
	CPU_ZERO(&near);
	for (int i = 0; i < reactors_count(); i++)
		if (reactor_numa_node(reactors_at(i)) == b->numa_node)
			CPU_SET(reactor_cpu(reactors_at(i)), &near);
	CPU_AND(&near, &near, cpus);
	if (CPU_COUNT(&near) > 0)
		*cpus = near;
}

int vhost_blk_choose_cpus(const struct vhost_blk *v, const char *cpumask, cpu_set_t *cpus,
			  struct err *e)
{
	char given[256], have_text[256];
	cpu_set_t have, both;
	int rc;

	reactors_cpus(&have);
	if (!cpumask || !*cpumask) {
		*cpus = have;
		keep_near(v->bdev, cpus);
		return 0;
	}
	rc = cpumask_parse(cpumask, cpus, e);
	if (rc)
		return rc;
	CPU_AND(&both, cpus, &have);
	if (CPU_EQUAL(&both, cpus))
		return 0;
	cpumask_format(cpus, given, sizeof(given));
	cpumask_format(&have, have_text, sizeof(have_text));
	return err_field(
		e, -EINVAL, "cpumask", given, have_text,
		"cpumask %s names CPUs without a reactor: this daemon has %s (riffle serve -m).",
		given, have_text);
}

/* --- how much they have to do --- */

void load_look(struct load *l, const struct reactor *r)
{
	struct reactor_stats s;
	uint64_t total;

	reactor_get_stats(r, &s);
	total = s.busy_ticks + s.idle_ticks;
	l->passed = total - l->total;
	l->percent = l->passed ? (unsigned)((s.busy_ticks - l->busy) * 100 / l->passed) : 0;
	l->busy = s.busy_ticks;
	l->total = total;
}

/* By reactor. Under the registry's lock. */
static unsigned seated[CPU_SETSIZE];
static struct load lately[CPU_SETSIZE];
static uint64_t looked; /* ticks */

static void look_at_loads(void)
{
	uint64_t now = ticks(), age = now - looked;

	if (looked && age < ticks_hz() / 1000 * LOAD_MS)
		return;
	looked = now;
	for (int i = 0; i < reactors_count(); i++) {
		load_look(&lately[i], reactors_at(i));
		if (age > ticks_hz() / 1000 * STALE_MS)
			lately[i].percent = 0;
	}
}

void vhost_blk_seat(const struct reactor *r, int rings)
{
	seated[reactor_index(r)] += (unsigned)rings;
}

static unsigned rings_on(const struct vhost_blk *v, const struct reactor *r)
{
	unsigned n = 0;

	for (uint64_t i = 0; i < v->args->num_queues; i++)
		n += v->queue[i] && v->queue[i]->reactor == r;
	return n;
}

/* The fewest rings of this disk, then the least busy, then the fewest rings at all. */
struct reactor *vhost_blk_place(const struct vhost_blk *v)
{
	struct reactor *best = NULL;
	uint64_t least = UINT64_MAX;

	look_at_loads();
	for (int i = 0; i < reactors_count(); i++) {
		struct reactor *r = reactors_at(i);
		uint64_t cost = (uint64_t)rings_on(v, r) << 40 |
				(uint64_t)(lately[i].percent / 10) << 32 | seated[i];

		if (!CPU_ISSET(reactor_cpu(r), &v->cpus) || cost >= least)
			continue;
		least = cost;
		best = r;
	}
	return best;
}

void vhost_blk_totals_add(struct vhost_blk_totals *t, const struct vhost_blk_queue *q)
{
	t->requests += READ_ONCE(q->vq->requests);
	t->interrupts += READ_ONCE(q->vq->calls);
	t->batches += READ_ONCE(q->batches);
	t->kicks += READ_ONCE(q->kicks);
	t->moves += READ_ONCE(q->moves);
	t->busy_ticks += READ_ONCE(q->bill.ticks);
}

/* --- moving --- */

int vhost_blk_session_lock(struct vhost_blk *v, unsigned ms, struct err *e)
{
	struct timespec until = time_in_ms(ms);

	if (pthread_mutex_timedlock(&v->session_lock, &until) == 0)
		return 0;
	return err_set(e, -EBUSY,
		       "'%.80s' has been busy with its front-end for %u ms. Try again later.",
		       v->args->ctrlr, ms);
}

int vhost_blk_move_ring(struct vhost_blk *v, unsigned i, struct reactor *to, unsigned ms,
			struct err *e)
{
	struct reactor *from;
	int rc = vhost_blk_session_lock(v, ms, e);

	if (rc)
		return rc;
	if (v->queue[i] && v->queue[i]->reactor != to) {
		from = v->queue[i]->reactor;
		rc = vhost_blk_queue_move(v->queue[i], to, ms, e);
		if (rc == 0) {
			registry_lock();
			vhost_blk_seat(from, -1);
			vhost_blk_seat(to, 1);
			registry_unlock();
		}
	}
	pthread_mutex_unlock(&v->session_lock);
	return rc;
}

struct reactor *vhost_blk_misplaced(struct vhost_blk *v, const bool *tried, unsigned *ring)
{
	struct reactor *to = NULL;

	registry_lock();
	for (unsigned i = 0; !to && !v->deleting && i < v->args->num_queues; i++) {
		struct reactor *at, *better;

		if (!v->queue[i] || tried[i])
			continue;
		at = v->queue[i]->reactor;
		better = vhost_blk_place(v);
		*ring = i;
		if (!CPU_ISSET(reactor_cpu(at), &v->cpus) ||
		    rings_on(v, at) > rings_on(v, better) + 1)
			to = better;
	}
	registry_unlock();
	return to;
}
