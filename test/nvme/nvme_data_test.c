/*
 * Data between odd buffers and NVMe namespaces of all kinds: PRPs and SGLs, which the controller
 * checks to the letter, requests cut at MDTS and NOIOB, and flags.
 *
 * Of the reports about NVMe drivers these are 98 and 111; nvme_bringup_test.c says where the
 * others are.
 */
#include <errno.h>

#include "nvme/rig.h"

#define HALF	 (RIG_BUFFER / 2)
#define LANES	 8u
#define LANE_LEN (256u << 10)

static uint64_t seed = 0x9e3779b97f4a7c15;

static uint32_t some(uint32_t below)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return (uint32_t)((seed >> 20) % below);
}

static void fill(uint8_t *p, size_t len)
{
	uint32_t x = some(0x7fffffff) | 1;

	for (size_t i = 0; i < len; i++) {
		x = x * 1664525 + 1013904223;
		p[i] = (uint8_t)(x >> 24);
	}
}

/* --- one piece: NVME 98 --- */

static void one_piece(struct rig *r, uint32_t start, uint32_t len, uint64_t offset)
{
	uint8_t *out = r->data + start, *in = r->data + HALF + start;

	*(uint32_t *)(void *)(out + len / 2 / 4 * 4) ^= len + start;
	memset(in, 0, len);
	assert_int_equal(rig_run(r, BDEV_WRITE, offset, out, len, 0), 0);
	assert_int_equal(rig_run(r, BDEV_READ, offset, in, len, 0), 0);
	assert_memory_equal(in, out, len);
}

/* NVME 98: where data start in a page, how long they are, how long commands may be. */
static void page_sets(void **state)
{
	static const uint32_t starts[] = { 0, 4, 512, 2048, 0xffc };
	static const uint32_t pages[] = { 1, 2, 3, 31, 256, 511, 512 };

	(void)state;
	for (uint8_t mdts = 0; mdts <= 10; mdts++) {
		struct rig r;
		struct fake_nvme_config c = rig_config(&r);

		c.mdts = mdts == 10 ? 31 : mdts;
		rig_open(&r, &c);
		fill(r.data, HALF);
		for (unsigned s = 0; s < ARRAY_SIZE(starts); s++) {
			one_piece(&r, starts[s], 512, 0);
			for (unsigned p = 0; p < ARRAY_SIZE(pages); p++)
				for (uint32_t len = pages[p] * 4096 - 512;
				     len <= pages[p] * 4096 + 512; len += 512)
					one_piece(&r, starts[s], len, 1024);
		}
		rig_close(&r);
	}
}

/* The lowest and the highest block of a namespace of 2^53 blocks, whose numbers need 64 bits. */
static void blocks_beyond_32_bits(void **state)
{
	struct rig r;
	struct fake_nvme_config c = rig_config(&r);
	uint64_t end = UINT64_C(1) << 62;
	uint8_t back[4096];

	(void)state;
	c.ns[0].blocks = end >> 9;
	rig_open(&r, &c);
	assert_int_equal(r.bdev->size, end);
	fill(r.data, 1u << 20);
	for (uint64_t at = 4096; at <= end / 2; at *= 2)
		one_piece(&r, 4, 4096, at - 2048);
	one_piece(&r, 0, 65536, end - 65536);
	assert_true(fake_nvme_peek(r.fake, 1, end - 4096, back, 4096));
	assert_memory_equal(back, r.data + 65536 - 4096, 4096);
	assert_int_equal(rig_run(&r, BDEV_READ, end - 512, r.data, 1024, 0), -ERANGE);
	assert_int_equal(rig_run(&r, BDEV_READ, UINT64_MAX - 511, r.data, 1024, 0), -ERANGE);
	assert_int_equal(rig_run(&r, BDEV_DISCARD, end - 4096, NULL, 4096, 0), 0);
	assert_int_equal(rig_run(&r, BDEV_DISCARD, 0, NULL, 0xfffffe00, 0), 0);
	assert_int_equal(rig_run(&r, BDEV_WRITE_ZEROES, end - 65536, NULL, 4096, 0), 0);
	rig_close(&r);
}

/* --- many pieces: NVME 111 --- */

/* n pieces of these lengths, at odd distances from one another. */
static uint32_t lay_out(struct iovec *iov, uint8_t *at, const uint32_t *len, unsigned n)
{
	uint32_t sum = 0;

	for (unsigned i = 0; i < n; i++) {
		iov[i] = (struct iovec){ at, len[i] };
		at += len[i] + 4 * (i % 5 + 1);
		sum += len[i];
	}
	return sum;
}

