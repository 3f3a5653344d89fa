/* The fake NVMe controller as the specification wants it: life, queues, data, cache, namespaces. */
#include "fake/fake_nvme_rig.h"

#include "util/unit.h"

/* ---- life ---- */

static void it_is_enabled_and_disabled(void **state)
{
	struct fake_nvme_config c = fake_nvme_defaults();
	struct fake_nvme_stats s;
	struct rig r;

	(void)state;
	c.ready_turns = 3;
	rig_open(&r, c);
	assert_int_equal(rig_get(&r, WIRE_REG_CAP) & 0xffff, 1023);
	assert_int_equal(rig_get(&r, WIRE_REG_VS), 0x00010400);
	assert_true(rig_enable(&r));
	assert_true(rig_disable(&r));
	assert_true(rig_enable(&r));
	fake_nvme_stats(r.f, &s);
	assert_int_equal(s.enables, 2);
	assert_int_equal(s.disables, 1);
	rig_close_clean(&r);
}

static void it_shuts_down(void **state)
{
	struct fake_nvme_config c = fake_nvme_defaults();
	struct rig r;

	(void)state;
	c.shutdown_turns = 2;
	rig_up(&r, c);
	rig_fill(r.data, RIG_BLOCK, 1);
	assert_int_equal(rig_io(&r, WIRE_IO_WRITE, 0, 1, r.data), 0);
	assert_true(fake_nvme_dirty(r.f));
	rig_set(&r, WIRE_REG_CC, rig_get(&r, WIRE_REG_CC) | 1u << 14);
	fake_nvme_turn(r.f);
	assert_int_equal(rig_get(&r, WIRE_REG_CSTS) & WIRE_CSTS_SHST, WIRE_CSTS_SHST_BUSY);
	fake_nvme_turn(r.f);
	fake_nvme_turn(r.f);
	assert_int_equal(rig_get(&r, WIRE_REG_CSTS) & WIRE_CSTS_SHST, WIRE_CSTS_SHST_DONE);
	assert_false(fake_nvme_dirty(r.f));
	rig_close_clean(&r);
}

static void it_is_born_in_every_state(void **state)
{
	struct fake_nvme_config c = fake_nvme_defaults();
	static const struct {
		enum fake_nvme_birth birth;
		uint32_t csts;
	} cases[] = { { FAKE_BORN_READY, 1 }, { FAKE_BORN_STARTING, 0 }, { FAKE_BORN_FATAL, 2 } };
	struct rig r;

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		c.birth = cases[i].birth;
		c.ready_turns = 5;
		rig_open(&r, c);
		assert_int_equal(rig_get(&r, WIRE_REG_CC) & 1, 1);
		assert_int_equal(rig_get(&r, WIRE_REG_CSTS), cases[i].csts);
		assert_true(rig_disable(&r));
		fake_nvme_turn(r.f);
		assert_int_equal(rig_get(&r, WIRE_REG_CSTS), 0);
		assert_true(rig_enable(&r));
		rig_close_clean(&r);
	}
}

static void what_cannot_be_enabled_is_fatal(void **state)
{
	struct fake_nvme_config c = fake_nvme_defaults();
	struct rig r;

	(void)state;
	c.mpsmin = c.mpsmax = 1;
	rig_open(&r, c);
	r.page = 4096;
	assert_false(rig_enable(&r));
	assert_int_equal(rig_get(&r, WIRE_REG_CSTS), WIRE_CSTS_CFS);
	assert_int_equal(fake_nvme_faults(r.f), 1);
	assert_true(rig_disable(&r));
	r.page = 8192;
	assert_true(rig_enable(&r));
	rig_close(&r);

	c = fake_nvme_defaults(); /* 64 CQEs are a quarter of a page */
	c.admin_whole_pages = true;
	rig_open(&r, c);
	assert_false(rig_enable(&r));
	assert_int_equal(rig_get(&r, WIRE_REG_CSTS), WIRE_CSTS_CFS);
	rig_close_clean(&r);
}

/* ---- identify ---- */

static void it_says_what_it_is(void **state)
{
	struct fake_nvme_config c = fake_nvme_defaults();
	struct wire_id_ctrl id;
	struct rig r;

	(void)state;
	rig_up(&r, c);
	assert_int_equal(rig_identify(&r, 1, 0, &id), 0);
	assert_memory_equal(id.sn, "FAKE0001            ", 20);
	assert_int_equal(id.mdts, 5);
	assert_int_equal(id.sqes, 0x66);
	assert_int_equal(id.nn, 16);
	assert_int_equal(rig_identify(&r, 0x7f, 0, &id), WIRE_BAD_FIELD);
	rig_close_clean(&r);
}

