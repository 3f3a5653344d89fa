/* Methods about the daemon itself. */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "ctl/rpc.h"
#include "util/compiler.h"

#define VERSION_MAJOR 0
#define VERSION_MINOR 1

struct get_methods_args {
	bool current, include_aliases;
};

static const struct param get_methods_params[] = {
	PARAM_BOOL(struct get_methods_args, current,
		   .help = "only those that may be called now (all may)"),
	PARAM_BOOL(struct get_methods_args, include_aliases,
		   .help = "also the old names (there are none)"),
	{ 0 }
};

static int get_methods(const struct rpc_method *m, void **args, json_t **result, struct err *e)
{
	json_t *list = json_array();

	(void)m;
	(void)args;
	(void)e;
	for (const struct rpc_method *const *all = rpc_methods(); *all; all++)
		json_array_append_new(list, json_string((*all)->name));
	*result = list;
	return 0;
}

/* SPDK's clients look at the fields to see what they talk to; the version text says the truth. */
static int get_version(const struct rpc_method *m, void **args, json_t **result, struct err *e)
{
	(void)m;
	(void)args;
	(void)e;
	*result = json_pack("{s:s, s:{s:i, s:i, s:i, s:s}}", "version", "riffle v" RIFFLE_VERSION,
			    "fields", "major", VERSION_MAJOR, "minor", VERSION_MINOR, "patch", 0,
			    "suffix", "");
	return 0;
}

struct kill_args {
	char *sig_name;
};

static const struct param kill_params[] = {
	PARAM_STRING(struct kill_args, sig_name, .required = true,
		     .help = "SIGINT, SIGTERM, SIGQUIT, SIGHUP, SIGKILL or SIGUSR1"),
	{ 0 }
};

static int kill_instance(const struct rpc_method *m, void **args, json_t **result, struct err *e)
{
	static const struct {
		const char *name;
		int number;
	} signals[] = { { "SIGINT", SIGINT }, { "SIGTERM", SIGTERM }, { "SIGQUIT", SIGQUIT },
			{ "SIGHUP", SIGHUP }, { "SIGKILL", SIGKILL }, { "SIGUSR1", SIGUSR1 } };
	const struct kill_args *a = *args;

	(void)m;
	(void)result;
	for (size_t i = 0; i < ARRAY_SIZE(signals); i++) {
		if (strcmp(a->sig_name, signals[i].name) == 0 ||
		    strcmp(a->sig_name, signals[i].name + 3) == 0)
			return kill(getpid(), signals[i].number) < 0
				       ? err_set(e, -errno, "The signal was refused.")
				       : 0;
	}
	return err_field(e, -EINVAL, "sig_name", a->sig_name, kill_params[0].help,
			 "'%.40s' is not one of %s.", a->sig_name, kill_params[0].help);
}

const struct rpc_method core_methods[] = { { .name = "spdk_get_version",
					     .help = "version of this daemon",
					     .fn = get_version,
					     .decode_error = RPC_DECODE_REFUSED },
					   { .name = "rpc_get_methods",
					     .help = "names of all methods",
					     .params = get_methods_params,
					     .args_size = sizeof(struct get_methods_args),
					     .fn = get_methods,
					     .decode_error = RPC_DECODE_INVALID },
					   { .name = "spdk_kill_instance",
					     .help = "send a signal to this daemon",
					     .params = kill_params,
					     .args_size = sizeof(struct kill_args),
					     .fn = kill_instance,
					     .decode_error = RPC_DECODE_FAILED,
					     .error_code = RPC_INVALID_PARAMS },
					   { 0 } };
