/* Methods about reactors, and those that SPDK's clients call around start-up. */
#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include "ctl/config.h"
#include "ctl/rpc.h"
#include "reactor/reactor.h"
#include "util/ticks.h"

static json_t *describe(const struct reactor *r)
{
	struct reactor_stats s;
	char mask[32], name[32];
	int cpu = reactor_cpu(r);

	reactor_get_stats(r, &s);
	snprintf(mask, sizeof(mask), "%llx", cpu < 64 ? 1ull << cpu : 0);
	snprintf(name, sizeof(name), "reactor/%d", cpu);
	return json_pack("{s:i, s:i, s:i, s:I, s:I, s:b, s:I, s:I, s:I, s:[{s:s, s:i, s:s, s:I}]}",
			 "lcore", cpu, "numa_id", 0, "tid", reactor_tid(r), "busy",
			 (json_int_t)s.busy_ticks, "idle", (json_int_t)s.idle_ticks, "in_interrupt",
			 0, "turns", (json_int_t)s.turns, "sleeps", (json_int_t)s.sleeps, "wakeups",
			 (json_int_t)s.wakeups, "lw_threads", "name", name, "id",
			 reactor_index(r) + 1, "cpumask", mask, "elapsed",
			 (json_int_t)(s.busy_ticks + s.idle_ticks));
}

static int get_reactors(const struct rpc_method *m, void **args, json_t **result, struct err *e)
{
	json_t *list = json_array();

	(void)m;
	(void)args;
	(void)e;
	for (int i = 0; i < reactors_count(); i++)
		json_array_append_new(list, describe(reactors_at(i)));
	*result = json_pack("{s:I, s:i, s:o}", "tick_rate", (json_int_t)ticks_hz(), "pid", getpid(),
			    "reactors", list);
	return 0;
}

/* The daemon is up when it answers. */
static int is_up(const struct rpc_method *m, void **args, json_t **result, struct err *e)
{
	(void)m;
	(void)args;
	(void)result;
	(void)e;
	return 0;
}

static int get_subsystems(const struct rpc_method *m, void **args, json_t **result, struct err *e)
{
	(void)m;
	(void)args;
	(void)e;
	*result = config_subsystems();
	return 0;
}

struct get_config_args {
	char *name;
	bool with_batches;
};

static const struct param get_config_params[] = {
	PARAM_STRING(struct get_config_args, name, .required = true, .min = 1,
		     .help = "of which subsystem"),
	PARAM_BOOL(struct get_config_args, with_batches, .help = "accepted; there are no batches"),
	{ 0 }
};

static int get_config(const struct rpc_method *m, void **args, json_t **result, struct err *e)
{
	const struct get_config_args *a = *args;

	(void)m;
	*result = config_of(a->name);
	if (!*result)
		return err_field(
			e, -EINVAL, "name", a->name, "bdev, vhost_blk",
			"There is no subsystem '%.40s'. framework_get_subsystems lists them.",
			a->name);
	return 0;
}

const struct rpc_method framework_methods[] = {
	{ .name = "framework_get_reactors",
	  .help = "the reactors and how busy they are",
	  .fn = get_reactors,
	  .decode_error = RPC_DECODE_REFUSED },
	{ .name = "framework_wait_init",
	  .help = "returns when the daemon is up",
	  .fn = is_up,
	  .decode_error = RPC_DECODE_REFUSED },
	{ .name = "framework_get_subsystems",
	  .help = "names of the parts that have a configuration",
	  .fn = get_subsystems,
	  .decode_error = RPC_DECODE_REFUSED },
	{ .name = "framework_get_config",
	  .help = "the requests that make the present state",
	  .params = get_config_params,
	  .args_size = sizeof(struct get_config_args),
	  .fn = get_config,
	  .decode_error = RPC_DECODE_INVALID,
	  .error_code = RPC_INVALID_PARAMS },
	{ 0 }
};
