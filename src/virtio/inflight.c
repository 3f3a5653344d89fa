#include "virtio/inflight.h"

#include <errno.h>
#include <stdlib.h>

#include "util/compiler.h"

size_t inflight_defined(unsigned num, bool packed)
{
	return packed ? sizeof(struct inflight_packed_region) +
				num * sizeof(struct inflight_packed_desc)
		      : sizeof(struct inflight_region) + num * sizeof(struct inflight_desc);
}

size_t inflight_stride(unsigned num, bool packed)
{
	return ROUND_UP(inflight_defined(num, packed), 64);
}

/*
 * The crash came after the used index was published and before its heads were cleared: they are the
 * last (used_idx - region's) of the batch list.
 */
static void finish_batch(struct inflight_region *r, uint16_t num, uint16_t used_idx)
{
	uint16_t behind = (uint16_t)(used_idx - READ_ONCE(r->used_idx)),
		 head = READ_ONCE(r->last_batch_head);

	for (uint16_t i = 0; i < behind && i < num && head < num; i++) {
		r->desc[head].inflight = 0;
		head = READ_ONCE(r->desc[head].next);
	}
	r->used_idx = used_idx;
}

/* --- order --- */

struct entry {
	uint64_t counter;
	uint16_t head;
};

static int by_counter(const void *a, const void *b)
{
	const struct entry *x = a, *y = b;

	return x->counter < y->counter ? -1 : x->counter > y->counter;
}

int inflight_order(uint16_t *heads, const uint64_t *counters, uint16_t n)
{
	struct entry *entries = calloc(n + 1u, sizeof(*entries));

	if (!entries)
		return -ENOMEM;
	for (uint16_t i = 0; i < n; i++)
		entries[i] = (struct entry){ counters[i], heads[i] };
	qsort(entries, n, sizeof(*entries), by_counter);
	for (uint16_t i = 0; i < n; i++)
		heads[i] = entries[i].head;
	free(entries);
	return 0;
}

static int collect(struct virtq_inflight *f)
{
	uint64_t *counters = calloc(f->num, sizeof(*counters));
	int rc = -ENOMEM;

	f->resubmit = calloc(f->num, sizeof(*f->resubmit));
	if (!counters || !f->resubmit)
		goto out;
	for (uint16_t i = 0; i < f->num; i++) {
		if (READ_ONCE(f->region->desc[i].inflight) != 1)
			continue;
		counters[f->resubmit_n] = READ_ONCE(f->region->desc[i].counter);
		f->counter = MAX(f->counter, counters[f->resubmit_n]);
		f->resubmit[f->resubmit_n++] = i;
	}
	rc = inflight_order(f->resubmit, counters, f->resubmit_n);
out:
	free(counters);
	if (rc)
		inflight_close(f);
	return rc;
}

int inflight_open(void *region, uint16_t region_num, uint16_t num, uint16_t used_idx,
		  struct virtq_inflight *f, struct err *e)
{
	struct inflight_region *r = region;
	uint16_t version = READ_ONCE(r->version);

	*f = (struct virtq_inflight){ .region = r, .num = num };
	if (num > region_num)
		return err_set(e, -EINVAL,
			       "the in-flight region is for rings of %u entries, the ring has %u",
			       region_num, num);
	if (version == 0) {
		for (uint16_t i = 0; i < region_num; i++)
			r->desc[i].inflight = 0;
		r->desc_num = region_num;
		r->last_batch_head = 0;
		r->used_idx = used_idx;
		store_release(&r->version, 1);
		return 0;
	}
	if (version != 1 || READ_ONCE(r->desc_num) != region_num)
		return err_set(
			e, -EINVAL,
			"the in-flight region is of version %u for %u entries, not of version 1 for %u",
			version, READ_ONCE(r->desc_num), region_num);
	f->used_before = true;
	finish_batch(r, num, used_idx);
	return collect(f);
}

void inflight_close(struct virtq_inflight *f)
{
	free(f->resubmit);
	free(f->next);
	free(f->chain);
	f->resubmit = f->next = NULL;
	f->chain = NULL;
}

void inflight_publish(struct virtq_inflight *f, const uint16_t *heads, uint16_t mask,
		      uint16_t first, uint16_t end)
{
	/* the used index must be visible before a head stops being in flight */
	for (uint16_t i = first; i != end; i++)
		__atomic_store_n(&f->region->desc[heads[i & mask]].inflight, 0, __ATOMIC_RELEASE);
	__atomic_store_n(&f->region->used_idx, end, __ATOMIC_RELEASE);
}
