/* The in-flight region of a packed virtqueue: vhost-user.rst, "Packed virtqueue support". */
#include <errno.h>
#include <stdlib.h>

#include "util/compiler.h"
#include "virtio/inflight.h"

#define NONE UINT16_MAX /* ends our copy of the free list; VIRTQ_SIZE_MAX is less */

/* --- while it runs --- */

void inflight_packed_take(struct virtq_inflight *f, uint16_t id, const struct virtq_packed_desc *d,
			  uint16_t n)
{
	struct inflight_packed_region *r = f->packed;
	uint16_t first = f->free_head, last = first, at = first;

	for (uint16_t i = 0; i < n; i++) {
		struct inflight_packed_desc *copy = &r->desc[at];

		copy->addr = from_le64(d[i].addr);
		copy->len = from_le32(d[i].len);
		copy->id = id;
		copy->flags = from_le16(d[i].flags);
		last = at;
		at = f->next[at];
	}
	f->chain[id] = (struct inflight_span){ first, last };
	r->desc[first].num = n;
	r->desc[first].last = last;
	inflight_packed_mark(f, &r->desc[first], at);
}

void inflight_packed_commit(struct virtq_inflight *f, uint16_t used_slot, bool used_wrap)
{
	/* a successor that sees the new index sees the list that goes with it */
	store_release(&f->packed->free_head, f->free_head);
	WRITE_ONCE(f->packed->used_wrap, used_wrap);
	store_release(&f->packed->used_idx, used_slot);
}

void inflight_packed_finish(struct virtq_inflight *f)
{
	struct inflight_packed_region *r = f->packed;

	/* the marks are gone before the update counts as done */
	store_release(&r->old_free_head, f->free_head);
	WRITE_ONCE(r->old_used_wrap, r->used_wrap);
	store_release(&r->old_used_idx, r->used_idx);
}

/* --- after a crash --- */

uint16_t inflight_packed_read(const struct virtq_inflight *f, uint16_t id,
			      struct virtq_packed_desc *out, uint16_t max)
{
	uint16_t n = 0, at = f->chain[id].first;

	for (;; at = f->next[at]) {
		const struct inflight_packed_desc *d = &f->packed->desc[at];

		out[n++] = (struct virtq_packed_desc){ to_le64(READ_ONCE(d->addr)),
						       to_le32(READ_ONCE(d->len)),
						       to_le16(READ_ONCE(d->id)),
						       to_le16(READ_ONCE(d->flags)) };
		if (n == max || f->next[at] == NONE)
			return n;
	}
}

/* What a successor finds in the region, copied once. */
struct state {
	uint16_t free_head, used_idx, old_free_head, old_used_idx;
	bool used_wrap, old_used_wrap;
};

static struct state load_state(const struct inflight_packed_region *r)
{
	return (struct state){
		.free_head = READ_ONCE(r->free_head),
		.used_idx = READ_ONCE(r->used_idx),
		.old_free_head = READ_ONCE(r->old_free_head),
		.old_used_idx = READ_ONCE(r->old_used_idx),
		.used_wrap = READ_ONCE(r->used_wrap),
		.old_used_wrap = READ_ONCE(r->old_used_wrap),
	};
}

static uint16_t lap_flags(bool wrap)
{
	return wrap ? VIRTQ_DESC_F_AVAIL : VIRTQ_DESC_F_USED;
}

/*
 * The batch's first descriptor was not published, but those behind it may carry "used" already: a
 * driver that comes to them would take them for ended. They become what they were.
 */
static void unuse(struct virtq_packed_desc *ring, uint16_t num, const struct state *s)
{
	uint16_t at = s->old_used_idx;
	bool wrap = s->old_used_wrap;

	for (uint16_t i = 0; i < num && (at != s->used_idx || wrap != s->used_wrap); i++) {
		WRITE_ONCE(ring[at].flags, to_le16(lap_flags(wrap)));
		if (++at == num) {
			at = 0;
			wrap = !wrap;
		}
	}
}

/* An update of the used descriptors was under way: finish it, or take it back. */
static void settle(struct inflight_packed_region *r, struct virtq_packed_desc *ring, uint16_t num,
		   struct state *s)
{
	uint16_t flags = from_le16(READ_ONCE(ring[s->old_used_idx].flags));

	if (s->used_idx == s->old_used_idx && s->used_wrap == s->old_used_wrap) {
		s->free_head = s->old_free_head;
	} else if ((flags & (VIRTQ_DESC_F_AVAIL | VIRTQ_DESC_F_USED)) ==
		   lap_flags(s->old_used_wrap)) {
		unuse(ring, num, s);
		s->free_head = s->old_free_head;
		s->used_idx = s->old_used_idx;
		s->used_wrap = s->old_used_wrap;
	}
	r->free_head = r->old_free_head = s->free_head;
	r->used_wrap = r->old_used_wrap = s->used_wrap;
	r->used_idx = r->old_used_idx = s->used_idx;
}

/* What is on the free list is not in flight, whatever its mark says. */
static void clear_free(struct inflight_packed_region *r, uint16_t region_num, uint16_t at)
{
	for (uint16_t i = 0; i < region_num && at < region_num; i++) {
		r->desc[at].inflight = 0;
		at = READ_ONCE(r->desc[at].next);
	}
}

