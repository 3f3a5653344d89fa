#include "nvme/qpair.h"

#include <errno.h>
#include <string.h>

#include "mem/mem.h"
#include "nvme/internal.h"

/* --- life --- */

/* Memory is one block: SQ, CQ, lists, then what only we see. Each part starts at a page. */
struct layout {
	size_t sq, cq, lists, req, free, end;
};

static struct layout layout_of(unsigned entries, size_t page)
{
	struct layout l = { 0 };

	l.cq = ROUND_UP(entries * sizeof(struct nvme_sqe), page);
	l.lists = l.cq + ROUND_UP(entries * sizeof(struct nvme_cqe), page);
	l.req = l.lists + entries * (size_t)NVME_PAGE;
	l.free = l.req + entries * sizeof(struct nvme_req *);
	l.end = l.free + entries * sizeof(uint16_t);
	return l;
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
	qp->req = (void *)(base + l.req);
	qp->free = (void *)(base + l.free);
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
	qp->tail = qp->rung = qp->head = 0;
	qp->phase = 1;
	qp->fault = NULL;
	qp->free_n = (uint16_t)(qp->entries - 1);
	for (uint16_t i = 0; i < qp->free_n; i++)
		qp->free[i] = (uint16_t)(qp->free_n - 1 - i);
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
static inline void tell(struct nvme_qpair *qp, struct nvme_doorbell *d, uint16_t value)
{
	if (unlikely(d->shadow != NULL) && !shadow_says_ring(d, value))
		return;
	io_write_barrier(); /* the entries before the doorbell */
	store_release(d->reg, to_le32(value));
	qp->doorbells++;
}

/* hot */
void nvme_ring(struct nvme_qpair *qp)
{
	if (qp->tail == qp->rung)
		return;
	qp->rung = qp->tail;
	tell(qp, &qp->sq_doorbell, qp->tail);
}

/* --- completions --- */

static noinline void set_fault(struct nvme_qpair *qp, const char *what)
{
	qp->fault = what;
}

/* hot. The request that an entry of the completion queue is about; NULL: it is a lie. */
static inline struct nvme_req *claim(struct nvme_qpair *qp, const struct nvme_cqe *cqe)
{
	uint16_t cid = from_le16(cqe->cid);
	struct nvme_req *req;

	if (unlikely(cid >= qp->entries - 1 || !qp->req[cid])) {
		set_fault(qp, "a completion of a command that is not outstanding");
		return NULL;
	}
	if (unlikely(from_le16(cqe->sqhd) >= qp->entries)) {
		set_fault(qp, "a submission queue head beyond the queue");
		return NULL;
	}
	req = qp->req[cid];
	qp->req[cid] = NULL;
	qp->free[qp->free_n++] = cid;
	return req;
}

/* hot */
unsigned nvme_reap(struct nvme_qpair *qp, unsigned most)
{
	struct nvme_req *req;
	struct nvme_cqe cqe;
	unsigned n = 0;

	while (n < most && nvme_reapable(qp) && likely(!qp->fault)) {
		cqe = qp->cq[qp->head];
		req = claim(qp, &cqe);
		if (unlikely(!req))
			break;
		if (unlikely(++qp->head == qp->entries)) {
			qp->head = 0;
			qp->phase ^= 1;
		}
		n++;
		req->done(req, &cqe);
	}
	if (n)
		tell(qp, &qp->cq_doorbell, qp->head);
	return n;
}

struct nvme_req *nvme_take_back(struct nvme_qpair *qp)
{
	for (uint16_t cid = 0; cid < qp->entries - 1; cid++) {
		struct nvme_req *req = qp->req[cid];

		if (!req)
			continue;
		qp->req[cid] = NULL;
		qp->free[qp->free_n++] = cid;
		return req;
	}
	return NULL;
}
