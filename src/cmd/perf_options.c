/*
 * The options that riffle perf and riffle perf compare share: from words to struct perf_options,
 * and what does not go together.
 */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/perf_options.h"
#include "util/cpumask.h"

enum {
	OPT_WARMUP = 256,
	OPT_RATE,
	OPT_PID,
	OPT_PERCENTILES,
	OPT_SLEEP,
	OPT_HISTOGRAM,
	OPT_ROUNDS,
	OPT_HTML,
	OPT_PATHS,
};

/* perf has them all; some belong to one of the two commands. */
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
	{ "sleep", no_argument, NULL, OPT_SLEEP },
	{ "rounds", required_argument, NULL, OPT_ROUNDS },
	{ "html", required_argument, NULL, OPT_HTML },
	{ "paths", required_argument, NULL, OPT_PATHS },
	{ "json", no_argument, NULL, 'j' },
	{ "help", no_argument, NULL, 'h' },
	{ 0 },
};

static int set_number(struct perf_command *c, const char *option, const char *text, uint64_t min,
		      uint64_t max, uint64_t *out)
{
	if (size_parse(text, out) && *out >= min && *out <= max)
		return 0;
	return err_set(&c->err, -EINVAL, "%s must be from %" PRIu64 " to %" PRIu64 ", not '%.80s'.",
		       option, min, max, text);
}

static int set_time(struct perf_command *c, const char *option, const char *text, double min,
		    uint64_t *ms)
{
	char *end;
	double seconds = strtod(text, &end);

	if (end == text || *end || !(seconds >= min && seconds <= 1000000))
		return err_set(&c->err, -EINVAL,
			       "%s must be from %g to 1000000 seconds, not '%.80s'.", option, min,
			       text);
	*ms = (uint64_t)(seconds * 1000 + 0.5);
	return 0;
}

static int set_depths(struct perf_command *c, const char *text)
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

static int set_percentiles(struct perf_command *c, const char *text)
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

static int set_cpus(struct perf_command *c, const char *text)
{
	c->o.pinned = true;
	return cpumask_parse(text, &c->o.cpus, &c->err);
}

static int set_pid(struct perf_command *c, const char *text)
{
	uint64_t pid;
	int rc = set_number(c, "--pid", text, 1, INT32_MAX, &pid);

	c->o.pid = (pid_t)pid;
	return rc;
}

static int add_target(struct perf_command *c, const char *spec)
{
	struct perf_options *o = &c->o;

	if (o->targets_n == PERF_TARGETS_MAX)
		return err_set(&c->err, -EINVAL, "At most %d targets can be measured at once.",
			       PERF_TARGETS_MAX);
	c->target_depths[o->targets_n] = c->depths;
	o->target_specs[o->targets_n++] = spec;
	return 0;
}

static int set_job(struct perf_command *c)
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
static int check_depths(struct perf_command *c)
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
static int check_verify(struct perf_command *c)
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

/* Options of one of the two commands only. */
static int check_command_of(struct perf_command *c, int option)
{
	bool perfs = option >= OPT_PID && option <= OPT_HISTOGRAM,
	     compares = option >= OPT_ROUNDS && option <= OPT_PATHS;
	const char *name = "";

	for (const struct option *l = longs; l->name; l++)
		if (l->val == option)
			name = l->name;
	if (compares && !c->compare)
		return err_set(&c->err, -EINVAL, "--%s is an option of `riffle perf compare`.",
			       name);
	if (perfs && c->compare)
		return err_set(&c->err, -EINVAL,
			       "--%s is an option of `riffle perf` alone; compare prints its own "
			       "choice.",
			       name);
	return 0;
}

static int set_compare_option(struct perf_command *c, int option, const char *value)
{
	switch (option) {
	case OPT_ROUNDS:
		return set_number(c, "--rounds", value, 1, PERF_ROUNDS_MAX, &c->rounds);
	case OPT_HTML:
		c->html = value;
		return 0;
	case OPT_PATHS:
		c->paths = value;
		return 0;
	default:
		return err_set(&c->err, -EINVAL, "%s", ""); /* getopt has said it */
	}
}

static int set_option(struct perf_command *c, int option, const char *value)
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
		return set_time(c, "-t", value, 0.01, &o->time_ms);
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
		return set_time(c, "--warmup", value, 0, &o->warmup_ms);
	case OPT_RATE:
		return set_number(c, "--rate", value, 1, 1000000000, &o->rate);
	case OPT_PID:
		return set_pid(c, value);
	case OPT_PERCENTILES:
		return set_percentiles(c, value);
	case OPT_SLEEP:
		o->sleep = true;
		return 0;
	case OPT_HISTOGRAM:
		o->histogram = true;
		return 0;
	case 'j':
		o->json = true;
		return 0;
	case 'h':
		return 1;
	default:
		return set_compare_option(c, option, value);
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

int perf_parse(int argc, char **argv, struct perf_command *c)
{
	int option, rc = 0;

	/* The dash in front: targets come in their place among the options. */
	while (rc == 0 &&
	       (option = getopt_long(argc, argv, "-w:o:q:t:M:c:s:jh", longs, NULL)) != -1) {
		rc = check_command_of(c, option);
		if (rc == 0)
			rc = set_option(c, option, value_of(option, argc, argv));
	}
	while (rc == 0 && optind < argc)
		rc = add_target(c, argv[optind++]);
	if (rc == 0 && c->o.targets_n == 0)
		rc = err_set(&c->err, -EINVAL,
			     c->compare ? "Name a file or a block device, or other targets."
					: "Name a target: null:, malloc:size=SIZE or file:PATH.");
	return rc;
}

int perf_check_command(struct perf_command *c)
{
	int rc = set_job(c);

	if (rc == 0)
		rc = check_depths(c);
	return rc ? rc : check_verify(c);
}
