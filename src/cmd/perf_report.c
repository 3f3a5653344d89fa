/* What riffle perf prints: tables row by row, or JSON at the end; and what it doubts. */
#include <inttypes.h>
#include <jansson.h>
#include <string.h>

#include "cmd/perf.h"

static double percentile_us(const struct perf_result *r, double percent)
{
	return perf_percentile_us(&r->latency, percent);
}

static double mean_us(const struct perf_result *r)
{
	return perf_mean_us(&r->latency);
}

static double min_us(const struct perf_result *r)
{
	return r->latency.count ? perf_us((double)r->latency.min) : 0;
}

/* --- Little's law --- */

/* A fixed number was meant to be in flight. */
static bool little_applies(const struct perf_options *o)
{
	return !o->verify && !o->rate;
}

static void warn(const struct perf_options *o, const struct perf_result *r)
{
	if (r->done == 0 && r->faults.n == 0)
		fprintf(stderr,
			"riffle perf: %s: nothing completed while it was measured (depth %" PRIu32
			"). Measure longer (-t).\n",
			r->target->spec, r->depth);
	else if (little_applies(o) && !perf_little_holds(r))
		fprintf(stderr,
			"riffle perf: %s: Little's law does not hold: IOPS x mean latency gives %.1f "
			"requests in flight, not %.0f. The worker could not keep the target busy "
			"(give it a core of its own with -c), or the time was too short (-t).\n",
			r->target->spec, perf_in_flight(r), (double)r->depth * r->workers);
}

/* --- tables --- */

static void size_words(const struct perf_options *o, char *buf, size_t size)
{
	if (o->verify && !o->size_given)
		snprintf(buf, size, "to 1M");
	else
		snprintf(buf, size, "%" PRIu64, o->io_size);
}

static void print_flush_words(const struct perf_options *o, const struct perf_target *t)
{
	for (unsigned i = 0; i < o->targets_n; i++)
		printf("flush semantics of %s: %s\n", t[i].spec, t[i].flush);
	printf("this job %s\n\n",
	       o->verify ? "sends a FLUSH now and then" : "sends no FLUSH and no FUA");
}

/* Then the table has columns for them. */
static bool any_doorbells(const struct perf_options *o, const struct perf_target *t)
{
	for (unsigned i = 0; i < o->targets_n; i++)
		if (t[i].bdev->has_doorbells)
			return true;
	return false;
}

static double per_io(const struct perf_result *r, uint64_t n)
{
	return r->done ? (double)n / (double)r->done : 0;
}

static void print_doorbells(const struct perf_result *r)
{
	if (r->target->bdev->has_doorbells)
		printf(" %8.4f %8.4f", per_io(r, r->doorbells), per_io(r, r->interrupts));
	else
		printf(" %8s %8s", "-", "-");
}

void perf_report_begin(const struct perf_options *o, const struct perf_target *t)
{
	if (o->json)
		return;
	if (o->verify || o->read_percent < 100)
		print_flush_words(o, t);
	printf("%-28s %-9s %7s %7s %11s %9s %8s %8s %9s %8s %8s %8s %8s %8s %9s", "target", "job",
	       "size", "depth", "IOPS", "MiB/s", "mean us", "min us", "max us", "P50 us", "P90 us",
	       "P99 us", "P99.9 us", "P99.99", "CPU us/IO");
	if (any_doorbells(o, t))
		printf(" %8s %8s", "kicks/IO", "irqs/IO");
	printf(o->pid ? " %9s\n" : "%s\n", o->pid ? "daemon us" : "");
	fflush(stdout);
}

static void print_row(const struct perf_options *o, const struct perf_result *r, bool doorbells)
{
	char size[24], depth[24], workers[12] = "";

	size_words(o, size, sizeof(size));
	if (r->workers > 1)
		snprintf(workers, sizeof(workers), "x%u", r->workers);
	snprintf(depth, sizeof(depth), "%" PRIu32 "%s", r->depth, workers);
	printf("%-28.28s %-9s %7s %7s %11.0f %9.1f %8.2f %8.2f %9.2f", r->target->spec, o->job,
	       size, depth, r->iops, r->bytes_per_s / 1048576.0, mean_us(r), min_us(r),
	       perf_us((double)r->latency.max));
	printf(" %8.2f %8.2f %8.2f %8.2f %8.2f %9.3f", percentile_us(r, 50), percentile_us(r, 90),
	       percentile_us(r, 99), percentile_us(r, 99.9), percentile_us(r, 99.99),
	       r->cpu_ns / 1000);
	if (doorbells)
		print_doorbells(r);
	if (o->pid && r->daemon_cpu_ns < 0)
		printf(" %9s", "-");
	else if (o->pid)
		printf(" %9.3f", r->daemon_cpu_ns / 1000);
	putchar('\n');
}

