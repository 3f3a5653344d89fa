/*
 * riffle perf: measure or verify disks that this process opens itself. The command line, and the
 * rows: one for each queue depth, all targets at once.
 */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cmd/cmd.h"
#include "cmd/perf.h"
#include "util/cpumask.h"
#include "util/ticks.h"

/* What the command line says before it is known to which target a depth belongs. */
struct command {
	struct perf_options o;
	bool mix_given;
	unsigned depths_given; /* how often -q was given */
	struct perf_depths depths, target_depths[PERF_TARGETS_MAX];
	struct err err; /* why the command line is wrong */
};

/* --- usage --- */

static void usage(FILE *out)
{
	fprintf(out,
		"usage: riffle perf [OPTION]... TARGET...\n\n"
		"Measure or verify disks in this process, without a daemon or a virtual machine.\n\n"
		"TARGET  null:                    does nothing, as fast as it can\n"
		"        malloc:size=SIZE         RAM\n"
		"        file:PATH[,block_size=N] a file or block device (write jobs overwrite it!)\n"
		"        vhost:SOCKET             a disk behind a vhost-user-blk socket\n"
		"        DRIVER:KEY=VALUE,...     any driver, with the parameters of bdev_DRIVER_create\n"
		"        TARGET+FILTER:KEY=VALUE  a filter on top: malloc:size=64M+delay:avg_read_latency=100\n\n"
		"  -w, --job NAME      read write randread randwrite rw randrw (default: randread), or\n"
		"                      verify: write stamped blocks, read them back, name what is wrong\n"
		"  -o, --size BYTES    of one request (default: 4096; verify: at random from a block to 1M)\n"
		"  -q, --depth N,...   requests in flight per target and worker; one row for each N (default: 32)\n"
		"  -M, --reads PERCENT share of reads in rw, randrw and verify (default: 50)\n"
		"  -t, --time SECONDS  how long to measure each row (default: 10)\n"
		"      --warmup SECONDS  run so long before each row without counting (default: 0)\n"
		"  -c, --cpus CPUS     a mask (0x3) or a list ([0,2]): one pinned worker per CPU\n"
		"                      (default: one worker, not pinned)\n"
		"  -s, --span BYTES    use only the beginning of each target (default: all)\n"
		"      --rate IOPS     at most so many per target, all workers together\n"
		"      --pid PID       also show the CPU time per I/O of this process (a daemon)\n"
		"      --percentiles[=P,...]  print these percentiles of the latency, or a usual choice\n"
		"      --histogram     print the histogram (error: at most 0.8 %%) as HdrHistogram does\n"
		"  -j, --json          print JSON\n"
		"  -h, --help          say this\n\n"
		"Latency is from the pass that submits to the end of the batch of completions: exact to one\n"
		"turn of the loop, whose mean length is printed, and never too short.\n"
		"Targets are compared at one queue depth only. Ctrl-C prints the results so far.\n"
		"Exit status: 0 done, 1 it failed or verify found a fault, 2 the command line is wrong.\n");
}

/* --- options --- */

static int set_number(struct command *c, const char *option, const char *text, uint64_t min,
		      uint64_t max, uint64_t *out)
{
	if (size_parse(text, out) && *out >= min && *out <= max)
		return 0;
	return err_set(&c->err, -EINVAL, "%s must be from %" PRIu64 " to %" PRIu64 ", not '%.80s'.",
		       option, min, max, text);
}

static int set_depths(struct command *c, const char *text)
{
	char *copy = strdup(text), *rest = copy, *word;
	struct perf_depths d = { 0 };
	uint64_t n;
	int rc = 0;

	while (rc == 0 && (word = strsep(&rest, ","))) {
		rc = set_number(c, "-q", word, 1, PERF_DEPTH_MAX, &n);
		if (rc == 0 && d.n == PERF_DEPTHS_MAX)
			rc = err_set(&c->err, -EINVAL, "-q takes at most %d depths.",
				     PERF_DEPTHS_MAX);
		if (rc == 0)
			d.v[d.n++] = (uint32_t)n;
	}
	free(copy);
	if (rc == 0) {
		c->depths = d;
		if (c->depths_given++ == 0)
			c->o.depths = d;
	}
	return rc;
}

