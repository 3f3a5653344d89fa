/*
 * Methods about who runs where and how busy it is.
 *
 * SPDK's clients know threads: here every reactor is one, under the first ids, and every controller
 * is one, whose rings may well be on several reactors.
 */
#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include "ctl/rpc.h"
#include "export/list.h"
#include "reactor/reactor.h"
#include "util/cpumask.h"
#include "util/ticks.h"

#define MASK_TEXT (CPU_SETSIZE / 4 + 3)

/* As SPDK writes the masks of threads: without 0x. */
static const char *bare_mask(const cpu_set_t *cpus, char *buf)
{
	return cpumask_format(cpus, buf, MASK_TEXT) + 2;
}

/* A reactor as a thread. */
struct identity {
	char name[32];
	unsigned id;
	cpu_set_t cpus;
};

static struct identity identify(const struct reactor *r)
{
	struct identity i = { .id = (unsigned)reactor_index(r) + 1 };

	snprintf(i.name, sizeof(i.name), "reactor/%d", reactor_cpu(r));
	CPU_SET(reactor_cpu(r), &i.cpus);
	return i;
}

static uint64_t elapsed(const struct vhost_blk_info *i)
{
	return ticks() - i->created;
}

static json_t *answer(const char *key, json_t *list)
{
	return json_pack("{s:I, s:o}", "tick_rate", (json_int_t)ticks_hz(), key, list);
}

/* --- framework_get_reactors --- */

/* Where most of its rings are, else the first it may use. */
static int home_cpu(const struct vhost_blk_info *i)
{
	unsigned rings[CPU_SETSIZE] = { 0 };
	int best = -1;

	for (unsigned n = 0; n < i->rings_started; n++)
		rings[reactor_cpu(i->rings[n].reactor)]++;
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, &i->cpus) && (best < 0 || rings[cpu] > rings[best]))
			best = cpu;
	return best;
}

struct at_home {
	int cpu;
	json_t *list;
};

static int add_if_home(const struct vhost_blk_info *i, void *arg)
{
	struct at_home *h = arg;
	char mask[MASK_TEXT];

	if (home_cpu(i) == h->cpu)
		json_array_append_new(h->list,
				      json_pack("{s:s, s:i, s:s, s:I}", "name", i->args->ctrlr,
						"id", i->id, "cpumask", bare_mask(&i->cpus, mask),
						"elapsed", (json_int_t)elapsed(i)));
	return 0;
}

static json_t *threads_of(const struct reactor *r, uint64_t lived)
{
	struct at_home h = { reactor_cpu(r), json_array() };
	struct identity i = identify(r);
	char mask[MASK_TEXT];

	json_array_append_new(h.list, json_pack("{s:s, s:i, s:s, s:I}", "name", i.name, "id", i.id,
						"cpumask", bare_mask(&i.cpus, mask), "elapsed",
						(json_int_t)lived));
	vhost_blk_for_each(add_if_home, &h);
	return h.list;
}

static json_t *describe(const struct reactor *r)
{
	struct reactor_stats s;

	reactor_get_stats(r, &s);
	return json_pack("{s:i, s:i, s:i, s:I, s:I, s:b, s:I, s:I, s:I, s:I}", "lcore",
			 reactor_cpu(r), "numa_id", reactor_numa_node(r), "tid", reactor_tid(r),
			 "busy", (json_int_t)s.busy_ticks, "idle", (json_int_t)s.idle_ticks,
			 "in_interrupt", s.asleep, "asleep", (json_int_t)s.asleep_ticks, "turns",
			 (json_int_t)s.turns, "sleeps", (json_int_t)s.sleeps, "wakeups",
			 (json_int_t)s.wakeups);
}

static int get_reactors(const struct rpc_method *m, void **args, json_t **result, struct err *e)
{
	json_t *list = json_array();

	(void)m;
	(void)args;
	(void)e;
	for (int i = 0; i < reactors_count(); i++) {
		json_t *one = describe(reactors_at(i));
		struct reactor_stats s;

		reactor_get_stats(reactors_at(i), &s);
		json_object_set_new(one, "lw_threads",
				    threads_of(reactors_at(i), s.busy_ticks + s.idle_ticks));
		json_array_append_new(list, one);
	}
	*result = answer("reactors", list);
	json_object_set_new(*result, "pid", json_integer(getpid()));
	return 0;
}

/* --- thread_get_stats --- */

