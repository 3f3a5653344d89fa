/* The fake NVMe controller: what is stored and what is lost, SGLs, metadata, memory buffers. */
#include "fake/fake_nvme_rig.h"

#include <errno.h>

#include "util/unit.h"

#define CBA 0x700000000ull

static bool is_filled(const uint8_t *p, size_t len, unsigned seed)
{
	static uint8_t want[64u << 10];

	rig_fill(want, len, seed);
	return memcmp(p, want, len) == 0;
}

/* ---- the cache ---- */

static void what_is_not_flushed_is_lost(void **state)
{
	struct wire_sqe sqe;
	struct rig r;

	(void)state;
	rig_up(&r, fake_nvme_defaults());
	rig_fill(r.data, 4 * RIG_BLOCK, 1);
	assert_int_equal(rig_io(&r, WIRE_IO_WRITE, 0, 4, r.data), 0);
	assert_int_equal(rig_flush(&r), 0);
	assert_false(fake_nvme_dirty(r.f));
	rig_fill(r.data, 4 * RIG_BLOCK, 2);
	assert_int_equal(rig_io(&r, WIRE_IO_WRITE, 0, 4, r.data), 0);
	rig_fill(r.data, RIG_BLOCK, 3);
	sqe = rig_rw(&r, WIRE_IO_WRITE, 1, 1, 1, r.data, RIG_BLOCK);
	sqe.cdw12 |= WIRE_FUA;
	assert_int_equal(rig_run(&r, 1, &sqe, NULL), 0);
	assert_true(fake_nvme_dirty(r.f));

	fake_nvme_power_off(r.f);
	assert_int_equal(rig_get(&r, WIRE_REG_CSTS), UINT32_MAX);
	fake_nvme_power_on(r.f);
	assert_int_equal(rig_get(&r, WIRE_REG_CC), 0);
	assert_true(fake_nvme_peek(r.f, 1, 0, r.data, 4 * RIG_BLOCK));
	rig_fill(r.data + 8192, 4 * RIG_BLOCK, 1);
	rig_fill(r.data + 8192 + RIG_BLOCK, RIG_BLOCK, 3);
	assert_memory_equal(r.data, r.data + 8192, 4 * RIG_BLOCK);
	assert_true(rig_enable(&r));
	rig_close_clean(&r);
}

static void a_disabled_cache_holds_nothing(void **state)
{
	struct rig r;

	(void)state;
	rig_up(&r, fake_nvme_defaults());
	rig_fill(r.data, RIG_BLOCK, 1);
	assert_int_equal(rig_io(&r, WIRE_IO_WRITE, 0, 1, r.data), 0);
	assert_true(fake_nvme_dirty(r.f));
	assert_int_equal(rig_set_feature(&r, WIRE_FEAT_VWC, 0, NULL), 0);
	assert_false(fake_nvme_dirty(r.f));
	assert_int_equal(rig_io(&r, WIRE_IO_WRITE, 9, 1, r.data), 0);
	assert_false(fake_nvme_dirty(r.f));
	rig_close_clean(&r);
}

/* ---- commands ---- */

static void blocks_are_compared_and_cleared(void **state)
{
	struct wire_dsm_range *ranges;
	struct wire_sqe sqe;
	struct rig r;

	(void)state;
	rig_up(&r, fake_nvme_defaults());
	rig_fill(r.data, 64 * RIG_BLOCK, 5);
	assert_int_equal(rig_io(&r, WIRE_IO_WRITE, 0, 64, r.data), 0);
	assert_int_equal(rig_io(&r, WIRE_IO_COMPARE, 0, 64, r.data), 0);
	r.data[700] ^= 1;
	assert_int_equal(rig_io(&r, WIRE_IO_COMPARE, 0, 64, r.data), WIRE_COMPARE_FAILED);
	sqe = rig_rw(&r, WIRE_IO_WRITE_ZEROES, 1, 1, 2, NULL, 0);
	assert_int_equal(rig_run(&r, 1, &sqe, NULL), 0);
	ranges = rig_alloc(&r, 4096);
	ranges[0] = (struct wire_dsm_range){ .blocks = 4, .slba = 10 };
	ranges[1] = (struct wire_dsm_range){ .blocks = 30000, .slba = 60 };
	sqe = (struct wire_sqe){ .opc = WIRE_IO_DSM, .nsid = 1, .cdw10 = 1, .cdw11 = 4 };
	rig_prps(&r, &sqe, ranges, 32);
	assert_int_equal(rig_run(&r, 1, &sqe, NULL), 0);
	ranges[1].blocks = 32768;
	assert_int_equal(rig_run(&r, 1, &sqe, NULL), WIRE_LBA_RANGE);
	assert_int_equal(rig_io(&r, WIRE_IO_READ, 0, 64, r.data + 65536), 0);
	r.data[700] ^= 1;
	memset(r.data + 1 * RIG_BLOCK, 0, 2 * RIG_BLOCK);
	memset(r.data + 10 * RIG_BLOCK, 0, 4 * RIG_BLOCK);
	memset(r.data + 60 * RIG_BLOCK, 0, 4 * RIG_BLOCK);
	assert_memory_equal(r.data, r.data + 65536, 64 * RIG_BLOCK);
	rig_close_clean(&r);
}

