/* What riffle perf compare prints: a table per depth as soon as it is measured, or JSON at the end.
 */
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "cmd/compare.h"

void compare_job_words(const struct compare *c, char *buf, size_t size)
{
	const struct perf_options *o = c->o;
	unsigned workers = perf_workers(o);
	char mix[40] = "", rate[60] = "";

	if (o->read_percent > 0 && o->read_percent < 100)
		snprintf(mix, sizeof(mix), " with %u %% reads", o->read_percent);
	if (o->rate)
		snprintf(rate, sizeof(rate), ", at most %" PRIu64 " per second", o->rate);
	snprintf(buf, size,
		 "%s%s of %" PRIu64 " bytes in a span of %" PRIu64 " bytes%s, %u worker%s%s",
		 o->job, mix, o->io_size, o->span, rate, workers, workers == 1 ? "" : "s",
		 o->pinned ? ", pinned" : "");
}

/* --- table --- */

/* Columns are as wide as the longest name. */
static int name_width(const struct compare *c)
{
	size_t width = 16;

	for (unsigned i = 0; i < c->paths_n; i++)
		width = MAX(width, strlen(c->paths[i].name));
	return (int)MIN(width, 40);
}

static void print_duration(const struct compare *c, FILE *out)
{
	fprintf(out,
		"%u x %g s (after %g s of warm-up) for each path and depth, in turns: about %.0f s\n",
		c->rounds, (double)c->o->time_ms / 1000, (double)c->o->warmup_ms / 1000,
		ceil(compare_seconds(c)));
}

void compare_report_begin(const struct compare *c)
{
	int width = name_width(c);
	char job[300];

	if (c->o->json) {
		if (isatty(STDERR_FILENO))
			print_duration(c, stderr);
		return;
	}
	compare_job_words(c, job, sizeof(job));
	printf("%s\n", job);
	print_duration(c, stdout);
	putchar('\n');
	for (unsigned i = 0; i < c->paths_n; i++)
		printf("%-*.*s  %s\n", width, width, c->paths[i].name, c->paths[i].facts.what);
	printf("\nflush semantics (the job sends no FLUSH and no FUA)\n");
	for (unsigned i = 0; i < c->paths_n; i++)
		printf("%-*.*s  %s\n", width, width, c->paths[i].name, c->paths[i].facts.flush);
	fflush(stdout);
}

static void print_row(const struct compare *c, const struct compare_row *row)
{
	const struct hist *h = &row->latency;
	int width = name_width(c);
	char range[40], ratio[40];

	printf("%-*.*s", width, width, row->path->name);
	if (row->iops_sum.n == 0) {
		printf(" %10s\n", "-");
		return;
	}
	snprintf(range, sizeof(range), "%.0f..%.0f", row->iops_sum.min, row->iops_sum.max);
	printf(" %10.0f %19s", row->iops_sum.median, range);
	snprintf(ratio, sizeof(ratio), "%.2f..%.2f", row->ratio_sum.min, row->ratio_sum.max);
	if (row->ratio_sum.n)
		printf(" %6.2f %12s", row->ratio_sum.median, ratio);
	else
		printf(" %6s %12s", "-", "-");
	printf(" %9.2f %9.2f %9.2f %9.2f %9.2f %9.0f %8.1f\n", perf_mean_us(h),
	       perf_percentile_us(h, 50), perf_percentile_us(h, 90), perf_percentile_us(h, 99),
	       perf_percentile_us(h, 99.9), row->cpu_sum.median, row->in_flight_sum.median);
}

void compare_report_block(const struct compare *c, const struct compare_block *b)
{
	int width = name_width(c);
	unsigned workers = perf_workers(c->o);

	if (c->o->json)
		return;
	printf("\nqueue depth %" PRIu32, b->depth);
	if (workers > 1)
		printf(" x %u workers", workers);
	if (b->rounds < c->rounds)
		printf(", interrupted in round %u of %u", b->rounds, c->rounds);
	else if (c->interrupted)
		printf(", interrupted");
	printf("\n%-*s %10s %19s %6s %12s %9s %9s %9s %9s %9s %9s %8s\n", width, "path", "IOPS",
	       "min..max", "ratio", "min..max", "mean us", "P50 us", "P90 us", "P99 us", "P99.9 us",
	       "CPU ns/IO", "inflight");
	for (unsigned i = 0; i < c->paths_n; i++)
		print_row(c, &b->rows[i]);
	fflush(stdout);
}

/* --- JSON --- */

static json_t *real_or_null(double v)
{
	return isnan(v) ? json_null() : json_real(v);
}

static json_t *list_json(const double *v, unsigned n)
{
	json_t *list = json_array();

	for (unsigned i = 0; i < n; i++)
		json_array_append_new(list, real_or_null(v[i]));
	return list;
}

