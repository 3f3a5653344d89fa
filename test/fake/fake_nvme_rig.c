#include "fake/fake_nvme_rig.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "util/unit.h"

#define ADMIN_ENTRIES 64
#define DATA_LEN      (4u << 20)
#define LISTS_LEN     (64u << 10)
#define RIG_PATIENCE  10 /* turns after which the controller sleeps */

static void must(bool ok)
{
	if (!ok)
		abort();
}

static uint32_t *word(struct rig *r, unsigned off)
{
	return (uint32_t *)((uintptr_t)fake_nvme_hw(r->f)->bar + off);
}

uint32_t rig_get(struct rig *r, unsigned off)
{
	return load_acquire(word(r, off));
}

void rig_set(struct rig *r, unsigned off, uint32_t v)
{
	store_release(word(r, off), v);
}

static void set64(struct rig *r, unsigned off, uint64_t v)
{
	rig_set(r, off, (uint32_t)v);
	rig_set(r, off + 4, (uint32_t)(v >> 32));
}

void *rig_alloc(struct rig *r, size_t len)
{
	size_t page = MAX(r->page, 4096u), at = ROUND_UP(r->used, page);

	must(at + len <= RIG_MEM);
	r->used = at + len;
	return memset(r->mem + at, 0, len);
}

uint64_t rig_iova(struct rig *r, const void *p)
{
	return RIG_IOVA + (uint64_t)((const uint8_t *)p - r->mem);
}

