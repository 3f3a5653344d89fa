/*
 * What is done about NVMe controllers that misbehave, step by step: Abort, a new queue, a reset,
 * failure; and that no request is lost, ends twice, or is told to be durable when it is not.
 */
#include <errno.h>

#include "nvme/rig.h"

#define BLOCK 4096u
#define DEPTH 32u

static void fill(uint8_t *p, size_t len, unsigned seed)
{
	for (size_t i = 0; i < len; i++)
		p[i] = (uint8_t)(i * 131 + seed * 29 + (i >> 8));
}

static void submit_many(struct rig *r, enum bdev_op op, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		rig_submit(r, i, op, i * (uint64_t)BLOCK, r->data + i * (size_t)BLOCK, BLOCK, 0);
	reactor_turn(r->reactor);
}

/* How many end with status, of n; all must end. */
static unsigned wait_many(struct rig *r, unsigned n, int status)
{
	unsigned with = 0;

	for (unsigned i = 0; i < n; i++) {
		with += rig_wait(r, i) == status;
		assert_int_equal(r->io[i].completions, 1);
	}
	return with;
}

static int add_rule(struct rig *r, struct fake_nvme_rule rule)
{
	int id;

	rule.queue = rule.queue ? rule.queue : FAKE_IO;
	rule.qid = rule.qid ? rule.qid : -1;
	id = fake_nvme_script(r->fake, &rule);
	assert_true(id >= 0);
	return id;
}

static void open_quick(struct rig *r, unsigned timeout_ms)
{
	struct fake_nvme_config c = rig_config(r);

	rig_timeout_ms(timeout_ms);
	rig_open(r, &c);
}

/* A reset that somebody asks for. */
static int reset_here(struct rig *r)
{
	rig_reset(r);
	return rig_reset_wait(r);
}

/* --- all is well --- */

static void everything_works(void **state)
{
	struct rig r;
	uint8_t *back;

	(void)state;
	open_quick(&r, 5000);
	back = r.data + (2u << 20);
	fill(r.data, 1u << 20, 1);
	assert_int_equal(rig_run(&r, BDEV_WRITE, 512, r.data, 1u << 20, 0), 0);
	assert_int_equal(rig_run(&r, BDEV_FLUSH, 0, NULL, 0, 0), 0);
	assert_int_equal(rig_run(&r, BDEV_READ, 512, back, 1u << 20, 0), 0);
	assert_memory_equal(r.data, back, 1u << 20);
	assert_int_equal(rig_run(&r, BDEV_WRITE_ZEROES, 1024, NULL, 8192, 0), 0);
	assert_int_equal(rig_run(&r, BDEV_DISCARD, 16384, NULL, 65536, 0), 0);
	assert_int_equal(rig_run(&r, BDEV_READ, 0, back, 16384, 0), 0);
	memset(r.data + 512, 0, 8192);
	assert_memory_equal(r.data, back + 512, 16384 - 512);
	rig_close(&r);
}

/* Pieces at any address and of any length: with SGLs where they lie, else copied. */
static void odd_buffers(void **state)
{
	for (unsigned sgls = 0; sgls <= 1; sgls++) {
		static const struct {
			unsigned at, len;
		} pieces[] = { { 4, 700 }, { 9001, 700 }, { 20003, 1 }, { 30000, 2695 } };
		struct rig r;
		struct fake_nvme_config c = rig_config(&r);
		uint8_t whole[4096];
		size_t n = 0;

		(void)state;
		c.sgls = sgls;
		rig_open(&r, &c);
		fill(r.data, 65536, 3);
		for (unsigned i = 0; i < ARRAY_SIZE(pieces); i++) {
			memcpy(whole + n, r.data + pieces[i].at, pieces[i].len);
			n += pieces[i].len;
		}
		assert_int_equal(n, 4096);
		rig_submit(&r, 0, BDEV_WRITE, 8192, r.data, 4096, 0);
		(void)rig_wait(&r, 0);
		r.io[0].done = false;
		r.io[0].completions = 0;
		for (unsigned i = 0; i < ARRAY_SIZE(pieces); i++)
			r.io[0].iov[i] = (struct iovec){ r.data + pieces[i].at, pieces[i].len };
		r.io[0].io->iovcnt = ARRAY_SIZE(pieces);
		bdev_submit(r.io[0].io);
		assert_int_equal(rig_wait(&r, 0), 0);
		assert_int_equal(rig_run(&r, BDEV_READ, 8192, r.data + (1u << 20), 4096, 0), 0);
		assert_memory_equal(whole, r.data + (1u << 20), 4096);
		rig_close(&r);
	}
}

