/* The fake NVMe controller misbehaving as it is told: scripts, doorbells, interrupts, death. */
#include "fake/fake_nvme_rig.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "util/unit.h"

static void script(struct rig *r, enum fake_nvme_action action, unsigned n, unsigned times)
{
	const struct fake_nvme_rule rule = {
		.queue = FAKE_IO, .opcode = WIRE_IO_READ, .times = times, .action = action, .n = n
	};

	assert_true(fake_nvme_script(r->f, &rule) >= 0);
}

/* Submits a read of block lba; its CID. */
static uint16_t put_read(struct rig *r, uint64_t lba)
{
	struct wire_sqe sqe = rig_rw(r, WIRE_IO_READ, 1, lba, 1, r->data, RIG_BLOCK);

	return rig_put(r, 1, &sqe);
}

static uint16_t ring_read(struct rig *r, uint64_t lba)
{
	uint16_t cid = put_read(r, lba);

	rig_ring(r, 1);
	return cid;
}

static uint16_t do_abort(struct rig *r, unsigned qid, uint16_t cid, uint32_t *dw0)
{
	struct wire_sqe sqe = { .opc = WIRE_ADM_ABORT, .cdw10 = qid | (uint32_t)cid << 16 };

	return rig_run(r, 0, &sqe, dw0);
}

/* ---- scripts ---- */

static void commands_are_delayed_and_held(void **state)
{
	struct wire_cqe e;
	struct rig r;

	(void)state;
	rig_up(&r, fake_nvme_defaults());
	script(&r, FAKE_DELAY, 10, 1);
	script(&r, FAKE_HOLD, 0, 0);
	ring_read(&r, 0);
	for (unsigned i = 0; i < 10; i++)
		fake_nvme_turn(r.f);
	assert_false(rig_reap(&r, 1, &e));
	fake_nvme_turn(r.f);
	assert_true(rig_reap(&r, 1, &e));
	ring_read(&r, 0);
	ring_read(&r, 1);
	assert_int_equal(rig_wait(&r, 1, &e), NO_CQE);
	assert_int_equal(fake_nvme_held(r.f), 2);
	fake_nvme_release(r.f);
	assert_int_equal(rig_wait(&r, 1, &e), 0);
	assert_int_equal(rig_wait(&r, 1, &e), 0);
	assert_int_equal(fake_nvme_script_hits(r.f, 0), 1);
	assert_int_equal(fake_nvme_script_hits(r.f, 1), 2);
	rig_close_clean(&r);
}

static void commands_fail_as_told(void **state)
{
	struct fake_nvme_rule rule = { .queue = FAKE_IO,
				       .opcode = -1,
				       .lba = 100,
				       .lba_n = 8,
				       .skip = 1,
				       .times = 2,
				       .action = FAKE_STATUS,
				       .sct = 2,
				       .sc = 0x81,
				       .dnr = true };
	struct wire_cqe e;
	struct rig r;

	(void)state;
	rig_up(&r, fake_nvme_defaults());
	fake_nvme_script(r.f, &rule);
	assert_int_equal(rig_io(&r, WIRE_IO_READ, 99, 1, r.data), 0);
	assert_int_equal(rig_io(&r, WIRE_IO_READ, 100, 1, r.data), 0); /* skipped */
	ring_read(&r, 107);
	assert_int_equal(rig_wait(&r, 1, &e), 0x281);
	assert_int_equal(e.status >> 15, 1);
	assert_int_equal(rig_io(&r, WIRE_IO_WRITE, 92, 16, r.data), 0x281);
	assert_int_equal(rig_io(&r, WIRE_IO_READ, 100, 1, r.data), 0);
	rig_close_clean(&r);
}

