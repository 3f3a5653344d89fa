/* riffle perf compare: the command line, a look at each path, the rounds. */
#include "cmd/compare.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cmd/cmd.h"
#include "cmd/compare_daemon.h"
#include "cmd/perf_options.h"
#include "util/ticks.h"

static void usage(FILE *out)
{
	fprintf(out,
		"usage: riffle perf compare [OPTION]... TARGET...\n\n"
		"The same job on the kernel's paths and on riffle's, in turns, in one table.\n\n"
		"TARGET  PATH, file:PATH  a file or block device (write jobs overwrite it!), by all paths that\n"
		"                         there are\n"
		"        others           as for riffle perf, each one more path: vhost:SOCKET, null:, ...\n\n"
		"      --paths NAME,...  which paths to the file: uring spin aio loop file vhost (default: all\n"
		"                        that work; the first is what the others are compared with)\n"
		"      --rounds N        samples of each path, in turns A B C, C B A (default: 5)\n"
		"      --html FILE       also write a report with charts\n"
		"  -w, --job NAME        read write randread randwrite rw randrw (default: randread)\n"
		"  -o, --size BYTES      of one request (default: 4096)\n"
		"  -q, --depth N,...     requests in flight per worker; one table for each N (default: 32)\n"
		"  -M, --reads PERCENT   share of reads in rw and randrw (default: 50)\n"
		"  -t, --time SECONDS    how long one sample is measured (default: 1)\n"
		"      --warmup SECONDS  run so long before each sample without counting (default: 0.2)\n"
		"  -c, --cpus CPUS       one pinned worker per CPU (default: one worker, not pinned)\n"
		"  -s, --span BYTES      use only the beginning (default: all, of the smallest target)\n"
		"      --rate IOPS       at most so many per path, all workers together\n"
		"  -j, --json            print JSON, with every sample\n"
		"  -h, --help            say this\n\n"
		"Each sample has a process of its own. Ratios are of the samples of one round. A path that cannot\n"
		"do the job at the same depth is not compared. Ctrl-C prints the results so far.\n"
		"Exit status: 0 done, 1 it failed, 2 the command line is wrong.\n");
}

void compare_note(struct compare *c, const char *fmt, ...)
{
	va_list ap;

	if (c->notes_n == COMPARE_NOTES_MAX)
		return;
	va_start(ap, fmt);
	vsnprintf(c->notes[c->notes_n], sizeof(c->notes[0]), fmt, ap);
	va_end(ap);
	c->notes_n++;
}

double compare_seconds(const struct compare *c)
{
	return (double)(c->o->warmup_ms + c->o->time_ms) / 1000 * c->rounds * c->paths_n *
	       c->o->depths.n;
}

/* --- looking --- */

/* Numbers at different depths say nothing about each other. */
static int check_depth(const struct compare *c, const struct compare_path *p, struct err *e)
{
	uint32_t deepest = 0, limit = p->facts.depth_max;

	for (unsigned i = 0; i < c->o->depths.n; i++)
		deepest = MAX(deepest, c->o->depths.v[i]);
	if (limit == 0 || deepest <= limit)
		return 0;
	return err_set(e, -EINVAL,
		       "%.100s keeps at most %u requests of this size in flight, not %u: rows of "
		       "different queue depths cannot be compared. Give -q up to %u, or compare "
		       "without it.",
		       p->name, limit, deepest, limit);
}

static int look_at(struct compare *c, struct compare_path *p, struct compare_sample *s,
		   struct err *e)
{
	int rc = compare_sample(c, p, 0, NULL, s, e);

	if (rc)
		return rc;
	p->facts = s->facts;
	return check_depth(c, p, e);
}

static bool names(const struct err *e, const struct compare_path *p)
{
	return strncmp(e->text, p->name, strlen(p->name)) == 0;
}

