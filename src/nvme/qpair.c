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
	memset(qp->sq, 0, qp->entries * sizeof(*qp->sq)); /* nvme_push_rw() counts on it */
	qp->sq_next = qp->sq;
	qp->sq_end = qp->sq + qp->entries;
	qp->cq_next = qp->cq;
	qp->cq_end = qp->cq + qp->entries;
	qp->rung = 0;
	qp->phase = 1;
	qp->fault = NULL;
	qp->free_top = qp->free;
	for (unsigned i = qp->entries - 1u; i > 0; i--)
		*qp->free_top++ = (uint16_t)(i - 1);
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
void nvme_popped(struct nvme_qpair *qp)
{
	tell(&qp->cq_doorbell, (uint16_t)(qp->cq_next - qp->cq));
}

/* --- completions --- */

struct nvme_req *nvme_pop_lie(struct nvme_qpair *qp, const char *what)
{
	qp->fault = what;
	return NULL;
}

unsigned nvme_reap(struct nvme_qpair *qp, unsigned most)
{
	struct nvme_req *req;
	struct nvme_cqe cqe;
	unsigned n = 0;
	uint64_t end = 0;

	while (n < most && !qp->fault) {
		const struct nvme_cqe *entry = qp->cq_next;

		req = nvme_pop(qp, &end);
		if (!req)
			break;
		cqe = (struct nvme_cqe){ .dw0 = entry->dw0,
					 .dw1 = entry->dw1,
					 .end = to_le64(end) };
		n++;
		req->done(req, &cqe);
	}
	if (n)
		nvme_popped(qp);
	return n;
}

struct nvme_req *nvme_take_back(struct nvme_qpair *qp)
{
	for (uint16_t cid = 0; cid < qp->entries - 1; cid++) {
		struct nvme_req *req = qp->req[cid];

		if (!req)
			continue;
		qp->req[cid] = NULL;
		*qp->free_top++ = cid;
		return req;
	}
	return NULL;
}
