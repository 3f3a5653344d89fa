#include <math.h>

#include "util/unit.h"

#include "cmd/compare_stats.h"
#include "util/compiler.h"

static void near(double a, double b)
{
	if (!(fabs(a - b) <= 1e-9))
		fail_msg("%g is not %g", a, b);
}

static void test_summary_of_an_odd_number(void **state)
{
	const double v[] = { 5, 1, 100, 3, 4 };
	struct compare_summary s;

	(void)state;
	compare_summarize(v, ARRAY_SIZE(v), &s);
	assert_int_equal(s.n, 5);
	near(s.median, 4);
	near(s.min, 1);
	near(s.max, 100);
	near(s.mad, 1); /* 1 3 96 1 0 */
}

static void test_summary_of_an_even_number(void **state)
{
	const double v[] = { 4, 1, 3, 2 };
	struct compare_summary s;

	(void)state;
	compare_summarize(v, ARRAY_SIZE(v), &s);
	near(s.median, 2.5);
	near(s.mad, 1); /* 1.5 1.5 0.5 0.5 */
}

static void test_summary_leaves_out_what_is_missing(void **state)
{
	const double v[] = { NAN, 7, NAN }, none[] = { NAN };
	struct compare_summary s;

	(void)state;
	compare_summarize(v, ARRAY_SIZE(v), &s);
	assert_int_equal(s.n, 1);
	near(s.median, 7);
	near(s.mad, 0);
	compare_summarize(none, 1, &s);
	assert_int_equal(s.n, 0);
	compare_summarize(NULL, 0, &s);
	assert_int_equal(s.n, 0);
}

static void test_summary_of_the_most(void **state)
{
	double v[100];
	struct compare_summary s;

	(void)state;
	for (unsigned i = 0; i < 100; i++)
		v[i] = (double)(i * 37 % 100);
	compare_summarize(v, 100, &s);
	near(s.median, 49.5);
	near(s.min, 0);
	near(s.max, 99);
	near(s.mad, 25);
}

/* Ratios are of one round: a machine that halves its speed changes none of them. */
static void test_ratios_are_paired(void **state)
{
	const double base[] = { 100, 50, 200, NAN, 0 }, v[] = { 150, 75, 300, 10, 10 };
	double out[5];

	(void)state;
	compare_ratios(v, base, 5, out);
	for (unsigned i = 0; i < 3; i++)
		near(out[i], 1.5);
	assert_true(isnan(out[3]) && isnan(out[4]));
	compare_ratios(base, base, 2, out);
	near(out[0], 1);
}

static void test_turns_alternate(void **state)
{
	unsigned place[2][3];

	(void)state;
	for (unsigned round = 0; round < 2; round++)
		for (unsigned i = 0; i < 3; i++)
			place[round][compare_turn(round, i, 3)] = i;
	for (unsigned path = 0; path < 3; path++)
		assert_int_equal(place[0][path] + place[1][path], 2);
	assert_int_equal(compare_turn(0, 1, 2), 1);
	assert_int_equal(compare_turn(3, 1, 2), 0);
	assert_int_equal(compare_turn(5, 0, 1), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_summary_of_an_odd_number),
		cmocka_unit_test(test_summary_of_an_even_number),
		cmocka_unit_test(test_summary_leaves_out_what_is_missing),
		cmocka_unit_test(test_summary_of_the_most),
		cmocka_unit_test(test_ratios_are_paired),
		cmocka_unit_test(test_turns_alternate),
	};

	return RUN_TESTS(tests);
}
