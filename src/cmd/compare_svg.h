/* The charts of riffle perf compare's report: inline SVG without scripts, styled by the page's
 * classes s0..s7 (colours) and d0..d4 (dashes). */
#ifndef CMD_COMPARE_SVG_H
#define CMD_COMPARE_SVG_H

#include <stdio.h>

#include "cmd/compare.h"

#define SVG_COLOURS 8
#define SVG_DASHES  5

/* Text for HTML and XML: markup is escaped, and what is not a printable character of UTF-8 becomes
 * a question mark. At most max characters; what is cut ends in an ellipsis. */
void svg_text(FILE *out, const char *text, unsigned max);

/* Number of nines of a percentile: 90 gives 1, 99 gives 2. Below 100. */
double svg_nines(double percent);

/* Ticks of a logarithmic axis within [lo, hi], lo > 0: 1, 2 and 5 of each decade, or only 1 when
 * those would be many. Returns how many, at most max. */
unsigned svg_log_ticks(double lo, double hi, double *ticks, unsigned max);

/* The distance of ticks of a linear axis from 0 to at least v: 1, 2 or 5 times a power of ten, 4 to
 * 10 of them. */
double svg_linear_step(double v);

/* Each sample as a dot, the median as a bar, a row per path. */
void svg_iops_chart(FILE *out, const struct compare *c, const struct compare_block *b);

/* Percentiles, by number of nines, against latency. */
void svg_latency_chart(FILE *out, const struct compare *c, const struct compare_block *b);

#endif