static json_t *thread_stats(const char *name, unsigned id, const cpu_set_t *cpus, uint64_t busy,
			    uint64_t idle, unsigned active, unsigned paused)
{
	char mask[MASK_TEXT];

	return json_pack("{s:s, s:i, s:s, s:I, s:I, s:i, s:i, s:i}", "name", name, "id", id,
			 "cpumask", bare_mask(cpus, mask), "busy", (json_int_t)busy, "idle",
			 (json_int_t)idle, "active_pollers_count", active, "timed_pollers_count", 0,
			 "paused_pollers_count", paused);
}

static int add_stats(const struct vhost_blk_info *i, void *arg)
{
	uint64_t busy = i->totals.busy_ticks, all = elapsed(i);
	unsigned polled = 0;

	for (unsigned n = 0; n < i->rings_started; n++)
		polled += i->rings[n].polled;
	json_array_append_new(arg, thread_stats(i->args->ctrlr, i->id, &i->cpus, busy,
						all > busy ? all - busy : 0, polled,
						i->rings_started - polled));
	return 0;
}

static int get_stats(const struct rpc_method *m, void **args, json_t **result, struct err *e)
{
	json_t *list = json_array();

	(void)m;
	(void)args;
	(void)e;
	for (int i = 0; i < reactors_count(); i++) {
		struct identity r = identify(reactors_at(i));
		struct reactor_stats s;

		reactor_get_stats(reactors_at(i), &s);
		json_array_append_new(list, thread_stats(r.name, r.id, &r.cpus, s.busy_ticks,
							 s.idle_ticks, 0, 0));
	}
	vhost_blk_for_each(add_stats, list);
	*result = answer("threads", list);
	return 0;
}

/* --- thread_get_pollers --- */

static json_t *thread_pollers(const char *name, unsigned id, json_t *active, json_t *paused)
{
	return json_pack("{s:s, s:i, s:o, s:[], s:o}", "name", name, "id", id, "active_pollers",
			 active, "timed_pollers", "paused_pollers", paused);
}

static int add_pollers(const struct vhost_blk_info *i, void *arg)
{
	json_t *active = json_array(), *paused = json_array();

	for (unsigned n = 0; n < i->rings_started; n++) {
		const struct vhost_blk_ring_info *r = &i->rings[n];
		char name[32];

		snprintf(name, sizeof(name), "ring %u", r->index);
		json_array_append_new(r->polled ? active : paused,
				      json_pack("{s:s, s:i, s:s, s:I, s:I}", "name", name, "id",
						r->index + 1, "state",
						r->polled ? "waiting" : "paused", "run_count",
						(json_int_t)r->polled_turns, "busy_count",
						(json_int_t)r->totals.batches));
	}
	json_array_append_new(arg, thread_pollers(i->args->ctrlr, i->id, active, paused));
	return 0;
}

static int get_pollers(const struct rpc_method *m, void **args, json_t **result, struct err *e)
{
	json_t *list = json_array();

	(void)m;
	(void)args;
	(void)e;
	for (int i = 0; i < reactors_count(); i++) {
		struct identity r = identify(reactors_at(i));

		json_array_append_new(list,
				      thread_pollers(r.name, r.id, json_array(), json_array()));
	}
	vhost_blk_for_each(add_pollers, list);
	*result = answer("threads", list);
	return 0;
}

/* --- thread_set_cpumask --- */

struct set_cpumask_args {
	uint64_t id;
	char *cpumask;
};

static const struct param set_cpumask_params[] = {
	PARAM_UINT(struct set_cpumask_args, id, .required = true,
		   .help = "the id of a controller in thread_get_stats"),
	PARAM_STRING(struct set_cpumask_args, cpumask, .required = true, .min = 1,
		     .help = "reactors that serve its queues from now on, as 0x3 or [0,1]"),
	{ 0 }
};

struct by_id {
	uint64_t id;
	char name[128];
};

static int match_id(const struct vhost_blk_info *i, void *arg)
{
	struct by_id *b = arg;

	if (i->id != b->id)
		return 0;
	snprintf(b->name, sizeof(b->name), "%s", i->args->ctrlr);
	return 1;
}

