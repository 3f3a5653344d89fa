/*
 * ring_test [RIFFLE]: hostile and ordinary virtqueues against a daemon of its own. TAP.
 * RIFFLE_LONG=1 runs the loops at full length; RING_ONLY=TEXT runs the cases whose name holds
 * TEXT; RING_TIMES=1 prints how long each case took.
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
};

static void run_case(struct ring_env *env, const struct ring_case *c)
{
	struct ring_test t = { .env = env };
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

static bool selected(const struct ring_case *c, bool reactors)
{
	const char *only = getenv("RING_ONLY");

	return (c->reactors || !reactors) && (!only || strstr(c->name, only));
}

static void run_all(const char *exe, const char *cpumask, const char *label, bool reactors)
{
	struct ring_env *env = calloc(1, sizeof(*env));
	const struct ring_case *c;
	char name[128];
	unsigned i;
	bool ok;

	if (!env)
		abort();
	env->label = label;
	ok = ring_env_start(env, exe, cpumask);
	snprintf(name, sizeof(name), "the daemon starts and makes its disks%s", label);
	tap_result(ok, name);
	for (i = 0; ok && i < sizeof(tables) / sizeof(tables[0]); i++) {
		for (c = tables[i]; ok && c->name; c++) {
			if (!selected(c, reactors))
				continue;
			run_case(env, c);
			ok = revive(env, exe, cpumask);
		}
	}
	if (ok)
		ring_env_stop(env, true);
	free(env);
}

int main(int argc, char **argv)
{
	const char *exe = daemon_exe(argc, argv);

	signal(SIGPIPE, SIG_IGN);
	run_all(exe, "0x1", "", false);
	if (sysconf(_SC_NPROCESSORS_ONLN) > 1)
		run_all(exe, "0x3", " (two reactors)", true);
	else
		tap_skip("the cases for two reactors", "one CPU");
	return tap_done();
}