/* Memory that no device reaches is copied. */
static void unreachable_memory(void **state)
{
	static uint8_t out[300000], in[300000];
	struct rig r;

	(void)state;
	open_quick(&r, 5000);
	fill(out, sizeof(out), 5);
	assert_int_equal(rig_run(&r, BDEV_WRITE, 0, out, 299520, 0), 0);
	assert_int_equal(rig_run(&r, BDEV_READ, 0, in, 299520, 0), 0);
	assert_memory_equal(in, out, 299520);
	rig_close(&r);
}

/* Submission queues in the controller's memory, as many as there is room for. */
static void queues_in_the_controllers_memory(void **state)
{
	for (size_t size = 4096; size <= 1u << 20; size *= 16) {
		struct rig r;
		struct fake_nvme_config c = rig_config(&r);

		(void)state;
		c.cmb_size = size;
		c.cmb_for = 1;
		rig_open(&r, &c);
		assert_true(rig_ctrl()->cmb != NULL);
		fill(r.data, DEPTH * BLOCK, 21);
		submit_many(&r, BDEV_WRITE, DEPTH);
		assert_int_equal(wait_many(&r, DEPTH, 0), DEPTH);
		memset(r.data, 0, DEPTH * BLOCK);
		submit_many(&r, BDEV_READ, DEPTH);
		assert_int_equal(wait_many(&r, DEPTH, 0), DEPTH);
		fill(r.data + (1u << 20), DEPTH * BLOCK, 21);
		assert_memory_equal(r.data, r.data + (1u << 20), DEPTH * BLOCK);
		assert_int_equal(reset_here(&r), 0);
		submit_many(&r, BDEV_READ, DEPTH);
		assert_int_equal(wait_many(&r, DEPTH, 0), DEPTH);
		rig_close(&r);
	}
}

/* A drive that keeps its tables in our memory gets it, again after a reset, and gives it back. */
static void the_host_lends_memory(void **state)
{
	struct rig r;
	struct fake_nvme_config c = rig_config(&r);

	(void)state;
	c.hmpre = 1024;
	c.hmmin = 16;
	rig_open(&r, &c);
	assert_int_equal(fake_nvme_feature(r.fake, 0x0d) & 1, 1);
	assert_int_equal(rig_ctrl()->hmb_len, 1024 * 4096);
	assert_int_equal(reset_here(&r), 0);
	assert_int_equal(fake_nvme_feature(r.fake, 0x0d) & 3, 3);
	assert_int_equal(rig_run(&r, BDEV_READ, 0, r.data, BLOCK, 0), 0);
	rig_close(&r);
}

/* --- the volatile cache --- */

static void power_fails(struct rig *r)
{
	fake_nvme_power_off(r->fake);
	rig_turn_ms(r, 50);
	fake_nvme_power_on(r->fake);
}

static void stored(struct rig *r, uint64_t offset, uint8_t *back, size_t len)
{
	assert_true(fake_nvme_peek(r->fake, 1, offset, back, len));
}

/* A FLUSH that has completed survives the loss of power, and so does FUA; what was not flushed need
 * not. */
static void flush_and_fua_are_durable(void **state)
{
	uint8_t back[BLOCK], zero[BLOCK] = { 0 };
	struct rig r;

	(void)state;
	open_quick(&r, 5000);
	fill(r.data, BLOCK, 7);
	assert_int_equal(rig_run(&r, BDEV_WRITE, 0, r.data, BLOCK, 0), 0);
	assert_int_equal(rig_run(&r, BDEV_FLUSH, 0, NULL, 0, 0), 0);
	assert_int_equal(rig_run(&r, BDEV_WRITE, BLOCK, r.data, BLOCK, BDEV_FUA), 0);
	assert_int_equal(rig_run(&r, BDEV_WRITE, 2 * BLOCK, r.data, BLOCK, 0), 0);
	assert_true(fake_nvme_dirty(r.fake));
	power_fails(&r);
	stored(&r, 0, back, BLOCK);
	assert_memory_equal(back, r.data, BLOCK);
	stored(&r, BLOCK, back, BLOCK);
	assert_memory_equal(back, r.data, BLOCK);
	stored(&r, 2 * BLOCK, back, BLOCK);
	assert_memory_equal(back, zero, BLOCK); /* or the test would prove nothing */
	rig_close(&r);
}

