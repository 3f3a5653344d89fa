/* What the files of this room share and nobody else sees. */
#ifndef NVME_INTERNAL_H
#define NVME_INTERNAL_H

#include "nvme/ctrl.h"

/* --- registers; a vanished device reads as all ones --- */

static inline uint32_t reg_read32(const struct nvme_ctrl *c, size_t offset)
{
	return from_le32(*(volatile le32 *)((volatile char *)c->hw->bar + offset));
}

static inline void reg_write32(const struct nvme_ctrl *c, size_t offset, uint32_t v)
{
	*(volatile le32 *)((volatile char *)c->hw->bar + offset) = to_le32(v);
}

/* Two halves are allowed (Base 3.1.3), and work everywhere. */
static inline uint64_t reg_read64(const struct nvme_ctrl *c, size_t offset)
{
	uint32_t low = reg_read32(c, offset);

	return low | (uint64_t)reg_read32(c, offset + 4) << 32;
}

static inline void reg_write64(const struct nvme_ctrl *c, size_t offset, uint64_t v)
{
	reg_write32(c, offset, (uint32_t)v);
	reg_write32(c, offset + 4, (uint32_t)(v >> 32));
}

/* The length to ask dma_zalloc() for when memory is to start at one of the device's pages: only
 * what is large starts at more than one of our own. */
static inline size_t paged_len(size_t len, uint32_t page)
{
	return page > NVME_PAGE ? MAX(len, (size_t)2 << 20) : len;
}

/* Milliseconds of a clock that only goes forward. */
uint64_t nvme_now_ms(void);
void nvme_sleep_us(unsigned us);

/* --- admin.c --- */

/* Memory of the admin queue. */
int admin_open(struct nvme_ctrl *c, struct err *e);
void admin_close(struct nvme_ctrl *c);
/* The controller is ready, and its admin queue is at its beginning. */
void admin_start(struct nvme_ctrl *c);
/* The device does nothing any more: what is outstanding ends with -ECANCELED. */
void admin_cancel(struct nvme_ctrl *c);
/* Ask to be told of events, where the controller tells of any. */
int admin_watch_events(struct nvme_ctrl *c, struct err *e);

/* --- cmb.c --- */

/* Make the controller's memory buffer usable, if it has one for submission queues; after each
 * enable. */
void cmb_start(struct nvme_ctrl *c);
void cmb_stop(struct nvme_ctrl *c);
/* Move a new queue's SQ into it while there is room; the controller does not know the queue yet. */
void cmb_place_sq(struct nvme_ctrl *c, struct nvme_qpair *qp);

/* --- hmb.c --- */

/* Lend the controller memory, if it wants some; after each enable. */
void hmb_start(struct nvme_ctrl *c);
/* Before it is shut down: it gives the memory back. After that: it is freed. */
void hmb_stop(struct nvme_ctrl *c);
void hmb_free(struct nvme_ctrl *c);

/* --- queue.c --- */

/* I/O queues that can be rung: whose doorbells lie in the BAR. */
unsigned queues_reachable(const struct nvme_ctrl *c);
/* Where the doorbells of a queue are that the device does not know yet. */
void queue_find_doorbells(const struct nvme_ctrl *c, struct nvme_qpair *qp);
/* Shadow doorbells, where the controller knows of them. */
int shadow_start(struct nvme_ctrl *c, struct err *e);
void shadow_free(struct nvme_ctrl *c);

#endif
