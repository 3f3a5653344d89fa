/* The small parts: histograms, CPU sets, UUIDs, iovecs, checked arithmetic, the mailbox. */
#include <errno.h>

#include "util/bytes.h"
#include "util/cpumask.h"
#include "util/hist.h"
#include "util/iov.h"
#include "util/mpsc.h"
#include "util/unit.h"
#include "util/uuid.h"

static int compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

/* Percentiles agree with a sorted array within 1 %, over ten orders of magnitude. */
static void percentiles_agree_with_a_sorted_array(void **state)
{
	enum { N = 20000 };
	static const double percents[] = { 0, 1, 10, 50, 90, 99, 99.9, 99.99, 100 };
	uint64_t *values = calloc(N, sizeof(*values)), seed = 7;
	struct hist *h = malloc(sizeof(*h));

	(void)state;
	hist_reset(h);
	for (size_t i = 0; i < N; i++) {
		seed = seed * 6364136223846793005ull + 1442695040888963407ull;
		values[i] = (seed >> 20) >> (seed % 40);
		hist_add(h, values[i]);
	}
	qsort(values, N, sizeof(*values), compare);
	for (size_t i = 0; i < ARRAY_SIZE(percents); i++) {
		size_t rank = (size_t)(N * percents[i] / 100.0 + 0.999999);
		double want = (double)values[rank ? rank - 1 : 0],
		       got = (double)hist_percentile(h, percents[i]);

		assert_true(got >= want * 0.99 - 1 && got <= want * 1.01 + 1);
	}
	assert_int_equal(h->min, values[0]);
	assert_int_equal(h->max, values[N - 1]);
	free(values);
	free(h);
}

static void histogram_takes_extremes(void **state)
{
	struct hist *h = malloc(sizeof(*h));

	(void)state;
	hist_reset(h);
	assert_int_equal(hist_percentile(h, 50), 0);
	assert_int_equal(hist_mean(h), 0);
	hist_add(h, 0);
	hist_add(h, UINT64_MAX);
	assert_int_equal(hist_percentile(h, 50), 0);
	assert_int_equal(hist_percentile(h, 100), UINT64_MAX);
	free(h);
}

static void cpu_sets_are_parsed(void **state)
{
	static const struct {
		const char *text, *list; /* NULL: refused */
	} sets[] = {
		{ "0x1", "0" },	  { "3", "0-1" },   { "0xA", "1,3" }, { "[0,2-4]", "0,2-4" },
		{ "1-2", "1-2" }, { "0,5", "0,5" }, { "[7]", "7" },   { "", NULL },
		{ "0", NULL },	  { "0x", NULL },   { "[", NULL },    { "[1,]", NULL },
		{ "1-", NULL },	  { "4-2", NULL },  { "xyz", NULL },  { "[99999]", NULL },
		{ "0x1 ", NULL }, { "[1]2", NULL }, { "-1", NULL },
	};
	char text[64];

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(sets); i++) {
		struct err e = { 0 };
		cpu_set_t set;
		int rc = cpumask_parse(sets[i].text, &set, &e);

		assert_int_equal(rc, sets[i].list ? 0 : -EINVAL);
		if (rc == 0)
			assert_string_equal(cpumask_format_list(&set, text, sizeof(text)),
					    sets[i].list);
	}
}

static void cpu_masks_are_written(void **state)
{
	char text[64];
	cpu_set_t set;

	(void)state;
	assert_int_equal(cpumask_parse("[0,4-5]", &set, NULL), 0);
	assert_string_equal(cpumask_format(&set, text, sizeof(text)), "0x31");
}