/* Without a volatile cache FLUSH has nothing to do, and no command is spent on it. */
static void no_cache_no_flush(void **state)
{
	struct rig r;
	struct fake_nvme_config c = rig_config(&r);

	(void)state;
	c.vwc = false;
	rig_open(&r, &c);
	assert_int_equal(rig_run(&r, BDEV_FLUSH, 0, NULL, 0, 0), 0);
	assert_int_equal(rig_stats(&r).io[0], 0);
	rig_close(&r);
}

/* --- the ladder --- */

/* An I/O that is late is aborted and sent again. */
static void a_late_io_is_aborted(void **state)
{
	struct nvme_mends m;
	struct rig r;

	(void)state;
	open_quick(&r, 300);
	fill(r.data, DEPTH * BLOCK, 9);
	add_rule(&r, (struct fake_nvme_rule){
			     .opcode = 1, .skip = 5, .times = 1, .action = FAKE_DROP });
	submit_many(&r, BDEV_WRITE, DEPTH);
	assert_int_equal(wait_many(&r, DEPTH, 0), DEPTH);
	m = rig_mends(NULL);
	assert_int_equal(m.aborts, 1);
	assert_int_equal(m.rebuilds + m.resets, 0);
	assert_int_equal(rig_run(&r, BDEV_READ, 0, r.data + (1u << 20), DEPTH * BLOCK, 0), 0);
	assert_memory_equal(r.data, r.data + (1u << 20), DEPTH * BLOCK);
	rig_close(&r);
}

/* One that stays late when it was aborted costs its queue; the others on it are sent again, too. */
static void a_deaf_queue_is_made_anew(void **state)
{
	struct nvme_mends m;
	struct rig r;

	(void)state;
	open_quick(&r, 300);
	add_rule(&r,
		 (struct fake_nvme_rule){
			 .opcode = -1, .skip = 7, .times = 2, .action = FAKE_DROP, .deaf = true });
	submit_many(&r, BDEV_WRITE, DEPTH);
	assert_int_equal(wait_many(&r, DEPTH, 0), DEPTH);
	m = rig_mends(NULL);
	assert_true(m.aborts >= 2);
	assert_int_equal(m.rebuilds, 1);
	assert_int_equal(m.resets, 0);
	rig_close(&r);
}

/* A queue that cannot even be deleted costs a reset. */
static void a_stuck_queue_costs_a_reset(void **state)
{
	enum nvme_state s;
	struct nvme_mends m;
	struct rig r;

	(void)state;
	open_quick(&r, 300);
	add_rule(&r, (struct fake_nvme_rule){
			     .opcode = -1, .times = 1, .action = FAKE_DROP, .deaf = true });
	add_rule(&r, (struct fake_nvme_rule){ .queue = FAKE_ADMIN,
					      .opcode = 0,
					      .times = 1,
					      .action = FAKE_STATUS,
					      .sct = 0,
					      .sc = 6 });
	submit_many(&r, BDEV_READ, DEPTH);
	assert_int_equal(wait_many(&r, DEPTH, 0), DEPTH);
	m = rig_mends(&s);
	assert_int_equal(m.resets, 1);
	assert_int_equal(s, NVME_LIVE);
	rig_close(&r);
}

/* A request that is never answered fails in the end, and alone. */
static void a_poisonous_request_fails_alone(void **state)
{
	struct rig r;

	(void)state;
	open_quick(&r, 300);
	add_rule(&r, (struct fake_nvme_rule){
			     .opcode = 2, .lba = 8 * 3, .lba_n = 1, .action = FAKE_DROP });
	submit_many(&r, BDEV_READ, DEPTH);
	assert_int_equal(wait_many(&r, DEPTH, 0), DEPTH - 1);
	assert_true(r.io[3].status < 0);
	rig_close(&r);
}

static bool is_fatal(struct rig *r)
{
	return rig_stats(r).fatal || rig_mends(NULL).resets > 0;
}

static bool was_reset(struct rig *r)
{
	(void)r;
	return rig_mends(NULL).resets > 0;
}

