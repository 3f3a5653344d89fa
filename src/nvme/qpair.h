/*
 * qpair: a submission and a completion queue, driven as get -> prep -> push -> ring -> reap.
 *
 *	sqe = nvme_sqe_get(qp);			a slot of the ring, its command identifier set
 *	sqe->opc = NVME_READ; ...		fill it, and nvme_map() the data
 *	nvme_sqe_push(qp, sqe, &io->req);	from now on the request is outstanding
 *	nvme_ring(qp);				one doorbell for all that was pushed
 *	nvme_reap(qp);				req->done() for each completion, one doorbell
 *
 * A queue belongs to one thread: I/O queues to a reactor's, the admin queue to who holds its
 * controller's lock. Opening and closing are a control thread's work, when nothing is outstanding.
 * What the device writes is checked: a completion for something that is not outstanding, or a head
 * beyond the ring, stops the queue (qp->fault says why) and only a reset of the controller mends
 *it.
 *
 * Base 2.0: queues 3.3, PRP and SGL 4.1, doorbells PCIe Transport 1.0 3.1.2, shadow doorbells 5.8.
 */
#ifndef NVME_QPAIR_H
#define NVME_QPAIR_H

#include <stdbool.h>
#include <sys/uio.h>

#include "mem/iommu.h"
#include "nvme/spec.h"

/* Embedded in what is outstanding. done runs in nvme_reap(); cqe is its own copy. Who reaps by
 * himself (nvme_pop()) needs none. */
struct nvme_req {
	void (*done)(struct nvme_req *req, const struct nvme_cqe *cqe);
};

/* The most bytes of one command, and the most pieces that its data may lie in: what one page of PRP
 * or SGL entries describes. */
#define NVME_TRANSFER_MAX (2u << 20)
#define NVME_PIECES_MAX	  256

#define NVME_ENTRIES_MIN 2 /* of a queue; one place always stays empty */
#define NVME_ENTRIES_MAX 4096

/* A doorbell, and its shadow in memory when the controller takes part in that. */
struct nvme_doorbell {
	volatile le32 *reg;
	le32 *shadow, *event; /* NULL: none */
};

/*
 * By command identifier: the request that is outstanding, or a link to the next identifier that is
 * free. Links are odd: 2 * identifier + 1, the last one NVME_FREE_NONE.
 */
typedef uintptr_t nvme_slot_t;

#define NVME_FREE_NONE UINTPTR_MAX

struct nvme_qpair {
	/* hot: submission */
	struct nvme_sqe *sq_next, *sq_end;
	nvme_slot_t *slot;
	nvme_slot_t free;	    /* a link to the first one */
	struct iommu_hint straight; /* nvme_rw_map()'s */
	struct nvme_doorbell sq_doorbell;
	struct iommu_hint hint; /* nvme_map()'s */
	uint16_t rung;		/* what the device knows of the SQ's tail */
	bool sgl;
	uint32_t page; /* the device's, in bytes */

	/* hot: completion */
	struct nvme_cqe *cq_next, *cq_end;
	uint64_t expect;   /* of an entry's end, and the bits in which others */
	uint64_t unusual;  /* are not simply a command that has succeeded */
	const char *fault; /* NULL: none */
	struct nvme_doorbell cq_doorbell;
	uint16_t entries;

	/* cold */
	uint16_t id;
	struct nvme_sqe *sq;
	struct nvme_cqe *cq;
	uint8_t (*lists)[NVME_PAGE]; /* by command identifier: PRP or SGL entries */
	iova_t sq_iova, cq_iova, lists_iova;
	void *memory;
	size_t memory_len;
};

/* --- life: control threads --- */

/*
 * Memory for a queue pair of so many entries (NVME_ENTRIES_MIN to _MAX); the device does not know
 * it yet. page: bytes, the controller's memory page. Errors: -ENOMEM, those of dma_zalloc().
 */
int nvme_qpair_alloc(struct nvme_qpair *qp, uint16_t id, unsigned entries, uint32_t page,
		     struct err *e);
void nvme_qpair_free(struct nvme_qpair *qp);
/* As freshly allocated, for use after a reset of the controller. Nothing is outstanding. */
void nvme_qpair_rewind(struct nvme_qpair *qp);

/* --- the owner --- */