static int set_cpumask(const struct rpc_method *m, void **args, json_t **result, struct err *e)
{
	struct set_cpumask_args *a = *args;
	struct by_id b = { .id = a->id };
	char given[32];

	(void)m;
	(void)result;
	if (vhost_blk_for_each(match_id, &b))
		return vhost_blk_set_cpumask(b.name, a->cpumask, e);
	snprintf(given, sizeof(given), "%llu", (unsigned long long)a->id);
	if (a->id > 0 && a->id <= (uint64_t)reactors_count())
		return err_field(
			e, -EPERM, "id", given, "the ids of controllers",
			"Thread %s is a reactor, which stays on its CPU. Controllers can be moved: "
			"thread_get_stats lists them.",
			given);
	return err_field(e, -ENOENT, "id", given, NULL,
			 "There is no thread %s. thread_get_stats lists them.", given);
}

/* --- riffle_get_stats: everything --- */

static json_t *poll_us(uint64_t us)
{
	if (us == VHOST_BLK_POLL_DAEMON)
		us = reactor_poll_us();
	return us == POLL_ALWAYS ? json_string("always") : json_integer((json_int_t)us);
}

static json_t *totals(const struct vhost_blk_totals *t)
{
	return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I}", "requests", (json_int_t)t->requests,
			 "batches", (json_int_t)t->batches, "kicks", (json_int_t)t->kicks,
			 "interrupts", (json_int_t)t->interrupts, "moves", (json_int_t)t->moves,
			 "busy", (json_int_t)t->busy_ticks);
}

static json_t *ring_stats(const struct vhost_blk_ring_info *r)
{
	json_t *one = totals(&r->totals),
	       *more = json_pack("{s:i, s:i, s:i, s:i, s:b, s:I, s:o}", "ring", r->index, "lcore",
				 reactor_cpu(r->reactor), "size", r->size, "inflight", r->inflight,
				 "polled", r->polled, "polled_turns", (json_int_t)r->polled_turns,
				 "patience_us",
				 poll_us(r->patience == POLL_ALWAYS
						 ? POLL_ALWAYS
						 : ticks_to_ns(r->patience) / 1000));

	json_object_update(one, more);
	json_decref(more);
	return one;
}

static int add_everything(const struct vhost_blk_info *i, void *arg)
{
	json_t *rings = json_array(), *one = totals(&i->totals), *more;
	char mask[MASK_TEXT];

	for (unsigned n = 0; n < i->rings_started; n++)
		json_array_append_new(rings, ring_stats(&i->rings[n]));
	more = json_pack("{s:s, s:i, s:s, s:s, s:o, s:b, s:i, s:o}", "ctrlr", i->args->ctrlr, "id",
			 i->id, "bdev", i->args->dev_name, "cpumask",
			 cpumask_format(&i->cpus, mask, sizeof(mask)), "poll_us",
			 poll_us(i->args->poll_us), "connected", i->connected, "inflight",
			 i->inflight, "rings", rings);
	json_object_update(one, more);
	json_decref(more);
	json_array_append_new(arg, one);
	return 0;
}

static int get_everything(const struct rpc_method *m, void **args, json_t **result, struct err *e)
{
	json_t *reactors = json_array(), *controllers = json_array();

	(void)m;
	(void)args;
	(void)e;
	for (int i = 0; i < reactors_count(); i++)
		json_array_append_new(reactors, describe(reactors_at(i)));
	vhost_blk_for_each(add_everything, controllers);
	*result = answer("reactors", reactors);
	json_object_set_new(*result, "poll_us", poll_us(reactor_poll_us()));
	json_object_set_new(*result, "controllers", controllers);
	return 0;
}

const struct rpc_method thread_methods[] = {
	{ .name = "framework_get_reactors",
	  .help = "the reactors and how busy they are",
	  .fn = get_reactors,
	  .decode_error = RPC_DECODE_REFUSED },
	{ .name = "thread_get_stats",
	  .help = "how busy reactors and controllers are",
	  .fn = get_stats,
	  .decode_error = RPC_DECODE_REFUSED },
	{ .name = "thread_get_pollers",
	  .help = "the rings of controllers, polled or waiting for a kick",
	  .fn = get_pollers,
	  .decode_error = RPC_DECODE_REFUSED },
	{ .name = "thread_set_cpumask",
	  .help = "move a controller's queues to other reactors",
	  .params = set_cpumask_params,
	  .args_size = sizeof(struct set_cpumask_args),
	  .fn = set_cpumask,
	  .decode_error = RPC_DECODE_INVALID,
	  .error_code = RPC_INVALID_PARAMS },
	{ .name = "riffle_get_stats",
	  .help = "reactors, controllers and rings: time, turns, requests, kicks, interrupts, moves",
	  .fn = get_everything,
	  .decode_error = RPC_DECODE_REFUSED },
	{ 0 }
};