static const double usual_percentiles[] = { 1,	5,  10,	  25,	50,    75,    90,
					    95, 99, 99.5, 99.9, 99.95, 99.99, 99.999 };

static int set_percentiles(struct command *c, const char *text)
{
	const char *at = text;
	char *end;

	c->o.all_percentiles = true;
	c->o.percentiles_n = 0;
	if (!text) {
		c->o.percentiles_n = ARRAY_SIZE(usual_percentiles);
		memcpy(c->o.percentiles, usual_percentiles, sizeof(usual_percentiles));
		return 0;
	}
	for (;; at = end + 1) {
		double p = strtod(at, &end);

		if (end == at || !(p >= 0 && p <= 100) || (*end && *end != ',') ||
		    c->o.percentiles_n == PERF_PERCENTILES_MAX)
			return err_set(&c->err, -EINVAL,
				       "--percentiles takes at most %d numbers from 0 to 100, like "
				       "50,99.9, not '%.80s'.",
				       PERF_PERCENTILES_MAX, text);
		c->o.percentiles[c->o.percentiles_n++] = p;
		if (!*end)
			return 0;
	}
}

static int set_cpus(struct command *c, const char *text)
{
	c->o.pinned = true;
	return cpumask_parse(text, &c->o.cpus, &c->err);
}

static int set_pid(struct command *c, const char *text)
{
	uint64_t pid;
	int rc = set_number(c, "--pid", text, 1, INT32_MAX, &pid);

	c->o.pid = (pid_t)pid;
	return rc;
}

static int add_target(struct command *c, const char *spec)
{
	struct perf_options *o = &c->o;

	if (o->targets_n == PERF_TARGETS_MAX)
		return err_set(&c->err, -EINVAL, "At most %d targets can be measured at once.",
			       PERF_TARGETS_MAX);
	c->target_depths[o->targets_n] = c->depths;
	o->target_specs[o->targets_n++] = spec;
	return 0;
}

static int set_job(struct command *c)
{
	static const struct {
		const char *name;
		bool random, mixed, verify;
		unsigned reads;
	} jobs[] = {
		{ "read", false, false, false, 100 },	 { "write", false, false, false, 0 },
		{ "randread", true, false, false, 100 }, { "randwrite", true, false, false, 0 },
		{ "rw", false, true, false, 50 },	 { "randrw", true, true, false, 50 },
		{ "verify", true, true, true, 50 },
	};
	struct perf_options *o = &c->o;

	for (size_t i = 0; i < ARRAY_SIZE(jobs); i++) {
		if (strcmp(o->job, jobs[i].name) != 0)
			continue;
		o->random = jobs[i].random;
		o->verify = jobs[i].verify;
		if (!jobs[i].mixed || !c->mix_given)
			o->read_percent = jobs[i].reads;
		if (o->verify && o->read_percent == 100)
			return err_set(&c->err, -EINVAL,
				       "verify must write: give -M from 0 to 99.");
		return 0;
	}
	return err_set(&c->err, -EINVAL,
		       "There is no job '%.40s'. `riffle perf --help` lists them.", o->job);
}

/* Numbers at different depths say nothing about each other. */
static int check_depths(struct command *c)
{
	struct perf_options *o = &c->o;

	if (c->depths_given < 2)
		return 0;
	for (unsigned i = 0; i < o->targets_n; i++) {
		struct perf_depths *d = &c->target_depths[i];

		if (d->n == 0) /* it stands before the first -q */
			*d = o->depths;
		if (d->n == c->target_depths[0].n &&
		    memcmp(d->v, c->target_depths[0].v, d->n * sizeof(d->v[0])) == 0)
			continue;
		return err_set(&c->err, -EINVAL,
			       "%.80s at queue depth %" PRIu32 " and %.80s at queue depth %" PRIu32
			       " cannot be compared: give all targets the same -q.",
			       o->target_specs[0], c->target_depths[0].v[0], o->target_specs[i],
			       d->v[0]);
	}
	o->depths = o->targets_n ? c->target_depths[0] : c->depths;
	return 0;
}