static void put(struct rig *r, const uint32_t *len, unsigned n, uint64_t offset)
{
	struct rig_io *ri = &r->io[0];
	uint32_t sum = lay_out(ri->iov, r->data + 4, len, n);
	uint8_t *whole = malloc(sum);
	size_t at = 0;

	for (unsigned i = 0; i < n; at += len[i++])
		memcpy(whole + at, ri->iov[i].iov_base, len[i]);
	rig_start(ri, BDEV_WRITE, offset, ri->iov, n, sum, 0);
	assert_int_equal(rig_wait(r, 0), 0);
	for (unsigned i = 0; i < n; i++)
		memset(ri->iov[i].iov_base, 0xee, len[i]);
	rig_start(ri, BDEV_READ, offset, ri->iov, n, sum, 0);
	assert_int_equal(rig_wait(r, 0), 0);
	at = 0;
	for (unsigned i = 0; i < n; at += len[i++])
		assert_memory_equal(ri->iov[i].iov_base, whole + at, len[i]);
	assert_int_equal(rig_run(r, BDEV_READ, offset, r->data + HALF, sum, 0), 0);
	assert_memory_equal(r->data + HALF, whole, sum);
	free(whole);
}

static void pieces_of(struct rig *r)
{
	static const uint32_t reported[] = { 700, 700, 700, 1996 };
	static const uint32_t blocks[] = { 512, 512, 1024, 4096, 512 };
	static const uint32_t odd[] = { 1, 3, 511, 513, 4096, 7, 4573, 1, 535 };
	uint32_t small[64], pages[16];

	for (unsigned i = 0; i < ARRAY_SIZE(small); i++)
		small[i] = 4;
	small[63] = 4096 - 63 * 4;
	for (unsigned i = 0; i < ARRAY_SIZE(pages); i++)
		pages[i] = i % 2 ? 4096 - 4 : 4096 + 4;
	for (uint64_t offset = 0; offset <= 3584; offset += 512) {
		fill(r->data, 1u << 20);
		put(r, reported, ARRAY_SIZE(reported), offset);
		put(r, blocks, ARRAY_SIZE(blocks), offset);
		put(r, odd, ARRAY_SIZE(odd), offset);
		put(r, small, ARRAY_SIZE(small), offset);
		put(r, pages, ARRAY_SIZE(pages), offset);
	}
}

/* NVME 111: pieces that do not end where blocks do, with SGLs and without, cut at NOIOB and MDTS.
 */
static void pieces_across_blocks(void **state)
{
	static const uint16_t noiob[] = { 0, 1, 7, 8, 100, 65535 };
	static const uint8_t mdts[] = { 0, 1, 5 };

	(void)state;
	for (unsigned i = 0; i < 3 * 3 * ARRAY_SIZE(noiob); i++) {
		struct rig r;
		struct fake_nvme_config c = rig_config(&r);

		c.sgls = i % 3;
		c.mdts = mdts[i / 3 % 3];
		c.ns[0].noiob = noiob[i / 9];
		rig_open(&r, &c);
		pieces_of(&r);
		assert_int_equal(rig_stats(&r).crossings, 0);
		if (c.ns[0].noiob)
			one_piece(&r, 4, 65536, 512);
		assert_int_equal(rig_stats(&r).crossings, 0);
		rig_close(&r);
	}
}

/* --- against a model --- */

/* Each lane has its own part of the disk, its own buffer and one request at a time. */
struct lane {
	struct rig_io *io;
	uint64_t start; /* on the disk */
	uint8_t *model, *buffer;
	enum bdev_op op;
	uint32_t at, len;
};

/* 1 to 64 pieces of a lane's buffer, in order, at any addresses. */
static unsigned cut(struct lane *l, uint32_t len)
{
	unsigned n = 1 + some(64), i;
	bool odd = some(3) == 0;
	uint8_t *at = l->buffer + (odd ? some(5000) : some(1250) * 4);

	for (i = 0; i < n && len > 0; i++) {
		uint32_t part = i == n - 1 ? len : 1 + some(len);

		if (!odd)
			part = MIN(len, (part + 3) & ~3u);
		l->io->iov[i] = (struct iovec){ at, part };
		at += part + (odd ? some(300) : some(75) * 4);
		len -= part;
	}
	return i;
}

static void check_or_take(struct lane *l, unsigned n, bool check)
{
	uint8_t *m = l->model + l->at;

	for (unsigned i = 0; i < n; i++) {
		const struct iovec *v = &l->io->iov[i];

		if (check)
			assert_memory_equal(v->iov_base, m, v->iov_len);
		else
			memcpy(m, v->iov_base, v->iov_len);
		m += v->iov_len;
	}
}

