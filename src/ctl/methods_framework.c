/* Methods that SPDK's clients call around start-up. */
#include <errno.h>

#include "ctl/config.h"
#include "ctl/rpc.h"

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
