/*
 * NVMe queue pairs under load: full ones, who shares them, doorbells and their shadows.
 *
 * Of the reports about NVMe drivers this is 110; nvme_bringup_test.c says where the others are.
 */
#include <errno.h>

#include "mem/mem.h"
#include "nvme/rig.h"

static uint64_t seed = 0x9e3779b97f4a7c15;

static uint32_t some(uint32_t below)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return (uint32_t)((seed >> 20) % below);
}

/* --- queues --- */

/* More requests than the queue holds: all end, and those in line go out in their order. */
static void a_full_queue(void **state)
{
	static const unsigned entries[] = { 2, 3, 8, 33 };

	(void)state;
	for (unsigned i = 0; i < ARRAY_SIZE(entries); i++) {
		struct rig r;
		struct fake_nvme_config c = rig_config(&r);
		struct fake_nvme_seen s;

		r.entries = entries[i];
		rig_open(&r, &c);
		assert_int_equal(fake_nvme_sq_size(r.fake, 1), entries[i]);
		for (unsigned k = 0; k < RIG_IO_MAX; k++)
			rig_submit(&r, k, BDEV_READ, k * 512, r.data + k * 512, 512, 0);
		for (unsigned k = 0; k < RIG_IO_MAX; k++)
			assert_int_equal(rig_wait(&r, k), 0);
		for (unsigned k = 0; k < RIG_IO_MAX; k++) {
			assert_true(fake_nvme_seen(r.fake, k, &s));
			assert_int_equal(s.slba, RIG_IO_MAX - 1 - k);
		}
		assert_true(rig_stats(&r).most_outstanding < entries[i]);
		rig_close(&r);
	}
}

/* Queues of one reactor share a queue pair, whatever their namespace; another reactor's do not. */
static void reactors_share_nothing(void **state)
{
	struct rig r;
	struct fake_nvme_config c = rig_config(&r);
	struct bdev_queue *q[4];
	struct bdev *b;
	cpu_set_t set;
	struct err e = { 0 };

	(void)state;
	CPU_ZERO(&set);
	CPU_SET(0, &set);
	assert_int_equal(reactors_start(&set, &e), 0);
	c.ns[1] = (struct fake_nvme_ns_config){ .nsid = 2, .blocks = 1024, .lbads = 12 };
	c.ns_n = 2;
	rig_open(&r, &c);
	assert_int_equal(bdev_get("Nn2", &b, &e), 0);
	assert_int_equal(bdev_queue_open(b, r.reactor, &q[0], &e), 0);
	assert_int_equal(bdev_queue_open(r.bdev, r.reactor, &q[1], &e), 0);
	assert_int_equal(rig_stats(&r).sqs, 1);
	assert_int_equal(bdev_queue_open(b, reactors_at(0), &q[2], &e), 0);
	assert_int_equal(bdev_queue_open(r.bdev, reactors_at(0), &q[3], &e), 0);
	assert_int_equal(rig_stats(&r).sqs, 2);
	assert_int_not_equal(fake_nvme_cq_vector(r.fake, 1), fake_nvme_cq_vector(r.fake, 2));
	bdev_queue_close(q[3]);
	assert_int_equal(rig_stats(&r).sqs, 2);
	bdev_queue_close(q[2]);
	assert_int_equal(rig_stats(&r).sqs, 1);
	bdev_queue_close(q[0]);
	bdev_queue_close(q[1]);
	assert_int_equal(rig_run(&r, BDEV_WRITE, 0, r.data + 4, 65536, 0), 0);
	bdev_put(b);
	rig_close(&r);
	reactors_stop();
}

static void batch(struct rig *r, enum bdev_op op, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		rig_submit(r, i, op, i * UINT64_C(4096), r->data + i * 4096, 4096, 0);
	for (unsigned i = 0; i < n; i++)
		assert_int_equal(rig_wait(r, i), 0);
}

static void one_doorbell_per_turn(void **state)
{
	struct fake_nvme_stats before, after;
	struct rig r;
	struct fake_nvme_config c = rig_config(&r);

	(void)state;
	rig_open(&r, &c);
	batch(&r, BDEV_READ, 32);
	before = rig_stats(&r);
	for (int i = 0; i < 200; i++)
		batch(&r, BDEV_READ, 32);
	after = rig_stats(&r);
	assert_int_equal(after.io[2] - before.io[2], 200 * 32);
	assert_int_equal(after.sq_doorbells - before.sq_doorbells, 200);
	assert_int_equal(r.q->stats.doorbells, 201);
	rig_close(&r);
}

/* --- shadow doorbells: NVME 110 --- */

