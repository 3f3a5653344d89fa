/* The report of riffle perf compare: one HTML file that needs no other and no script. It is written
 * beside its place and renamed into it, whole or not at all. */
#include <errno.h>
#include <inttypes.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "cmd/compare.h"
#include "cmd/compare_svg.h"

struct compare_html {
	FILE *file;
	const char *path;
	char *temp; /* NULL: it has been renamed */
};

/* --- the page --- */

static const char style[] =
	"body{font:15px/1.45 system-ui,sans-serif;max-width:70em;margin:2em auto;padding:0 "
	"1em;color:#1b1b1b;background:#fff}\n"
	"h1{font-size:1.5em}h2{font-size:1.2em;margin-top:2em}h3{font-size:1em;margin:1.5em 0 .3em}\n"
	"table{border-collapse:collapse;font-variant-numeric:tabular-nums}\n"
	"th,td{padding:.25em .7em;border-bottom:1px solid #ccc;text-align:right;white-space:nowrap}\n"
	"th:first-child,td:first-child{text-align:left}\n"
	".facts th{text-align:left;vertical-align:top;font-weight:normal;color:#666}\n"
	".facts td{text-align:left;white-space:normal;overflow-wrap:anywhere}\n"
	".wide{overflow-x:auto}code{font-size:.95em}\n"
	"svg{max-width:100%;height:auto;display:block;margin:.5em 0}\n"
	"svg text{font:13px system-ui,sans-serif;fill:#333}\n"
	".mid{text-anchor:middle}.end{text-anchor:end}\n"
	".grid{stroke:#ddd;stroke-width:1}\n"
	".curve{fill:none;stroke-width:2.2}.dot{stroke:#fff;stroke-width:.7}\n"
	".bar{opacity:.18;stroke:none}.median{stroke-width:3}\n"
	".d1{stroke-dasharray:9 4}.d2{stroke-dasharray:2.5 3}.d3{stroke-dasharray:9 3 2 3}"
	".d4{stroke-dasharray:16 5}\n";

/* Colours that people with any colour vision can tell apart; a second set for dark pages. */
static const char *const colours[2][SVG_COLOURS] = {
	{ "#0072b2", "#d55e00", "#007a5a", "#b0468c", "#8a6d00", "#3a9bd6", "#555555", "#a0522d" },
	{ "#56a8e0", "#f08a3c", "#2fbf8f", "#e08fc0", "#e6c84a", "#9ad0f5", "#c0c0c0", "#d79a6e" },
};

static void put_colours(FILE *out, const char *const *set)
{
	for (unsigned i = 0; i < SVG_COLOURS; i++)
		fprintf(out, ".s%u{stroke:%s}.s%u.dot,.s%u.bar{fill:%s}\n", i, set[i], i, i,
			set[i]);
}

/* After the colours: dots and bars have an edge, or none, of their own. */
static void put_head(FILE *out)
{
	fputs("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
	      "<meta name=\"viewport\" content=\"width=device-width\"/>\n"
	      "<title>riffle perf compare</title>\n<style>\n",
	      out);
	put_colours(out, colours[0]);
	fputs(style, out);
	fputs("@media (prefers-color-scheme:dark){\n", out);
	put_colours(out, colours[1]);
	fputs("body{color:#ddd;background:#161616}th,td{border-color:#444}.facts th{color:#999}\n"
	      "svg text{fill:#ccc}.grid{stroke:#3a3a3a}.dot{stroke:#161616}.bar{stroke:none}\n}\n"
	      "</style>\n</head>\n<body>\n<h1>riffle perf compare</h1>\n",
	      out);
}

static void put_fact(FILE *out, const char *name, const char *value)
{
	fprintf(out, "<tr><th>%s</th><td>", name);
	svg_text(out, value, 2000);
	fputs("</td></tr>\n", out);
}

/* "" where it is not told. */
static void cpu_model(char *buf, size_t size)
{
	FILE *f = fopen("/proc/cpuinfo", "re");
	char line[256];

	*buf = '\0';
	while (f && fgets(line, sizeof(line), f)) {
		const char *colon = strchr(line, ':');

		if (strncmp(line, "model name", 10) != 0 || !colon)
			continue;
		snprintf(buf, size, "%s", colon + 1 + strspn(colon + 1, " "));
		buf[strcspn(buf, "\n")] = '\0';
		break;
	}
	if (f)
		fclose(f);
}

