/*
 * ring_test [RIFFLE]: hostile and ordinary virtqueues against a daemon of its own. TAP.
 * RIFFLE_LONG=1 runs the loops at full length; RING_ONLY=TEXT runs the cases whose name holds
 * TEXT, RING_PASS=one, two or packed those of one daemon; RING_TIMES=1 prints how long each case
 * took.
 */
#include "ring/ring.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct ring_case *const tables[] = {
	ring_chain_cases, ring_memory_cases, ring_index_cases, ring_call_cases,
	ring_shape_cases, ring_zero_cases,   ring_stop_cases,  ring_load_cases,
	ring_log_cases,	  ring_crash_cases,  ring_lies_cases,
};
static const struct ring_case *const packed_tables[] = { ring_packed_cases,
							 ring_packed_setup_cases };

/* One daemon, and the cases that run against it. */
struct pass {
	const char *cpumask;
	const char *label;
	bool reactors; /* only those for two reactors */
	bool packed;   /* with packed rings, and only those that apply to them */
};

static void run_case(struct ring_env *env, const struct ring_case *c, bool packed)
{
	struct ring_test t = { .env = env, .packed = packed };
	uint64_t start = vhost_now_ns();
	char name[256];

	snprintf(name, sizeof(name), "%s%s", c->name, env->label);
	c->run(&t);
	ring_env_settle(env, &t);
	if (getenv("RING_TIMES"))
		tap_diag("%u ms", (unsigned)((vhost_now_ns() - start) / 1000000));
	if (t.failed)
		tap_diag("%s", t.why);
	if (t.skip && !t.failed)
		tap_skip(name, t.skip);
	else
		tap_result(!t.failed, name);
	fflush(stdout);
}

/* A case that killed or stuck the daemon has failed; the next one gets a new daemon. */
static bool revive(struct ring_env *env, const char *exe, const char *cpumask)
{
	const char *label = env->label;

	if (daemon_alive(&env->daemon) && !env->bystander.failed)
		return true;
	ring_env_stop(env, false);
	*env = (struct ring_env){ .label = label };
	return ring_env_start(env, exe, cpumask);
}

static bool selected(const struct ring_case *c, const struct pass *pass)
{
	const char *only = getenv("RING_ONLY");

	return (c->reactors || !pass->reactors) && (c->packed || !pass->packed) &&
	       (!only || strstr(c->name, only));
}

static bool run_tables(struct ring_env *env, const char *exe, const struct pass *pass,
		       const struct ring_case *const *table, unsigned n)
{
	const struct ring_case *c;
	bool ok = true;

	for (; ok && n--; table++) {
		for (c = *table; ok && c->name; c++) {
			if (!selected(c, pass))
				continue;
			run_case(env, c, pass->packed);
			ok = revive(env, exe, pass->cpumask);
		}
	}
	return ok;
}

static void run_pass(const char *exe, const struct pass *pass)
{
	struct ring_env *env = calloc(1, sizeof(*env));
	char name[128];
	bool ok;

	if (!env)
		abort();
	env->label = pass->label;
	ok = ring_env_start(env, exe, pass->cpumask);
	snprintf(name, sizeof(name), "the daemon starts and makes its disks%s", pass->label);
	tap_result(ok, name);
	if (ok && pass->packed && !env->packed) {
		tap_result(false, "the daemon offers packed rings");
		ring_env_stop(env, false);
		free(env);
		return;
	}
	if (ok)
		ok = run_tables(env, exe, pass, tables, sizeof(tables) / sizeof(tables[0]));
	if (ok && pass->packed)
		ok = run_tables(env, exe, pass, packed_tables,
				sizeof(packed_tables) / sizeof(packed_tables[0]));
	if (ok)
		ring_env_stop(env, true);
	free(env);
}

int main(int argc, char **argv)
{
	static const struct pass one = { "0x1", "", false, false };
	static const struct pass two = { "0x3", " (two reactors)", true, false };
	struct pass packed = { "0x1", " (packed)", false, true };
	const char *exe = daemon_exe(argc, argv);
	const char *only = getenv("RING_PASS");

	signal(SIGPIPE, SIG_IGN);
	if (!only || strstr(only, "one"))
		run_pass(exe, &one);
	if (sysconf(_SC_NPROCESSORS_ONLN) > 1) {
		packed.cpumask = "0x3";
		if (!only || strstr(only, "two"))
			run_pass(exe, &two);
	} else {
		tap_skip("the cases for two reactors", "one CPU");
	}
	if (!only || strstr(only, "packed"))
		run_pass(exe, &packed);
	return tap_done();
}