/* Two jobs that write their stamps to one disk would find each other's. */
static int check_verify(struct command *c)
{
	const struct perf_options *o = &c->o;

	for (unsigned i = 0; o->verify && i < o->targets_n; i++)
		for (unsigned k = 0; k < i; k++)
			if (strcmp(o->target_specs[i], o->target_specs[k]) == 0 &&
			    strncmp(o->target_specs[i], "malloc:", 7) != 0)
				return err_set(
					&c->err, -EINVAL,
					"verify needs '%.80s' for itself: it is given twice.",
					o->target_specs[i]);
	return 0;
}

enum { OPT_WARMUP = 256, OPT_RATE, OPT_PERCENTILES, OPT_HISTOGRAM, OPT_PID };

/* One option with its value. Positive: print the usage. */
static int set_option(struct command *c, int option, const char *value)
{
	struct perf_options *o = &c->o;
	uint64_t n;
	int rc;

	switch (option) {
	case 1:
		return add_target(c, value);
	case 'w':
		o->job = value;
		return 0;
	case 'o':
		o->size_given = true;
		return set_number(c, "-o", value, 512, PERF_SIZE_MAX, &o->io_size);
	case 'q':
		return set_depths(c, value);
	case 't':
		return set_number(c, "-t", value, 1, 1000000, &o->seconds);
	case 'M':
		c->mix_given = true;
		rc = set_number(c, "-M", value, 0, 100, &n);
		o->read_percent = (unsigned)n;
		return rc;
	case 'c':
		return set_cpus(c, value);
	case 's':
		return set_number(c, "-s", value, 512, INT64_MAX, &o->span);
	case OPT_WARMUP:
		return set_number(c, "--warmup", value, 0, 1000000, &o->warmup);
	case OPT_RATE:
		return set_number(c, "--rate", value, 1, 1000000000, &o->rate);
	case OPT_PID:
		return set_pid(c, value);
	case OPT_PERCENTILES:
		return set_percentiles(c, value);
	case OPT_HISTOGRAM:
		o->histogram = true;
		return 0;
	case 'j':
		o->json = true;
		return 0;
	case 'h':
		return 1;
	default:
		return err_set(&c->err, -EINVAL, "%s", ""); /* getopt has said it */
	}
}

/* "--percentiles 50,99" as well as "--percentiles=50,99": a target never begins with a digit. */
static const char *value_of(int option, int argc, char **argv)
{
	if (option == OPT_PERCENTILES && !optarg && optind < argc && argv[optind][0] >= '0' &&
	    argv[optind][0] <= '9')
		return argv[optind++];
	return optarg;
}