void rig_open(struct rig *r, struct fake_nvme_config c)
{
	*r = (struct rig){ .page = (size_t)4096 << c.mpsmin, .stride = (size_t)4 << c.dstrd };
	r->m = fake_iommu_create(0x1000, UINT64_MAX >> 16);
	r->mem = mmap(NULL, RIG_MEM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	must(r->m && r->mem != MAP_FAILED);
	must(!fake_iommu_hw(r->m)->map(fake_iommu_hw(r->m), r->mem, RIG_MEM, RIG_IOVA, NULL));
	c.iommu = r->m;
	r->f = fake_nvme_create(&c);
	must(r->f);
	r->data = rig_alloc(r, DATA_LEN);
	r->lists = rig_alloc(r, LISTS_LEN);
}

void rig_close(struct rig *r)
{
	fake_nvme_destroy(r->f);
	fake_iommu_destroy(r->m);
	munmap(r->mem, RIG_MEM);
}

void rig_close_clean(struct rig *r)
{
	if (fake_nvme_faults(r->f))
		print_error("fault: %s\n", fake_nvme_fault(r->f, 0));
	assert_int_equal(fake_nvme_faults(r->f), 0);
	rig_close(r);
}

/* ---- queues ---- */

static void queue_clear(struct rig *r, unsigned qid, unsigned size)
{
	struct rig_queue *q = &r->q[qid];

	*q = (struct rig_queue){ .size = size, .phase = 1 };
	q->sq = rig_alloc(r, size * sizeof(*q->sq));
	q->cq = rig_alloc(r, size * sizeof(*q->cq));
}

bool rig_enable(struct rig *r)
{
	unsigned mps = (unsigned)__builtin_ctzll(r->page) - 12;

	queue_clear(r, 0, ADMIN_ENTRIES);
	r->shadow = NULL;
	rig_set(r, WIRE_REG_AQA, (ADMIN_ENTRIES - 1) << 16 | (ADMIN_ENTRIES - 1));
	set64(r, WIRE_REG_ASQ, rig_iova(r, r->q[0].sq));
	set64(r, WIRE_REG_ACQ, rig_iova(r, r->q[0].cq));
	rig_set(r, WIRE_REG_CC, 4u << 20 | 6u << 16 | mps << 7 | WIRE_CC_EN);
	for (unsigned i = 0; i < RIG_TURNS; i++) {
		fake_nvme_turn(r->f);
		if (rig_get(r, WIRE_REG_CSTS) & WIRE_CSTS_RDY)
			return true;
	}
	return false;
}

bool rig_disable(struct rig *r)
{
	rig_set(r, WIRE_REG_CC, rig_get(r, WIRE_REG_CC) & ~WIRE_CC_EN);
	for (unsigned i = 0; i < RIG_TURNS; i++) {
		fake_nvme_turn(r->f);
		if (!(rig_get(r, WIRE_REG_CSTS) & WIRE_CSTS_RDY))
			return true;
	}
	return false;
}

uint16_t rig_queue_make(struct rig *r, unsigned qid, unsigned size)
{
	struct wire_sqe sqe = { .opc = WIRE_ADM_CREATE_CQ,
				.cdw10 = qid | (size - 1) << 16,
				.cdw11 = 3 | qid << 16 };
	uint16_t status;

	queue_clear(r, qid, size);
	sqe.prp1 = rig_iova(r, r->q[qid].cq);
	status = rig_run(r, 0, &sqe, NULL);
	if (status)
		return status;
	sqe.opc = WIRE_ADM_CREATE_SQ;
	sqe.cdw11 = 1 | qid << 16;
	sqe.prp1 = rig_iova(r, r->q[qid].sq);
	return rig_run(r, 0, &sqe, NULL);
}

static void shadow_up(struct rig *r)
{
	struct wire_sqe sqe = { .opc = WIRE_ADM_DBBUF };
	uint32_t *shadow = rig_alloc(r, r->page), *eventidx = rig_alloc(r, r->page);

	sqe.prp1 = rig_iova(r, shadow);
	sqe.prp2 = rig_iova(r, eventidx);
	must(rig_run(r, 0, &sqe, NULL) == WIRE_OK);
	r->shadow = shadow;
	r->eventidx = eventidx;
}

void rig_up(struct rig *r, struct fake_nvme_config c)
{
	rig_open(r, c);
	must(rig_enable(r));
	if (c.oacs & WIRE_OACS_DBBUF)
		shadow_up(r);
	must(rig_queue_make(r, 1, 16) == WIRE_OK);
}

/* ---- doorbells ---- */

/* True: the shadow alone will do. */
static bool shadow_is_enough(struct rig *r, size_t slot, uint32_t v)
{
	uint32_t *shadow = &r->shadow[slot / 4], *eventidx = &r->eventidx[slot / 4];
	uint32_t old = READ_ONCE(*shadow), event;

	if (r->no_barrier) {
		event = load_acquire(eventidx); /* too early: what a missing barrier allows */
		for (unsigned i = 0; i < RIG_PATIENCE; i++)
			fake_nvme_turn(r->f);
		store_release(shadow, v);
	} else {
		store_release(shadow, v);
		full_barrier();
		event = load_acquire(eventidx);
	}
	return (uint16_t)(v - event - 1) >= (uint16_t)(v - old);
}

static void doorbell(struct rig *r, unsigned qid, unsigned head, uint32_t v)
{
	size_t slot = (2 * qid + head) * r->stride;

	if (r->shadow && qid && shadow_is_enough(r, slot, v))
		return;
	r->rung++;
	rig_set(r, (unsigned)(WIRE_DOORBELLS + slot), v);
}

uint16_t rig_put(struct rig *r, unsigned qid, const struct wire_sqe *sqe)
{
	struct rig_queue *q = &r->q[qid];

	q->sq[q->tail] = *sqe;
	q->sq[q->tail].cid = q->cid;
	q->tail = (q->tail + 1) % q->size;
	q->cid = (uint16_t)((q->cid + 1) % q->size);
	return q->sq[(q->tail + q->size - 1) % q->size].cid;
}

void rig_ring(struct rig *r, unsigned qid)
{
	doorbell(r, qid, 0, r->q[qid].tail);
}

bool rig_reap(struct rig *r, unsigned qid, struct wire_cqe *out)
{
	struct rig_queue *q = &r->q[qid];
	struct wire_cqe *e = &q->cq[q->head];

	if ((load_acquire(&e->status) & 1) != q->phase)
		return false;
	*out = *e;
	q->head = (q->head + 1) % q->size;
	if (q->head == 0)
		q->phase ^= 1;
	doorbell(r, qid, 1, q->head);
	return true;
}

uint16_t rig_wait(struct rig *r, unsigned qid, struct wire_cqe *out)
{
	for (unsigned i = 0; i < RIG_TURNS; i++) {
		if (rig_reap(r, qid, out))
			return out->status >> 1 & 0x7ff;
		fake_nvme_turn(r->f);
	}
	return NO_CQE;
}

uint16_t rig_run(struct rig *r, unsigned qid, const struct wire_sqe *sqe, uint32_t *dw0)
{
	struct wire_cqe e;
	uint16_t cid = rig_put(r, qid, sqe), status;

	rig_ring(r, qid);
	status = rig_wait(r, qid, &e);
	if (status != NO_CQE && e.cid != cid)
		return NO_CQE;
	if (dw0 && status != NO_CQE)
		*dw0 = e.dw0;
	return status;
}

/* ---- commands ---- */

void rig_prps(struct rig *r, struct wire_sqe *sqe, const void *p, size_t len)
{
	uint64_t at = rig_iova(r, p), *list = r->lists;
	size_t first = MIN(len, r->page - at % r->page), slots = r->page / 8;

	sqe->prp1 = at;
	sqe->prp2 = 0;
	at += first;
	len -= first;
	if (len == 0)
		return;
	sqe->prp2 = len <= r->page ? at : rig_iova(r, list);
	for (size_t i = 0; sqe->prp2 != at && len; i++) {
		if (i % slots == slots - 1 && len > r->page) {
			list[i] = rig_iova(r, &list[i + 1]);
			continue;
		}
		list[i] = at;
		at += r->page;
		len -= MIN(len, r->page);
	}
}

struct wire_sqe rig_rw(struct rig *r, uint8_t opcode, uint32_t nsid, uint64_t slba, unsigned blocks,
		       void *p, size_t len)
{
	struct wire_sqe sqe = { .opc = opcode,
				.nsid = nsid,
				.cdw10 = (uint32_t)slba,
				.cdw11 = (uint32_t)(slba >> 32),
				.cdw12 = blocks - 1 };

	if (p)
		rig_prps(r, &sqe, p, len);
	return sqe;
}

uint16_t rig_io(struct rig *r, uint8_t opcode, uint64_t slba, unsigned blocks, void *p)
{
	struct wire_sqe sqe = rig_rw(r, opcode, 1, slba, blocks, p, blocks * RIG_BLOCK);

	return rig_run(r, 1, &sqe, NULL);
}

uint16_t rig_flush(struct rig *r)
{
	struct wire_sqe sqe = { .opc = WIRE_IO_FLUSH, .nsid = 1 };

	return rig_run(r, 1, &sqe, NULL);
}

void rig_fill(uint8_t *p, size_t len, unsigned seed)
{
	for (size_t i = 0; i < len; i++)
		p[i] = (uint8_t)(i * 7 + i / 256 + seed);
}

uint16_t rig_identify(struct rig *r, uint8_t cns, uint32_t nsid, void *to)
{
	struct wire_sqe sqe = { .opc = WIRE_ADM_IDENTIFY, .nsid = nsid, .cdw10 = cns };
	uint16_t status;

	rig_prps(r, &sqe, r->data, 4096);
	status = rig_run(r, 0, &sqe, NULL);
	memcpy(to, r->data, 4096);
	return status;
}

uint16_t rig_set_feature(struct rig *r, uint8_t fid, uint32_t v, uint32_t *dw0)
{
	struct wire_sqe sqe = { .opc = WIRE_ADM_SET_FEATURES, .cdw10 = fid, .cdw11 = v };

	return rig_run(r, 0, &sqe, dw0);
}