static void lane_done(struct lane *l)
{
	assert_int_equal(l->io->status, 0);
	assert_int_equal(l->io->completions, 1);
	if (l->op == BDEV_READ)
		check_or_take(l, l->io->io->iovcnt, true);
}

static void lane_start(struct lane *l, uint32_t block)
{
	static const enum bdev_op ops[] = { BDEV_READ,	  BDEV_WRITE,	     BDEV_WRITE, BDEV_READ,
					    BDEV_DISCARD, BDEV_WRITE_ZEROES, BDEV_FLUSH };
	uint32_t blocks = LANE_LEN / block, first = some(blocks);
	unsigned n = 0;

	l->op = ops[some(ARRAY_SIZE(ops))];
	l->at = first * block;
	l->len = (1 + some(some(2) ? MIN(blocks - first, 8) : blocks - first)) * block;
	if (l->op <= BDEV_WRITE)
		n = cut(l, l->len);
	if (l->op == BDEV_WRITE) {
		for (unsigned i = 0; i < n; i++)
			fill(l->io->iov[i].iov_base, l->io->iov[i].iov_len);
		check_or_take(l, n, false);
	} else if (l->op == BDEV_FLUSH) {
		l->at = l->len = 0;
	} else if (l->op >= BDEV_DISCARD) {
		memset(l->model + l->at, 0, l->len);
	}
	rig_start(l->io, l->op, l->op == BDEV_FLUSH ? 0 : l->start + l->at, n ? l->io->iov : NULL,
		  n, l->len,
		  l->op == BDEV_WRITE && some(4) == 0	  ? BDEV_FUA
		  : l->op == BDEV_WRITE_ZEROES && some(2) ? BDEV_NO_UNMAP
							  : 0);
}

static void play(struct rig *r, unsigned requests)
{
	struct lane lane[LANES];
	uint8_t *far = malloc(LANE_LEN * 2); /* no device reaches it */
	uint8_t *back = malloc(LANE_LEN);

	for (unsigned i = 0; i < LANES; i++)
		lane[i] = (struct lane){ .io = &r->io[i],
					 .start = i * (uint64_t)LANE_LEN,
					 .model = calloc(1, LANE_LEN),
					 .buffer = i ? r->data + (i - 1) * 2 * LANE_LEN : far };
	while (requests > 0) {
		for (unsigned i = 0; i < LANES; i++) {
			if (!lane[i].io->done)
				continue;
			if (lane[i].io->completions)
				lane_done(&lane[i]);
			lane_start(&lane[i], r->bdev->block_size);
			requests -= requests > 0;
		}
		reactor_turn(r->reactor);
	}
	for (unsigned i = 0; i < LANES; i++) {
		(void)rig_wait(r, i);
		lane_done(&lane[i]);
		assert_true(fake_nvme_peek(r->fake, 1, lane[i].start, back, LANE_LEN));
		assert_memory_equal(back, lane[i].model, LANE_LEN);
		free(lane[i].model);
	}
	free(back);
	free(far);
}

static void random_requests(void **state)
{
	static const uint16_t noiob[] = { 0, 24, 0, 13 };

	(void)state;
	for (unsigned i = 0; i < 12; i++) {
		struct rig r;
		struct fake_nvme_config c = rig_config(&r);

		c.sgls = i % 3;
		c.mdts = i % 4 == 1 ? 2 : 5;
		c.mqes = i % 4 == 2 ? 3 : 255;
		c.ns[0].lbads = i & 1 ? 12 : 9;
		c.ns[0].blocks = LANES * LANE_LEN >> c.ns[0].lbads;
		c.ns[0].noiob = noiob[i % 4];
		c.ns[0].dlfeat = i % 2 ? 1 : 9;
		c.mpsmin = i == 7 ? 1 : 0;
		c.oacs |= i >= 6 ? 1u << 8 : 0;
		c.oncs &= i == 9 ? (uint16_t)~8u : 0xffff; /* zeroes are written */
		seed = 0x1234567 + i;
		rig_open(&r, &c);
		play(&r, 700);
		assert_int_equal(rig_stats(&r).crossings, 0);
		rig_close(&r);
	}
}

/* --- flags --- */

static struct fake_nvme_seen seen(struct rig *r)
{
	struct fake_nvme_seen s;

	assert_true(fake_nvme_seen(r->fake, 0, &s));
	return s;
}

