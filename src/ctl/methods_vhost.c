/* Methods for vhost-user-blk controllers. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "ctl/rpc.h"
#include "export/list.h"
#include "util/cpumask.h"

struct one_args {
	char *name;
};

struct delete_args {
	char *ctrlr;
};

static const struct param get_params[] = {
	PARAM_STRING(struct one_args, name, .min = 1, .help = "only this one"), { 0 }
};

static const struct param delete_params[] = { PARAM_STRING(struct delete_args, ctrlr,
							   .required = true, .min = 1,
							   .help = "the controller to delete"),
					      { 0 } };

static int create(const struct rpc_method *m, void **args, json_t **result, struct err *e)
{
	struct vhost_blk_args *a = *args;

	(void)m;
	(void)result;
	*args = NULL;
	return vhost_blk_create(a, e);
}

static int delete (const struct rpc_method *m, void **args, json_t **result, struct err *e)
{
	struct delete_args *a = *args;

	(void)m;
	(void)result;
	return vhost_blk_delete(a->ctrlr, e);
}

struct listing {
	json_t *list;
	const char *name; /* NULL: all */
};

static json_t *sessions(const struct vhost_blk_info *i)
{
	char name[128];
	json_t *list = json_array();

	if (!i->connected)
		return list;
	snprintf(name, sizeof(name), "%ss%u", i->args->ctrlr, i->session - 1);
	json_array_append_new(list, json_pack("{s:i, s:i, s:s, s:b, s:i, s:i, s:b}", "vid",
					      i->session - 1, "id", i->session - 1, "name", name,
					      "started", i->rings_started > 0, "max_queues",
					      i->rings_started, "inflight_task_cnt", i->inflight,
					      "write_through", i->write_through));
	return list;
}

static int list_one(const struct vhost_blk_info *i, void *arg)
{
	struct listing *l = arg;
	char mask[CPU_SETSIZE / 4 + 3];

	if (l->name && strcmp(l->name, i->args->ctrlr) != 0)
		return 0;
	cpumask_format(&i->cpus, mask, sizeof(mask));
	json_array_append_new(l->list,
			      json_pack("{s:s, s:s, s:i, s:i, s:s, s:o, s:{s:{s:b, s:s, s:s}}}",
					"ctrlr", i->args->ctrlr, "cpumask", mask, "delay_base_us",
					0, "iops_threshold", 60000, "socket", i->socket, "sessions",
					sessions(i), "backend_specific", "block", "readonly",
					i->args->readonly, "bdev", i->args->dev_name, "transport",
					"vhost_user_blk"));
	return 0;
}

static int get(const struct rpc_method *m, void **args, json_t **result, struct err *e)
{
	struct one_args *a = *args;
	struct listing l = { json_array(), a->name };

	(void)m;
	vhost_blk_for_each(list_one, &l);
	if (a->name && json_array_size(l.list) == 0) {
		json_decref(l.list);
		return err_field(
			e, -ENODEV, "name", a->name, NULL,
			"There is no controller named '%.80s'. vhost_get_controllers lists them.",
			a->name);
	}
	*result = l.list;
	return 0;
}

struct set_cpumask_args {
	char *ctrlr, *cpumask;
};

static const struct param set_cpumask_params[] = {
	PARAM_STRING(struct set_cpumask_args, ctrlr, .required = true, .min = 1,
		     .help = "the controller"),
	PARAM_STRING(
		struct set_cpumask_args, cpumask,
		.help = "reactors that serve its queues from now on, as 0x3 or [0,1] (default: "
			"all)"),
	{ 0 }
};

static int set_cpumask(const struct rpc_method *m, void **args, json_t **result, struct err *e)
{
	struct set_cpumask_args *a = *args;

	(void)m;
	(void)result;
	return vhost_blk_set_cpumask(a->ctrlr, a->cpumask, e);
}

const struct rpc_method vhost_methods[] = {
	{ .name = "vhost_create_blk_controller",
	  .help = "serve a bdev to a virtual machine",
	  .params = vhost_blk_params,
	  .args_size = sizeof(struct vhost_blk_args),
	  .fn = create,
	  .decode_error = RPC_DECODE_INVALID,
	  .error_code = RPC_INVALID_PARAMS,
	  .relaxed = true },
	{ .name = "vhost_get_controllers",
	  .help = "all controllers, or one",
	  .params = get_params,
	  .args_size = sizeof(struct one_args),
	  .fn = get,
	  .decode_error = RPC_DECODE_INVALID,
	  .error_code = RPC_INTERNAL_ERROR },
	{ .name = "vhost_controller_set_cpumask",
	  .help = "move a controller's queues to other reactors",
	  .params = set_cpumask_params,
	  .args_size = sizeof(struct set_cpumask_args),
	  .fn = set_cpumask,
	  .decode_error = RPC_DECODE_INVALID,
	  .error_code = RPC_INVALID_PARAMS },
	{ .name = "vhost_delete_controller",
	  .help = "stop serving a bdev",
	  .params = delete_params,
	  .args_size = sizeof(struct delete_args),
	  .fn = delete,
	  .decode_error = RPC_DECODE_INVALID,
	  .error_code = RPC_INVALID_PARAMS },
	{ 0 }
};