static void its_namespaces_may_have_any_number(void **state)
{
	static const uint32_t nsids[] = { 1, 7, 4096, 0xfffffff0 };
	struct fake_nvme_config c = fake_nvme_defaults();
	struct wire_id_ns id;
	uint32_t list[1024];
	struct rig r;

	(void)state;
	c.nn = 0xfffffffe;
	for (unsigned i = 0; i < 4; i++) {
		c.ns[i] = (struct fake_nvme_ns_config){
			.nsid = nsids[3 - i], .blocks = 1ull << 40, .lbads = 12, .lbaf = 2
		};
		memset(c.ns[i].nguid, 0x55, 16);
	}
	c.ns_n = 4;
	rig_up(&r, c);
	assert_int_equal(rig_identify(&r, 2, 0, list), 0);
	assert_memory_equal(list, nsids, sizeof(nsids));
	assert_int_equal(list[4], 0);
	assert_int_equal(rig_identify(&r, 2, 7, list), 0);
	assert_int_equal(list[0], 4096);
	assert_int_equal(rig_identify(&r, 0, 4096, &id), 0);
	assert_true(id.nsze == 1ull << 40);
	assert_int_equal(id.lbaf[id.flbas & 15].lbads, 12);
	assert_int_equal(rig_identify(&r, 0, 5, &id), 0);
	assert_int_equal(id.nsze, 0);
	assert_int_equal(rig_identify(&r, 3, 7, &id), 0);
	assert_memory_equal(&id, "\2\20\0\0\x55\x55\x55\x55", 8);
	assert_int_equal(rig_identify(&r, 3, 5, &id), WIRE_BAD_NS);
	rig_close_clean(&r);
}

/* ---- queues ---- */

static void queues_are_made_strictly(void **state)
{
	static const struct {
		uint32_t qid, size, cdw11, offset;
		uint16_t status;
	} cases[] = {
		{ 0, 16, 1, 0, WIRE_QID_INVALID },  { 1, 16, 1, 0, WIRE_QID_INVALID },
		{ 9, 16, 1, 0, WIRE_QID_INVALID },  { 2, 1, 1, 0, WIRE_QUEUE_SIZE },
		{ 2, 16, 1, 0, WIRE_QUEUE_SIZE },   { 2, 15, 0, 0, WIRE_BAD_FIELD },
		{ 2, 15, 1, 64, WIRE_PRP_OFFSET },  { 2, 15, 3 | 9 << 16, 0, WIRE_VECTOR_INVALID },
		{ 2, 15, 3 | 8 << 16, 0, WIRE_OK },
	};
	struct fake_nvme_config c = fake_nvme_defaults();
	struct wire_sqe sqe = { .opc = WIRE_ADM_CREATE_CQ };
	struct rig r;

	(void)state;
	c.mqes = 14;
	rig_open(&r, c);
	assert_true(rig_enable(&r));
	assert_int_equal(rig_queue_make(&r, 1, 15), 0);
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		sqe.cdw10 = cases[i].qid | (cases[i].size - 1) << 16;
		sqe.cdw11 = cases[i].cdw11;
		sqe.prp1 = rig_iova(&r, r.data) + cases[i].offset;
		assert_int_equal(rig_run(&r, 0, &sqe, NULL), cases[i].status);
	}
	assert_int_equal(fake_nvme_cq_vector(r.f, 2), 8);
	sqe = (struct wire_sqe){ .opc = WIRE_ADM_CREATE_SQ,
				 .cdw10 = 3 | 1 << 16,
				 .cdw11 = 1 | 5 << 16 };
	sqe.prp1 = rig_iova(&r, r.data);
	assert_int_equal(rig_run(&r, 0, &sqe, NULL), WIRE_CQ_INVALID);
	sqe = (struct wire_sqe){ .opc = WIRE_ADM_DELETE_CQ, .cdw10 = 1 };
	assert_int_equal(rig_run(&r, 0, &sqe, NULL), WIRE_QUEUE_DELETION);
	sqe.opc = WIRE_ADM_DELETE_SQ;
	assert_int_equal(rig_run(&r, 0, &sqe, NULL), WIRE_OK);
	sqe.opc = WIRE_ADM_DELETE_CQ;
	assert_int_equal(rig_run(&r, 0, &sqe, NULL), WIRE_OK);
	assert_int_equal(rig_queue_make(&r, 1, 2), 0);
	rig_close(&r);
}