static void put_machine(FILE *out)
{
	char text[300], when[64];
	time_t now = time(NULL);
	struct utsname u;
	struct tm tm;

	if (localtime_r(&now, &tm) && strftime(when, sizeof(when), "%Y-%m-%d %H:%M:%S %z", &tm))
		put_fact(out, "date", when);
	if (uname(&u) == 0) {
		snprintf(text, sizeof(text), "%.60s %.80s %.60s", u.sysname, u.release, u.machine);
		put_fact(out, "kernel", text);
	}
	cpu_model(text, sizeof(text) - 40);
	snprintf(text + strlen(text), 40, "%s%ld CPUs", *text ? ", " : "",
		 sysconf(_SC_NPROCESSORS_ONLN));
	put_fact(out, "processor", text);
	put_fact(out, "riffle", RIFFLE_VERSION);
}

static void put_run(FILE *out, const struct compare *c)
{
	char text[400];

	fputs("<table class=\"facts\">\n", out);
	put_fact(out, "command", c->command);
	put_machine(out);
	if (c->file)
		put_fact(out, "file or device", c->file);
	compare_job_words(c, text, sizeof(text));
	put_fact(out, "job", text);
	snprintf(text, sizeof(text),
		 "%u rounds of %g s after %g s of warm-up, in turns A B C, C B A; each sample in a "
		 "process of its own%s",
		 c->rounds, (double)c->o->time_ms / 1000, (double)c->o->warmup_ms / 1000,
		 c->interrupted ? "; interrupted before the end" : "");
	put_fact(out, "samples", text);
	fputs("</table>\n", out);
}

static void put_paths(FILE *out, const struct compare *c)
{
	fputs("<h2>Paths</h2>\n<table class=\"facts\">\n<tr><td>path</td><td>how</td><td>flush "
	      "semantics (the job sends no FLUSH and no FUA)</td></tr>\n",
	      out);
	for (unsigned i = 0; i < c->paths_n; i++) {
		fputs("<tr><td>", out);
		svg_text(out, c->paths[i].name, 200);
		fputs("</td><td>", out);
		svg_text(out, c->paths[i].facts.what, 400);
		fputs("</td><td>", out);
		svg_text(out, c->paths[i].facts.flush, 400);
		fputs("</td></tr>\n", out);
	}
	fputs("</table>\n", out);
}

static void put_row(FILE *out, const struct compare_row *row)
{
	static const double percents[] = { 50, 90, 99, 99.9 };
	const struct hist *h = &row->latency;

	fputs("<tr><td>", out);
	svg_text(out, row->path->name, 200);
	if (row->iops_sum.n == 0) {
		fputs("</td><td colspan=\"10\">no sample</td></tr>\n", out);
		return;
	}
	fprintf(out, "</td><td>%.0f</td><td>%.0f – %.0f</td>", row->iops_sum.median,
		row->iops_sum.min, row->iops_sum.max);
	if (row->ratio_sum.n)
		fprintf(out, "<td>%.2f</td><td>%.2f – %.2f</td>", row->ratio_sum.median,
			row->ratio_sum.min, row->ratio_sum.max);
	else
		fputs("<td>–</td><td>–</td>", out);
	fprintf(out, "<td>%.2f</td>", perf_mean_us(h));
	for (size_t i = 0; i < ARRAY_SIZE(percents); i++)
		fprintf(out, "<td>%.2f</td>", perf_percentile_us(h, percents[i]));
	fprintf(out, "<td>%.0f</td></tr>\n", row->cpu_sum.median);
}