/* The chain that begins at entry first, copied into our lists: its id. Errors: -EINVAL. */
static int adopt(struct virtq_inflight *f, uint16_t region_num, uint16_t first, uint8_t *taken)
{
	const struct inflight_packed_desc *d = f->packed->desc;
	uint16_t n = READ_ONCE(d[first].num), id, at = first;

	if (n == 0 || n > f->num - f->held)
		return -EINVAL;
	for (uint16_t i = 0;; i++) {
		uint16_t next = READ_ONCE(d[at].next);

		if (taken[at])
			return -EINVAL;
		taken[at] = 1;
		if (i + 1 == n)
			break;
		if (next >= region_num)
			return -EINVAL;
		f->next[at] = next;
		at = next;
	}
	f->next[at] = NONE;
	/* Each of our own entries has the id; others' may have it in the last alone. */
	id = READ_ONCE(d[at].id);
	if (id >= f->num || f->chain[id].first != NONE)
		return -EINVAL;
	f->chain[id] = (struct inflight_span){ first, at };
	f->held = (uint16_t)(f->held + n);
	return id;
}

/* All that is in no chain is free. */
static void rebuild_free(struct virtq_inflight *f, uint16_t region_num, const uint8_t *taken)
{
	uint16_t head = NONE;

	for (uint16_t i = region_num; i-- > 0;) {
		if (taken[i])
			continue;
		f->next[i] = head;
		f->packed->desc[i].next = head;
		f->packed->desc[i].inflight = 0;
		head = i;
	}
	f->free_head = f->packed->free_head = f->packed->old_free_head = head;
}

static int collect(struct virtq_inflight *f, uint16_t region_num, struct err *e)
{
	uint64_t *counters = calloc(region_num, sizeof(*counters));
	uint8_t *taken = calloc(region_num, 1);
	int rc = -ENOMEM;

	if (!counters || !taken)
		goto out;
	for (uint16_t i = 0; i < region_num; i++) {
		if (READ_ONCE(f->packed->desc[i].inflight) != 1)
			continue;
		rc = adopt(f, region_num, i, taken);
		if (rc < 0) {
			err_set(e, rc, "the in-flight region's chains make no sense");
			goto out;
		}
		counters[f->resubmit_n] = READ_ONCE(f->packed->desc[i].counter);
		f->counter = MAX(f->counter, counters[f->resubmit_n]);
		f->resubmit[f->resubmit_n++] = (uint16_t)rc;
	}
	rc = inflight_order(f->resubmit, counters, f->resubmit_n);
	if (rc == 0)
		rebuild_free(f, region_num, taken);
out:
	free(counters);
	free(taken);
	return rc;
}

static void begin_fresh(struct virtq_inflight *f, uint16_t region_num, uint32_t base)
{
	struct inflight_packed_region *r = f->packed;
	static const uint8_t none[VIRTQ_SIZE_MAX];

	f->used_slot = (uint16_t)(base >> 16) & (VIRTQ_WRAP - 1);
	f->used_wrap = base >> 16 & VIRTQ_WRAP;
	r->desc_num = region_num;
	r->used_idx = r->old_used_idx = f->used_slot;
	r->used_wrap = r->old_used_wrap = f->used_wrap;
	rebuild_free(f, region_num, none);
	store_release(&r->version, 1);
}

static int take_up(struct virtq_inflight *f, uint16_t region_num, struct virtq_packed_desc *ring,
		   struct err *e)
{
	struct state s = load_state(f->packed);

	if (s.used_idx >= f->num || s.old_used_idx >= f->num)
		return err_set(e, -EINVAL, "the in-flight region's indexes are not in the ring");
	settle(f->packed, ring, f->num, &s);
	clear_free(f->packed, region_num, s.free_head);
	f->used_before = true;
	f->used_slot = s.used_idx;
	f->used_wrap = s.used_wrap;
	return collect(f, region_num, e);
}

int inflight_packed_open(void *region, uint16_t region_num, uint16_t num, uint32_t base,
			 struct virtq_packed_desc *ring, struct virtq_inflight *f, struct err *e)
{
	struct inflight_packed_region *r = region;
	uint16_t version = READ_ONCE(r->version);
	int rc;

	*f = (struct virtq_inflight){ .packed = r, .num = num };
	if (num > region_num || version > 1 || (version && READ_ONCE(r->desc_num) != region_num))
		return err_set(
			e, -EINVAL,
			"the in-flight region is of version %u for %u entries, not of version 1 for %u",
			version, READ_ONCE(r->desc_num), num);
	f->resubmit = calloc(region_num, sizeof(*f->resubmit));
	f->next = calloc(region_num, sizeof(*f->next));
	f->chain = calloc(num, sizeof(*f->chain));
	if (!f->resubmit || !f->next || !f->chain) {
		inflight_close(f);
		return err_set(e, -ENOMEM, "out of memory");
	}
	for (uint16_t i = 0; i < num; i++)
		f->chain[i].first = NONE;
	if (version == 0) {
		begin_fresh(f, region_num, base);
		return 0;
	}
	rc = take_up(f, region_num, ring, e);
	if (rc)
		inflight_close(f);
	return rc;
}