/* NVME 93: CSTS.CFS at depth 32: noticed, reset, everything done once (issue 83 of SPDK's). */
static void fatal_status_in_mid_io(void **state)
{
	struct rig r;

	(void)state;
	open_quick(&r, 400);
	fill(r.data, DEPTH * BLOCK, 11);
	add_rule(&r, (struct fake_nvme_rule){
			     .opcode = 1, .skip = 10, .times = 1, .action = FAKE_CFS });
	submit_many(&r, BDEV_WRITE, DEPTH);
	assert_true(rig_until(&r, is_fatal));
	assert_int_equal(wait_many(&r, DEPTH, 0), DEPTH);
	assert_int_equal(rig_mends(NULL).resets, 1);
	assert_int_equal(rig_run(&r, BDEV_READ, 0, r.data + (1u << 20), DEPTH * BLOCK, 0), 0);
	assert_memory_equal(r.data, r.data + (1u << 20), DEPTH * BLOCK);
	rig_close(&r);
}

/* NVME 97: lies in the completion queue: a CID beyond the queue, one that is idle, one twice, a
 * wrong SQHD.
 */
static void lies_in_the_completion_queue(void **state)
{
	static const enum fake_nvme_action lies[] = { FAKE_BAD_CID, FAKE_IDLE_CID, FAKE_TWICE,
						      FAKE_BAD_SQHD };

	(void)state;
	for (unsigned i = 0; i < ARRAY_SIZE(lies); i++) {
		struct rig r;

		open_quick(&r, 400);
		add_rule(&r, (struct fake_nvme_rule){
				     .opcode = 2, .skip = 4, .times = 1, .action = lies[i] });
		submit_many(&r, BDEV_READ, DEPTH);
		assert_int_equal(wait_many(&r, DEPTH, 0), DEPTH);
		assert_true(rig_until(&r, was_reset));
		assert_int_equal(rig_run(&r, BDEV_READ, 0, r.data, BLOCK, 0), 0);
		rig_close(&r);
	}
}

/* Old garbage in the queue is not a completion. */
static void an_old_phase_is_ignored(void **state)
{
	struct rig r;

	(void)state;
	open_quick(&r, 2000);
	add_rule(&r,
		 (struct fake_nvme_rule){
			 .opcode = 2, .skip = 4, .times = 3, .action = FAKE_BAD_PHASE, .n = 20 });
	submit_many(&r, BDEV_READ, DEPTH);
	assert_int_equal(wait_many(&r, DEPTH, 0), DEPTH);
	assert_int_equal(rig_mends(NULL).resets, 0);
	rig_close(&r);
}

/* Completions in any order. */
static void completions_out_of_order(void **state)
{
	struct rig r;

	(void)state;
	open_quick(&r, 2000);
	fill(r.data, DEPTH * BLOCK, 13);
	add_rule(&r, (struct fake_nvme_rule){ .opcode = -1, .action = FAKE_REORDER });
	submit_many(&r, BDEV_WRITE, DEPTH);
	assert_int_equal(wait_many(&r, DEPTH, 0), DEPTH);
	memset(r.data, 0, DEPTH * BLOCK);
	submit_many(&r, BDEV_READ, DEPTH);
	assert_int_equal(wait_many(&r, DEPTH, 0), DEPTH);
	fill(r.data + (1u << 20), DEPTH * BLOCK, 13);
	assert_memory_equal(r.data, r.data + (1u << 20), DEPTH * BLOCK);
	rig_close(&r);
}

/* Errors of the device reach the request, with the device's own status. */
static void errors_reach_the_request(void **state)
{
	struct rig r;

	(void)state;
	open_quick(&r, 2000);
	add_rule(&r,
		 (struct fake_nvme_rule){
			 .opcode = 2, .times = 1, .action = FAKE_STATUS, .sct = 2, .sc = 0x81 });
	assert_int_equal(rig_run(&r, BDEV_READ, 0, r.data, BLOCK, 0), -EIO);
	assert_int_equal(r.io[0].io->nvme_status & 0x7ff, 0x281);
	assert_int_equal(rig_run(&r, BDEV_READ, 0, r.data, BLOCK, 0), 0);
	rig_close(&r);
}

/* A controller that does not come back from its resets fails, and so does all I/O, in finite time.
 */
static void a_controller_that_never_comes_back(void **state)
{
	struct rig r;
	struct fake_nvme_config c = rig_config(&r);
	enum nvme_state s;

	(void)state;
	rig_timeout_ms(300);
	c.to = 0; /* it is given a second each time */
	rig_open(&r, &c);
	fake_nvme_never_ready(r.fake, true);
	add_rule(&r, (struct fake_nvme_rule){ .opcode = 2, .times = 1, .action = FAKE_CFS });
	submit_many(&r, BDEV_READ, DEPTH);
	assert_int_equal(wait_many(&r, DEPTH, -EIO), DEPTH);
	(void)rig_mends(&s);
	assert_int_equal(s, NVME_FAILED);
	assert_true(rig_run(&r, BDEV_READ, 0, r.data, BLOCK, 0) < 0);
	rig_close(&r);
}