static void put_block(FILE *out, const struct compare *c, const struct compare_block *b)
{
	unsigned workers = perf_workers(c->o);

	fprintf(out, "<h2>Queue depth %" PRIu32, b->depth);
	if (workers > 1)
		fprintf(out, " × %u workers", workers);
	fputs("</h2>\n<div class=\"wide\"><table>\n<tr><th>path</th><th>IOPS</th><th>min – max</th>"
	      "<th>ratio</th><th>min – max</th><th>mean µs</th><th>P50 µs</th><th>P90 µs</th>"
	      "<th>P99 µs</th><th>P99.9 µs</th><th>CPU ns/IO</th></tr>\n",
	      out);
	for (unsigned i = 0; i < c->paths_n; i++)
		put_row(out, &b->rows[i]);
	fputs("</table></div>\n<h3>IOPS: a dot for each sample, first round on top; a bar up to the "
	      "median</h3>\n",
	      out);
	svg_iops_chart(out, c, b);
	fputs("<h3>Latency by percentile: lower is better</h3>\n", out);
	svg_latency_chart(out, c, b);
}

static void put_notes(FILE *out, const struct compare *c)
{
	fputs("<h2>How to read it</h2>\n<ul>\n<li>Compare ratios, not numbers: the ratio is the median "
	      "of the ratios of the two samples of one round, to ",
	      out);
	svg_text(out, c->paths[0].name, 200);
	fputs(". Where its range contains 1, there is no difference to speak of.</li>\n"
	      "<li>Latencies are of all samples together, exact to one pass of the loop, and never too "
	      "short.</li>\n",
	      out);
	for (unsigned i = 0; i < c->notes_n; i++) {
		fputs("<li>", out);
		svg_text(out, c->notes[i], 400);
		fputs("</li>\n", out);
	}
	fputs("</ul>\n</body>\n</html>\n", out);
}

/* --- the file --- */

static int refuse_place(const struct compare *c, struct err *e)
{
	struct stat place, target;

	if (stat(c->html, &place) < 0)
		return 0;
	if (!S_ISREG(place.st_mode))
		return err_set(e, -EEXIST, "--html: '%.150s' is not a regular file.", c->html);
	if (c->file && stat(c->file, &target) == 0 && target.st_dev == place.st_dev &&
	    target.st_ino == place.st_ino)
		return err_set(e, -EEXIST, "--html: '%.150s' is the disk that is measured.",
			       c->html);
	return 0;
}

static int open_temp(struct compare_html *h, struct err *e)
{
	mode_t mask = umask(0);
	int fd;

	umask(mask);
	if (asprintf(&h->temp, "%s.XXXXXX", h->path) < 0) {
		h->temp = NULL;
		return err_set(e, -ENOMEM, "Out of memory.");
	}
	fd = mkstemp(h->temp);
	if (fd < 0) {
		int rc = -errno;

		free(h->temp);
		h->temp = NULL;
		return err_set(
			e, rc,
			"The report '%.150s' cannot be written: %s. Choose another place with "
			"--html.",
			h->path, err_words(rc));
	}
	if (fchmod(fd, 0666 & ~mask) < 0 || !(h->file = fdopen(fd, "w"))) {
		close(fd);
		return err_set(e, -EIO, "The report '%.150s' cannot be written.", h->path);
	}
	return 0;
}

int compare_html_open(const struct compare *c, struct compare_html **out, struct err *e)
{
	struct compare_html *h;
	int rc = refuse_place(c, e);

	if (rc)
		return rc;
	h = calloc(1, sizeof(*h));
	if (!h)
		return err_set(e, -ENOMEM, "Out of memory.");
	h->path = c->html;
	rc = open_temp(h, e);
	if (rc)
		compare_html_close(h);
	else
		*out = h;
	return rc;
}

int compare_html_commit(struct compare_html *h, const struct compare *c, struct err *e)
{
	bool bad;

	put_head(h->file);
	put_run(h->file, c);
	put_paths(h->file, c);
	for (unsigned i = 0; i < c->blocks_n; i++)
		put_block(h->file, c, &c->blocks[i]);
	put_notes(h->file, c);
	bad = fflush(h->file) != 0 || ferror(h->file);
	bad = fclose(h->file) != 0 || bad;
	h->file = NULL;
	if (bad || rename(h->temp, h->path) < 0)
		return err_set(e, -EIO, "The report '%.150s' could not be written: %s.", h->path,
			       err_words(errno));
	free(h->temp);
	h->temp = NULL;
	return 0;
}

void compare_html_close(struct compare_html *h)
{
	if (h->file)
		fclose(h->file);
	if (h->temp)
		unlink(h->temp);
	free(h->temp);
	free(h);
}
