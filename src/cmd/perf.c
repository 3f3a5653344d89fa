/*
 * riffle perf: one job on one disk, opened in this process: a poller on a reactor of this thread
 * keeps the wanted number of requests in flight. Latencies are from submit to completion, each with
 * its own two clock readings.
 */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <jansson.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bdev/registry.h"
#include "cmd/cmd.h"
#include "ctl/drivers.h"
#include "mem/mem.h"
#include "util/hist.h"
#include "util/ticks.h"

#define DEPTH_MAX      4096
#define SIZE_MAX_BYTES (4u << 20)

struct options {
	const char *pattern, *target;
	uint64_t io_size, depth, seconds, read_percent;
	bool json;
};

struct slot {
	uint64_t submitted; /* ticks */
	struct job *job;
	struct slot *next_free;
	struct iovec iov;
	alignas(CACHE_LINE) struct bdev_io io; /* last: the driver's room follows */
};

struct job {
	struct poller poller;
	struct bdev_queue *q;
	struct slot *free;
	uint64_t blocks, next, seed;
	uint32_t io_size;
	unsigned read_percent, inflight;
	bool random, stopping;
	int error;
	uint64_t done;
	struct hist latency;
	char *slots, *data;
	size_t stride, data_len;
};

static volatile sig_atomic_t interrupted;

static void on_interrupt(int sig)
{
	(void)sig;
	interrupted = 1;
}

/* --- the job --- */

static uint64_t next_random(struct job *j)
{
	/* xorshift64*: a few instructions, and good enough to spread I/O */
	j->seed ^= j->seed >> 12;
	j->seed ^= j->seed << 25;
	j->seed ^= j->seed >> 27;
	return j->seed * UINT64_C(2685821657736338717);
}

static uint64_t next_offset(struct job *j)
{
	uint64_t block;

	if (j->random)
		return (uint64_t)((unsigned __int128)next_random(j) * j->blocks >> 64) * j->io_size;
	block = j->next++;
	if (j->next == j->blocks)
		j->next = 0;
	return block * j->io_size;
}

static void slot_done(struct task *t)
{
	struct slot *s = container_of(t, struct slot, io.task);
	struct job *j = s->job;

	hist_add(&j->latency, ticks() - s->submitted);
	if (unlikely(s->io.status) && j->error == 0)
		j->error = s->io.status;
	j->done++;
	j->inflight--;
	s->next_free = j->free;
	j->free = s;
}

static bool next_is_read(struct job *j)
{
	return j->read_percent == 100 ||
	       (j->read_percent &&
		next_random(j) >> 32 < UINT32_MAX / 100 * (uint64_t)j->read_percent);
}

static unsigned job_poll(struct poller *p)
{
	struct job *j = container_of(p, struct job, poller);
	unsigned n = 0;

	while (j->free && !j->stopping) {
		struct slot *s = j->free;

		j->free = s->next_free;
		s->io.op = next_is_read(j) ? BDEV_READ : BDEV_WRITE;
		s->io.offset = next_offset(j);
		s->submitted = ticks();
		j->inflight++;
		n++;
		bdev_submit(&s->io);
	}
	return n;
}

static bool never_arms(struct poller *p)
{
	(void)p;
	return false; /* a measurement polls */
}

static void no_disarm(struct poller *p)
{
	(void)p;
}

static int job_alloc(struct job *j, const struct options *o, struct bdev *b, struct err *e)
{
	void *data;
	int rc;

	j->io_size = (uint32_t)o->io_size;
	j->blocks = b->size / j->io_size;
	j->read_percent = (unsigned)o->read_percent;
	j->seed = 0x9e3779b97f4a7c15;
	hist_reset(&j->latency);
	j->stride = ROUND_UP(sizeof(struct slot) + b->ctx_size, CACHE_LINE);
	j->slots = aligned_alloc(CACHE_LINE, j->stride * o->depth);
	if (!j->slots)
		return err_set(e, -ENOMEM, "Out of memory.");
	memset(j->slots, 0, j->stride * o->depth);
	j->data_len = j->io_size * o->depth;
	rc = dma_zalloc(j->data_len, 4096, &data, e);
	if (rc)
		return rc;
	j->data = data;
	for (uint64_t i = 0; i < o->depth; i++) {
		struct slot *s = (struct slot *)(void *)(j->slots + i * j->stride);

		s->job = j;
		s->iov = (struct iovec){ j->data + i * j->io_size, j->io_size };
		s->io.task.fn = slot_done;
		s->io.q = j->q;
		s->io.iov = &s->iov;
		s->io.iovcnt = 1;
		s->io.len = j->io_size;
		s->next_free = j->free;
		j->free = s;
	}
	return 0;
}