/* --- pulled --- */

/* NVME 105: registers read as all ones in the middle of I/O. NVME 106: they raise SIGBUS. */
static void pulled(bool sigbus)
{
	enum nvme_state s;
	struct rig r;

	open_quick(&r, 400);
	add_rule(&r, (struct fake_nvme_rule){ .opcode = 2,
					      .skip = 10,
					      .times = 1,
					      .action = sigbus ? FAKE_TRUNCATE : FAKE_VANISH });
	submit_many(&r, BDEV_READ, DEPTH);
	for (unsigned i = 0; i < DEPTH; i++) {
		(void)rig_wait(&r, i);
		assert_int_equal(r.io[i].completions, 1);
	}
	assert_true(rig_run(&r, BDEV_READ, 0, r.data, BLOCK, 0) < 0);
	(void)rig_mends(&s);
	assert_int_equal(s, NVME_REMOVED);
	rig_close(&r);
}

static void pulled_in_mid_io(void **state)
{
	(void)state;
	pulled(false);
}

static void pulled_with_sigbus(void **state)
{
	(void)state;
	pulled(true);
}

/* --- resets without a reason --- */

static void resets_in_mid_io(void **state)
{
	struct rig r;

	(void)state;
	open_quick(&r, 5000);
	fill(r.data, DEPTH * BLOCK, 15);
	for (int i = 0; i < 20; i++) {
		submit_many(&r, i % 2 ? BDEV_READ : BDEV_WRITE, DEPTH);
		assert_int_equal(reset_here(&r), 0);
		assert_int_equal(wait_many(&r, DEPTH, 0), DEPTH);
	}
	assert_int_equal(rig_mends(NULL).resets, 20);
	fill(r.data + (1u << 20), DEPTH * BLOCK, 15);
	assert_memory_equal(r.data, r.data + (1u << 20), DEPTH * BLOCK);
	rig_close(&r);
}

/* --- interrupts --- */

static bool first_done(struct rig *r)
{
	return r->io[0].done;
}

/* A reactor that always arms is woken by interrupts; one that is lost is found by the watcher. */
static void a_lost_interrupt_is_found(void **state)
{
	struct rig r;

	(void)state;
	reactor_set_poll_us(0);
	open_quick(&r, 2000);
	assert_int_equal(rig_run(&r, BDEV_READ, 0, r.data, BLOCK, 0), 0);
	add_rule(&r,
		 (struct fake_nvme_rule){ .opcode = 2, .times = 1, .action = FAKE_LOSE_INTERRUPT });
	rig_submit(&r, 0, BDEV_READ, 0, r.data, BLOCK, 0);
	assert_true(rig_until(&r, first_done));
	assert_int_equal(r.io[0].status, 0);
	reactor_set_poll_us(200);
	rig_close(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(everything_works),
		cmocka_unit_test(odd_buffers),
		cmocka_unit_test(unreachable_memory),
		cmocka_unit_test(queues_in_the_controllers_memory),
		cmocka_unit_test(the_host_lends_memory),
		cmocka_unit_test(flush_and_fua_are_durable),
		cmocka_unit_test(no_cache_no_flush),
		cmocka_unit_test(a_late_io_is_aborted),
		cmocka_unit_test(a_deaf_queue_is_made_anew),
		cmocka_unit_test(a_stuck_queue_costs_a_reset),
		cmocka_unit_test(a_poisonous_request_fails_alone),
		cmocka_unit_test(fatal_status_in_mid_io),
		cmocka_unit_test(lies_in_the_completion_queue),
		cmocka_unit_test(an_old_phase_is_ignored),
		cmocka_unit_test(completions_out_of_order),
		cmocka_unit_test(errors_reach_the_request),
		cmocka_unit_test(a_controller_that_never_comes_back),
		cmocka_unit_test(pulled_in_mid_io),
		cmocka_unit_test(pulled_with_sigbus),
		cmocka_unit_test(resets_in_mid_io),
		cmocka_unit_test(a_lost_interrupt_is_found),
	};

	return RUN_TESTS(tests);
}
