/*
 * The in-flight region (vhost-user, "Inflight I/O tracking"): which heads a ring's device side has
 * taken and not given back, in memory that outlives this process. After a crash the next back-end
 * resubmits them.
 *
 * The region is the front-end's memory, so it is checked like any guest input. Owner: as the ring.
 */
#ifndef VIRTIO_INFLIGHT_H
#define VIRTIO_INFLIGHT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "util/err.h"

/* Split virtqueues, byte for byte. */
struct inflight_desc {
	uint8_t inflight;
	uint8_t padding[5];
	uint16_t next;
	uint64_t counter;
};

struct inflight_region {
	uint64_t features;
	uint16_t version; /* 1; 0: never used */
	uint16_t desc_num;
	uint16_t last_batch_head;
	uint16_t used_idx;
	struct inflight_desc desc[];
};

_Static_assert(sizeof(struct inflight_desc) == 16, "vhost-user, QueueRegionSplit");
_Static_assert(offsetof(struct inflight_region, desc) == 16, "vhost-user, QueueRegionSplit");

/* A ring's use of its region. */
struct virtq_inflight {
	struct inflight_region *region;
	uint16_t num;
	bool used_before; /* it tells where the ring stood */
	uint64_t counter;
	uint16_t *resubmit; /* heads to serve again, oldest first */
	uint16_t resubmit_n, resubmit_at;
};

/* Bytes one ring takes. */
size_t inflight_stride(unsigned num);

/*
 * Take up a region of region_num descriptors for a ring of num entries (not more: a driver may make
 * its ring smaller than the device's) whose used index is used_idx: a fresh one is initialised; a
 * used one is repaired and says what to resubmit. Errors: -EINVAL (not for this ring), -ENOMEM.
 */
int inflight_open(void *region, uint16_t region_num, uint16_t num, uint16_t used_idx,
		  struct virtq_inflight *f, struct err *e);
void inflight_close(struct virtq_inflight *f);

/* hot */
static inline void inflight_take(struct virtq_inflight *f, uint16_t head)
{
	struct inflight_desc *d = &f->region->desc[head];

	__atomic_store_n(&d->counter, ++f->counter, __ATOMIC_RELAXED);
	/* a head that is marked has its counter */
	__atomic_store_n(&d->inflight, 1, __ATOMIC_RELEASE);
}

/* hot; before the used index is published */
static inline void inflight_stage(struct virtq_inflight *f, uint16_t head)
{
	__atomic_store_n(&f->region->desc[head].next,
			 __atomic_load_n(&f->region->last_batch_head, __ATOMIC_RELAXED),
			 __ATOMIC_RELAXED);
	__atomic_store_n(&f->region->last_batch_head, head, __ATOMIC_RELAXED);
}

/* hot; after it: clears n heads of the private array, which starts at heads[first & mask] */
void inflight_publish(struct virtq_inflight *f, const uint16_t *heads, uint16_t mask,
		      uint16_t first, uint16_t end);

#endif