void perf_report_row(const struct perf_options *o, const struct perf_result *r, unsigned n)
{
	bool doorbells = false;

	for (unsigned i = 0; i < n; i++)
		doorbells |= r[i].target->bdev->has_doorbells;
	for (unsigned i = 0; i < n; i++) {
		if (!o->json)
			print_row(o, &r[i], doorbells);
		fflush(stdout);
		warn(o, &r[i]);
	}
}

static void print_percentiles(const struct perf_options *o, const struct perf_result *r)
{
	printf("\nlatency of %s at depth %" PRIu32 "\n", r->target->spec, r->depth);
	for (unsigned i = 0; i < o->percentiles_n; i++)
		printf("  P%-8g %12.2f us\n", o->percentiles[i],
		       percentile_us(r, o->percentiles[i]));
}

/* The format of HdrHistogram's percentile output, which its plotters read. */
static void print_histogram(const struct perf_result *r)
{
	const struct hist *h = &r->latency;
	uint64_t seen = 0;

	printf("\nhistogram of %s at depth %" PRIu32 ", microseconds\n", r->target->spec, r->depth);
	printf("%12s %14s %12s %14s\n\n", "Value", "Percentile", "TotalCount", "1/(1-Percentile)");
	for (unsigned b = 0; b < HIST_BUCKETS; b++) {
		double share;

		if (h->bucket[b] == 0)
			continue;
		seen += h->bucket[b];
		share = (double)seen / (double)h->count;
		printf("%12.3f %14.12f %12" PRIu64, perf_us((double)hist_bucket_value(b)), share,
		       seen);
		if (seen < h->count)
			printf(" %14.2f", 1 / (1 - share));
		putchar('\n');
	}
	printf("#[Mean = %.3f, Min = %.3f, Max = %.3f, Total count = %" PRIu64 "]\n", mean_us(r),
	       min_us(r), perf_us((double)h->max), h->count);
}

static void print_faults(const struct perf_result *r)
{
	const struct perf_faults *f = &r->faults;
	uint32_t block_size = r->target->bdev->block_size;
	char text[400];

	if (f->n == 0)
		return;
	printf("\n%s does not give back what was written:\n", r->target->spec);
	for (unsigned i = 0; i < f->n; i++) {
		perf_fault_words(&f->v[i], block_size, text, sizeof(text));
		printf("  %s\n", text);
	}
	printf("  in all:");
	for (int k = 0; k < FAULT_KINDS; k++)
		if (f->blocks[k])
			printf(" %" PRIu64 " %s", f->blocks[k], perf_fault_names[k]);
	printf(" (blocks)\n");
}

static void print_end(const struct perf_options *o, const struct perf_result *r, unsigned n)
{
	double turn_ns = 0;

	for (unsigned i = 0; i < n; i++) {
		turn_ns = MAX(turn_ns, r[i].turn_ns);
		if (o->all_percentiles)
			print_percentiles(o, &r[i]);
		if (o->histogram)
			print_histogram(&r[i]);
		print_faults(&r[i]);
	}
	printf("\nresolution of latencies: one turn of the loop, %.2f us on average\n",
	       turn_ns / 1000);
}

/* --- JSON --- */

static json_t *latency_json(const struct perf_options *o, const struct perf_result *r)
{
	static const double always[] = { 50, 90, 99, 99.9, 99.99 };
	json_t *l = json_pack("{s:f, s:f, s:f}", "mean", mean_us(r), "min", min_us(r), "max",
			      perf_us((double)r->latency.max));
	char key[32];

	for (unsigned i = 0; i < ARRAY_SIZE(always) + o->percentiles_n; i++) {
		double p =
			i < ARRAY_SIZE(always) ? always[i] : o->percentiles[i - ARRAY_SIZE(always)];

		snprintf(key, sizeof(key), "p%g", p);
		json_object_set_new(l, key, json_real(percentile_us(r, p)));
	}
	return l;
}

