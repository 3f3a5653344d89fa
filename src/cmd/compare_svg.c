#include "cmd/compare_svg.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "util/compiler.h"

#define WIDTH	     860.0
#define NAME_CHARS   26
#define LEGEND_CHARS 25
#define NAMES_WIDTH  210.0
#define ROW_HEIGHT   30.0
#define LOG_FROM     20 /* times the slowest: then the axis is logarithmic */

/* --- text --- */

/* Bytes of the UTF-8 character at s; 0: none. Overlong forms and surrogates do no harm in a report.
 */
static unsigned utf8_len(const unsigned char *s)
{
	unsigned n = s[0] >= 0xf0 && s[0] < 0xf5   ? 4
		     : s[0] >= 0xe0 && s[0] < 0xf0 ? 3
		     : s[0] >= 0xc2 && s[0] < 0xe0 ? 2
		     : s[0] >= 0x20 && s[0] < 0x7f ? 1
						   : 0;

	for (unsigned i = 1; i < n; i++)
		if ((s[i] & 0xc0) != 0x80)
			return 0;
	if (n == 3 && ((s[0] == 0xed && s[1] >= 0xa0) || (s[0] == 0xef && s[1] == 0xbf)))
		return 0; /* surrogates, and U+FFFE and its neighbours */
	if (n == 2 && s[0] == 0xc2 && s[1] < 0xa0)
		return 0;
	return n;
}

static void put_char(FILE *out, const unsigned char *s, unsigned n)
{
	switch (n ? *s : '?') {
	case '&':
		fputs("&amp;", out);
		break;
	case '<':
		fputs("&lt;", out);
		break;
	case '>':
		fputs("&gt;", out);
		break;
	case '"':
		fputs("&quot;", out);
		break;
	case '\'':
		fputs("&#39;", out);
		break;
	default:
		if (n)
			fwrite(s, 1, n, out);
		else
			putc('?', out);
	}
}

void svg_text(FILE *out, const char *text, unsigned max)
{
	const unsigned char *s = (const unsigned char *)text;

	for (unsigned i = 0; *s; i++) {
		unsigned n = utf8_len(s);

		if (i + 1 >= max && s[MAX(n, 1)]) {
			fputs("…", out);
			return;
		}
		put_char(out, s, n);
		s += MAX(n, 1);
	}
}

/* --- axes --- */

double svg_nines(double percent)
{
	return -log10(1 - percent / 100);
}

unsigned svg_log_ticks(double lo, double hi, double *ticks, unsigned max)
{
	static const double of_decade[] = { 1, 2, 5 };
	unsigned per_decade = hi / lo > 300 ? 1 : 3, n = 0;

	for (int d = (int)floor(log10(lo)); d <= (int)ceil(log10(hi)); d++) {
		for (unsigned i = 0; i < per_decade; i++) {
			double v = of_decade[i] * pow(10, d);

			if (v >= lo && v <= hi && n < max)
				ticks[n++] = v;
		}
	}
	return n;
}

double svg_linear_step(double v)
{
	double decade, step;

	if (!(v > 0))
		return 1;
	decade = pow(10, floor(log10(v / 4)));
	step = v / 4 / decade;
	return decade * (step >= 5 ? 5 : step >= 2 ? 2 : 1);
}

static void put_count(FILE *out, double v)
{
	if (v >= 1e6)
		fprintf(out, "%gM", v / 1e6);
	else if (v >= 1e3)
		fprintf(out, "%gk", v / 1e3);
	else
		fprintf(out, "%g", v);
}

static void put_us(FILE *out, double us)
{
	if (us >= 1e6)
		fprintf(out, "%.4g s", us / 1e6);
	else if (us >= 1e3)
		fprintf(out, "%.4g ms", us / 1e3);
	else
		fprintf(out, "%.4g µs", us);
}

static void put_line(FILE *out, const char *class, double x1, double y1, double x2, double y2)
{
	fprintf(out, "<line class=\"%s\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n",
		class, x1, y1, x2, y2);
}

static void open_svg(FILE *out, double height, const char *label)
{
	fprintf(out,
		"<svg viewBox=\"0 0 %.0f %.0f\" width=\"%.0f\" height=\"%.0f\" role=\"img\" "
		"aria-label=\"%s\">\n",
		WIDTH, height, WIDTH, height, label);
}

/* --- IOPS --- */

struct scale {
	double from, to; /* in the picture */
	double lo, hi;	 /* of the values, or of their logarithms */
	bool log;
};

static double at(const struct scale *s, double v)
{
	if (s->log)
		v = log10(v);
	return s->from + (v - s->lo) / (s->hi - s->lo) * (s->to - s->from);
}

/* From 0, or logarithmic where the slowest would not be seen beside the fastest. Fills ticks;
 * returns how many. */
