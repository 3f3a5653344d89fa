/*
 * qpair: a submission and a completion queue, driven as get -> prep -> push -> ring -> reap.
 *
 *	sqe = nvme_sqe_get(qp);			a slot of the ring, its command identifier set
 *	sqe->opc = NVME_READ; ...		fill it, and nvme_map() the data
 *	nvme_sqe_push(qp, sqe, &io->req);	from now on the request is outstanding
 *	nvme_ring(qp);				one doorbell for all that was pushed
 *	nvme_reap(qp, most);			req->done() for each completion, one doorbell
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

struct nvme_qpair {
	/* hot: submission */
	struct nvme_sqe *sq_next, *sq_end;
	struct nvme_req **req; /* by command identifier; NULL: not outstanding */
	uint16_t *free_top;    /* of the stack of identifiers that are free */
	uint16_t *free;	       /* its bottom */
	uint32_t page;	       /* the device's, in bytes */
	bool sgl;
	struct iommu_hint hint;
	struct nvme_doorbell sq_doorbell;

	/* hot: completion */
	struct nvme_cqe *cq_next, *cq_end;
	uint16_t phase;
	uint16_t entries;
	uint16_t rung;	   /* what the device knows of the SQ's tail */
	const char *fault; /* NULL: none */
	struct nvme_doorbell cq_doorbell;

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

static inline unsigned nvme_outstanding(const struct nvme_qpair *qp)
{
	return qp->entries - 1u - (unsigned)(qp->free_top - qp->free);
}

/* hot. NULL: as many are outstanding as can be. Has no effect until it is pushed. */
static inline struct nvme_sqe *nvme_sqe_get(struct nvme_qpair *qp)
{
	struct nvme_sqe *sqe = qp->sq_next;

	if (unlikely(qp->free_top == qp->free))
		return NULL;
	*sqe = (struct nvme_sqe){ .cid = to_le16(qp->free_top[-1]) };
	return sqe;
}

/* hot. What nvme_sqe_get() gave last. */
static inline void nvme_sqe_push(struct nvme_qpair *qp, struct nvme_req *req)
{
	qp->req[*--qp->free_top] = req;
	if (unlikely(++qp->sq_next == qp->sq_end))
		qp->sq_next = qp->sq;
}

/* hot, once per turn: tell the device of all that was pushed. */
void nvme_ring(struct nvme_qpair *qp);

/* hot. At most so many completions; returns their number. */
unsigned nvme_reap(struct nvme_qpair *qp, unsigned most);

/* True when a completion waits to be reaped. */
static inline bool nvme_reapable(const struct nvme_qpair *qp)
{
	return (from_le16(load_acquire(&qp->cq_next->status)) & 1) == qp->phase;
}

/* For who reaps by himself: pop until there is none, then, if there were any, nvme_popped(). */

noinline struct nvme_req *nvme_pop_lie(struct nvme_qpair *qp, const char *what);

/*
 * hot. The request of the next completion, and *end of its entry, read once. NULL: there is none,
 * or what there is is a lie (qp->fault).
 */
static inline struct nvme_req *nvme_pop(struct nvme_qpair *qp, uint64_t *end)
{
	struct nvme_req *req;
	uint64_t word;
	uint16_t cid;

	if (!nvme_reapable(qp))
		return NULL;
	word = from_le64(READ_ONCE(qp->cq_next->end));
	cid = NVME_END_CID(word);
	if (unlikely(cid >= qp->entries) || unlikely(!(req = qp->req[cid])))
		return nvme_pop_lie(qp, "a completion of a command that is not outstanding");
	if (unlikely(NVME_END_SQHD(word) >= qp->entries))
		return nvme_pop_lie(qp, "a submission queue head beyond the queue");
	qp->req[cid] = NULL;
	*qp->free_top++ = cid;
	if (unlikely(++qp->cq_next == qp->cq_end)) {
		qp->cq_next = qp->cq;
		qp->phase ^= 1;
	}
	*end = word;
	return req;
}

/* hot. Tell the device how far its completions have been read. */
void nvme_popped(struct nvme_qpair *qp);

/* Take back one request that is outstanding, when the device is known to do nothing any more. NULL:
 * there is none. */
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
 * hot. Get, fill, map and push in one straight line, without a call: a read or write of data in one
 * page of 4096 bytes.
 *
 * nvme_rw_map(): where the data are. IOVA_NONE: no place is free, other data, or another range of
 * memory than before; it takes the steps above. nvme_rw_push(): head is the opcode and namespace
 * (nvme_sqe.head). Fields that reads and writes leave 0 are so already: no command on an I/O queue
 * sets them.
 */
static always_inline iova_t nvme_rw_map(const struct nvme_qpair *qp, const struct iovec *data)
{
	iova_t at = iommu_hinted(data->iov_base, &qp->hint);

	if (unlikely(at & 3) || unlikely((at & 4095) + data->iov_len > 4096) ||
	    unlikely(qp->free_top == qp->free))
		return IOVA_NONE;
	return at;
}

static always_inline void nvme_rw_push(struct nvme_qpair *qp, struct nvme_req *req, iova_t at,
				       uint64_t head, uint64_t slba, uint32_t cdw12)
{
	struct nvme_sqe *sqe = qp->sq_next;
	uint16_t cid;

	sqe->prp1 = to_le64(at);
	sqe->prp2 = to_le64(0);
	sqe->a.slba = to_le64(slba);
	sqe->cdw12 = to_le32(cdw12);
	qp->free_top--;
	cid = *qp->free_top;
	qp->req[cid] = req;
	sqe->head = to_le64(head | (uint64_t)cid << 16);
	sqe++;
	qp->sq_next = likely(sqe != qp->sq_end) ? sqe : qp->sq;
}

/* True when nvme_map() would succeed. */
bool nvme_reaches(struct nvme_qpair *qp, const struct iovec *iov, int n);

/* Room for small data of the command in sqe, such as ranges to deallocate: NVME_PAGE bytes that the
 * device reaches, its PRP1 already set. The command has no other data. */
void *nvme_inline_data(struct nvme_qpair *qp, struct nvme_sqe *sqe);

#endif