static json_t *histogram_json(const struct perf_result *r)
{
	json_t *list = json_array();

	for (unsigned b = 0; b < HIST_BUCKETS; b++)
		if (r->latency.bucket[b])
			json_array_append_new(list, json_pack("[f, I]",
							      perf_us((double)hist_bucket_value(b)),
							      (json_int_t)r->latency.bucket[b]));
	return list;
}

static json_t *fault_json(const struct perf_fault *f, uint32_t block_size)
{
	char text[400];

	perf_fault_words(f, block_size, text, sizeof(text));
	return json_pack("{s:s, s:I, s:I, s:s}", "kind", perf_fault_names[f->kind], "offset",
			 (json_int_t)f->offset, "blocks", (json_int_t)f->blocks, "text", text);
}

static json_t *faults_json(const struct perf_result *r)
{
	json_t *list = json_array(), *counts = json_object();

	for (unsigned i = 0; i < r->faults.n; i++)
		json_array_append_new(list,
				      fault_json(&r->faults.v[i], r->target->bdev->block_size));
	for (int k = 0; k < FAULT_KINDS; k++)
		json_object_set_new(counts, perf_fault_names[k],
				    json_integer((json_int_t)r->faults.blocks[k]));
	return json_pack("{s:o, s:o}", "blocks", counts, "list", list);
}

static json_t *result_json(const struct perf_options *o, const struct perf_result *r)
{
	json_t *j = json_pack("{s:s, s:s, s:I, s:i, s:i}", "target", r->target->spec, "job", o->job,
			      "io_size", (json_int_t)o->io_size, "depth", (int)r->depth, "workers",
			      (int)r->workers);

	json_object_set_new(j, "span", json_integer((json_int_t)r->target->span));
	json_object_set_new(j, "seconds", json_real(r->seconds));
	json_object_set_new(j, "ios", json_integer((json_int_t)r->done));
	json_object_set_new(j, "iops", json_real(r->iops));
	json_object_set_new(j, "mib_per_s", json_real(r->bytes_per_s / 1048576.0));
	json_object_set_new(j, "latency_us", latency_json(o, r));
	json_object_set_new(j, "latency_resolution_us", json_real(r->turn_ns / 1000));
	json_object_set_new(j, "cpu_us_per_io", json_real(r->cpu_ns / 1000));
	if (r->target->bdev->has_doorbells) {
		json_object_set_new(j, "kicks_per_io", json_real(per_io(r, r->doorbells)));
		json_object_set_new(j, "interrupts_per_io", json_real(per_io(r, r->interrupts)));
	}
	if (o->pid)
		json_object_set_new(j, "daemon_cpu_us_per_io",
				    r->daemon_cpu_ns < 0 ? json_null()
							 : json_real(r->daemon_cpu_ns / 1000));
	json_object_set_new(j, "mean_in_flight", json_real(perf_in_flight(r)));
	if (little_applies(o))
		json_object_set_new(j, "littles_law_holds", json_boolean(perf_little_holds(r)));
	if (o->verify || o->read_percent < 100)
		json_object_set_new(j, "flush", json_string(r->target->flush));
	if (o->verify)
		json_object_set_new(j, "faults", faults_json(r));
	if (o->histogram)
		json_object_set_new(j, "histogram_us", histogram_json(r));
	return j;
}

static void print_json(const struct perf_options *o, const struct perf_result *r, unsigned n)
{
	json_t *list = json_array(), *all;

	for (unsigned i = 0; i < n; i++)
		json_array_append_new(list, result_json(o, &r[i]));
	all = json_pack("{s:b, s:o}", "interrupted", (int)perf_interrupted, "results", list);
	json_dumpf(all, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
	putchar('\n');
	json_decref(all);
}

void perf_report_end(const struct perf_options *o, const struct perf_result *r, unsigned n)
{
	if (o->json)
		print_json(o, r, n);
	else
		print_end(o, r, n);
}