/* A path that nobody has named may be missing: a note says why. */
static int look_at_all(struct compare *c, struct compare_sample *s, struct err *e)
{
	unsigned kept = 0;

	for (unsigned i = 0; i < c->paths_n; i++) {
		struct compare_path *p = &c->paths[i];
		int rc = look_at(c, p, s, e);

		if (rc && (p->asked || c->interrupted)) {
			char why[ERR_TEXT_MAX];

			if (p->kind == COMPARE_TARGET || c->interrupted || names(e, p))
				return rc;
			snprintf(why, sizeof(why), "%.250s", e->text);
			return err_set(e, rc, "%s cannot be measured: %s", p->name, why);
		}
		if (rc)
			compare_note(c, "%s%s%.250s", names(e, p) ? "left out: " : p->name,
				     names(e, p) ? "" : " is left out: ", e->text);
		else
			c->paths[kept++] = *p;
	}
	c->paths_n = kept;
	return kept ? 0 : err_set(e, -ENODEV, "No path can be measured: %.250s", c->notes[0]);
}

/* All use as much as the smallest has: a longer way of the heads is another job. */
static int settle_span(struct compare *c, struct err *e)
{
	uint64_t least = UINT64_MAX;
	uint32_t block = 512;

	for (unsigned i = 0; i < c->paths_n; i++) {
		least = MIN(least, c->paths[i].facts.size);
		block = MAX(block, c->paths[i].facts.block_size);
	}
	if (!c->sized)
		c->o->span = least;
	c->o->span = c->o->span / block * block;
	if (c->o->span < c->o->io_size)
		return err_set(e, -EINVAL,
			       "The smallest target has only %" PRIu64
			       " bytes, less than one request (-o).",
			       least);
	return 0;
}

static void note_cpus(struct compare *c)
{
	int cpu = compare_daemon_cpu(c->o);

	for (unsigned i = 0; i < c->paths_n; i++) {
		if (c->paths[i].kind == COMPARE_VHOST && c->o->pinned &&
		    CPU_ISSET(cpu, &c->o->cpus))
			compare_note(
				c,
				"the daemon of riffle vhost shares CPU %d with a worker, for want "
				"of another: leave one CPU out of -c",
				cpu);
		else if (c->paths[i].kind == COMPARE_VHOST)
			compare_note(c,
				     "riffle vhost uses one CPU more than the others, its daemon's "
				     "(CPU %d); the daemon's CPU time is in its CPU ns/IO",
				     cpu);
		if (c->paths[i].kind == COMPARE_LOOP)
			compare_note(c, "CPU ns/IO of kernel loop is without the kernel's threads "
					"that carry out its requests");
		if (c->paths[i].kind == COMPARE_TARGET &&
		    strncmp(c->paths[i].spec, "vhost:", 6) == 0)
			compare_note(c, "CPU ns/IO of %s is without what is behind the socket",
				     c->paths[i].name);
	}
}

/* Holes are read without the device, and filling them is another job than writing. */
static void note_holes(struct compare *c)
{
	struct stat st;

	if (c->file && stat(c->file, &st) == 0 && S_ISREG(st.st_mode) &&
	    (uint64_t)st.st_blocks * 512 < (uint64_t)st.st_size)
		compare_note(c,
			     "%.150s has holes: reads of them do not reach the device, and the "
			     "first writes to them allocate. Fill it once (riffle perf -w write) "
			     "for numbers that mean something",
			     c->file);
}

static int look(struct compare *c, struct compare_sample *s, struct err *e)
{
	const struct compare_path check = { .kind = COMPARE_CHECK, .name = "the file" };
	int rc = c->file ? compare_sample(c, &check, 0, NULL, s, e) : 0;

	if (rc == 0)
		rc = look_at_all(c, s, e);
	if (rc == 0)
		rc = settle_span(c, e);
	if (rc == 0) {
		note_cpus(c);
		note_holes(c);
	}
	return rc;
}

/* --- measuring --- */

/* Nothing completed: the machine stood still. That is a sample too, and Little's law speaks up. */
static void take_sample(struct compare_row *row, unsigned round, const struct perf_result *r)
{
	row->iops[round] = r->iops;
	row->cpu_ns[round] = r->cpu_ns + MAX(r->daemon_cpu_ns, 0);
	row->in_flight[round] = perf_in_flight(r);
	row->turn_ns = MAX(row->turn_ns, r->turn_ns);
	row->done += r->done;
	hist_merge(&row->latency, &r->latency);
}