static unsigned iops_scale(const struct compare *c, const struct compare_block *b, struct scale *s,
			   double *ticks, unsigned max)
{
	double lo = INFINITY, hi = 0, step;
	unsigned n = 0;

	for (unsigned i = 0; i < c->paths_n; i++) {
		if (b->rows[i].iops_sum.n == 0)
			continue;
		lo = MIN(lo, b->rows[i].iops_sum.min);
		hi = MAX(hi, b->rows[i].iops_sum.max);
	}
	*s = (struct scale){ .from = NAMES_WIDTH + 10, .to = WIDTH - 40 };
	if (lo > 0 && hi > lo * LOG_FROM) {
		s->log = true;
		s->lo = log10(lo / 2);
		s->hi = log10(hi * 1.25);
		return svg_log_ticks(lo / 2, hi * 1.25, ticks, max);
	}
	step = svg_linear_step(hi);
	s->hi = MAX(ceil(hi / step), 1) * step;
	for (double v = 0; v <= s->hi + step / 2 && n < max; v += step)
		ticks[n++] = v;
	return n;
}

static void put_dots(FILE *out, const struct compare_block *b, unsigned index,
		     const struct scale *s, double y)
{
	const struct compare_row *row = &b->rows[index];
	double spread = b->rounds > 1 ? 16.0 / (b->rounds - 1) : 0;

	for (unsigned k = 0; k < b->rounds; k++) {
		if (isnan(row->iops[k]))
			continue;
		fprintf(out, "<circle class=\"s%u dot\" cx=\"%.1f\" cy=\"%.1f\" r=\"3\"><title>",
			index % SVG_COLOURS, at(s, row->iops[k]),
			y - (b->rounds > 1 ? 8 : 0) + k * spread);
		svg_text(out, row->path->name, 200);
		fprintf(out, ", round %u: %.0f IOPS</title></circle>\n", k + 1, row->iops[k]);
	}
}

static void put_median(FILE *out, const struct compare_row *row, unsigned index,
		       const struct scale *s, double y)
{
	double x;

	if (row->iops_sum.n == 0)
		return;
	x = at(s, row->iops_sum.median);
	fprintf(out,
		"<rect class=\"s%u bar\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"18\"/>\n"
		"<line class=\"s%u median\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"><title>",
		index % SVG_COLOURS, s->from, y - 9, x - s->from, index % SVG_COLOURS, x, y - 12, x,
		y + 12);
	svg_text(out, row->path->name, 200);
	fprintf(out, ": median %.0f IOPS</title></line>\n", row->iops_sum.median);
}

void svg_iops_chart(FILE *out, const struct compare *c, const struct compare_block *b)
{
	double ticks[32], bottom = 10 + ROW_HEIGHT * c->paths_n;
	struct scale s;
	unsigned n = iops_scale(c, b, &s, ticks, ARRAY_SIZE(ticks));

	open_svg(out, bottom + 42, "IOPS of each sample");
	for (unsigned i = 0; i < n; i++) {
		double x = at(&s, ticks[i]);

		put_line(out, "grid", x, 6, x, bottom);
		fprintf(out, "<text class=\"mid\" x=\"%.1f\" y=\"%.1f\">", x, bottom + 16);
		put_count(out, ticks[i]);
		fputs("</text>\n", out);
	}
	fprintf(out, "<text class=\"mid\" x=\"%.1f\" y=\"%.1f\">IOPS%s</text>\n",
		(s.from + s.to) / 2, bottom + 36, s.log ? " (logarithmic)" : "");
	for (unsigned i = 0; i < c->paths_n; i++) {
		double y = 10 + ROW_HEIGHT * (i + 0.5);

		fprintf(out, "<text class=\"end\" x=\"%.1f\" y=\"%.1f\">", NAMES_WIDTH, y + 4);
		svg_text(out, c->paths[i].name, NAME_CHARS);
		fputs("</text>\n", out);
		put_median(out, &b->rows[i], i, &s, y);
		put_dots(out, b, i, &s, y);
	}
	fputs("</svg>\n", out);
}

/* --- latency --- */

static const double marked[] = { 50, 90, 99, 99.9, 99.99 };

#define PLOT_LEFT   74.0
#define PLOT_RIGHT  600.0
#define PLOT_TOP    14.0
#define PLOT_BOTTOM 344.0
#define CURVE_STEPS 120

/* What lies beyond the last request of a path is not drawn. */
static bool known(const struct hist *h, double percent)
{
	return h->count > 0 && (double)h->count * (1 - percent / 100) >= 1;
}

static struct scale log_scale(const struct compare *c, const struct compare_block *b)
{
	struct scale s = { .from = PLOT_BOTTOM, .to = PLOT_TOP, .log = true };
	double lo = INFINITY, hi = 0;

