/* I/O queue pairs: identifiers, creation, doorbells and their shadows. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "mem/mem.h"
#include "nvme/internal.h"
#include "util/log.h"

/* --- doorbells (PCIe Transport 1.0, 3.1.2) --- */

static void find_doorbell(const struct nvme_ctrl *c, unsigned index, struct nvme_doorbell *d)
{
	size_t stride = 4u << NVME_CAP_DSTRD(c->cap);
	bool shadowed = c->shadow && index >= 2; /* the admin queue's stay registers */

	d->reg = (volatile le32 *)((volatile char *)c->hw->bar + NVME_DOORBELLS + index * stride);
	d->shadow = shadowed ? (le32 *)(void *)((char *)c->shadow + index * stride) : NULL;
	d->event = shadowed ? (le32 *)(void *)((char *)c->event + index * stride) : NULL;
	if (shadowed) /* what a queue of before left there would be compared with */
		*d->shadow = *d->event = to_le32(0);
}

void queue_find_doorbells(const struct nvme_ctrl *c, struct nvme_qpair *qp)
{
	find_doorbell(c, qp->id * 2u, &qp->sq_doorbell);
	find_doorbell(c, qp->id * 2u + 1, &qp->cq_doorbell);
}

/* I/O queues whose doorbells lie in so many bytes, behind the admin queue's. */
static unsigned queues_in(const struct nvme_ctrl *c, size_t len)
{
	size_t n = len / (2 * (4u << NVME_CAP_DSTRD(c->cap)));

	return (unsigned)MIN(MAX(n, 1) - 1, 0xffff);
}

unsigned queues_reachable(const struct nvme_ctrl *c)
{
	return queues_in(c, c->hw->bar_len - NVME_DOORBELLS);
}

/* A page of shadows that has room for no queue, where doorbells lie far apart, is of no use. */
static bool wants_shadow(const struct nvme_ctrl *c)
{
	return from_le16(c->id.oacs) & NVME_OACS_DBBUF && !c->options.no_shadow_doorbells &&
	       queues_in(c, c->page) > 0;
}

int shadow_start(struct nvme_ctrl *c, struct err *e)
{
	struct nvme_sqe sqe = { .opc = NVME_DOORBELL_BUFFER };
	struct iommu_hint hint = { 0 };
	void *pages;
	int rc;

	c->queues = MIN(c->queues, queues_reachable(c));
	if (!wants_shadow(c))
		return 0;
	if (!c->shadow) {
		rc = dma_zalloc(paged_len(2 * (size_t)c->page, c->page), c->page, &pages, e);
		if (rc)
			return rc;
		c->shadow = pages;
		c->event = (le32 *)(void *)((char *)pages + c->page);
	}
	memset(c->shadow, 0, 2 * (size_t)c->page);
	sqe.prp1 = to_le64(iommu_iova(c->shadow, 2 * (size_t)c->page, &hint));
	sqe.prp2 = to_le64(from_le64(sqe.prp1) + c->page);
	rc = nvme_admin(c, "Doorbell Buffer Config", &sqe, NULL, 0, NULL, e);
	if (rc == 0)
		c->queues = MIN(c->queues, queues_in(c, c->page));
	if (rc != -EIO && rc != -EINVAL && rc != -EOPNOTSUPP)
		return rc;
	log_note("shadow doorbells are offered and refused: %s", e->text);
	*e = (struct err){ 0 };
	shadow_free(c);
	return 0;
}

void shadow_free(struct nvme_ctrl *c)
{
	if (c->shadow)
		dma_free(c->shadow, paged_len(2 * (size_t)c->page, c->page));
	c->shadow = c->event = NULL;
}

/* --- creation (Base 5.4, 5.5) --- */

static int create_cq(struct nvme_ctrl *c, const struct nvme_qpair *qp, struct err *e)
{
	bool interrupts = qp->id < c->vectors;
	uint32_t cdw11 =
		NVME_CREATE_PC | (interrupts ? NVME_CREATE_CQ_IEN | (uint32_t)qp->id << 16 : 0);
	struct nvme_sqe sqe = {
		.opc = NVME_CREATE_CQ,
		.prp1 = to_le64(qp->cq_iova),
		.a.slba =
			to_le64(qp->id | (uint32_t)(qp->entries - 1) << 16 | (uint64_t)cdw11 << 32),
	};

	return nvme_admin(c, "Create I/O Completion Queue", &sqe, NULL, 0, NULL, e);
}