static int measure_round(struct compare *c, struct compare_block *b, struct compare_sample *s,
			 struct err *e)
{
	unsigned round = b->rounds++;

	for (unsigned i = 0; i < c->paths_n; i++) {
		struct compare_row *row = &b->rows[compare_turn(round, i, c->paths_n)];
		char words[160];
		int rc;

		snprintf(words, sizeof(words), "depth %" PRIu32 ", round %u of %u, %.60s", b->depth,
			 round + 1, c->rounds, row->path->name);
		rc = compare_sample(c, row->path, b->depth, words, s, e);
		if (rc)
			return rc;
		if (s->result.depth != b->depth || s->result.workers != perf_workers(c->o))
			return err_set(e, -EPROTO, "%.80s was measured at another queue depth.",
				       row->path->name);
		take_sample(row, round, &s->result);
		row->unlawful += !c->o->rate && !perf_little_holds(&s->result);
	}
	return 0;
}

static void summarize(struct compare *c, struct compare_block *b)
{
	for (unsigned i = 0; i < c->paths_n; i++) {
		struct compare_row *row = &b->rows[i];

		compare_ratios(row->iops, b->rows[0].iops, b->rounds, row->ratio);
		compare_summarize(row->iops, b->rounds, &row->iops_sum);
		compare_summarize(row->ratio, b->rounds, &row->ratio_sum);
		compare_summarize(row->cpu_ns, b->rounds, &row->cpu_sum);
		compare_summarize(row->in_flight, b->rounds, &row->in_flight_sum);
		if (row->unlawful)
			compare_note(
				c,
				"Little's law does not hold for %u of %u samples of %s at depth "
				"%" PRIu32 " (%.1f requests in flight, not %.0f): the worker could "
				"not keep the path busy (give it a core of its own with -c), or "
				"the time was too short (-t)",
				row->unlawful, row->iops_sum.n, row->path->name, b->depth,
				row->in_flight_sum.median, (double)b->depth * perf_workers(c->o));
	}
}

static int begin_block(struct compare *c, struct compare_block *b, uint32_t depth, struct err *e)
{
	b->depth = depth;
	b->rows = calloc(c->paths_n, sizeof(*b->rows));
	if (!b->rows)
		return err_set(e, -ENOMEM, "Out of memory.");
	for (unsigned i = 0; i < c->paths_n; i++) {
		struct compare_row *row = &b->rows[i];

		row->path = &c->paths[i];
		hist_reset(&row->latency);
		for (unsigned k = 0; k < PERF_ROUNDS_MAX; k++)
			row->iops[k] = row->ratio[k] = row->cpu_ns[k] = row->in_flight[k] = NAN;
	}
	c->blocks_n++;
	return 0;
}

static bool any_sample(const struct compare *c)
{
	for (unsigned i = 0; c->blocks_n && i < c->paths_n; i++)
		if (c->blocks[0].rows[i].iops[0] >= 0) /* no NAN */
			return true;
	return false;
}

/* After Ctrl-C there is a result as soon as there is one sample. */
static int measure(struct compare *c, struct compare_sample *s, struct err *e)
{
	int rc = 0;

	for (unsigned d = 0; d < c->o->depths.n && rc == 0; d++) {
		struct compare_block *b = &c->blocks[d];

		rc = begin_block(c, b, c->o->depths.v[d], e);
		while (rc == 0 && b->rounds < c->rounds)
			rc = measure_round(c, b, s, e);
		if (rc && rc != -EINTR)
			return rc;
		summarize(c, b);
		if (any_sample(c))
			compare_report_block(c, b);
	}
	return rc == -EINTR && any_sample(c) ? 0 : rc;
}

/* --- the command --- */

/* A socket's path has at most 107 bytes: long names of folders do not serve. */
static bool serves(const char *folder)
{
	return folder && strlen(folder) < 60 && access(folder, W_OK | X_OK) == 0;
}

static int make_folder(struct compare *c, struct err *e)
{
	const char *tmp = getenv("TMPDIR"), *run = getenv("XDG_RUNTIME_DIR");

	tmp = serves(tmp) ? tmp : serves(run) ? run : "/tmp";
	snprintf(c->folder, sizeof(c->folder), "%s/riffle-compare.XXXXXX", tmp);
	if (mkdtemp(c->folder))
		return 0;
	*c->folder = '\0';
	return err_set(e, -errno, "No folder for sockets can be made in %s: %s.", tmp,
		       err_words(errno));
}