static void the_number_of_queues_is_its_own_choice(void **state)
{
	struct fake_nvme_config c = fake_nvme_defaults();
	uint32_t got = 0;
	struct rig r;

	(void)state;
	c.io_sqs = 3;
	c.io_cqs = 64;
	rig_open(&r, c);
	assert_true(rig_enable(&r));
	assert_int_equal(rig_set_feature(&r, WIRE_FEAT_QUEUES, 7 << 16 | 7, &got), 0);
	assert_int_equal(got, 63 << 16 | 2);
	assert_int_equal(rig_set_feature(&r, 0x55, 0, &got), WIRE_BAD_FIELD);
	rig_close_clean(&r);
}

static void a_full_queue_wraps_and_waits(void **state)
{
	struct fake_nvme_config c = fake_nvme_defaults();
	struct wire_sqe sqe;
	struct wire_cqe e;
	struct rig r;

	(void)state;
	c.dstrd = 3;
	rig_up(&r, c);
	sqe = rig_rw(&r, WIRE_IO_READ, 1, 0, 1, r.data, RIG_BLOCK);
	for (unsigned round = 0; round < 7; round++) {
		for (unsigned i = 0; i < 15; i++)
			rig_put(&r, 1, &sqe);
		rig_ring(&r, 1);
		fake_nvme_settle(r.f);
		for (unsigned i = 0; i < 15; i++)
			assert_int_equal(rig_wait(&r, 1, &e), 0);
		assert_false(rig_reap(&r, 1, &e));
	}
	rig_close_clean(&r);
}

/* The host reaps nothing: 15 entries of 16 are filled, the others wait. */
static void a_cq_is_never_overrun(void **state)
{
	struct fake_nvme_config c = fake_nvme_defaults();
	struct wire_sqe sqe;
	struct fake_nvme_stats s;
	struct wire_cqe e;
	struct rig r;

	(void)state;
	rig_up(&r, c);
	r.q[1].size = 16;
	sqe = (struct wire_sqe){ .opc = WIRE_ADM_CREATE_SQ,
				 .cdw10 = 2 | 15 << 16,
				 .cdw11 = 1 | 1 << 16 };
	r.q[2] = (struct rig_queue){ .size = 16, .sq = rig_alloc(&r, 1024) };
	sqe.prp1 = rig_iova(&r, r.q[2].sq);
	assert_int_equal(rig_run(&r, 0, &sqe, NULL), 0);
	sqe = rig_rw(&r, WIRE_IO_READ, 1, 0, 1, r.data, RIG_BLOCK);
	for (unsigned i = 0; i < 20; i++)
		rig_put(&r, 1 + i % 2, &sqe);
	rig_ring(&r, 1);
	rig_ring(&r, 2);
	fake_nvme_settle(r.f);
	fake_nvme_stats(r.f, &s);
	assert_int_equal(s.outstanding, 5);
	for (unsigned i = 0; i < 20; i++)
		assert_int_equal(rig_wait(&r, 1, &e), 0);
	rig_close_clean(&r);
}

static void wrong_doorbells_are_noticed(void **state)
{
	struct fake_nvme_config c = fake_nvme_defaults();
	struct wire_sqe aer = { .opc = WIRE_ADM_AER };
	struct wire_cqe e;
	struct rig r;

	(void)state;
	rig_up(&r, c);
	rig_put(&r, 0, &aer);
	rig_ring(&r, 0);
	rig_set(&r, WIRE_DOORBELLS + 2 * 4, 16);
	assert_int_equal(rig_wait(&r, 0, &e), 0);
	assert_int_equal(e.dw0, 0x010100);
	rig_set(&r, WIRE_DOORBELLS + 3 * 4, 5);
	fake_nvme_turn(r.f);
	rig_set(&r, WIRE_DOORBELLS + 4 * 4, 0);
	fake_nvme_turn(r.f);
	assert_int_equal(fake_nvme_faults(r.f), 3);
	assert_non_null(strstr(fake_nvme_fault(r.f, 1), "past the tail"));
	assert_non_null(strstr(fake_nvme_fault(r.f, 2), "not there"));
	rig_close(&r);
}