static void dropped_commands_are_aborted_unless_deaf(void **state)
{
	struct fake_nvme_rule deaf = {
		.queue = FAKE_IO, .opcode = -1, .action = FAKE_DROP, .deaf = true
	};
	uint32_t dw0 = 9;
	struct wire_cqe e;
	uint16_t cid;
	struct rig r;

	(void)state;
	rig_up(&r, fake_nvme_defaults());
	script(&r, FAKE_DROP, 0, 1);
	cid = ring_read(&r, 0);
	assert_int_equal(rig_wait(&r, 1, &e), NO_CQE);
	assert_int_equal(do_abort(&r, 1, cid, &dw0), 0);
	assert_int_equal(dw0, 0);
	assert_int_equal(rig_wait(&r, 1, &e), WIRE_ABORTED);
	assert_int_equal(e.cid, cid);
	fake_nvme_script(r.f, &deaf);
	cid = ring_read(&r, 0);
	assert_int_equal(do_abort(&r, 1, cid, &dw0), 0);
	assert_int_equal(dw0, 1);
	assert_int_equal(rig_wait(&r, 1, &e), NO_CQE);
	rig_close_clean(&r);
}

static void completions_come_in_reverse(void **state)
{
	uint16_t first;
	struct wire_cqe e;
	struct rig r;

	(void)state;
	rig_up(&r, fake_nvme_defaults());
	script(&r, FAKE_REORDER, 4, 0);
	first = put_read(&r, 0);
	put_read(&r, 1);
	put_read(&r, 2);
	rig_ring(&r, 1);
	fake_nvme_settle(r.f);
	assert_false(rig_reap(&r, 1, &e));
	ring_read(&r, 3);
	for (unsigned i = 0; i < 4; i++) {
		assert_int_equal(rig_wait(&r, 1, &e), 0);
		assert_int_equal(e.cid, first + 3 - i);
	}
	ring_read(&r, 3); /* nobody follows, and it ends all the same */
	assert_int_equal(rig_wait(&r, 1, &e), 0);
	rig_close_clean(&r);
}

static void completions_are_wrong_as_told(void **state)
{
	struct wire_cqe e;
	uint16_t cid;
	struct rig r;

	(void)state;
	rig_up(&r, fake_nvme_defaults());
	script(&r, FAKE_BAD_CID, 0, 1);
	script(&r, FAKE_BAD_CID, 26219, 1);
	script(&r, FAKE_IDLE_CID, 0, 1);
	script(&r, FAKE_TWICE, 0, 1);
	script(&r, FAKE_BAD_SQHD, 0, 1);
	ring_read(&r, 0);
	assert_int_equal(rig_wait(&r, 1, &e), 0);
	assert_int_equal(e.cid, 16);
	ring_read(&r, 0);
	assert_int_equal(rig_wait(&r, 1, &e), 0);
	assert_int_equal(e.cid, 26219);
	cid = ring_read(&r, 0);
	assert_int_equal(rig_wait(&r, 1, &e), 0);
	assert_true(e.cid < 16 && e.cid > cid);
	cid = ring_read(&r, 0);
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(rig_wait(&r, 1, &e), 0);
		assert_int_equal(e.cid, cid);
	}
	ring_read(&r, 0);
	assert_int_equal(rig_wait(&r, 1, &e), 0);
	assert_int_equal(e.sqhd, 16);
	rig_close_clean(&r);
}

static void garbage_has_the_old_phase(void **state)
{
	struct wire_cqe e;
	struct rig r;

	(void)state;
	rig_up(&r, fake_nvme_defaults());
	script(&r, FAKE_BAD_PHASE, 5, 0);
	for (unsigned i = 0; i < 40; i++) {
		ring_read(&r, 0);
		fake_nvme_turn(r.f);
		assert_int_equal(r.q[1].cq[r.q[1].head].cid, 0xffff);
		assert_int_equal(rig_wait(&r, 1, &e), 0);
	}
	rig_close_clean(&r);
}

/* ---- death and resurrection ---- */

