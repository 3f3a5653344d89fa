/*
 * The host memory buffer (Base 5.27.1.10, 8.9): memory of ours that drives without RAM of their own
 * keep their tables in. It is lent as one piece, for as long as the controller is attached, resets
 * included.
 */
#include <errno.h>
#include <string.h>

#include "mem/mem.h"
#include "nvme/internal.h"
#include "util/log.h"

#define UNIT	     4096 /* of HMPRE and HMMIN */
#define HMB_MAX	     ((size_t)256 << 20)
#define HMB_ENABLE   0x1u /* CDW11 */
#define HMB_RETURNED 0x2u /* it is the memory of before */

struct hmb_descriptor {
	le64 addr;
	le32 pages; /* of CC.MPS */
	le32 reserved;
};

_Static_assert(sizeof(struct hmb_descriptor) == 16, "host memory buffer descriptor");

/* As much as it would like, else as little as it can do with; 0: none. */
static size_t length_of(const struct nvme_ctrl *c)
{
	uint64_t wants = (uint64_t)from_le32(c->id.hmpre) * UNIT,
		 least = (uint64_t)from_le32(c->id.hmmin) * UNIT, len = MIN(wants, HMB_MAX);

	return len < least ? 0 : (size_t)ROUND_DOWN(len, c->page);
}

/* The descriptor has a page of its own behind the buffer. */
static int allocate(struct nvme_ctrl *c, size_t len, struct err *e)
{
	size_t whole = paged_len(len + c->page, c->page);
	int rc = dma_zalloc(whole, c->page, &c->hmb, e);

	if (rc == 0) {
		c->hmb_len = len;
		c->hmb_whole = whole;
	}
	return rc;
}

static int lend(struct nvme_ctrl *c, uint32_t flags, struct err *e)
{
	struct iommu_hint hint = { 0 };
	struct hmb_descriptor *d = (void *)((char *)c->hmb + c->hmb_len);
	iova_t at = iommu_iova(c->hmb, c->hmb_whole, &hint), list = at + c->hmb_len;
	uint32_t pages = (uint32_t)(c->hmb_len / c->page);
	struct nvme_sqe sqe = { .opc = NVME_SET_FEATURES,
				.a.slba = to_le64(NVME_FEATURE_HMB | (uint64_t)(HMB_ENABLE | flags)
									     << 32),
				.cdw12 = to_le32(pages),
				.cdw13 = to_le32((uint32_t)list),
				.cdw14 = to_le32((uint32_t)(list >> 32)),
				.cdw15 = to_le32(1) };

	*d = (struct hmb_descriptor){ to_le64(at), to_le32(pages), to_le32(0) };
	return nvme_admin(c, "Set Features (host memory buffer)", &sqe, NULL, 0, NULL, e);
}

void hmb_start(struct nvme_ctrl *c)
{
	struct err e = { 0 };
	bool before = c->hmb != NULL;
	size_t len = length_of(c);

	if (from_le32(c->id.hmpre) == 0)
		return;
	if (len == 0)
		log_warn(
			"an NVMe controller wants more of the host's memory than it gets, and may be slow");
	else if (!before && allocate(c, len, &e))
		log_warn("an NVMe controller gets no memory of the host's, and may be slow: %s",
			 e.text);
	else if (lend(c, before ? HMB_RETURNED : 0, &e))
		log_warn("an NVMe controller does not take the host's memory: %s", e.text);
}

void hmb_stop(struct nvme_ctrl *c)
{
	struct err e = { 0 };

	if (!c->hmb)
		return;
	/* What is in it is the drive's: it writes that back before it answers. */
	if (c->live && nvme_set_feature(c, NVME_FEATURE_HMB, 0, NULL, &e))
		log_warn("an NVMe controller does not give the host's memory back: %s", e.text);
}

void hmb_free(struct nvme_ctrl *c)
{
	dma_free(c->hmb, c->hmb_whole);
	c->hmb = NULL;
}