static void limits_are_kept(void **state)
{
	struct fake_nvme_config c = fake_nvme_defaults();
	struct wire_sqe sqe;
	struct rig r;

	(void)state;
	c.ns[0].read_only = true;
	rig_up(&r, c);
	assert_int_equal(rig_io(&r, WIRE_IO_READ, 32767, 1, r.data), 0);
	assert_int_equal(rig_io(&r, WIRE_IO_READ, 32767, 2, r.data), WIRE_LBA_RANGE);
	assert_int_equal(rig_io(&r, WIRE_IO_READ, UINT64_MAX, 2, r.data), WIRE_LBA_RANGE);
	assert_int_equal(rig_io(&r, WIRE_IO_WRITE, 0, 1, r.data), WIRE_READ_ONLY);
	sqe = rig_rw(&r, WIRE_IO_READ, 2, 0, 1, r.data, RIG_BLOCK);
	assert_int_equal(rig_run(&r, 1, &sqe, NULL), WIRE_BAD_NS);
	assert_int_equal(fake_nvme_faults(r.f), 0);
	sqe.opc = 0x7d;
	assert_int_equal(rig_run(&r, 1, &sqe, NULL), WIRE_BAD_OPCODE);
	rig_close(&r);
}

static void what_was_unmapped_is_not_touched(void **state)
{
	struct wire_sqe sqe;
	struct iommu *hw;
	struct rig r;

	(void)state;
	rig_up(&r, fake_nvme_defaults());
	hw = fake_iommu_hw(r.m);
	assert_int_equal(hw->map(hw, r.data, 4096, RIG_IOVA, NULL), -EEXIST);
	assert_int_equal(hw->map(hw, r.data, 4096, 0x90000000, NULL), 0);
	sqe = rig_rw(&r, WIRE_IO_READ, 1, 0, 1, r.data, RIG_BLOCK);
	sqe.prp1 = 0x90000000;
	assert_int_equal(rig_run(&r, 1, &sqe, NULL), 0);
	hw->unmap(hw, 0x90000000, 4096);
	assert_int_equal(rig_run(&r, 1, &sqe, NULL), WIRE_DATA_TRANSFER);
	assert_non_null(strstr(fake_nvme_fault(r.f, 0), "not mapped"));
	fake_iommu_fail_after(r.m, 0);
	assert_int_equal(hw->map(hw, r.data, 4096, 0x90000000, NULL), -ENOMEM);
	assert_int_equal(fake_iommu_mistakes(r.m), 1);
	rig_close(&r);
}

/* ---- SGLs ---- */

static struct wire_sgl sgl(struct rig *r, const void *p, size_t len, uint8_t type)
{
	return (struct wire_sgl){ .addr = rig_iova(r, p),
				  .len = (uint32_t)len,
				  .type = (uint8_t)(type << 4) };
}

