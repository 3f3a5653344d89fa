#include <math.h>

#include "util/unit.h"

#include "cmd/compare_svg.h"
#include "util/compiler.h"

static void escapes_to(const char *text, unsigned max, const char *wanted)
{
	char *got = NULL;
	size_t size;
	FILE *f = open_memstream(&got, &size);

	svg_text(f, text, max);
	fclose(f);
	assert_string_equal(got, wanted);
	free(got);
}

static void test_markup_is_escaped(void **state)
{
	(void)state;
	escapes_to("a<b>&\"c'", 100, "a&lt;b&gt;&amp;&quot;c&#39;");
	escapes_to("</title><script>", 100, "&lt;/title&gt;&lt;script&gt;");
	escapes_to("", 100, "");
}

static void test_only_characters_pass(void **state)
{
	(void)state;
	escapes_to("µ…𝄞", 100, "µ…𝄞");
	escapes_to("a\x01\n\x7f", 100, "a???");
	escapes_to("\xff\xfe\xc3", 100, "???");
	escapes_to("\xed\xa0\x80", 100, "???");
	escapes_to("\xc2\x80x", 100, "??x");
}

static void test_long_text_is_cut(void **state)
{
	(void)state;
	escapes_to("abcdef", 6, "abcdef");
	escapes_to("abcdefg", 6, "abcde…");
	escapes_to("µµµ", 3, "µµµ");
	escapes_to("µµµµ", 3, "µµ…");
}

static void test_nines(void **state)
{
	(void)state;
	assert_true(fabs(svg_nines(90) - 1) < 1e-9);
	assert_true(fabs(svg_nines(99.99) - 4) < 1e-9);
	assert_true(fabs(svg_nines(50) - 0.30103) < 1e-5);
}

static void test_ticks_lie_within_the_axis(void **state)
{
	double t[64];
	unsigned n = svg_log_ticks(8, 130, t, ARRAY_SIZE(t));

	(void)state;
	assert_int_equal(n, 4); /* 10 20 50 100 */
	assert_true(fabs(t[0] - 10) < 1e-9 && fabs(t[3] - 100) < 1e-9);
	n = svg_log_ticks(0.9, 100000, t, ARRAY_SIZE(t));
	assert_int_equal(n, 6);
	assert_int_equal(svg_log_ticks(1, 1000, t, 2), 2);
}

static void test_linear_steps(void **state)
{
	const double tops[] = { 1, 7, 9.99, 43, 100, 250000, 3.2e6, 0.04 };

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(tops); i++) {
		double step = svg_linear_step(tops[i]), n = ceil(tops[i] / step - 1e-9);

		if (n < 4 || n > 10)
			fail_msg("%g has %g steps of %g", tops[i], n, step);
	}
	assert_true(svg_linear_step(0) > 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_markup_is_escaped),
		cmocka_unit_test(test_only_characters_pass),
		cmocka_unit_test(test_long_text_is_cut),
		cmocka_unit_test(test_nines),
		cmocka_unit_test(test_ticks_lie_within_the_axis),
		cmocka_unit_test(test_linear_steps),
	};

	return RUN_TESTS(tests);
}