static int create_sq(struct nvme_ctrl *c, const struct nvme_qpair *qp, struct err *e)
{
	uint32_t cdw11 = NVME_CREATE_PC | (uint32_t)qp->id << 16;
	struct nvme_sqe sqe = {
		.opc = NVME_CREATE_SQ,
		.prp1 = to_le64(qp->sq_iova),
		.a.slba =
			to_le64(qp->id | (uint32_t)(qp->entries - 1) << 16 | (uint64_t)cdw11 << 32),
	};

	return nvme_admin(c, "Create I/O Submission Queue", &sqe, NULL, 0, NULL, e);
}

static int delete (struct nvme_ctrl *c, uint8_t opcode, uint16_t id, struct err *e)
{
	struct nvme_sqe sqe = { .opc = opcode, .a.cdw10 = to_le32(id) };

	return nvme_admin(c, "Delete I/O Queue", &sqe, NULL, 0, NULL, e);
}

int nvme_queue_delete(struct nvme_ctrl *c, const struct nvme_qpair *qp, struct err *e)
{
	int rc = delete (c, NVME_DELETE_SQ, qp->id, e);

	return rc ? rc : delete (c, NVME_DELETE_CQ, qp->id, e);
}

int nvme_queue_create(struct nvme_ctrl *c, struct nvme_qpair *qp, struct err *e)
{
	int rc;

	if (qp->id > c->queues || qp->entries > NVME_CAP_MQES(c->cap) + 1)
		return err_set(e, -EBUSY,
			       "The controller has fewer or smaller queues than before.");
	queue_find_doorbells(c, qp);
	rc = create_cq(c, qp, e);
	if (rc)
		return rc;
	rc = create_sq(c, qp, e);
	if (rc)
		(void)delete (c, NVME_DELETE_CQ, qp->id, NULL);
	return rc;
}

/* --- open, close --- */

static int take_id(struct nvme_ctrl *c, uint16_t *id)
{
	int rc = -EBUSY;

	pthread_mutex_lock(&c->lock);
	for (uint16_t i = 1; rc && i <= MIN(c->queues, NVME_QUEUES_MAX); i++) {
		if (c->queue_used[i])
			continue;
		c->queue_used[i] = true;
		*id = i;
		rc = 0;
	}
	pthread_mutex_unlock(&c->lock);
	return rc;
}

static void put_id(struct nvme_ctrl *c, uint16_t id)
{
	pthread_mutex_lock(&c->lock);
	c->queue_used[id] = false;
	pthread_mutex_unlock(&c->lock);
}

int nvme_queue_open(struct nvme_ctrl *c, struct nvme_qpair *qp, struct err *e)
{
	uint16_t id;
	int rc = take_id(c, &id);

	if (rc)
		return err_set(
			e, rc,
			"All %u I/O queues of the controller are in use. Fewer reactors, or a wider cpumask of fewer disks, need fewer.",
			c->queues);
	rc = nvme_qpair_alloc(qp, id, c->entries, c->page, e);
	if (rc)
		goto out_id;
	qp->sgl = c->sgl;
	cmb_place_sq(c, qp);
	rc = nvme_queue_create(c, qp, e);
	if (rc)
		goto out_memory;
	return 0;
out_memory:
	nvme_qpair_free(qp);
out_id:
	put_id(c, id);
	return rc;
}

void nvme_queue_close(struct nvme_ctrl *c, struct nvme_qpair *qp)
{
	struct err e = { 0 };
	int rc = nvme_queue_delete(c, qp, &e);

	if (rc && rc != -ECANCELED && rc != -EAGAIN) /* a reset deletes it, too */
		log_warn("NVMe queue %u cannot be deleted: %s", qp->id, e.text);
	nvme_qpair_free(qp);
	put_id(c, qp->id);
}
