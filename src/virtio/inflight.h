/*
 * The in-flight region (vhost-user, "Inflight I/O tracking"): which chains a ring's device side has
 * taken and not given back, in memory that outlives this process. After a crash the next back-end
 * resubmits them.
 *
 * For a split ring it is a mark per head (inflight.c). For a packed one, whose descriptors may be
 * overwritten by used ones before the chain ends, it holds copies of the descriptors in entries
 * that come from a free list, and where the used ones go (inflight_packed.c).
 *
 * The region is the front-end's memory, so it is checked like any guest input, and what we need
 * while we run (the free list) is kept in private memory too. Owner: as the ring.
 */
#ifndef VIRTIO_INFLIGHT_H
#define VIRTIO_INFLIGHT_H

#include <stdalign.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "util/err.h"
#include "virtio/spec.h"

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

/* Packed virtqueues, byte for byte. inflight, last, num and counter are of the first entry of a
 * chain. */
struct inflight_packed_desc {
	uint8_t inflight;
	uint8_t padding;
	uint16_t next; /* entry of the chain or of the free list */
	uint16_t last; /* entry of the chain */
	uint16_t num;
	uint64_t counter;
	union {
		struct {
			uint16_t id;
			uint16_t flags;
			uint32_t len;
		};
		uint64_t rest; /* all three, in one store */
	};
	uint64_t addr;
};

struct inflight_packed_region {
	uint64_t features;
	uint16_t version;
	uint16_t desc_num;
	alignas(4) uint16_t free_head;
	uint16_t old_free_head;
	uint16_t used_idx, old_used_idx;
	uint8_t used_wrap, old_used_wrap;
	uint8_t padding[10];
	struct inflight_packed_desc desc[];
};

_Static_assert(sizeof(struct inflight_packed_desc) == 32, "vhost-user, QueueRegionPacked");
_Static_assert(offsetof(struct inflight_packed_region, used_wrap) == 20, "QueueRegionPacked");
_Static_assert(offsetof(struct inflight_packed_region, desc) == 32, "QueueRegionPacked");

struct inflight_span {
	uint16_t first, last;
};

/* A ring's use of its region. */
struct virtq_inflight {
	union {
		struct inflight_region *region;
		struct inflight_packed_region *packed;
	};
	uint16_t num;
	bool used_before; /* it tells where the ring stood */
	uint64_t counter;
	uint16_t *resubmit; /* heads to serve again, oldest first */
	uint16_t resubmit_n, resubmit_at;

	/* packed */
	uint16_t free_head;
	uint16_t *next;		     /* of entries: our copy of the lists */
	struct inflight_span *chain; /* per buffer id: entries of its chain */
	uint16_t used_slot;	     /* where the ring stood */
	bool used_wrap;
	uint16_t held; /* slots of the chains to resubmit */
};

/* Bytes one ring takes, and how many of them the protocol defines. */
size_t inflight_stride(unsigned num, bool packed);
size_t inflight_defined(unsigned num, bool packed);

/*
 * Take up a region of region_num descriptors for a ring of num entries (not more: a driver may make
 * its ring smaller than the device's) whose used index is used_idx: a fresh one is initialised; a
 * used one is repaired and says what to resubmit. Errors: -EINVAL (not for this ring), -ENOMEM.
 */
int inflight_open(void *region, uint16_t region_num, uint16_t num, uint16_t used_idx,
		  struct virtq_inflight *f, struct err *e);
/* The same for a packed ring, which lies at ring and of which base (virtq_base()) is said. */
int inflight_packed_open(void *region, uint16_t region_num, uint16_t num, uint32_t base,
			 struct virtq_packed_desc *ring, struct virtq_inflight *f, struct err *e);
void inflight_close(struct virtq_inflight *f);

/* Sort the n heads by their counters, which are in order[]. Errors: -ENOMEM. */
int inflight_order(uint16_t *heads, const uint64_t *counters, uint16_t n);

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

/* Packed: the n descriptors of the chain id; there are that many free entries. */
void inflight_packed_take(struct virtq_inflight *f, uint16_t id, const struct virtq_packed_desc *d,
			  uint16_t n);

/* The chain at an entry is complete, and the entry behind it the first free one. */
static inline void inflight_packed_mark(struct virtq_inflight *f, struct inflight_packed_desc *d,
					uint16_t behind)
{
	f->free_head = behind;
	d->counter = ++f->counter;
	/* a chain that is marked is complete */
	__atomic_store_n(&d->inflight, 1, __ATOMIC_RELEASE);
	/* and in no free list: both heads in one store */
	__atomic_store_n((uint32_t *)(void *)&f->packed->free_head, behind | (uint32_t)behind << 16,
			 __ATOMIC_RELEASE);
}

/* hot. The same for a single descriptor: its address; its length, id << 32 and flags << 48. */
static inline void inflight_packed_take_one(struct virtq_inflight *f, uint16_t id, uint64_t addr,
					    uint64_t rest)
{
	uint16_t at = f->free_head;
	struct inflight_packed_desc *d = &f->packed->desc[at];

	d->addr = addr;
	d->rest = rest >> 32 | rest << 32; /* id, flags, length: in the region's order */
	d->num = 1;
	d->last = at;
	f->chain[id] = (struct inflight_span){ at, at };
	inflight_packed_mark(f, d, f->next[at]);
}

/* hot. Packed, before the batch's first descriptor is published: the chain id ends. */
static inline void inflight_packed_stage(struct virtq_inflight *f, uint16_t id)
{
	struct inflight_span s = f->chain[id];

	f->next[s.last] = f->packed->desc[s.last].next = f->free_head;
	f->free_head = s.first;
}

/* After the last of them: where the used descriptors will end. */
void inflight_packed_commit(struct virtq_inflight *f, uint16_t used_slot, bool used_wrap);

/* hot. After it has been published: the chain id is not in flight any more. */
static inline void inflight_packed_clear(struct virtq_inflight *f, uint16_t id)
{
	__atomic_store_n(&f->packed->desc[f->chain[id].first].inflight, 0, __ATOMIC_RELEASE);
}

/* After the last of them. */
void inflight_packed_finish(struct virtq_inflight *f);

/* The descriptors of the chain id, which is to be resubmitted, at most max; returns their number.
 */
uint16_t inflight_packed_read(const struct virtq_inflight *f, uint16_t id,
			      struct virtq_packed_desc *out, uint16_t max);

#endif
