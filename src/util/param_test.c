#include "util/param.h"

#include <errno.h>

#include "util/unit.h"

struct args {
	char *name;
	uint64_t size, blocks;
	int64_t offset;
	bool fast;
	struct uuid uuid;
	struct param_strings list;
	uint64_t fixed;
};

static const struct param table[] = {
	PARAM_STRING(struct args, name, .required = true, .positional = true, .min = 1, .max = 8,
		     .help = "its name"),
	PARAM_UINT(struct args, size, .alias = "bytes", .min = 10, .max = 1 << 20, .def = 100),
	PARAM_UINT(struct args, blocks, .required = true, .unless = "size", .help = "how many"),
	PARAM_INT(struct args, offset),
	PARAM_BOOL(struct args, fast),
	PARAM_UUID(struct args, uuid),
	PARAM_STRINGS(struct args, list),
	PARAM_UINT(struct args, fixed, .fixed = true),
	{ 0 },
};

static void defaults_are_those_of_the_table(void **state)
{
	struct args a = { 0 };

	(void)state;
	param_defaults(table, &a);
	assert_int_equal(a.size, 100);
	assert_false(a.fast);
	assert_null(a.name);
}

static void a_spec_is_decoded(void **state)
{
	struct args a = { 0 };
	struct err e = { 0 };

	(void)state;
	assert_int_equal(param_parse_spec(table, &a,
					  "disk,bytes=4K,offset=-3,fast=yes,list=a,list=b", &e),
			 0);
	assert_string_equal(a.name, "disk");
	assert_int_equal(a.size, 4096);
	assert_int_equal(a.offset, -3);
	assert_true(a.fast);
	assert_int_equal(a.list.n, 2);
	assert_string_equal(a.list.v[1], "b");
	param_free(table, &a);
	assert_null(a.name);
}

/* Each of these is refused, and the field is named. */
static void bad_specs_are_refused_by_name(void **state)
{
	static const struct {
		const char *spec, *field;
	} bad[] = {
		{ "size=9", "size" },
		{ "size=2M", "size" },
		{ "size=x", "size" },
		{ "size=-1", "size" },
		{ "size=1.5", "size" },
		{ "nine_chars", "name" },
		{ "name=", "name" },
		{ "fast=maybe", "fast" },
		{ "uuid=1234", "uuid" },
		{ "disk,what=1", "what" },
		{ "fixed=1", "fixed" },
		{ "offset=1x", "offset" },
		{ "size=99999999999999999999", "size" },
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		struct args a = { 0 };
		struct err e = { 0 };

		assert_true(param_parse_spec(table, &a, bad[i].spec, &e) < 0);
		assert_string_equal(e.field, bad[i].field);
		assert_true(strlen(e.text) > 10);
		param_free(table, &a);
	}
}

static void what_is_required_is_missed(void **state)
{
	struct err e = { 0 };

	(void)state;
	assert_int_equal(param_check_required(table, 0, &e), -EINVAL);
	assert_string_equal(e.field, "name");
	assert_int_equal(param_check_required(table, 1, &e), -EINVAL);
	assert_string_equal(e.field, "blocks");
	/* size stands for blocks */
	assert_int_equal(param_check_required(table, 1 | 2, &e), 0);
	assert_int_equal(param_check_required(table, 1 | 4, &e), 0);
}

static void sizes_are_parsed(void **state)
{
	static const struct {
		const char *text;
		bool ok;
		uint64_t value;
	} sizes[] = {
		{ "0", true, 0 },	    { "512", true, 512 },      { "0x10", true, 16 },
		{ "4k", true, 4096 },	    { "1M", true, 1 << 20 },   { "2GiB", true, 2ull << 30 },
		{ "1T", true, 1ull << 40 }, { "3MB", true, 3 << 20 },  { "", false, 0 },
		{ "K", false, 0 },	    { "-1", false, 0 },	       { "1X", false, 0 },
		{ "1Mx", false, 0 },	    { "99999999P", false, 0 }, { "1 M", false, 0 },
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
		uint64_t v = 12345;

		assert_int_equal(size_parse(sizes[i].text, &v), sizes[i].ok);
		assert_int_equal(v, sizes[i].ok ? sizes[i].value : 12345);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(defaults_are_those_of_the_table),
		cmocka_unit_test(a_spec_is_decoded),
		cmocka_unit_test(bad_specs_are_refused_by_name),
		cmocka_unit_test(what_is_required_is_missed),
		cmocka_unit_test(sizes_are_parsed),
	};

	return RUN_TESTS(tests);
}