/* Each push is a step around the SQ, each pop one around the CQ, and both are as long. */
static inline unsigned nvme_outstanding(const struct nvme_qpair *qp)
{
	unsigned pushed = (unsigned)(qp->sq_next - qp->sq),
		 popped = (unsigned)(qp->cq_next - qp->cq);

	return pushed >= popped ? pushed - popped : pushed + qp->entries - popped;
}

/* The request with this command identifier (< entries); NULL: it is not outstanding. */
static inline struct nvme_req *nvme_req_of(const struct nvme_qpair *qp, unsigned cid)
{
	return qp->slot[cid] & 1 ? NULL : (struct nvme_req *)qp->slot[cid];
}

/* hot. NULL: as many are outstanding as can be. Has no effect until it is pushed. */
static inline struct nvme_sqe *nvme_sqe_get(struct nvme_qpair *qp)
{
	struct nvme_sqe *sqe = qp->sq_next;

	if (unlikely(qp->free == NVME_FREE_NONE))
		return NULL;
	*sqe = (struct nvme_sqe){ .cid = to_le16((uint16_t)(qp->free >> 1)) };
	return sqe;
}

/* hot. What nvme_sqe_get() gave last. */
static inline void nvme_sqe_push(struct nvme_qpair *qp, struct nvme_req *req)
{
	nvme_slot_t *slot = &qp->slot[qp->free >> 1];

	qp->free = *slot;
	*slot = (nvme_slot_t)req;
	if (unlikely(++qp->sq_next == qp->sq_end))
		qp->sq_next = qp->sq;
}

/* hot, once per turn: tell the device of all that was pushed. */
void nvme_ring(struct nvme_qpair *qp);

/* Returns the number of completions. */
unsigned nvme_reap(struct nvme_qpair *qp);

#define NVME_LIE_CID "a completion of a command that is not outstanding"

/* True when a completion waits to be reaped. */
static inline bool nvme_reapable(const struct nvme_qpair *qp)
{
	return !((from_le64(load_acquire(&qp->cq_next->end)) ^ qp->expect) & NVME_END_PHASE);
}

/*
 * For who reaps by himself, many in a row: nvme_pops(), nvme_pop() until there is none, then
 * nvme_popped(). In between the queue's other functions may not be called: what changes with each
 * completion is here, where the compiler can keep it in registers.
 */
struct nvme_pops {
	struct nvme_cqe *next;
	uint64_t expect, unusual;
	nvme_slot_t free, *slot;
};

static always_inline struct nvme_pops nvme_pops(const struct nvme_qpair *qp)
{
	return (struct nvme_pops){ qp->cq_next, qp->expect, qp->unusual, qp->free, qp->slot };
}

struct nvme_popped {
	struct nvme_req *req;
	uint16_t status;
};

/* False: a lie (qp->fault). */
static always_inline bool nvme_pop_req(struct nvme_qpair *qp, struct nvme_pops *p, uint32_t cid,
				       uint16_t status, struct nvme_popped *out)
{
	nvme_slot_t *slot = &p->slot[cid], req = *slot;

	if (unlikely(req & 1)) {
		qp->fault = NVME_LIE_CID;
		return false;
	}
	*slot = p->free;
	p->free = 2 * (nvme_slot_t)cid + 1;
	if (unlikely(++p->next == qp->cq_end)) {
		p->next = qp->cq;
		p->expect ^= NVME_END_PHASE;
	}
	*out = (struct nvme_popped){ (struct nvme_req *)req, status };
	return true;
}

/* Is what an entry says of a command without success, or an identifier with high bits, possible? */
noinline bool nvme_end_possible(struct nvme_qpair *qp, uint64_t other);

/* hot. The next completion. False: there is none, or what there is is a lie (qp->fault). */
static always_inline bool nvme_pop(struct nvme_qpair *qp, struct nvme_pops *p,
				   struct nvme_popped *out)
{
	uint64_t other = p->expect ^ from_le64(load_acquire(&p->next->end));

	if (likely(!(other & p->unusual))) /* so its phase and status are 0 now */
		return nvme_pop_req(qp, p, (uint32_t)(other >> 32), 0, out);
	return !(other & NVME_END_PHASE) && nvme_end_possible(qp, other) &&
	       nvme_pop_req(qp, p, NVME_END_CID(other), NVME_END_STATUS(other), out);
}

/* Tell the device how far its completions have been read. */
noinline void nvme_ring_popped(struct nvme_qpair *qp);

