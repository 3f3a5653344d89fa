/*
 * The controller memory buffer (Base 8.5): where a controller has one for that, its submission
 * queues lie in it, and it need not fetch commands from our memory.
 *
 * Only controllers that let the host choose the buffer's address (CAP.CMBS, since 1.4) are taken at
 * their word: before, the address was that of the BAR on the bus, which is not for us to know
 * behind an IOMMU.
 */
#include <errno.h>

#include "nvme/internal.h"
#include "util/log.h"

#define SIZE_LOOKS 20

/* The unit of CMBLOC and CMBSZ: 4 KiB, 64 KiB, 1 MiB, ... 64 GiB. */
static uint64_t unit_of(uint32_t cmbsz)
{
	return UINT64_C(4096) << 4 * MIN(NVME_CMBSZ_SZU(cmbsz), 6);
}

/* What it says of its size once it has been asked; some take their time. */
static uint32_t read_size(struct nvme_ctrl *c)
{
	uint32_t sz = 0;

	for (int i = 0; sz == 0 && i < SIZE_LOOKS; i++) {
		sz = reg_read32(c, NVME_REG_CMBSZ);
		if (sz == 0)
			nvme_sleep_us(500);
	}
	return sz;
}

/* Where the buffer is, in our memory. */
static int map(struct nvme_ctrl *c, struct err *e)
{
	uint32_t sz = read_size(c), loc = reg_read32(c, NVME_REG_CMBLOC);
	uint64_t offset = NVME_CMBLOC_OFST(loc) * unit_of(sz),
		 size = NVME_CMBSZ_SZ(sz) * unit_of(sz);
	volatile void *bar;
	size_t bar_len;
	int rc;

	if (!(sz & NVME_CMBSZ_SQS) || size == 0)
		return -ENOTSUP;
	rc = c->hw->map_bar(c->hw, NVME_CMBLOC_BIR(loc), &bar, &bar_len, e);
	if (rc)
		return rc;
	if (offset >= bar_len)
		return err_set(e, -EINVAL, "it lies beyond its BAR.");
	c->cmb = (char *)(uintptr_t)bar + offset;
	c->cmb_len = (size_t)MIN(size, bar_len - offset);
	return iommu_reserve(c->cmb_len, &c->cmb_iova, e);
}

/* Once: afterwards it is where it was. */
static int find(struct nvme_ctrl *c, struct err *e)
{
	int rc;

	reg_write64(c, NVME_REG_CMBMSC, NVME_CMBMSC_CRE);
	rc = map(c, e);
	if (rc == 0)
		return 0;
	c->cmb = NULL;
	reg_write64(c, NVME_REG_CMBMSC, 0);
	if (rc != -ENOTSUP)
		log_note("an NVMe controller's memory buffer is not used: %s", e->text);
	*e = (struct err){ 0 };
	return rc;
}

void cmb_start(struct nvme_ctrl *c)
{
	struct err e = { 0 };

	if (c->options.no_cmb || !NVME_CAP_CMBS(c->cap) || !c->hw->map_bar)
		return;
	if (c->cmb || find(c, &e) == 0)
		reg_write64(c, NVME_REG_CMBMSC, c->cmb_iova | NVME_CMBMSC_CMSE | NVME_CMBMSC_CRE);
}

void cmb_stop(struct nvme_ctrl *c)
{
	if (!c->cmb)
		return;
	if (reg_read32(c, NVME_REG_CSTS) != NVME_GONE)
		reg_write64(c, NVME_REG_CMBMSC, 0);
	iommu_release(c->cmb_iova);
	c->cmb = NULL;
}

void cmb_place_sq(struct nvme_ctrl *c, struct nvme_qpair *qp)
{
	size_t len = ROUND_UP(qp->entries * sizeof(struct nvme_sqe), c->page),
	       offset = (qp->id - 1u) * len;

	if (!c->cmb || offset > c->cmb_len || len > c->cmb_len - offset)
		return;
	qp->sq = (struct nvme_sqe *)(void *)(c->cmb + offset);
	qp->sq_iova = c->cmb_iova + offset;
	nvme_qpair_rewind(qp);
}