static void remove_folder(struct compare *c)
{
	static const char *const files[] = { "disk", "rpc", "rpc.lock", "config" };
	char path[128];

	if (!*c->folder)
		return;
	for (size_t i = 0; i < ARRAY_SIZE(files); i++) {
		snprintf(path, sizeof(path), "%s/%s", c->folder, files[i]);
		unlink(path);
	}
	rmdir(c->folder);
}

static int run(struct compare *c, struct compare_sample *s, struct err *e)
{
	int rc = make_folder(c, e);

	if (rc == 0)
		rc = look(c, s, e);
	if (rc == 0) {
		compare_report_begin(c);
		rc = measure(c, s, e);
	}
	remove_folder(c);
	return rc;
}

/* The report can be written, or nothing is measured. */
static int compare(struct compare *c, struct err *e)
{
	struct compare_sample *s = calloc(1, sizeof(*s));
	struct compare_html *html = NULL;
	int rc = 0;

	c->blocks = calloc(c->o->depths.n, sizeof(*c->blocks));
	if (!s || !c->blocks)
		rc = err_set(e, -ENOMEM, "Out of memory.");
	if (rc == 0 && c->html)
		rc = compare_html_open(c, &html, e);
	if (rc == 0)
		rc = run(c, s, e);
	if (rc == 0) {
		compare_report_end(c);
		if (html)
			rc = compare_html_commit(html, c, e);
	}
	if (html)
		compare_html_close(html);
	for (unsigned i = 0; i < c->blocks_n; i++)
		free(c->blocks[i].rows);
	free(c->blocks);
	free(s);
	return rc;
}

static int check(struct perf_command *cmd)
{
	int rc = perf_check_command(cmd);

	if (rc == 0 && cmd->o.verify)
		rc = err_set(&cmd->err, -EINVAL,
			     "verify looks for faults and measures nothing to compare: use riffle "
			     "perf -w verify.");
	return rc;
}

static char *join(int argc, char **argv)
{
	char *text = NULL;
	size_t size;
	FILE *f = open_memstream(&text, &size);

	if (!f)
		return NULL;
	for (int i = 0; i < argc; i++)
		fprintf(f, "%s%s", i ? " " : "", argv[i]);
	fclose(f);
	return text;
}

int cmd_perf_compare(int argc, char **argv)
{
	static char name[] = "riffle perf compare"; /* how getopt calls us */
	struct perf_command cmd = {
		.o = { .job = "randread", .io_size = 4096, .time_ms = 1000, .warmup_ms = 200 },
		.compare = true,
		.rounds = 5,
	};
	struct compare *c = calloc(1, sizeof(*c));
	char *command;
	int rc;

	argv[0] = name;
	command = join(argc, argv); /* before getopt sorts it */
	cmd.o.depths = (struct perf_depths){ .n = 1, .v = { 32 } };
	if (!c || !command)
		rc = err_set(&cmd.err, -ENOMEM, "Out of memory.");
	else
		rc = perf_parse(argc, argv, &cmd);
	if (rc == 0)
		rc = check(&cmd);
	if (rc == 0) {
		*c = (struct compare){ .o = &cmd.o, .command = command, .html = cmd.html };
		c->rounds = (unsigned)cmd.rounds;
		c->sized = cmd.o.span > 0;
		rc = compare_paths_choose(c, cmd.paths, &cmd.err);
	}
	if (rc > 0) {
		usage(stdout);
		rc = EXIT_OK;
	} else if (rc) {
		if (*cmd.err.text)
			fail("perf compare", &cmd.err);
		fprintf(stderr, "`riffle perf compare --help` lists the options.\n");
		rc = EXIT_USAGE;
	} else {
		compare_signals();
		ticks_hz();
		rc = compare(c, &cmd.err) ? fail("perf compare", &cmd.err) : EXIT_OK;
	}
	free(command);
	free(c);
	return rc;
}