static void sgls_of_all_kinds(void **state)
{
	struct fake_nvme_config c = fake_nvme_defaults();
	struct wire_sqe sqe;
	struct wire_sgl *a, *b;
	struct rig r;

	(void)state;
	c.sgls = 1 | WIRE_SGLS_BUCKET;
	rig_up(&r, c);
	rig_fill(r.data, 4096, 7);
	assert_true(fake_nvme_poke(r.f, 1, 0, r.data, 4096));
	a = rig_alloc(&r, 4096);
	b = rig_alloc(&r, 4096);
	sqe = rig_rw(&r, WIRE_IO_READ, 1, 0, 8, NULL, 0);
	sqe.flags = 1 << 6;
	sqe.sgl = sgl(&r, a, 48, WIRE_SGL_SEGMENT);
	a[0] = sgl(&r, r.data + 8192 + 1, 699, WIRE_SGL_DATA); /* in pieces, at odd addresses */
	a[1] = sgl(&r, r.data + 8192 + 700, 3, WIRE_SGL_DATA);
	a[2] = sgl(&r, b, 32, WIRE_SGL_LAST);
	b[0] = sgl(&r, r.mem, 97, WIRE_SGL_BUCKET);
	b[1] = sgl(&r, r.data + 8192 + 800, 4096 - 799, WIRE_SGL_DATA);
	memset(r.data + 8192, 0, 8192);
	assert_int_equal(rig_run(&r, 1, &sqe, NULL), 0);
	assert_int_equal(fake_nvme_faults(r.f), 0);
	memset(r.data + 702, 0, 97);
	assert_memory_equal(r.data, r.data + 8192 + 1, 4096);

	b[1].len--;
	assert_int_equal(rig_run(&r, 1, &sqe, NULL), WIRE_SGL_LENGTH_BAD);
	b[1].len += 2;
	assert_int_equal(rig_run(&r, 1, &sqe, NULL), WIRE_SGL_LENGTH_BAD);
	b[1].type = 0x50;
	assert_int_equal(rig_run(&r, 1, &sqe, NULL), WIRE_SGL_TYPE_BAD);
	a[2].len = 24;
	assert_int_equal(rig_run(&r, 1, &sqe, NULL), WIRE_SGL_SEGMENT_BAD);
	a[2].type = 0;
	assert_int_equal(rig_run(&r, 1, &sqe, NULL), WIRE_SGL_SEGMENT_BAD);
	rig_close(&r);
}

/* ---- metadata ---- */

static void metadata_in_its_own_buffer_and_not(void **state)
{
	struct fake_nvme_config c = fake_nvme_defaults();
	struct wire_sqe sqe;
	uint8_t *meta;
	struct rig r;

	(void)state;
	c.ns[0] = (struct fake_nvme_ns_config){ .nsid = 1, .blocks = 64, .lbads = 12, .ms = 8 };
	c.ns[1] = c.ns[0];
	c.ns[1].nsid = 2;
	c.ns[1].extended = true;
	c.ns_n = 2;
	rig_up(&r, c);
	meta = rig_alloc(&r, 4096);
	rig_fill(r.data, 2 * 4104, 1);
	rig_fill(meta, 16, 9);
	sqe = rig_rw(&r, WIRE_IO_WRITE, 1, 3, 2, r.data, 8192);
	sqe.mptr = rig_iova(&r, meta);
	assert_int_equal(rig_run(&r, 1, &sqe, NULL), 0);
	memset(meta, 0, 16);
	sqe.opc = WIRE_IO_READ;
	assert_int_equal(rig_run(&r, 1, &sqe, NULL), 0);
	assert_true(is_filled(meta, 16, 9));

	sqe = rig_rw(&r, WIRE_IO_WRITE, 2, 3, 2, r.data, 2 * 4104);
	assert_int_equal(rig_run(&r, 1, &sqe, NULL), 0);
	assert_true(fake_nvme_peek(r.f, 2, 3 * 4104, r.data + 16384, 2 * 4104));
	assert_true(is_filled(r.data + 16384, 2 * 4104, 1));
	assert_int_equal(fake_nvme_faults(r.f), 0);
	sqe = rig_rw(&r, WIRE_IO_READ, 2, 0, 32, r.data, 32 * 4104); /* MDTS 5: 128 KiB */
	assert_int_equal(rig_run(&r, 1, &sqe, NULL), WIRE_BAD_FIELD);
	rig_close(&r);
}

/* ---- memory buffers ---- */

