/* The arithmetic of riffle perf compare: pure functions of samples. A sample that is missing is
 * NAN and takes no part. */
#ifndef CMD_COMPARE_STATS_H
#define CMD_COMPARE_STATS_H

struct compare_summary {
	unsigned n; /* 0: nothing else is set */
	double median, min, max;
	double mad; /* median of the distances from the median */
};

/* At most 100 values. */
void compare_summarize(const double *v, unsigned n, struct compare_summary *s);

/* out[i] = v[i] / base[i], where both are there and base[i] is not 0; else NAN. */
void compare_ratios(const double *v, const double *base, unsigned n, double *out);

/* Which of n paths is the i-th of a round: A B C, then C B A, so that a steady drift of the machine
 * cancels out. */
unsigned compare_turn(unsigned round, unsigned i, unsigned n);

#endif