static void job_free(struct job *j)
{
	dma_free(j->data, j->data_len);
	free(j->slots);
}

static void progress(const struct job *j, uint64_t elapsed, uint64_t total, uint64_t done_before)
{
	if (!isatty(STDERR_FILENO))
		return;
	fprintf(stderr, "\r%3" PRIu64 " / %" PRIu64 " s  %12" PRIu64 " IOPS ", elapsed, total,
		j->done - done_before);
	fflush(stderr);
}

/* Returns the ticks it took. */
static uint64_t run(struct job *j, struct reactor *r, uint64_t seconds)
{
	uint64_t hz = ticks_hz(), start = ticks(), second = 1, before = 0, end;

	j->poller = (struct poller){ .fn = job_poll, .arm = never_arms, .disarm = no_disarm };
	poller_add(&j->poller);
	while (!interrupted && j->error == 0) {
		reactor_turn(r);
		if (likely(reactor_now() - start < second * hz))
			continue;
		progress(j, second, seconds, before);
		before = j->done;
		if (second++ == seconds)
			break;
	}
	end = ticks();
	j->stopping = true;
	while (j->inflight > 0)
		reactor_turn(r);
	poller_del(&j->poller);
	if (isatty(STDERR_FILENO))
		fprintf(stderr, "\r%60s\r", "");
	return end - start;
}

/* --- results --- */

static double us(uint64_t t)
{
	return (double)ticks_to_ns(t) / 1000.0;
}

static void print_table(const struct options *o, const struct job *j, double iops)
{
	const struct hist *h = &j->latency;

	printf("%-28s %-9s %8s %6s %12s %10s %9s %9s %9s %9s\n", "target", "job", "size", "depth",
	       "IOPS", "MiB/s", "mean us", "P50 us", "P99 us", "P99.9 us");
	printf("%-28.28s %-9s %8" PRIu64 " %6" PRIu64 " %12.0f %10.1f %9.1f %9.1f %9.1f %9.1f\n",
	       o->target, o->pattern, o->io_size, o->depth, iops,
	       iops * (double)o->io_size / 1048576.0, us(hist_mean(h)), us(hist_percentile(h, 50)),
	       us(hist_percentile(h, 99)), us(hist_percentile(h, 99.9)));
}

static void print_json(const struct options *o, const struct job *j, double iops)
{
	const struct hist *h = &j->latency;
	json_t *r =
		json_pack("{s:s, s:s, s:I, s:I, s:f, s:f, s:I, s:{s:f, s:f, s:f, s:f}}", "target",
			  o->target, "job", o->pattern, "io_size", (json_int_t)o->io_size, "depth",
			  (json_int_t)o->depth, "iops", iops, "mib_per_s",
			  iops * (double)o->io_size / 1048576.0, "ios", (json_int_t)j->done,
			  "latency_us", "mean", us(hist_mean(h)), "p50", us(hist_percentile(h, 50)),
			  "p99", us(hist_percentile(h, 99)), "p99.9", us(hist_percentile(h, 99.9)));

	json_dumpf(r, stdout, JSON_INDENT(2));
	putchar('\n');
	json_decref(r);
}

static int measure(const struct options *o, struct reactor *r, struct bdev *b, struct err *e)
{
	struct job *j = calloc(1, sizeof(*j));
	uint64_t took;
	double iops;
	int rc = j ? bdev_queue_open(b, r, &j->q, e) : err_set(e, -ENOMEM, "Out of memory.");

	if (rc)
		goto out_free;
	j->random = strncmp(o->pattern, "rand", 4) == 0;
	rc = job_alloc(j, o, b, e);
	if (rc)
		goto out_close;
	took = run(j, r, o->seconds);
	if (j->error)
		rc = err_set(e, j->error, "I/O on %s failed: %s.", o->target, err_words(j->error));
	iops = (double)j->done * (double)ticks_hz() / (double)took;
	if (rc == 0)
		(o->json ? print_json : print_table)(o, j, iops);
out_close:
	bdev_queue_close(j->q);
	job_free(j);
out_free:
	free(j);
	return rc;
}