static void uuids_round_trip(void **state)
{
	const char *text = "4ccbbc5a-26af-4e02-8bd5-86fe1cb14577";
	char out[UUID_TEXT];
	struct uuid u, v;

	(void)state;
	assert_true(uuid_parse(text, &u));
	uuid_format(&u, out);
	assert_string_equal(out, text);
	assert_false(uuid_parse("4ccbbc5a-26af-4e02-8bd5-86fe1cb1457", &v));
	assert_false(uuid_parse("4ccbbc5a-26af-4e02-8bd5-86fe1cb145777", &v));
	assert_false(uuid_parse("4ccbbc5a26af-4e02-8bd5-86fe1cb145777-", &v));
	uuid_random(&u);
	uuid_random(&v);
	assert_memory_not_equal(&u, &v, sizeof(u));
	assert_false(uuid_is_null(&u));
}

static void iovecs_are_cut_and_copied(void **state)
{
	char a[] = "abc", b[] = "defgh", flat[16] = "";
	struct iovec iov[] = { { a, 3 }, { b, 0 }, { b, 5 } }, out[2];

	(void)state;
	assert_int_equal(iov_len(iov, 3), 8);
	assert_int_equal(iov_copy_out(iov, 3, 2, flat, 4), 4);
	assert_string_equal(flat, "cdef");
	assert_int_equal(iov_copy_out(iov, 3, 6, flat, 9), 2);
	assert_int_equal(iov_copy_in(iov, 3, 1, "XYZ", 3), 3);
	assert_string_equal(a, "aXY");
	assert_string_equal(b, "Zefgh");
	assert_int_equal(iov_slice(iov, 3, 1, 4, out, 2), 2);
	assert_ptr_equal(out[0].iov_base, a + 1);
	assert_int_equal(out[1].iov_len, 2);
	assert_int_equal(iov_slice(iov, 3, 0, 8, out, 1), -1);
	assert_int_equal(iov_slice(iov, 3, 8, 0, out, 1), 0);
}

static void alignment_is_seen(void **state)
{
	struct iovec iov[] = { { (void *)4096, 512 }, { (void *)8192, 1024 } };

	(void)state;
	assert_true(iov_aligned(iov, 2, 512, 512));
	iov[1].iov_len = 1025;
	assert_false(iov_aligned(iov, 2, 512, 512));
	iov[1] = (struct iovec){ (void *)8193, 512 };
	assert_false(iov_aligned(iov, 2, 512, 512));
	assert_true(iov_aligned(iov, 2, 1, 512));
}

static void ranges_do_not_wrap(void **state)
{
	(void)state;
	assert_true(range_fits(0, 10, 10));
	assert_true(range_fits(10, 0, 10));
	assert_false(range_fits(11, 0, 10));
	assert_false(range_fits(5, UINT64_MAX, 10));
	assert_false(range_fits(UINT64_MAX, 2, 10));
	assert_true(range_wraps(UINT64_MAX, 1));
	assert_false(range_wraps(UINT64_MAX - 1, 1));
	assert_false(ranges_overlap(0, 10, 10, 10));
	assert_true(ranges_overlap(0, 11, 10, 10));
}

static void mail_comes_in_order(void **state)
{
	struct mpsc q = { NULL };
	struct mpsc_node n[3], *m;

	(void)state;
	assert_true(mpsc_empty(&q));
	assert_null(mpsc_take(&q));
	for (int i = 0; i < 3; i++)
		mpsc_push(&q, &n[i]);
	m = mpsc_take(&q);
	for (int i = 0; i < 3; i++, m = m->next)
		assert_ptr_equal(m, &n[i]);
	assert_null(m);
	assert_true(mpsc_empty(&q));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(percentiles_agree_with_a_sorted_array),
		cmocka_unit_test(histogram_takes_extremes),
		cmocka_unit_test(cpu_sets_are_parsed),
		cmocka_unit_test(cpu_masks_are_written),
		cmocka_unit_test(uuids_round_trip),
		cmocka_unit_test(iovecs_are_cut_and_copied),
		cmocka_unit_test(alignment_is_seen),
		cmocka_unit_test(ranges_do_not_wrap),
		cmocka_unit_test(mail_comes_in_order),
	};

	return RUN_TESTS(tests);
}
