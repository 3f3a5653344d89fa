/* The histogram's promises: no value is reported more than 1 % off, whatever its size; merging
 * adds. */
#include "util/hist.h"
#include "util/compiler.h"
#include "util/unit.h"

static struct hist a, b;

static double error_of(uint64_t value)
{
	uint64_t got;

	hist_reset(&a);
	hist_add(&a, value);
	hist_add(&a, UINT64_MAX); /* so that neither min nor max gives the answer away */
	hist_add(&a, 0);
	got = hist_percentile(&a, 50);
	return value ? ((double)got - (double)value) / (double)value : (double)got;
}

/* The values around each power of two and its fractions, where buckets begin and end. */
static void no_value_is_off_by_one_percent(void **state)
{
	(void)state;
	for (uint64_t v = 0; v < 5000; v++)
		assert_true(error_of(v) <= 0.01 && error_of(v) >= -0.01);
	for (unsigned shift = 12; shift < 64; shift++)
		for (unsigned part = 0; part < 64; part++)
			for (int near = -2; near <= 2; near++) {
				uint64_t v = (1ull << shift) + ((1ull << shift) / 64) * part +
					     (uint64_t)near;

				assert_true(error_of(v) <= 0.01 && error_of(v) >= -0.01);
			}
}

static void merging_adds(void **state)
{
	struct hist *both = calloc(1, sizeof(*both));

	(void)state;
	hist_reset(&a);
	hist_reset(&b);
	hist_reset(both);
	for (uint64_t i = 1; i <= 10000; i++) {
		hist_add(i % 3 ? &a : &b, i * i);
		hist_add(both, i * i);
	}
	hist_merge(&a, &b);
	assert_memory_equal(&a, both, sizeof(a));
	hist_reset(&b);
	hist_merge(&a, &b);
	assert_memory_equal(&a, both, sizeof(a));
	free(both);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(no_value_is_off_by_one_percent),
		cmocka_unit_test(merging_adds),
	};

	return RUN_TESTS(tests);
}
