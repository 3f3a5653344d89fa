#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backend/list.h"
#include "bdev/registry.h"
#include "cmd/cmd.h"
#include "cmd/isolate.h"
#include "ctl/config.h"
#include "ctl/server.h"
#include "export/list.h"
#include "mem/mem.h"
#include "reactor/reactor.h"
#include "util/cpumask.h"
#include "util/log.h"
#include "util/param.h"
#include "util/ticks.h"

/* How long a stop may take: after that I/O which does not return is left to the kernel. */
#define STOP_DEADLINE_S 3

#define POLL_US_MAX	1000000
#define BALANCE_PERCENT 80

enum { OPT_POLL_US = 256, OPT_BALANCE, OPT_ISOLATE };

struct options {
	const char *cpumask, *rpc_socket, *folder, *config;
	uint64_t poll_us;
	uint64_t balance; /* per cent, see vhost_blk_balance_start(); 0: off */
	bool isolate;
	bool verbose;
	bool claimed; /* the RPC socket is ours */
};

static void usage(FILE *out)
{
	fprintf(out,
		"usage: riffle serve [OPTION]...\n\n"
		"Serve disks to virtual machines over vhost-user-blk until SIGTERM or SIGINT (or SIGHUP or SIGQUIT).\n\n"
		"  -m, --cpumask CPUS     run a reactor on each of these CPUs: a hexadecimal mask (0x3) or a list\n"
		"                         ([0,2-4]; default: one CPU)\n"
		"  -r, --rpc-socket PATH  answer `riffle rpc` here (default: %s)\n"
		"  -S, --folder PATH      put the disks' sockets here (default: %s)\n"
		"  -c, --config FILE      make what this saved configuration describes (also --json)\n"
		"      --poll-us US       how long an idle queue is polled before it waits for an interrupt, at most:\n"
		"                         0 (always interrupts) to 1000000, or always (never sleep; default: %" PRIu64
		")\n"
		"      --balance[=PERCENT] move busy queues away from reactors that are busy for so much of their time\n"
		"                         (default: 80)\n"
		"      --isolate          warn when something else runs on the reactors' CPUs\n"
		"  -v, --verbose          log more (SIGUSR1 turns it on and off)\n"
		"  -h, --help             say this\n",
		default_rpc_socket(), default_folder(), reactor_poll_us());
}

static bool parse_poll_us(const char *text, uint64_t *us)
{
	if (strcmp(text, "always") == 0)
		*us = POLL_ALWAYS;
	else if (!size_parse(text, us) || *us > POLL_US_MAX) {
		fprintf(stderr,
			"riffle serve: --poll-us takes 0 to %u microseconds or always, not '%s'.\n",
			POLL_US_MAX, text);
		return false;
	}
	return true;
}

/* text: NULL is the default. */
static bool parse_percent(const char *text, uint64_t *percent)
{
	*percent = BALANCE_PERCENT;
	if (!text || (size_parse(text, percent) && *percent >= 1 && *percent <= 100))
		return true;
	fprintf(stderr, "riffle serve: --balance takes 1 to 100 per cent, not '%s'.\n", text);
	return false;
}

/* -1: go on; else the exit status */
static int parse(int argc, char **argv, struct options *o)
{
	static const struct option longs[] = {
		{ "cpumask", required_argument, NULL, 'm' },
		{ "rpc-socket", required_argument, NULL, 'r' },
		{ "folder", required_argument, NULL, 'S' },
		{ "config", required_argument, NULL, 'c' },
		{ "json", required_argument, NULL, 'c' },
		{ "verbose", no_argument, NULL, 'v' },
		{ "help", no_argument, NULL, 'h' },
		{ "poll-us", required_argument, NULL, OPT_POLL_US },
		{ "balance", optional_argument, NULL, OPT_BALANCE },
		{ "isolate", no_argument, NULL, OPT_ISOLATE },
		{ 0 },
	};
	int c;

	while ((c = getopt_long(argc, argv, "m:r:S:c:vh", longs, NULL)) != -1) {
		switch (c) {
		case 'm':
			o->cpumask = optarg;
			break;
		case 'r':
			o->rpc_socket = optarg;
			break;
		case 'S':
			o->folder = optarg;
			break;
		case 'c':
			o->config = optarg;
			break;
		case 'v':
			o->verbose = true;
			break;
		case 'h':
			usage(stdout);
			return EXIT_OK;
		case OPT_POLL_US:
			if (!parse_poll_us(optarg, &o->poll_us))
				return EXIT_USAGE;
			break;
		case OPT_BALANCE:
			if (!parse_percent(optarg, &o->balance))
				return EXIT_USAGE;
			break;
		case OPT_ISOLATE:
			o->isolate = true;
			break;
		default:
			fprintf(stderr, "`riffle serve --help` lists the options.\n");
			return EXIT_USAGE;
		}
	}
	if (optind < argc) {
		fprintf(stderr,
			"riffle serve: '%s' is not an option. `riffle serve --help` lists them.\n",
			argv[optind]);
		return EXIT_USAGE;
	}
	return -1;
}

/* --- start --- */

/* Signals are taken by the main thread alone, one after the other. */
static void block_signals(sigset_t *set)
{
	sigemptyset(set);
	sigaddset(set, SIGINT);
	sigaddset(set, SIGTERM);
	sigaddset(set, SIGQUIT);
	sigaddset(set, SIGHUP);
	sigaddset(set, SIGUSR1);
	pthread_sigmask(SIG_BLOCK, set, NULL);
	signal(SIGPIPE, SIG_IGN);
}

