#include "nvme/qpair.h"

#include <errno.h>
#include <string.h>

#include "mem/mem.h"
#include "nvme/internal.h"

/* --- life --- */

/* Memory is one block: SQ, CQ, lists, then what only we see. Each part starts at a page. */
struct layout {
	size_t sq, cq, lists, slot, end;
};

static struct layout layout_of(unsigned entries, size_t page)
{
	struct layout l = { 0 };

	l.cq = ROUND_UP(entries * sizeof(struct nvme_sqe), page);
	l.lists = l.cq + ROUND_UP(entries * sizeof(struct nvme_cqe), page);
	l.slot = l.lists + entries * (size_t)NVME_PAGE;
	l.end = l.slot + entries * sizeof(nvme_slot_t);
	return l;
}

/* Identifiers and heads whose high bits are 0 are below entries, or nearly so; the few that are
 * not are looked at one by one. */
static uint64_t unusual(unsigned entries)
{
	uint16_t high = (uint16_t) ~((1u << (31 - __builtin_clz(entries))) - 1);

	return NVME_END(high, 0, high, 0xffff);
}

int nvme_qpair_alloc(struct nvme_qpair *qp, uint16_t id, unsigned entries, uint32_t page,
		     struct err *e)
{
	size_t align = MAX(page, NVME_PAGE);
	struct layout l = layout_of(entries, align);
	char *base;
	int rc;

	memset(qp, 0, sizeof(*qp));
	qp->memory_len = paged_len(l.end, page);
	rc = dma_zalloc(qp->memory_len, align, &qp->memory, e);
	if (rc)
		return rc;
	base = qp->memory;
	qp->id = id;
	qp->entries = (uint16_t)entries;
	qp->page = page;
	qp->sq = (void *)(base + l.sq);
	qp->cq = (void *)(base + l.cq);
	qp->lists = (void *)(base + l.lists);
	qp->slot = (void *)(base + l.slot);
	qp->unusual = unusual(entries);
	qp->sq_iova = iommu_iova(base, l.end, &qp->hint);
	qp->cq_iova = qp->sq_iova + l.cq;
	qp->lists_iova = qp->sq_iova + l.lists;
	nvme_qpair_rewind(qp);
	return 0;
}

void nvme_qpair_free(struct nvme_qpair *qp)
{
	dma_free(qp->memory, qp->memory_len);
	qp->memory = NULL;
}

void nvme_qpair_rewind(struct nvme_qpair *qp)
{
	memset(qp->cq, 0, qp->entries * sizeof(*qp->cq)); /* stale phase bits are ghosts */
	memset(qp->sq, 0, qp->entries * sizeof(*qp->sq)); /* nvme_rw_push() counts on it */
	qp->sq_next = qp->sq;
	qp->sq_end = qp->sq + qp->entries;
	qp->cq_next = qp->cq;
	qp->cq_end = qp->cq + qp->entries;
	qp->rung = 0;
	qp->expect = NVME_END_PHASE;
	qp->fault = NULL;
	nvme_straight_close(qp);
	qp->free = 2 * 0 + 1;
	for (unsigned cid = 0; cid < qp->entries; cid++) /* the last one is never used */
		qp->slot[cid] = cid + 2 < qp->entries ? 2 * (cid + 1) + 1 : NVME_FREE_NONE;
}

/* --- doorbells --- */

/*
 * Shadow doorbells (Base 5.8): the register is written only when the device has asked to be told of
 * a value between old and new. The barrier keeps the look at the event index behind the shadow's
 * store, as the device writes the index and then looks at the shadow once more.
 */
static noinline bool shadow_says_ring(struct nvme_doorbell *d, uint16_t value)
{
	uint16_t old = (uint16_t)from_le32(*d->shadow), event;

	store_release(d->shadow, to_le32(value));
	full_barrier();
	event = (uint16_t)from_le32(READ_ONCE(*d->event));
	return (uint16_t)(value - event) <= (uint16_t)(value - old);
}

/* hot */
static inline void tell(struct nvme_doorbell *d, uint16_t value)
{
	if (unlikely(d->shadow != NULL) && !shadow_says_ring(d, value))
		return;
	io_write_barrier();	  /* the entries before the doorbell */
	*d->reg = to_le32(value); /* not an atomic: a vanished device raises SIGBUS here, and TSan's
				     hang then */
}

/* hot */
void nvme_ring(struct nvme_qpair *qp)
{
	uint16_t tail = (uint16_t)(qp->sq_next - qp->sq);

	if (tail == qp->rung)
		return;
	qp->rung = tail;
	tell(&qp->sq_doorbell, tail);
}

/* hot */
void nvme_ring_popped(struct nvme_qpair *qp)
{
	tell(&qp->cq_doorbell, (uint16_t)(qp->cq_next - qp->cq));
}

/* --- completions --- */

bool nvme_end_possible(struct nvme_qpair *qp, uint64_t other)
{
	if (NVME_END_CID(other) >= qp->entries)
		qp->fault = NVME_LIE_CID;
	else if (NVME_END_SQHD(other) >= qp->entries)
		qp->fault = "a submission queue head beyond the queue";
	return !qp->fault;
}

/* done() may push again: each is a row of its own. */
static bool reap_one(struct nvme_qpair *qp)
{
	struct nvme_pops p = nvme_pops(qp);
	const struct nvme_cqe *entry = p.next;
	struct nvme_popped popped;
	struct nvme_cqe cqe;

	if (!nvme_pop(qp, &p, &popped))
		return false;
	cqe = *entry;
	cqe.status = to_le16((uint16_t)(popped.status << 1)); /* the one that was checked */
	nvme_popped(qp, &p);
	popped.req->done(popped.req, &cqe);
	return true;
}

unsigned nvme_reap(struct nvme_qpair *qp)
{
	unsigned n = 0;

	while (!qp->fault && reap_one(qp))
		n++;
	return n;
}

struct nvme_req *nvme_take_back(struct nvme_qpair *qp)
{
	for (unsigned cid = 0; cid < qp->entries; cid++) {
		struct nvme_req *req = nvme_req_of(qp, cid);

		if (!req)
			continue;
		qp->slot[cid] = NVME_FREE_NONE;
		return req;
	}
	return NULL;
}