static void it_fails_for_good(void **state)
{
	struct fake_nvme_stats s;
	struct wire_cqe e;
	struct rig r;

	(void)state;
	rig_up(&r, fake_nvme_defaults());
	script(&r, FAKE_CFS, 0, 1);
	ring_read(&r, 0);
	assert_int_equal(rig_wait(&r, 1, &e), NO_CQE);
	assert_int_equal(rig_get(&r, WIRE_REG_CSTS), WIRE_CSTS_RDY | WIRE_CSTS_CFS);
	assert_true(rig_disable(&r));
	fake_nvme_never_ready(r.f, true);
	assert_false(rig_enable(&r));
	fake_nvme_never_ready(r.f, false);
	fake_nvme_turn(r.f);
	assert_int_equal(rig_get(&r, WIRE_REG_CSTS), WIRE_CSTS_RDY);
	assert_int_equal(fake_nvme_hw(r.f)->reset(fake_nvme_hw(r.f), NULL), 0);
	assert_int_equal(rig_get(&r, WIRE_REG_CC), 0);
	fake_nvme_stats(r.f, &s);
	assert_int_equal(s.resets, 1);
	assert_int_equal(s.sqs + s.cqs + s.outstanding + s.aers, 0);
	rig_close_clean(&r);
}

static sigjmp_buf out_of_here;

static void on_sigbus(int sig)
{
	(void)sig;
	siglongjmp(out_of_here, 1);
}

static bool raises_sigbus(struct rig *r)
{
	struct sigaction old, act = { .sa_handler = on_sigbus };
	volatile bool raised = true;

	sigaction(SIGBUS, &act, &old);
	if (!sigsetjmp(out_of_here, 1)) {
		rig_get(r, WIRE_REG_CSTS);
		raised = false;
	}
	sigaction(SIGBUS, &old, NULL);
	return raised;
}

static void it_vanishes_and_returns(void **state)
{
	struct err e;
	struct rig r;

	(void)state;
	rig_up(&r, fake_nvme_defaults());
	script(&r, FAKE_VANISH, 0, 1);
	script(&r, FAKE_TRUNCATE, 0, 1);
	rig_fill(r.data, RIG_BLOCK, 4);
	assert_int_equal(rig_io(&r, WIRE_IO_WRITE, 0, 1, r.data), 0);
	ring_read(&r, 0);
	fake_nvme_turn(r.f);
	assert_int_equal(rig_get(&r, WIRE_REG_CSTS), UINT32_MAX);
	rig_set(&r, WIRE_REG_CC, 0);
	fake_nvme_turn(r.f);
	assert_int_equal(rig_get(&r, WIRE_REG_CC), UINT32_MAX);
	assert_int_equal(fake_nvme_hw(r.f)->reset(fake_nvme_hw(r.f), &e), -ENODEV);
	fake_nvme_return(r.f);
	assert_false(raises_sigbus(&r));
	assert_int_equal(rig_get(&r, WIRE_REG_CSTS), 0);
	assert_true(rig_enable(&r));
	assert_int_equal(rig_queue_make(&r, 1, 16), 0);
	ring_read(&r, 0);
	fake_nvme_turn(r.f);
	assert_true(raises_sigbus(&r));
	fake_nvme_turn(r.f);
	fake_nvme_return(r.f);
	assert_true(rig_enable(&r));
	assert_int_equal(rig_queue_make(&r, 1, 16), 0);
	assert_int_equal(rig_io(&r, WIRE_IO_READ, 0, 1, r.data + 4096), 0);
	assert_memory_equal(r.data, r.data + 4096, RIG_BLOCK);
	rig_close_clean(&r);
}

/* ---- events ---- */

static void put_aer(struct rig *r)
{
	struct wire_sqe sqe = { .opc = WIRE_ADM_AER };

	rig_put(r, 0, &sqe);
	rig_ring(r, 0);
}

/* The first entries of the log of changed namespaces. */
static const uint32_t *changed(struct rig *r, bool retain)
{
	struct wire_sqe sqe = { .opc = WIRE_ADM_GET_LOG, .nsid = UINT32_MAX };

	sqe.cdw10 = WIRE_LOG_NS_CHANGED | 1023u << 16 | (retain ? 1u << 15 : 0);
	rig_prps(r, &sqe, r->data, 4096);
	assert_int_equal(rig_run(r, 0, &sqe, NULL), 0);
	return (const uint32_t *)(const void *)r->data;
}