static void reset_under_load(struct rig *r)
{
	for (unsigned i = 0; i < 32; i++)
		rig_submit(r, i, BDEV_READ, i * UINT64_C(4096), r->data + i * 4096, 4096, 0);
	rig_reset(r);
	for (unsigned i = 0; i < 32; i++)
		assert_int_equal(rig_wait(r, i), 0);
	assert_int_equal(rig_reset_wait(r), 0);
}

static void load(struct rig *r, unsigned n)
{
	while (n > 0) {
		unsigned most = 1 + some(some(2) ? 4 : RIG_IO_MAX), depth = MIN(n, most);

		batch(r, some(2) ? BDEV_READ : BDEV_WRITE, depth);
		n -= depth;
	}
}

/* NVME 110: no command is lost with a controller that only looks when it is told to. */
static void shadow_doorbells(void **state)
{
	static const unsigned entries[] = { 256, 2, 3, 5, 64, 4096 };
	static const unsigned patience[] = { 4, 0, 1, 0, 20, 0 };

	(void)state;
	for (unsigned i = 0; i < ARRAY_SIZE(entries); i++) {
		struct rig r;
		struct fake_nvme_config c = rig_config(&r);
		uint64_t told;

		c.mqes = 4095;
		c.oacs |= 1u << 8;
		c.dbbuf_patience = patience[i];
		r.entries = entries[i];
		rig_open(&r, &c);
		assert_true(rig_stats(&r).shadow);
		load(&r, 10000);
		reset_under_load(&r);
		assert_true(rig_stats(&r).shadow);
		load(&r, 10000);
		told = rig_stats(&r).sq_doorbells;
		assert_true(told < rig_stats(&r).turns);
		rig_close(&r);
	}
}

/* NVME 110: a queue that is made anew begins at 0, and so must its shadows: what the device has
 * asked to be told of before counts no more. */
static void shadows_of_a_queue_made_anew(void **state)
{
	struct rig r;
	struct fake_nvme_config c = rig_config(&r);
	struct fake_nvme_rule deaf = { .queue = FAKE_IO,
				       .opcode = 2,
				       .qid = -1,
				       .skip = 40,
				       .times = 1,
				       .action = FAKE_DROP,
				       .deaf = true };

	(void)state;
	c.oacs |= 1u << 8;
	c.dbbuf_patience = 1000;
	rig_timeout_ms(300);
	rig_open(&r, &c);
	for (unsigned i = 0; i < 20; i++) {
		batch(&r, BDEV_WRITE, 1 + i % 7);
		deaf.skip = i;
		fake_nvme_script_clear(r.fake);
		if (i % 5 == 0)
			assert_int_equal(fake_nvme_script(r.fake, &deaf), 0);
		batch(&r, BDEV_READ, 33);
		bdev_queue_close(r.q); /* and one that is deleted and made again in good order */
		for (unsigned k = 0; k < RIG_IO_MAX; k++)
			rig_io_free(&r.io[k]);
		bdev_put(r.bdev);
		dma_free(r.data, RIG_BUFFER);
		rig_use(&r);
	}
	assert_int_equal(rig_mends(NULL).rebuilds, 4);
	assert_int_equal(rig_mends(NULL).resets, 0);
	rig_timeout_ms(30000);
	rig_close(&r);
}

/* Shadows that the controller offers and refuses, or that have no room in a page, are done without.
 */
static void shadows_that_cannot_be(void **state)
{
	static const uint8_t dstrd[] = { 0, 8, 9, 10, 15 };

	(void)state;
	for (unsigned i = 0; i < ARRAY_SIZE(dstrd); i++) {
		struct rig r;
		struct fake_nvme_config c = rig_config(&r);
		struct fake_nvme_rule refuse = { .queue = FAKE_ADMIN,
						 .opcode = 0x7c,
						 .qid = -1,
						 .action = FAKE_STATUS,
						 .sc = 2 };

		c.oacs |= 1u << 8;
		c.dstrd = dstrd[i];
		rig_power(&r, &c);
		if (dstrd[i] == 0)
			assert_int_equal(fake_nvme_script(r.fake, &refuse), 0);
		assert_int_equal(rig_attach(&r, &(struct err){ 0 }), 0);
		rig_use(&r);
		assert_int_equal(rig_stats(&r).shadow, dstrd[i] == 8);
		load(&r, 1000);
		rig_close(&r);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_full_queue),
		cmocka_unit_test(reactors_share_nothing),
		cmocka_unit_test(one_doorbell_per_turn),
		cmocka_unit_test(shadow_doorbells),
		cmocka_unit_test(shadows_of_a_queue_made_anew),
		cmocka_unit_test(shadows_that_cannot_be),
	};

	return RUN_TESTS(tests);
}