/* CDW12 of the Write Zeroes that this makes. */
static uint32_t zeroes_with(uint8_t dlfeat, uint8_t flags)
{
	struct rig r;
	struct fake_nvme_config c = rig_config(&r);
	uint32_t cdw12;

	c.ns[0].dlfeat = dlfeat;
	rig_open(&r, &c);
	assert_int_equal(rig_run(&r, BDEV_WRITE_ZEROES, 4096, NULL, 8192, flags), 0);
	assert_int_equal(seen(&r).opcode, 0x08);
	assert_int_equal(seen(&r).slba, 8);
	assert_int_equal(seen(&r).blocks, 16);
	cdw12 = seen(&r).cdw[12];
	rig_close(&r);
	return cdw12;
}

static void deallocation_only_where_it_reads_zeroes(void **state)
{
	const uint32_t deac = 1u << 25;

	(void)state;
	for (uint8_t dlfeat = 0; dlfeat < 16; dlfeat++)
		assert_int_equal(zeroes_with(dlfeat, 0) & deac, dlfeat == 9 ? deac : 0);
	assert_int_equal(zeroes_with(9, BDEV_NO_UNMAP) & deac, 0);
}

static void flags_reach_the_device(void **state)
{
	struct rig r;
	struct fake_nvme_config c = rig_config(&r);

	(void)state;
	c.vwc = true;
	rig_open(&r, &c);
	assert_int_equal(rig_run(&r, BDEV_WRITE, 512, r.data, 512, BDEV_FUA), 0);
	assert_true(seen(&r).opcode == 1 && seen(&r).fua && seen(&r).slba == 1);
	assert_int_equal(rig_run(&r, BDEV_WRITE, 512, r.data, 512, 0), 0);
	assert_true(!seen(&r).fua);
	assert_int_equal(rig_run(&r, BDEV_WRITE, 0, r.data + 1, 65536 * 4, BDEV_FUA), 0);
	assert_true(seen(&r).fua); /* pieces have it, too */
	assert_int_equal(rig_run(&r, BDEV_FLUSH, 0, NULL, 0, 0), 0);
	assert_true(seen(&r).opcode == 0 && seen(&r).nsid == 1);
	assert_true(seen(&r).cdw[10] == 0 && seen(&r).cdw[12] == 0);
	assert_int_equal(rig_run(&r, BDEV_DISCARD, 4096, NULL, 4096, 0), 0);
	assert_true(seen(&r).opcode == 9 && seen(&r).cdw[10] == 0 && seen(&r).cdw[11] == 4);
	rig_close(&r);
}

/* What the controller does not offer is not asked of it. */
static void commands_that_are_not_offered(void **state)
{
	struct rig r;
	struct fake_nvme_config c = rig_config(&r);
	static const uint8_t zero[8192];

	(void)state;
	c.oncs = 0;
	rig_open(&r, &c);
	fill(r.data, 8192);
	assert_int_equal(rig_run(&r, BDEV_WRITE, 0, r.data, 8192, 0), 0);
	assert_int_equal(rig_run(&r, BDEV_DISCARD, 0, NULL, 8192, 0), -EOPNOTSUPP);
	assert_int_equal(rig_run(&r, BDEV_WRITE_ZEROES, 0, NULL, 8192, 0), 0);
	assert_int_equal(rig_run(&r, BDEV_READ, 0, r.data, 8192, 0), 0);
	assert_memory_equal(r.data, zero, 8192);
	assert_int_equal(rig_stats(&r).io[8] + rig_stats(&r).io[9], 0);
	rig_close(&r);
}

static void a_read_only_namespace(void **state)
{
	struct rig r;
	struct fake_nvme_config c = rig_config(&r);

	(void)state;
	c.ns[0].read_only = true;
	rig_open(&r, &c);
	assert_int_equal(rig_run(&r, BDEV_WRITE, 0, r.data, 512, 0), -EROFS);
	assert_int_equal(rig_run(&r, BDEV_DISCARD, 0, NULL, 512, 0), -EROFS);
	assert_int_equal(rig_run(&r, BDEV_WRITE_ZEROES, 0, NULL, 512, 0), -EROFS);
	assert_int_equal(rig_run(&r, BDEV_READ, 0, r.data, 512, 0), 0);
	rig_close(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(page_sets),
		cmocka_unit_test(blocks_beyond_32_bits),
		cmocka_unit_test(pieces_across_blocks),
		cmocka_unit_test(random_requests),
		cmocka_unit_test(deallocation_only_where_it_reads_zeroes),
		cmocka_unit_test(flags_reach_the_device),
		cmocka_unit_test(commands_that_are_not_offered),
		cmocka_unit_test(a_read_only_namespace),
	};

	return RUN_TESTS(tests);
}