static void namespaces_come_and_go(void **state)
{
	const struct fake_nvme_ns_config nine = { .nsid = 9, .blocks = 100, .lbads = 12 };
	struct wire_cqe e;
	struct rig r;

	(void)state;
	rig_up(&r, fake_nvme_defaults());
	put_aer(&r);
	assert_true(fake_nvme_ns_add(r.f, &nine));
	assert_int_equal(rig_wait(&r, 0, &e), NO_CQE); /* not enabled */
	assert_int_equal(changed(&r, false)[0], 9);
	assert_int_equal(rig_set_feature(&r, WIRE_FEAT_AER, 0x100, NULL), 0);
	assert_true(fake_nvme_ns_resize(r.f, 1, 10));
	assert_int_equal(rig_wait(&r, 0, &e), 0);
	assert_int_equal(e.dw0, 0x040002);
	put_aer(&r);
	assert_true(fake_nvme_ns_remove(r.f, 9)); /* masked until the log is read */
	assert_int_equal(rig_wait(&r, 0, &e), NO_CQE);
	assert_int_equal(changed(&r, true)[0], 1);
	assert_int_equal(changed(&r, true)[1], 9);
	assert_int_equal(rig_wait(&r, 0, &e), NO_CQE);
	assert_int_equal(changed(&r, false)[1], 9);
	assert_int_equal(changed(&r, true)[0], 0);
	fake_nvme_ns_changed(r.f, UINT32_MAX);
	assert_int_equal(rig_wait(&r, 0, &e), 0);
	assert_int_equal(changed(&r, false)[0], UINT32_MAX);
	assert_int_equal(rig_io(&r, WIRE_IO_READ, 10, 1, r.data), WIRE_LBA_RANGE);
	rig_close_clean(&r);
}

static void requests_for_events_are_counted(void **state)
{
	struct fake_nvme_stats s;
	struct wire_cqe e;
	uint32_t dw0;
	struct rig r;

	(void)state;
	rig_up(&r, fake_nvme_defaults());
	for (unsigned i = 0; i < 5; i++)
		put_aer(&r);
	assert_int_equal(rig_wait(&r, 0, &e), WIRE_AER_LIMIT);
	assert_int_equal(fake_nvme_faults(r.f), 1);
	fake_nvme_stats(r.f, &s);
	assert_int_equal(s.aers, 4);
	assert_int_equal(do_abort(&r, 0, 99, &dw0), 0);
	assert_int_equal(dw0, 1);
	assert_true(rig_disable(&r));
	fake_nvme_stats(r.f, &s);
	assert_int_equal(s.aers, 0);
	rig_close(&r);
}

/* ---- shadow doorbells ---- */

static struct fake_nvme_config with_dbbuf(void)
{
	struct fake_nvme_config c = fake_nvme_defaults();

	c.oacs |= WIRE_OACS_DBBUF;
	return c;
}

static void shadow_doorbells_spare_registers(void **state)
{
	unsigned random = 1, n = 0, rung;
	struct fake_nvme_stats s;
	struct wire_cqe e;
	struct rig r;

	(void)state;
	rig_up(&r, with_dbbuf());
	rung = r.rung;
	for (unsigned round = 0; round < 20000; round++) {
		for (unsigned i = random >> 16 & 3; i; i--, n++)
			ring_read(&r, n % 8);
		for (unsigned i = random >> 20 & 7; i; i--)
			fake_nvme_turn(r.f);
		while (n && rig_reap(&r, 1, &e))
			n--;
		while (n > 8 && rig_wait(&r, 1, &e) == 0)
			n--;
		assert_true(n <= 8);
		random = random * 1103515245u + 12345u;
	}
	fake_nvme_stats(r.f, &s);
	assert_true(s.io[WIRE_IO_READ] > 20000);
	assert_true(r.rung - rung < s.io[WIRE_IO_READ]);
	rig_close_clean(&r);
}

static void who_cheats_with_shadow_doorbells_hangs(void **state)
{
	struct wire_cqe e;
	struct rig r;

	(void)state;
	rig_up(&r, with_dbbuf());
	ring_read(&r, 0);
	fake_nvme_turn(r.f); /* awake, and EventIdx lies behind */
	assert_true(rig_reap(&r, 1, &e));
	r.no_barrier = true;
	ring_read(&r, 0);
	assert_int_equal(rig_wait(&r, 1, &e), NO_CQE);
	rig_close_clean(&r);
}