/* 0: go on. */
static int parse(int argc, char **argv, struct command *c)
{
	static const struct option longs[] = {
		{ "job", required_argument, NULL, 'w' },
		{ "size", required_argument, NULL, 'o' },
		{ "depth", required_argument, NULL, 'q' },
		{ "time", required_argument, NULL, 't' },
		{ "reads", required_argument, NULL, 'M' },
		{ "cpus", required_argument, NULL, 'c' },
		{ "span", required_argument, NULL, 's' },
		{ "warmup", required_argument, NULL, OPT_WARMUP },
		{ "rate", required_argument, NULL, OPT_RATE },
		{ "pid", required_argument, NULL, OPT_PID },
		{ "percentiles", optional_argument, NULL, OPT_PERCENTILES },
		{ "histogram", no_argument, NULL, OPT_HISTOGRAM },
		{ "json", no_argument, NULL, 'j' },
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	int option, rc = 0;

	/* The dash in front: targets come in their place among the options. */
	while (rc == 0 &&
	       (option = getopt_long(argc, argv, "-w:o:q:t:M:c:s:jh", longs, NULL)) != -1)
		rc = set_option(c, option, value_of(option, argc, argv));
	while (rc == 0 && optind < argc)
		rc = add_target(c, argv[optind++]);
	if (rc == 0 && c->o.targets_n == 0)
		rc = err_set(&c->err, -EINVAL,
			     "Name a target: null:, malloc:size=SIZE or file:PATH.");
	if (rc == 0)
		rc = set_job(c);
	if (rc == 0)
		rc = check_depths(c);
	return rc ? rc : check_verify(c);
}

/* --- the rows --- */

static int faults_found(const struct perf_result *r, unsigned n, struct err *e)
{
	for (unsigned i = 0; i < n; i++)
		if (r[i].faults.n)
			return err_set(e, -EILSEQ,
				       "%.100s has a %s block at offset %" PRIu64
				       ": verification failed.",
				       r[i].target->spec, perf_fault_names[r[i].faults.v[0].kind],
				       r[i].faults.v[0].offset);
	return 0;
}

static int run_rows(const struct perf_options *o, const struct perf_target *t, struct perf_run *run,
		    struct perf_result *results, struct err *e)
{
	unsigned n = 0;
	int rc = 0;

	perf_report_begin(o, t);
	for (unsigned d = 0; d < o->depths.n && rc == 0 && !perf_interrupted; d++) {
		struct perf_result *row = &results[n];

		rc = perf_run_row(run, o->depths.v[d], row, e);
		if (rc)
			break;
		perf_report_row(o, row, o->targets_n);
		n += o->targets_n;
		rc = faults_found(row, o->targets_n, e);
	}
	perf_run_stop(run);
	if (rc == 0 || rc == -EILSEQ)
		perf_report_end(o, results, n);
	if (perf_interrupted && o->verify && rc == 0)
		fprintf(stderr, "riffle perf: interrupted: not everything was read back.\n");
	return rc;
}

static int perf(const struct perf_options *o, struct err *e)
{
	struct perf_target targets[PERF_TARGETS_MAX] = { 0 };
	struct perf_result *results = calloc(o->depths.n * o->targets_n, sizeof(*results));
	struct perf_run *run = NULL;
	int rc = results ? perf_targets_open(o, targets, e) : err_set(e, -ENOMEM, "Out of memory.");

	if (rc == 0)
		rc = perf_run_open(o, targets, &run, e);
	if (rc == 0)
		rc = run_rows(o, targets, run, results, e);
	perf_targets_close(targets, o->targets_n);
	if (run)
		perf_run_close(run);
	free(results);
	return rc;
}

/* --- the command --- */

static void on_interrupt(int sig)
{
	(void)sig;
	perf_interrupted = true;
}

int cmd_perf(int argc, char **argv)
{
	/* The second Ctrl-C is for those whose I/O does not return. */
	struct sigaction action = { .sa_handler = on_interrupt, .sa_flags = (int)SA_RESETHAND };
	struct command c = { .o = { .job = "randread", .io_size = 4096, .seconds = 10 } };
	int rc;

	c.o.depths = (struct perf_depths){ .n = 1, .v = { 32 } };
	rc = parse(argc, argv, &c);
	if (rc > 0) {
		usage(stdout);
		return EXIT_OK;
	}
	if (rc) {
		if (*c.err.text)
			fail("perf", &c.err);
		fprintf(stderr, "`riffle perf --help` lists the options.\n");
		return EXIT_USAGE;
	}
	sigaction(SIGINT, &action, NULL);
	c.o.run_id = ticks() ^ (uint64_t)getpid() << 40 ^ (uint64_t)time(NULL) << 16;
	stamp_init();
	ticks_hz();
	return perf(&c.o, &c.err) ? fail("perf", &c.err) : EXIT_OK;
}