	for (unsigned i = 0; i < c->paths_n; i++) {
		const struct hist *h = &b->rows[i].latency;

		if (h->count == 0)
			continue;
		lo = MIN(lo, perf_percentile_us(h, marked[0]));
		for (size_t k = 0; k < ARRAY_SIZE(marked); k++)
			if (known(h, marked[k]))
				hi = MAX(hi, perf_percentile_us(h, marked[k]));
	}
	if (!(lo > 0 && lo < INFINITY))
		lo = 0.001;
	s.lo = log10(lo / 1.25);
	s.hi = log10(MAX(hi, lo * 2) * 1.25);
	return s;
}

static void put_axes(FILE *out, const struct scale *x, const struct scale *y)
{
	double ticks[64];
	unsigned n = svg_log_ticks(pow(10, y->lo), pow(10, y->hi), ticks, ARRAY_SIZE(ticks));

	for (unsigned i = 0; i < n; i++) {
		double v = at(y, ticks[i]);

		put_line(out, "grid", PLOT_LEFT, v, PLOT_RIGHT, v);
		fprintf(out, "<text class=\"end\" x=\"%.1f\" y=\"%.1f\">", PLOT_LEFT - 6, v + 4);
		put_us(out, ticks[i]);
		fputs("</text>\n", out);
	}
	for (size_t i = 0; i < ARRAY_SIZE(marked); i++) {
		double v = at(x, svg_nines(marked[i]));

		put_line(out, "grid", v, PLOT_TOP, v, PLOT_BOTTOM);
		fprintf(out, "<text class=\"mid\" x=\"%.1f\" y=\"%.1f\">%g %%</text>\n", v,
			PLOT_BOTTOM + 18, marked[i]);
	}
	fprintf(out,
		"<text class=\"mid\" x=\"%.1f\" y=\"%.1f\">of the requests took at most so long</text>\n",
		(PLOT_LEFT + PLOT_RIGHT) / 2, PLOT_BOTTOM + 38);
	fprintf(out,
		"<text class=\"mid\" transform=\"translate(14 %.1f) rotate(-90)\">latency "
		"(logarithmic)</text>\n",
		(PLOT_TOP + PLOT_BOTTOM) / 2);
}

static void put_curve(FILE *out, const struct hist *h, unsigned index, const struct scale *x,
		      const struct scale *y)
{
	fprintf(out, "<polyline class=\"s%u d%u curve\" points=\"", index % SVG_COLOURS,
		index % SVG_DASHES);
	for (unsigned i = 0; i <= CURVE_STEPS; i++) {
		double nines = x->lo + (x->hi - x->lo) * i / CURVE_STEPS;
		double percent = 100 * (1 - pow(10, -nines));

		if (known(h, percent))
			fprintf(out, "%.1f,%.1f ", at(x, nines),
				at(y, MAX(perf_percentile_us(h, percent), 0.001)));
	}
	fputs("\"/>\n", out);
}

static void put_marks(FILE *out, const struct compare_row *row, unsigned index,
		      const struct scale *x, const struct scale *y)
{
	for (size_t i = 0; i < ARRAY_SIZE(marked); i++) {
		double us = perf_percentile_us(&row->latency, marked[i]);

		if (!known(&row->latency, marked[i]))
			continue;
		fprintf(out, "<circle class=\"s%u dot\" cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\"><title>",
			index % SVG_COLOURS, at(x, svg_nines(marked[i])), at(y, MAX(us, 0.001)));
		svg_text(out, row->path->name, 200);
		fprintf(out, ": P%g ", marked[i]);
		put_us(out, us);
		fputs("</title></circle>\n", out);
	}
}

static void put_legend(FILE *out, const char *name, unsigned index)
{
	double y = PLOT_TOP + 12 + 22.0 * index;

	fprintf(out,
		"<line class=\"s%u d%u curve\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n"
		"<text x=\"%.1f\" y=\"%.1f\"><title>",
		index % SVG_COLOURS, index % SVG_DASHES, PLOT_RIGHT + 14, y, PLOT_RIGHT + 50, y,
		PLOT_RIGHT + 57, y + 4);
	svg_text(out, name, 200);
	fputs("</title>", out);
	svg_text(out, name, LEGEND_CHARS);
	fputs("</text>\n", out);
}

void svg_latency_chart(FILE *out, const struct compare *c, const struct compare_block *b)
{
	struct scale x = { PLOT_LEFT, PLOT_RIGHT, svg_nines(50), svg_nines(99.99), false },
		     y = log_scale(c, b);
	double legend = PLOT_TOP + 24 + 22.0 * c->paths_n;

	open_svg(out, MAX(PLOT_BOTTOM + 48, legend), "Percentiles of the latency");
	put_axes(out, &x, &y);
	for (unsigned i = 0; i < c->paths_n; i++) {
		put_legend(out, c->paths[i].name, i);
		if (b->rows[i].latency.count == 0)
			continue;
		put_curve(out, &b->rows[i].latency, i, &x, &y);
		put_marks(out, &b->rows[i], i, &x, &y);
	}
	fputs("</svg>\n", out);
}