static int make_folder(const char *path, struct err *e)
{
	if (mkdir(path, 0755) < 0 && errno != EEXIST)
		return err_field(e, -errno, "folder", path, NULL,
				 "Cannot make the folder '%.150s': %s.", path, err_words(errno));
	if (access(path, W_OK | X_OK) < 0)
		return err_field(
			e, -errno, "folder", path, NULL,
			"Cannot put sockets into '%.150s': %s. Choose another folder with -S.",
			path, err_words(errno));
	return 0;
}

/* Guests bring many file descriptors: memory regions, kicks, calls. */
static void raise_fd_limit(void)
{
	struct rlimit l;

	if (getrlimit(RLIMIT_NOFILE, &l) == 0 && l.rlim_cur < l.rlim_max) {
		l.rlim_cur = l.rlim_max;
		setrlimit(RLIMIT_NOFILE, &l);
	}
}

static int choose_cpus(const char *cpumask, cpu_set_t *set, struct err *e)
{
	cpu_set_t allowed;

	if (cpumask)
		return cpumask_parse(cpumask, set, e);
	if (sched_getaffinity(0, sizeof(allowed), &allowed) < 0)
		return err_set(e, -errno, "Cannot read the CPUs this process may use: %s.",
			       err_words(errno));
	CPU_ZERO(set);
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
		if (CPU_ISSET(cpu, &allowed)) {
			CPU_SET(cpu, set);
			break;
		}
	}
	return 0;
}

/* Control threads inherit this thread's CPUs: all that no reactor owns, if there are any. */
static void leave_reactor_cpus(const cpu_set_t *reactors)
{
	cpu_set_t allowed, others;

	if (sched_getaffinity(0, sizeof(allowed), &allowed) < 0)
		return;
	CPU_XOR(&others, &allowed, reactors);
	CPU_AND(&others, &others, &allowed);
	if (CPU_COUNT(&others) > 0)
		sched_setaffinity(0, sizeof(others), &others);
}

static int start(struct options *o, struct err *e)
{
	char cpus_text[256];
	cpu_set_t cpus;
	int rc;

	if (o->verbose)
		log_set_level(LOG_DEBUG);
	ticks_hz(); /* measured now, not in the middle of something */
	raise_fd_limit();
	vhost_blk_set_folder(o->folder);
	rc = make_folder(o->folder, e);
	if (rc == 0)
		rc = mem_guard_sigbus();
	if (rc == 0)
		rc = choose_cpus(o->cpumask, &cpus, e);
	if (rc == 0)
		rc = server_open(o->rpc_socket, e);
	if (rc)
		return rc;
	o->claimed = true;
	reactor_set_poll_us(o->poll_us);
	rc = reactors_start(&cpus, e);
	if (rc == 0)
		leave_reactor_cpus(&cpus);
	if (rc == 0 && o->config)
		rc = config_load_file(o->config, e);
	if (rc == 0 && o->isolate)
		rc = isolate_start(e);
	if (rc == 0 && o->balance)
		rc = vhost_blk_balance_start((unsigned)o->balance, e);
	if (rc == 0)
		rc = server_start(e);
	if (rc == 0)
		log_note("ready: reactors on CPUs %s, RPC at %s, disks in %s",
			 cpumask_format_list(&cpus, cpus_text, sizeof(cpus_text)), o->rpc_socket,
			 o->folder);
	return rc;
}

/* --- stop --- */

/* I/O that does not return must not keep the daemon from ending: what was not completed was not
 * acknowledged. */
static void *watch_stop_deadline(void *status)
{
	sleep(STOP_DEADLINE_S);
	log_warn("I/O has not returned within %d s; leaving it to the kernel", STOP_DEADLINE_S);
	_exit(*(int *)status);
}

static void stop(int status)
{
	static int exit_status;
	pthread_t watchdog;

	exit_status = status;
	if (pthread_create(&watchdog, NULL, watch_stop_deadline, &exit_status) == 0)
		pthread_detach(watchdog);
	server_close();
	vhost_blk_balance_stop();
	isolate_stop();
	vhost_blk_delete_all();
	server_stop();
	vhost_blk_delete_all(); /* what the last requests have made */
	bdev_delete_all();
	nvme_detach_all();
	reactors_stop();
}

static void wait_for_stop(const sigset_t *set, bool debug)
{
	int sig;

	while (sigwait(set, &sig) != 0 || sig == SIGUSR1) {
		debug = !debug;
		log_set_level(debug ? LOG_DEBUG : LOG_NOTE);
	}
	log_note("%s: stopping", strsignal(sig));
}

int cmd_serve(int argc, char **argv)
{
	struct options o = { .rpc_socket = default_rpc_socket(),
			     .folder = default_folder(),
			     .poll_us = reactor_poll_us() };
	struct err e = { 0 };
	sigset_t signals;
	int rc = parse(argc, argv, &o);

	if (rc >= 0)
		return rc;
	block_signals(&signals);
	rc = start(&o, &e);
	if (rc) {
		fail("serve", &e);
		if (o.claimed)
			stop(EXIT_ERROR);
		return e.code == -EINVAL && !o.claimed ? EXIT_USAGE : EXIT_ERROR;
	}
	wait_for_stop(&signals, o.verbose);
	stop(EXIT_OK);
	log_note("stopped");
	return EXIT_OK;
}
