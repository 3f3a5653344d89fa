/* Saving and loading the configuration in one request. */
#include "ctl/config.h"
#include "ctl/rpc.h"

struct load_args {
	json_t *subsystems;
};

static const struct param load_params[] = { PARAM_RAW(struct load_args, subsystems,
						      .required = true,
						      .help = "as save_config returns it"),
					    { 0 } };

static int save(const struct rpc_method *m, void **args, json_t **result, struct err *e)
{
	(void)m;
	(void)args;
	(void)e;
	*result = config_save();
	return 0;
}

static int load(const struct rpc_method *m, void **args, json_t **result, struct err *e)
{
	struct load_args *a = *args;
	json_t *config = json_pack("{s:O}", "subsystems", a->subsystems);
	int rc = config_load(config, e);

	(void)m;
	(void)result;
	json_decref(config);
	return rc;
}

const struct rpc_method config_methods[] = { { .name = "save_config",
					       .help = "the requests that make the present state",
					       .fn = save,
					       .decode_error = RPC_DECODE_REFUSED },
					     { .name = "load_config",
					       .help = "make what a saved configuration describes",
					       .params = load_params,
					       .args_size = sizeof(struct load_args),
					       .fn = load,
					       .decode_error = RPC_DECODE_INVALID },
					     { 0 } };
