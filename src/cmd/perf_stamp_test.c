/* The verify job's stamps: what is written is recognized, what is changed is seen. */
#include "cmd/perf_stamp.h"
#include "util/unit.h"

#define SIZE 4096

static _Alignas(8) unsigned char block[SIZE], other[SIZE];

/* RFC 3720 B.4, and the usual "123456789". */
static void crc32c_is_that_of_the_rfc(void **state)
{
	unsigned char data[32];

	(void)state;
	assert_int_equal(crc32c(0, "123456789", 9), 0xe3069283);
	memset(data, 0, sizeof(data));
	assert_int_equal(crc32c(0, data, sizeof(data)), 0x8a9136aa);
	memset(data, 0xff, sizeof(data));
	assert_int_equal(crc32c(0, data, sizeof(data)), 0x62a8ab43);
	for (unsigned i = 0; i < sizeof(data); i++)
		data[i] = (unsigned char)i;
	assert_int_equal(crc32c(0, data, sizeof(data)), 0x46dd794e);
	assert_int_equal(crc32c(crc32c(0, data, 13), data + 13, sizeof(data) - 13), 0x46dd794e);
}

static void a_stamp_is_recognized(void **state)
{
	struct stamp_found f;

	(void)state;
	stamp_fill(block, SIZE, 7, 1 << 20, 42);
	stamp_examine(block, SIZE, &f);
	assert_int_equal(f.state, STAMP_WHOLE);
	assert_int_equal(f.run, 7);
	assert_int_equal(f.offset, 1 << 20);
	assert_int_equal(f.generation, 42);
	assert_int_equal(stamp_words_of(block, SIZE, 7, 1 << 20, 42), SIZE / 8 - 4);
	assert_true(stamp_words_of(block, SIZE, 7, 1 << 20, 41) < 3);
}

static void any_flipped_bit_is_seen(void **state)
{
	struct stamp_found f;

	(void)state;
	stamp_fill(block, SIZE, 7, 512, 1);
	for (unsigned i = 0; i < SIZE * 8; i += 7) {
		block[i / 8] ^= (unsigned char)(1u << i % 8);
		stamp_examine(block, SIZE, &f);
		assert_int_not_equal(f.state, STAMP_WHOLE);
		block[i / 8] ^= (unsigned char)(1u << i % 8);
	}
	stamp_examine(block, SIZE, &f);
	assert_int_equal(f.state, STAMP_WHOLE);
}

static void half_a_block_is_broken(void **state)
{
	struct stamp_found f;

	(void)state;
	stamp_fill(block, SIZE, 7, 512, 1);
	stamp_fill(other, SIZE, 7, 512, 2);
	memcpy(block, other, SIZE / 2);
	stamp_examine(block, SIZE, &f);
	assert_int_equal(f.state, STAMP_BROKEN);
	assert_int_equal(f.generation, 2);
	assert_int_equal(stamp_words_of(block, SIZE, 7, 512, 2), SIZE / 16 - 4);
}

static void what_is_no_stamp_is_told_apart(void **state)
{
	struct stamp_found f;

	(void)state;
	memset(block, 0, SIZE);
	stamp_examine(block, SIZE, &f);
	assert_int_equal(f.state, STAMP_ZEROES);
	block[SIZE - 1] = 1;
	stamp_examine(block, SIZE, &f);
	assert_int_equal(f.state, STAMP_NONE);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(crc32c_is_that_of_the_rfc),
		cmocka_unit_test(a_stamp_is_recognized),
		cmocka_unit_test(any_flipped_bit_is_seen),
		cmocka_unit_test(half_a_block_is_broken),
		cmocka_unit_test(what_is_no_stamp_is_told_apart),
	};

	stamp_init();
	return RUN_TESTS(tests);
}