/* ---- data ---- */

static void every_length_and_offset_of_prps(void **state)
{
	static const unsigned blocks[] = { 1, 7, 8, 9, 16, 17, 256, 4095, 4096, 4097 };
	static const unsigned offsets[] = { 0, 4, 512, 4092 };
	struct fake_nvme_config c = fake_nvme_defaults();
	uint8_t *in, *out;
	struct rig r;

	(void)state;
	c.mdts = 9;
	for (c.mpsmin = 0; c.mpsmin < 3; c.mpsmin++) {
		rig_up(&r, c);
		in = rig_alloc(&r, 3u << 20);
		for (size_t i = 0; i < ARRAY_SIZE(blocks) * ARRAY_SIZE(offsets); i++) {
			unsigned n = blocks[i / ARRAY_SIZE(offsets)];
			unsigned offset = offsets[i % ARRAY_SIZE(offsets)];
			bool fits = n <= 4096u << c.mpsmin;

			out = r.data + offset;
			rig_fill(out, n * RIG_BLOCK, (unsigned)i);
			memset(in, 0, n * RIG_BLOCK + 8192);
			if (!fits) {
				assert_int_equal(rig_io(&r, WIRE_IO_WRITE, 8, n, out),
						 WIRE_BAD_FIELD);
				assert_int_equal(fake_nvme_faults(r.f), 1);
				fake_nvme_faults_clear(r.f);
				continue;
			}
			assert_int_equal(rig_io(&r, WIRE_IO_WRITE, 8, n, out), 0);
			assert_int_equal(rig_io(&r, WIRE_IO_READ, 8, n, in + offset), 0);
			assert_memory_equal(in + offset, out, n * RIG_BLOCK);
			assert_int_equal(in[offset + n * RIG_BLOCK], 0);
		}
		rig_close_clean(&r);
	}
}

static void wrong_prps_are_refused(void **state)
{
	struct fake_nvme_config c = fake_nvme_defaults();
	struct wire_sqe good, sqe;
	struct rig r;

	(void)state;
	rig_up(&r, c);
	good = rig_rw(&r, WIRE_IO_READ, 1, 0, 24, r.data, 24 * RIG_BLOCK);
	sqe = good;
	sqe.prp1 += 2;
	assert_int_equal(rig_run(&r, 1, &sqe, NULL), WIRE_PRP_OFFSET);
	sqe = good;
	sqe.prp2 += 4;
	assert_int_equal(rig_run(&r, 1, &sqe, NULL), WIRE_PRP_OFFSET);
	sqe = good;
	r.lists[1] += 512;
	assert_int_equal(rig_run(&r, 1, &sqe, NULL), WIRE_PRP_OFFSET);
	r.lists[1] = 0x7777000; /* nobody's */
	assert_int_equal(rig_run(&r, 1, &sqe, NULL), WIRE_DATA_TRANSFER);
	sqe = rig_rw(&r, WIRE_IO_READ, 1, 0, 16, r.data, 16 * RIG_BLOCK);
	sqe.prp2 += 512;
	assert_int_equal(rig_run(&r, 1, &sqe, NULL), WIRE_PRP_OFFSET);
	sqe = rig_rw(&r, WIRE_IO_READ, 1, 0, 1, r.data, RIG_BLOCK);
	sqe.prp2 = 0x1000;
	assert_int_equal(rig_run(&r, 1, &sqe, NULL), WIRE_OK);
	assert_int_equal(fake_nvme_faults(r.f), 6);
	rig_close(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(it_is_enabled_and_disabled),
		cmocka_unit_test(it_shuts_down),
		cmocka_unit_test(it_is_born_in_every_state),
		cmocka_unit_test(what_cannot_be_enabled_is_fatal),
		cmocka_unit_test(it_says_what_it_is),
		cmocka_unit_test(its_namespaces_may_have_any_number),
		cmocka_unit_test(queues_are_made_strictly),
		cmocka_unit_test(the_number_of_queues_is_its_own_choice),
		cmocka_unit_test(a_full_queue_wraps_and_waits),
		cmocka_unit_test(a_cq_is_never_overrun),
		cmocka_unit_test(wrong_doorbells_are_noticed),
		cmocka_unit_test(every_length_and_offset_of_prps),
		cmocka_unit_test(wrong_prps_are_refused),
	};

	return RUN_TESTS(tests);
}