static void a_queue_lies_in_the_controllers_memory(void **state)
{
	struct fake_nvme_config c = fake_nvme_defaults();
	struct nvme_hw *hw;
	struct wire_sqe sqe;
	volatile void *cmb;
	size_t len;
	struct rig r;

	(void)state;
	c.cmb_size = 64u << 10;
	rig_open(&r, c);
	hw = fake_nvme_hw(r.f);
	assert_int_equal(rig_get(&r, WIRE_REG_CMBSZ), 0);
	rig_set(&r, WIRE_REG_CMBMSC, (uint32_t)CBA | 3);
	rig_set(&r, WIRE_REG_CMBMSC + 4, CBA >> 32);
	assert_true(rig_enable(&r));
	assert_int_equal(rig_get(&r, WIRE_REG_CMBSZ), 16 << 12 | 0x1f);
	assert_int_equal(rig_get(&r, WIRE_REG_CMBLOC), 2);
	assert_int_equal(hw->map_bar(hw, 2, &cmb, &len, NULL), 0);
	assert_int_equal(len, c.cmb_size);
	assert_int_equal(rig_queue_make(&r, 1, 16), 0);

	sqe = (struct wire_sqe){ .opc = WIRE_ADM_CREATE_SQ,
				 .prp1 = CBA + 4096,
				 .cdw10 = 2 | 15 << 16,
				 .cdw11 = 1 | 1 << 16 };
	assert_int_equal(rig_run(&r, 0, &sqe, NULL), 0);
	r.q[2] = (struct rig_queue){ .size = 16, .sq = (void *)((uintptr_t)cmb + 4096) };
	sqe = rig_rw(&r, WIRE_IO_READ, 1, 0, 1, r.data, RIG_BLOCK);
	rig_put(&r, 2, &sqe);
	rig_ring(&r, 2);
	assert_int_equal(rig_wait(&r, 1, &(struct wire_cqe){ 0 }), 0);
	rig_close_clean(&r);
}

static void it_borrows_memory_of_the_host(void **state)
{
	struct fake_nvme_config c = fake_nvme_defaults();
	struct wire_hmb_desc *list;
	struct wire_sqe sqe;
	struct rig r;

	(void)state;
	c.hmpre = 64;
	c.hmmin = 16;
	rig_up(&r, c);
	list = rig_alloc(&r, 4096);
	list[0] = (struct wire_hmb_desc){ .addr = rig_iova(&r, r.data), .pages = 10 };
	list[1] = (struct wire_hmb_desc){ .addr = rig_iova(&r, r.data + 65536), .pages = 6 };
	sqe = (struct wire_sqe){ .opc = WIRE_ADM_SET_FEATURES, .cdw10 = WIRE_FEAT_HMB, .cdw11 = 1 };
	sqe.cdw12 = 16;
	sqe.cdw13 = (uint32_t)rig_iova(&r, list);
	sqe.cdw15 = 2;
	assert_int_equal(rig_run(&r, 0, &sqe, NULL), 0);
	for (unsigned i = 0; i < 600; i++)
		fake_nvme_turn(r.f);
	assert_int_equal(fake_nvme_faults(r.f), 0);
	memset(r.data, 0, 8);
	for (unsigned i = 0; i < 600; i++)
		fake_nvme_turn(r.f);
	assert_int_equal(fake_nvme_faults(r.f), 1);
	assert_int_equal(rig_set_feature(&r, WIRE_FEAT_HMB, 0, NULL), 0);
	list[1].pages = 5;
	assert_int_equal(rig_run(&r, 0, &sqe, NULL), WIRE_BAD_FIELD);
	rig_close(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_is_not_flushed_is_lost),
		cmocka_unit_test(a_disabled_cache_holds_nothing),
		cmocka_unit_test(blocks_are_compared_and_cleared),
		cmocka_unit_test(limits_are_kept),
		cmocka_unit_test(what_was_unmapped_is_not_touched),
		cmocka_unit_test(sgls_of_all_kinds),
		cmocka_unit_test(metadata_in_its_own_buffer_and_not),
		cmocka_unit_test(a_queue_lies_in_the_controllers_memory),
		cmocka_unit_test(it_borrows_memory_of_the_host),
	};

	return RUN_TESTS(tests);
}