/* ---- interrupts ---- */

static uint64_t count_of(int fd)
{
	uint64_t n = 0;

	return read(fd, &n, sizeof(n)) == sizeof(n) ? n : 0;
}

static void vectors_are_signalled_masked_and_lost(void **state)
{
	int fds[2] = { -1, eventfd(0, EFD_NONBLOCK) };
	volatile le32 *control;
	struct nvme_hw *hw;
	struct rig r;

	(void)state;
	rig_up(&r, fake_nvme_defaults());
	hw = fake_nvme_hw(r.f);
	assert_int_equal(hw->set_vectors(hw, fds, 2, NULL), 0);
	assert_int_equal(rig_io(&r, WIRE_IO_READ, 0, 1, r.data), 0);
	assert_int_equal(count_of(fds[1]), 1);
	control = hw->vector_control(hw, 1);
	WRITE_ONCE(*control, to_le32(1));
	assert_int_equal(rig_io(&r, WIRE_IO_READ, 0, 1, r.data), 0);
	assert_int_equal(count_of(fds[1]), 0);
	WRITE_ONCE(*control, 0);
	fake_nvme_turn(r.f);
	assert_int_equal(count_of(fds[1]), 1);
	script(&r, FAKE_LOSE_INTERRUPT, 0, 1);
	assert_int_equal(rig_io(&r, WIRE_IO_READ, 0, 1, r.data), 0);
	fake_nvme_settle(r.f);
	assert_int_equal(count_of(fds[1]), 0);
	assert_int_equal(hw->set_vectors(hw, NULL, 0, NULL), 0);
	assert_int_equal(rig_io(&r, WIRE_IO_READ, 0, 1, r.data), 0);
	assert_int_equal(count_of(fds[1]), 0);
	close(fds[1]);
	rig_close_clean(&r);
}

/* ---- the thread ---- */

static bool soon(struct rig *r, struct wire_cqe *e)
{
	time_t end = time(NULL) + 20;

	while (!rig_reap(r, 1, e)) {
		if (time(NULL) > end)
			return false;
		sched_yield();
	}
	return true;
}

static void commands_are_served(struct rig *r, unsigned rounds)
{
	struct wire_cqe e;

	for (unsigned i = 0; i < rounds; i++) {
		for (unsigned j = 0; j < 5; j++)
			put_read(r, 100 + j);
		rig_ring(r, 1);
		for (unsigned j = 0; j < 5; j++)
			assert_true(soon(r, &e));
		assert_int_equal(e.status >> 1, 0);
	}
}

static void a_thread_serves_it(void **state)
{
	struct fake_nvme_seen seen;
	struct rig r;

	(void)state;
	for (unsigned shadow = 0; shadow < 2; shadow++) {
		rig_up(&r, shadow ? with_dbbuf() : fake_nvme_defaults());
		assert_int_equal(fake_nvme_start(r.f), 0);
		commands_are_served(&r, 3000);
		assert_true(fake_nvme_seen(r.f, 0, &seen));
		assert_true(seen.number > 15000);
		assert_int_equal(seen.slba, 104);
		assert_false(fake_nvme_seen(r.f, 256, &seen));
		fake_nvme_stop(r.f);
		rig_close_clean(&r);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(commands_are_delayed_and_held),
		cmocka_unit_test(commands_fail_as_told),
		cmocka_unit_test(dropped_commands_are_aborted_unless_deaf),
		cmocka_unit_test(completions_come_in_reverse),
		cmocka_unit_test(completions_are_wrong_as_told),
		cmocka_unit_test(garbage_has_the_old_phase),
		cmocka_unit_test(it_fails_for_good),
		cmocka_unit_test(it_vanishes_and_returns),
		cmocka_unit_test(namespaces_come_and_go),
		cmocka_unit_test(requests_for_events_are_counted),
		cmocka_unit_test(shadow_doorbells_spare_registers),
		cmocka_unit_test(who_cheats_with_shadow_doorbells_hangs),
		cmocka_unit_test(vectors_are_signalled_masked_and_lost),
		cmocka_unit_test(a_thread_serves_it),
	};

	return RUN_TESTS(tests);
}
