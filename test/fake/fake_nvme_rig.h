/*
 * The smallest NVMe driver there is, to test the fake controller with: one arena of memory, every
 * field in reach, turns taken by hand. It makes no attempt at being right by itself.
 */
#ifndef FAKE_NVME_RIG_H
#define FAKE_NVME_RIG_H

#include "fake/fake_nvme.h"
#include "fake/nvme_wire.h"

#define RIG_IOVA   0x10000000ull
#define RIG_MEM	   (24u << 20)
#define RIG_QUEUES 4
#define RIG_BLOCK  512u
#define RIG_TURNS  200 /* that a command may take */

#define NO_CQE 0xffff /* the status of a command that was not answered */

struct rig_queue {
	struct wire_sqe *sq;
	struct wire_cqe *cq;
	unsigned size, tail, head;
	uint16_t phase, cid;
};

struct rig {
	struct fake_iommu *m;
	struct fake_nvme *f;
	uint8_t *mem;
	size_t used;
	size_t page;
	size_t stride; /* of doorbells */
	struct rig_queue q[RIG_QUEUES];
	uint8_t *data; /* 4 MiB, on a page border */
	uint64_t *lists;
	uint32_t *shadow, *eventidx;
	bool no_barrier; /* cheats with shadow doorbells */
	unsigned rung;
};

/* Memory, a controller of c (whose iommu is filled in); nothing is enabled yet. */
void rig_open(struct rig *r, struct fake_nvme_config c);
void rig_close(struct rig *r);
/* The same, and asserts that the controller found no fault. */
void rig_close_clean(struct rig *r);

uint32_t rig_get(struct rig *r, unsigned off);
void rig_set(struct rig *r, unsigned off, uint32_t v);
void *rig_alloc(struct rig *r, size_t len);
uint64_t rig_iova(struct rig *r, const void *p);

/* Enables with pages of r->page and admin queues of 64; true: RDY. */
bool rig_enable(struct rig *r);
bool rig_disable(struct rig *r);
/* Queue pair qid with CQ qid on vector qid. A status. */
uint16_t rig_queue_make(struct rig *r, unsigned qid, unsigned size);
/* Enabled, with Doorbell Buffer Config if offered, and one I/O queue of 16. */
void rig_up(struct rig *r, struct fake_nvme_config c);

/* Lays it into the ring, with a CID; then the doorbell. The CID. */
uint16_t rig_put(struct rig *r, unsigned qid, const struct wire_sqe *sqe);
void rig_ring(struct rig *r, unsigned qid);
/* The next completion, if there is one. */
bool rig_reap(struct rig *r, unsigned qid, struct wire_cqe *out);
/* Submits and takes turns until it is answered. */
uint16_t rig_run(struct rig *r, unsigned qid, const struct wire_sqe *sqe, uint32_t *dw0);
/* Turns until there is a completion; its status, or NO_CQE. */
uint16_t rig_wait(struct rig *r, unsigned qid, struct wire_cqe *out);

/* DPTR for contiguous memory, with lists. */
void rig_prps(struct rig *r, struct wire_sqe *sqe, const void *p, size_t len);
struct wire_sqe rig_rw(struct rig *r, uint8_t opcode, uint32_t nsid, uint64_t slba, unsigned blocks,
		       void *p, size_t len);
/* A read, write or their like of blocks of 512 on namespace 1 by queue 1. */
uint16_t rig_io(struct rig *r, uint8_t opcode, uint64_t slba, unsigned blocks, void *p);
uint16_t rig_flush(struct rig *r);
void rig_fill(uint8_t *p, size_t len, unsigned seed);
uint16_t rig_identify(struct rig *r, uint8_t cns, uint32_t nsid, void *to);
uint16_t rig_set_feature(struct rig *r, uint8_t fid, uint32_t v, uint32_t *dw0);

#endif
