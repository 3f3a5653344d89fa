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

/* qsort has no context argument in C17; glibc's qsort_r has. */
static int by_counter(const void *a, const void *b, void *arg)
{
	const struct inflight_region *r = arg;
	uint64_t x = r->desc[*(const uint16_t *)a].counter,
		 y = r->desc[*(const uint16_t *)b].counter;

	return x < y ? -1 : x > y;
}

static int collect(struct virtq_inflight *f)
{
	struct inflight_region *r = f->region;

	f->resubmit = calloc(f->num, sizeof(*f->resubmit));
	if (!f->resubmit)
		return -ENOMEM;
	for (uint16_t i = 0; i < f->num; i++) {
		if (READ_ONCE(r->desc[i].inflight) != 1)
			continue;
		f->resubmit[f->resubmit_n++] = i;
		f->counter = MAX(f->counter, READ_ONCE(r->desc[i].counter));
	}
	qsort_r(f->resubmit, f->resubmit_n, sizeof(*f->resubmit), by_counter, r);
	return 0;
}

int inflight_open(void *region, uint16_t num, uint16_t used_idx, struct virtq_inflight *f,
		  struct err *e)
{
	struct inflight_region *r = region;
	uint16_t version = READ_ONCE(r->version);

	*f = (struct virtq_inflight){ .region = r, .num = num };
	if (version == 0) {
		for (uint16_t i = 0; i < num; i++)
			r->desc[i].inflight = 0;
		r->desc_num = num;
		r->last_batch_head = 0;
		r->used_idx = used_idx;
		store_release(&r->version, 1);
		return 0;
	}
	if (version != 1 || READ_ONCE(r->desc_num) != num)
		return err_set(
			e, -EINVAL,
			"the in-flight region is of version %u for %u entries, the ring has %u",
			version, READ_ONCE(r->desc_num), num);
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
