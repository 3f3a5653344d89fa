#include "cmd/compare_stats.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "util/compiler.h"

#define VALUES_MAX 100

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* v is sorted. */
static double middle(const double *v, unsigned n)
{
	return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

void compare_summarize(const double *v, unsigned n, struct compare_summary *s)
{
	double sorted[VALUES_MAX];

	assert(n <= VALUES_MAX);
	*s = (struct compare_summary){ 0 };
	for (unsigned i = 0; i < n; i++)
		if (!isnan(v[i]))
			sorted[s->n++] = v[i];
	if (s->n == 0)
		return;
	qsort(sorted, s->n, sizeof(*sorted), by_value);
	s->min = sorted[0];
	s->max = sorted[s->n - 1];
	s->median = middle(sorted, s->n);
	for (unsigned i = 0; i < s->n; i++)
		sorted[i] = fabs(sorted[i] - s->median);
	qsort(sorted, s->n, sizeof(*sorted), by_value);
	s->mad = middle(sorted, s->n);
}

void compare_ratios(const double *v, const double *base, unsigned n, double *out)
{
	for (unsigned i = 0; i < n; i++)
		out[i] = isnan(v[i]) || isnan(base[i]) || base[i] <= 0 ? NAN : v[i] / base[i];
}

unsigned compare_turn(unsigned round, unsigned i, unsigned n)
{
	return round % 2 ? n - 1 - i : i;
}