/* hot. The end of a row. */
static always_inline void nvme_popped(struct nvme_qpair *qp, const struct nvme_pops *p)
{
	if (p->next == qp->cq_next)
		return;
	qp->free = p->free;
	qp->cq_next = p->next;
	qp->expect = p->expect;
	nvme_ring_popped(qp);
}

/* Take back one request that is outstanding, when the device is known to do nothing any more. NULL:
 * there is none. Until nvme_qpair_rewind() the queue is of no use then. */
struct nvme_req *nvme_take_back(struct nvme_qpair *qp);

/*
 * The data of a command. iov stays where it is until the command has ended. -EFAULT: the device
 * does not reach it as it lies (no IOVA, not at a multiple of 4 bytes, too many pieces, gaps that
 * PRPs cannot express on a device without SGLs); sqe may then be used for something else.
 */
int nvme_map_list(struct nvme_qpair *qp, struct nvme_sqe *sqe, const struct iovec *iov, int n);

/* The same; most data are one piece in one or two pages. */
static inline int nvme_map(struct nvme_qpair *qp, struct nvme_sqe *sqe, const struct iovec *iov,
			   int n)
{
	iova_t at, next;

	if (unlikely(n != 1))
		return nvme_map_list(qp, sqe, iov, n);
	at = iommu_iova(iov->iov_base, iov->iov_len, &qp->hint);
	next = (at | (qp->page - 1)) + 1;
	if (unlikely(at & 3 || iov->iov_len > next - at + qp->page)) /* IOVA_NONE is odd */
		return nvme_map_list(qp, sqe, iov, n);
	sqe->prp1 = to_le64(at);
	if (iov->iov_len > next - at)
		sqe->prp2 = to_le64(next);
	return 0;
}

/*
 * Get, fill, map and push in one straight line, without a call: a read or write of data in one page
 * of 4096 bytes, in the range of memory that nvme_map() found last before nvme_straight_open().
 *
 * nvme_rw_map(): where the data are, len bytes, a multiple of 4. False: the line is closed, no
 * place is free, or other data; it takes the steps above. nvme_rw_push(): head is the opcode and
 * namespace (nvme_sqe.head). Fields that reads and writes leave 0 are so already: no command on an
 * I/O queue sets them.
 */
static inline void nvme_straight_open(struct nvme_qpair *qp)
{
	qp->straight = qp->hint;
}

static inline void nvme_straight_close(struct nvme_qpair *qp)
{
	qp->straight = IOMMU_HINT_VOID;
}

/* hot */
static always_inline bool nvme_rw_map(const struct nvme_qpair *qp, const void *data, uint32_t len,
				      iova_t *out)
{
	uint32_t end;

	if (unlikely(!iommu_hinted(data, &qp->straight, out)) ||
	    unlikely(qp->free == NVME_FREE_NONE))
		return false;
	/* One comparison for "in one page, at a multiple of 4": the odd bits go to the top. */
	end = ((uint32_t)*out & 4095) + len;
	return likely((end >> 2 | end << 30) <= 4096 >> 2);
}

/* hot */
static always_inline void nvme_rw_push(struct nvme_qpair *qp, struct nvme_req *req, iova_t at,
				       uint64_t head, uint64_t slba, uint32_t cdw12)
{
	struct nvme_sqe *sqe = qp->sq_next;
	nvme_slot_t *slot;
	uint64_t cid;

	sqe->prp1 = to_le64(at);
	sqe->prp2 = to_le64(0);
	sqe->a.slba = to_le64(slba);
	sqe->cdw12 = to_le32(cdw12);
	cid = qp->free >> 1;
	sqe->head = to_le64(head | cid << 16);
	slot = &qp->slot[cid];
	qp->free = *slot;
	*slot = (nvme_slot_t)req;
	sqe++;
	qp->sq_next = likely(sqe != qp->sq_end) ? sqe : qp->sq;
}

/* True when nvme_map() would succeed. */
bool nvme_reaches(struct nvme_qpair *qp, const struct iovec *iov, int n);

/* Room for small data of the command in sqe, such as ranges to deallocate: NVME_PAGE bytes that the
 * device reaches, its PRP1 already set. The command has no other data. */
void *nvme_inline_data(struct nvme_qpair *qp, struct nvme_sqe *sqe);

#endif