/* --- the target --- */

/* What the target need not say: its name, 512-byte blocks; and what a job only reads is opened for
 * reading. */
static int set_defaults(const struct bdev_driver *d, void *args, bool reads_only, struct err *e)
{
	const struct param *block = param_find(d->params, "block_size"),
			   *readonly = param_find(d->params, "readonly");
	int rc = param_set_string(param_find(d->params, "name"), args, "perf", e);

	if (rc == 0 && readonly && reads_only)
		rc = param_set_bool(readonly, args, true, e);
	if (rc == 0 && block && block->required)
		rc = param_set_uint(block, args, 512, e);
	return rc;
}

/* A made-up disk has 1 GiB when the target does not say. */
static int set_default_size(const struct bdev_driver *d, void *args, struct err *e)
{
	const struct param *size = param_find(d->params, "size"),
			   *blocks = param_find(d->params, "num_blocks");

	if (!size || *(uint64_t *)param_at(size, args) || *(uint64_t *)param_at(blocks, args))
		return 0;
	return param_set_uint(size, args, UINT64_C(1) << 30, e);
}

/* "malloc:size=64M", "file:PATH", "null:", "uring:PATH,block_size=4096" -> a bdev */
static int open_target(const char *spec, bool reads_only, struct bdev **out, struct err *e)
{
	const char *colon = strchr(spec, ':');
	size_t n = colon ? (size_t)(colon - spec) : strlen(spec);
	const struct bdev_driver *d;
	char kind[32];
	void *args;
	int rc;

	snprintf(kind, sizeof(kind), "%.*s", (int)MIN(n, sizeof(kind) - 1), spec);
	d = driver_find(strcmp(kind, "file") == 0 ? "uring" : kind);
	if (!d)
		return err_set(
			e, -EINVAL,
			"'%.80s' names no target: give null:, malloc:size=SIZE or file:PATH.",
			spec);
	args = calloc(1, d->args_size);
	if (!args)
		return err_set(e, -ENOMEM, "Out of memory.");
	param_defaults(d->params, args);
	rc = set_defaults(d, args, reads_only, e);
	if (rc == 0)
		rc = param_parse_spec(d->params, args, colon ? colon + 1 : "", e);
	if (rc == 0)
		rc = set_default_size(d, args, e);
	if (rc) {
		param_free(d->params, args);
		free(args);
		return rc;
	}
	rc = bdev_create(d, args, NULL, e);
	return rc ? rc : bdev_get("perf", out, e);
}

static int check_job(const struct options *o, const struct bdev *b, struct err *e)
{
	if (o->io_size % b->block_size)
		return err_set(e, -EINVAL,
			       "%s has blocks of %u bytes: -o %" PRIu64
			       " is not a multiple of that.",
			       o->target, b->block_size, o->io_size);
	if (o->io_size > b->size)
		return err_set(e, -EINVAL,
			       "%s has only %" PRIu64 " bytes, less than one request (-o).",
			       o->target, b->size);
	if (b->readonly && o->read_percent < 100)
		return err_set(e, -EROFS, "%s is read-only: '%s' cannot run on it.", o->target,
			       o->pattern);
	return 0;
}

static int perf(const struct options *o, struct err *e)
{
	struct reactor *r;
	struct bdev *b;
	int rc = reactor_create(&r);

	if (rc)
		return err_set(e, rc, "Cannot start: %s.", err_words(rc));
	rc = open_target(o->target, o->read_percent == 100, &b, e);
	if (rc)
		goto out;
	rc = check_job(o, b, e);
	if (rc == 0)
		rc = measure(o, r, b, e);
	bdev_put(b);
out:
	bdev_delete_all();
	reactor_destroy(r);
	return rc;
}

/* --- the command line --- */