static json_t *summary_json(const struct compare_summary *s, const double *v, unsigned n)
{
	return json_pack("{s:o, s:o, s:o, s:o, s:o}", "median",
			 real_or_null(s->n ? s->median : NAN), "min",
			 real_or_null(s->n ? s->min : NAN), "max",
			 real_or_null(s->n ? s->max : NAN), "mad",
			 real_or_null(s->n ? s->mad : NAN), "samples", list_json(v, n));
}

static json_t *latency_json(const struct hist *h)
{
	static const double percents[] = { 50, 90, 99, 99.9, 99.99 };
	json_t *l = json_object();
	char key[16];

	if (h->count == 0)
		return l;
	json_object_set_new(l, "mean", json_real(perf_mean_us(h)));
	json_object_set_new(l, "min", json_real(perf_us((double)h->min)));
	json_object_set_new(l, "max", json_real(perf_us((double)h->max)));
	for (size_t i = 0; i < ARRAY_SIZE(percents); i++) {
		snprintf(key, sizeof(key), "p%g", percents[i]);
		json_object_set_new(l, key, json_real(perf_percentile_us(h, percents[i])));
	}
	return l;
}

static json_t *row_json(const struct compare *c, const struct compare_block *b,
			const struct compare_row *row)
{
	json_t *j = json_object();

	json_object_set_new(j, "path", json_string(row->path->name));
	json_object_set_new(j, "depth", json_integer(b->depth));
	json_object_set_new(j, "ios", json_integer((json_int_t)row->done));
	json_object_set_new(j, "iops", summary_json(&row->iops_sum, row->iops, b->rounds));
	json_object_set_new(j, "ratio", summary_json(&row->ratio_sum, row->ratio, b->rounds));
	json_object_set_new(j, "cpu_ns_per_io",
			    summary_json(&row->cpu_sum, row->cpu_ns, b->rounds));
	json_object_set_new(j, "latency_us", latency_json(&row->latency));
	json_object_set_new(j, "latency_resolution_us", json_real(row->turn_ns / 1000));
	json_object_set_new(j, "mean_in_flight",
			    summary_json(&row->in_flight_sum, row->in_flight, b->rounds));
	if (!c->o->rate)
		json_object_set_new(j, "littles_law_holds", json_boolean(row->unlawful == 0));
	return j;
}

static json_t *paths_json(const struct compare *c)
{
	json_t *list = json_array();

	for (unsigned i = 0; i < c->paths_n; i++)
		json_array_append_new(list, json_pack("{s:s, s:s, s:s}", "name", c->paths[i].name,
						      "what", c->paths[i].facts.what, "flush",
						      c->paths[i].facts.flush));
	return list;
}

static json_t *blocks_json(const struct compare *c)
{
	json_t *list = json_array();

	for (unsigned i = 0; i < c->blocks_n; i++) {
		json_t *rows = json_array();

		for (unsigned k = 0; k < c->paths_n; k++)
			json_array_append_new(rows,
					      row_json(c, &c->blocks[i], &c->blocks[i].rows[k]));
		json_array_append_new(list,
				      json_pack("{s:I, s:o}", "depth",
						(json_int_t)c->blocks[i].depth, "rows", rows));
	}
	return list;
}

static void print_json(const struct compare *c)
{
	const struct perf_options *o = c->o;
	json_t *j = json_object(), *notes = json_array();

	for (unsigned i = 0; i < c->notes_n; i++)
		json_array_append_new(notes, json_string(c->notes[i]));
	json_object_set_new(j, "interrupted", json_boolean(c->interrupted));
	json_object_set_new(j, "target", c->file ? json_string(c->file) : json_null());
	json_object_set_new(j, "job", json_string(o->job));
	json_object_set_new(j, "io_size", json_integer((json_int_t)o->io_size));
	json_object_set_new(j, "reads_percent", json_integer(o->read_percent));
	json_object_set_new(j, "span", json_integer((json_int_t)o->span));
	json_object_set_new(j, "workers", json_integer(perf_workers(o)));
	json_object_set_new(j, "rounds", json_integer(c->rounds));
	json_object_set_new(j, "seconds", json_real((double)o->time_ms / 1000));
	json_object_set_new(j, "warmup_seconds", json_real((double)o->warmup_ms / 1000));
	json_object_set_new(j, "paths", paths_json(c));
	json_object_set_new(j, "comparisons", blocks_json(c));
	json_object_set_new(j, "notes", notes);
	json_dumpf(j, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
	putchar('\n');
	json_decref(j);
}

void compare_report_end(const struct compare *c)
{
	if (c->o->json) {
		print_json(c);
		return;
	}
	printf("\nIOPS: median of the samples. ratio: to %s, median of the ratios within each round. "
	       "Latencies: all samples together.\n",
	       c->paths[0].name);
	for (unsigned i = 0; i < c->notes_n; i++)
		printf("note: %s\n", c->notes[i]);
	fflush(stdout);
}
