#include "virtio/inflight.h"

#include <errno.h>
#include <stdlib.h>

#include "util/compiler.h"

size_t inflight_stride(unsigned num)
{
	return ROUND_UP(sizeof(struct inflight_region) + num * sizeof(struct inflight_desc), 64);
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

/* A private copy of what the order depends on. */
struct entry {
	uint64_t counter;
	uint16_t head;
};

static int by_counter(const void *a, const void *b)
{
	const struct entry *x = a, *y = b;

	return x->counter < y->counter ? -1 : x->counter > y->counter;
}

static int collect(struct virtq_inflight *f)
{
	struct entry *entries = calloc(f->num, sizeof(*entries));
	uint16_t n = 0;

	f->resubmit = calloc(f->num, sizeof(*f->resubmit));
	if (!entries || !f->resubmit) {
		free(entries);
		inflight_close(f);
		return -ENOMEM;
	}
	for (uint16_t i = 0; i < f->num; i++) {
		if (READ_ONCE(f->region->desc[i].inflight) != 1)
			continue;
		entries[n++] = (struct entry){ READ_ONCE(f->region->desc[i].counter), i };
		f->counter = MAX(f->counter, entries[n - 1].counter);
	}
	qsort(entries, n, sizeof(*entries), by_counter);
	for (uint16_t i = 0; i < n; i++)
		f->resubmit[i] = entries[i].head;
	f->resubmit_n = n;
	free(entries);
	return 0;
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
	f->resubmit = NULL;
}

void inflight_publish(struct virtq_inflight *f, const uint16_t *heads, uint16_t mask,
		      uint16_t first, uint16_t end)
{
	/* the used index must be visible before a head stops being in flight */
	for (uint16_t i = first; i != end; i++)
		__atomic_store_n(&f->region->desc[heads[i & mask]].inflight, 0, __ATOMIC_RELEASE);
	__atomic_store_n(&f->region->used_idx, end, __ATOMIC_RELEASE);
}