static void usage(FILE *out)
{
	fprintf(out,
		"usage: riffle perf [OPTION]... TARGET\n\n"
		"Measure a disk in this process, without a daemon or a virtual machine.\n\n"
		"TARGET  null:                    does nothing, as fast as it can\n"
		"        malloc:size=SIZE         RAM\n"
		"        file:PATH[,block_size=N] a file or block device (write jobs overwrite it!)\n\n"
		"  -w, --job NAME      read write rw randread randwrite randrw (default: randread)\n"
		"  -o, --size BYTES    of one request (default: 4096)\n"
		"  -q, --depth N       requests in flight (default: 32)\n"
		"  -t, --time SECONDS  how long (default: 10)\n"
		"  -M, --reads PERCENT share of reads in rw and randrw (default: 50)\n"
		"  -j, --json          print JSON\n"
		"  -h, --help          say this\n\n"
		"Ctrl-C prints the results so far.\n");
}

static int set_number(const char *option, const char *text, uint64_t min, uint64_t max,
		      uint64_t *out)
{
	if (size_parse(text, out) && *out >= min && *out <= max)
		return -1;
	fprintf(stderr, "riffle perf: %s must be from %" PRIu64 " to %" PRIu64 ", not '%s'.\n",
		option, min, max, text);
	return EXIT_USAGE;
}

static int set_pattern(struct options *o, bool mix_given)
{
	static const struct {
		const char *name;
		uint64_t reads;
	} patterns[] = { { "read", 100 },    { "write", 0 }, { "randread", 100 },
			 { "randwrite", 0 }, { "rw", 50 },   { "randrw", 50 } };

	for (size_t i = 0; i < ARRAY_SIZE(patterns); i++) {
		if (strcmp(o->pattern, patterns[i].name) != 0)
			continue;
		if (patterns[i].reads != 50 || !mix_given)
			o->read_percent = patterns[i].reads;
		return -1;
	}
	fprintf(stderr, "riffle perf: there is no job '%s'. `riffle perf --help` lists them.\n",
		o->pattern);
	return EXIT_USAGE;
}

static int parse(int argc, char **argv, struct options *o)
{
	static const struct option longs[] = {
		{ "job", required_argument, NULL, 'w' },   { "size", required_argument, NULL, 'o' },
		{ "depth", required_argument, NULL, 'q' }, { "time", required_argument, NULL, 't' },
		{ "reads", required_argument, NULL, 'M' }, { "json", no_argument, NULL, 'j' },
		{ "help", no_argument, NULL, 'h' },	   { 0 },
	};
	bool mix_given = false;
	int c, rc = -1;

	while (rc < 0 && (c = getopt_long(argc, argv, "w:o:q:t:M:jh", longs, NULL)) != -1) {
		switch (c) {
		case 'w':
			o->pattern = optarg;
			break;
		case 'o':
			rc = set_number("-o", optarg, 512, SIZE_MAX_BYTES, &o->io_size);
			break;
		case 'q':
			rc = set_number("-q", optarg, 1, DEPTH_MAX, &o->depth);
			break;
		case 't':
			rc = set_number("-t", optarg, 1, 1000000, &o->seconds);
			break;
		case 'M':
			mix_given = true;
			rc = set_number("-M", optarg, 0, 100, &o->read_percent);
			break;
		case 'j':
			o->json = true;
			break;
		case 'h':
			usage(stdout);
			return EXIT_OK;
		default:
			fprintf(stderr, "`riffle perf --help` lists the options.\n");
			rc = EXIT_USAGE;
		}
	}
	if (rc >= 0)
		return rc;
	if (optind + 1 != argc) {
		usage(stderr);
		return EXIT_USAGE;
	}
	o->target = argv[optind];
	return set_pattern(o, mix_given);
}

int cmd_perf(int argc, char **argv)
{
	struct options o = { .pattern = "randread", .io_size = 4096, .depth = 32, .seconds = 10 };
	struct err e = { 0 };
	int rc = parse(argc, argv, &o);

	if (rc >= 0)
		return rc;
	signal(SIGINT, on_interrupt);
	return perf(&o, &e) ? fail("perf", &e) : EXIT_OK;
}
