/*
 * The packed format: virtio 1.2, 2.8. One ring of descriptors that driver and device write in
 * turns; which of them a descriptor belongs to is told by its AVAIL and USED bits, whose meaning
 * flips each time round ("lap").
 *
 * A chain lies in slots that follow each other; it comes back as one used descriptor, written over
 * the first slot that no earlier one has taken. So a chain is copied as a whole before anything of
 * it is believed.
 */
#include <errno.h>
#include <string.h>

#include "virtio/dirty_log.h"
#include "virtio/inflight.h"
#include "virtio/virtq_framed.h"
#include "virtio/virtq_internal.h"

int virtq_packed_begin(struct virtq *vq, uint32_t base, struct err *e)
{
	const struct virtq_inflight *f = vq->inflight;
	uint16_t avail = (uint16_t)base, used = (uint16_t)(base >> 16);

	if (used == 0) /* front-ends that say one half mean both */
		used = avail;
	if (f && f->used_before) { /* the message may be stale */
		used = (uint16_t)(f->used_slot | (f->used_wrap ? VIRTQ_WRAP : 0));
		avail = used;
	}
	vq->staged_n = vq->put_n = 0;
	vq->put_to = &vq->first_word;
	memset(vq->chain_n, 0, vq->num * sizeof(*vq->chain_n));
	vq->next = avail & (VIRTQ_WRAP - 1);
	vq->next_wrap = avail & VIRTQ_WRAP;
	vq->avail_flags = vq->next_wrap ? VIRTQ_DESC_F_AVAIL : VIRTQ_DESC_F_USED;
	vq->avail_indirect = vq->avail_flags | VIRTQ_DESC_F_INDIRECT;
	vq->used_slot = used & (VIRTQ_WRAP - 1);
	vq->first_slot = vq->used_slot;
	vq->used_wrap = used & VIRTQ_WRAP;
	/* WRITE: the length counts */
	vq->used_word = (uint64_t)((vq->used_wrap ? VIRTQ_LAP : 0) | VIRTQ_DESC_F_WRITE) << 48;
	if (vq->next >= vq->num || vq->used_slot >= vq->num || virtq_packed_held(vq) > vq->num)
		return err_set(e, -EINVAL,
			       "ring %u of %u entries cannot start at 0x%x: that is no place in it",
			       vq->index, vq->num, base);
	if (f && f->used_before)
		virtq_packed_advance(vq, f->held);
	*vq->device_event = (struct virtq_event){ 0 }; /* the first kick starts the ring */
	return 0;
}

/* --- pop --- */

/* A descriptor of the ring, each half of it read once. */
static struct virtq_packed_desc load(const struct virtq_packed_desc *d)
{
	const le64 *from = (const le64 *)(const void *)d;
	struct virtq_packed_desc copy;
	le64 *to = (le64 *)(void *)&copy;

	/* the flags say whether the rest may be read */
	to[1] = load_acquire(&from[1]);
	to[0] = READ_ONCE(from[0]);
	return copy;
}

/* Descriptor i of n in our copy, in the split format. */
static void keep(struct virtq *vq, const struct virtq_packed_desc *d, uint32_t i, uint32_t n)
{
	uint16_t flags = from_le16(d->flags) & (VIRTQ_DESC_F_WRITE | VIRTQ_DESC_F_INDIRECT);

	vq->copy[i] = (struct virtq_desc){
		.addr = d->addr,
		.len = d->len,
		.flags = to_le16((uint16_t)(flags | (i + 1 < n ? VIRTQ_DESC_F_NEXT : 0))),
		.next = to_le16((uint16_t)(i + 1)),
	};
}

/*
 * The chain at the next slot, copied into vq->ring_copy. Returns its number of slots; 0: there is
 * none; -EPROTO.
 */
static int copy_chain(struct virtq *vq)
{
	uint16_t slot = vq->next, lap = vq->avail_flags;

	for (uint16_t n = 0; n < vq->num; n++) {
		struct virtq_packed_desc d = load(&vq->ring[slot]);

		if ((from_le16(d.flags) & VIRTQ_LAP) != lap)
			return n == 0 ? 0
				      : virtq_fail(
						vq,
						"a chain goes on in a slot that is not available");
		vq->ring_copy[n] = d;
		if (!(from_le16(d.flags) & VIRTQ_DESC_F_NEXT))
			return n + 1;
		if (++slot == vq->num) {
			slot = 0;
			lap ^= VIRTQ_LAP;
		}
	}
	return virtq_fail(vq, "a chain is longer than the ring");
}

/* 2.8.7. The table of an indirect descriptor, whose entries follow each other; the number of them,
 * 0: malformed. */
static uint32_t copy_table(struct virtq *vq, const struct virtq_packed_desc *d)
{
	uint32_t len = from_le32(d->len), n = len / sizeof(*d);

	if (len % sizeof(*d) || n == 0 || n > vq->max_chain ||
	    !virtq_gather(vq, from_le64(d->addr), vq->copy, len))
		return 0;
	for (uint32_t i = 0; i < n; i++) {
		struct virtq_packed_desc entry;

		memcpy(&entry, &vq->copy[i], sizeof(entry));
		if (from_le16(entry.flags) & VIRTQ_DESC_F_INDIRECT)
			return 0; /* a table in a table */
		keep(vq, &entry, i, n);
	}
	return n;
}

/* The n slots in vq->ring_copy, as c. */
static void walk_copy(struct virtq *vq, uint16_t n, struct virtq_chain *c)
{
	const struct virtq_packed_desc *d = vq->ring_copy;
	uint32_t entries = n;

	if (from_le16(d[0].flags) & VIRTQ_DESC_F_INDIRECT) {
		/* 2.8.7: it stands alone */
		entries = n == 1 ? copy_table(vq, &d[0]) : 0;
	} else {
		for (uint16_t i = 0; i < n; i++) {
			keep(vq, &d[i], i, n);
			if (from_le16(d[i].flags) & VIRTQ_DESC_F_INDIRECT)
				entries = 0;
		}
	}
	if (entries == 0)
		c->malformed = true;
	else
		virtq_walk(vq, vq->copy, entries, 0, c);
}

static int pop_resubmitted(struct virtq *vq, uint16_t id, struct virtq_chain *c)
{
	uint16_t n = inflight_packed_read(vq->inflight, id, vq->ring_copy, vq->num);

	c->head = id;
	vq->chain_n[id] = n; /* the next slot is behind it already */
	walk_copy(vq, n, c);
	return 1;
}

/* hot */
int virtq_packed_pop(struct virtq *vq, struct virtq_chain *c)
{
	uint16_t id, n;
	int rc;

	if (unlikely(vq->broken))
		return -EPROTO;
	if (unlikely(vq->resubmitting)) {
		rc = virtq_next_resubmit(vq);
		if (rc >= 0)
			return pop_resubmitted(vq, (uint16_t)rc, c);
	}
	rc = copy_chain(vq);
	if (rc <= 0)
		return rc;
	n = (uint16_t)rc;
	id = from_le16(vq->ring_copy[n - 1].id);
	if (unlikely(id >= vq->num))
		return virtq_fail(vq, "a buffer id is not below the ring's size");
	if (unlikely(vq->chain_n[id]))
		return virtq_fail(vq, "a buffer id was made available again while it is in flight");
	if (unlikely(virtq_packed_held(vq) + n > vq->num))
		return virtq_fail(vq, "more descriptors are in flight than the ring has");
	virtq_packed_take(vq, id, n);
	if (vq->inflight)
		inflight_packed_take(vq->inflight, id, vq->ring_copy, n);
	c->head = id;
	walk_copy(vq, n, c);
	return 1;
}

/* --- flush --- */

/* Does the driver want an interrupt for the `passed` slots before used_slot? 2.8.10, 2.8.14 */
static inline bool wants_interrupt(struct virtq *vq, uint16_t passed)
{
	uint32_t both;
	uint16_t event, flags;

	full_barrier(); /* the used descriptors must be visible before the driver's wish is read */
	if (unlikely(vq->signal_next)) {
		vq->signal_next = false;
		return true;
	}
	/* one load: the two belong together */
	both = from_le32(READ_ONCE(*(const le32 *)(const void *)vq->driver_event));
	flags = (uint16_t)(both >> 16) & VIRTQ_EVENT_MASK;
	if (flags != VIRTQ_EVENT_DESC || !vq->event_idx)
		return flags != VIRTQ_EVENT_DISABLE;
	event = (uint16_t)both & (VIRTQ_WRAP - 1);
	if (!(both & VIRTQ_WRAP) == vq->used_wrap) /* of the lap before */
		event = (uint16_t)(event - vq->num);
	return (uint16_t)(vq->used_slot - event - 1) < passed;
}

static inline uint16_t staged_head(uint64_t staged)
{
	return (uint16_t)(staged >> 32);
}

/* First the region is told where the used descriptors will end, in case that we die meanwhile. */
static noinline void put_staged(struct virtq *vq)
{
	uint32_t slot = vq->used_slot;
	bool wrap = vq->used_wrap;

	for (uint16_t i = 0; i < vq->staged_n; i++) {
		inflight_packed_stage(vq->inflight, staged_head(vq->staged[i]));
		slot += vq->chain_n[staged_head(vq->staged[i])];
	}
	if (slot >= vq->num) { /* at most once round: no more slots than that are in flight */
		slot -= vq->num;
		wrap = !wrap;
	}
	inflight_packed_commit(vq->inflight, (uint16_t)slot, wrap);
	/* what the region says must be visible before the ring changes */
	atomic_thread_fence(memory_order_release);
	for (uint16_t i = 0; i < vq->staged_n; i++)
		virtq_packed_put(vq, staged_head(vq->staged[i]), vq->staged[i]);
}

static noinline void clear_staged(struct virtq *vq)
{
	for (uint16_t i = 0; i < vq->staged_n; i++)
		inflight_packed_clear(vq->inflight, staged_head(vq->staged[i]));
	inflight_packed_finish(vq->inflight);
	vq->staged_n = 0;
}

/* The used descriptors of the batch lie in these slots, if not in all of them. */
static noinline void log_used(struct virtq *vq, uint16_t slot, uint16_t n)
{
	for (; n > 0; n--) {
		struct iovec at = { &vq->ring[slot], sizeof(vq->ring[slot]) };

		virtq_log_iov(vq, vq->mem, &at, 1, at.iov_len);
		slot = (uint16_t)(slot + 1u == vq->num ? 0 : slot + 1u);
	}
}

/* Slots that the batch passed; all of them when it ends where it began. */
static inline uint16_t passed(const struct virtq *vq)
{
	int n = vq->used_slot - vq->first_slot;

	return (uint16_t)(n > 0 ? n : n + vq->num);
}

/* hot: once per turn and ring. A driver looks at the used descriptors in order, so the first one
 * publishes the batch. */
unsigned virtq_packed_flush(struct virtq *vq)
{
	uint16_t n, slots;

	if (vq->staged_n)
		put_staged(vq);
	n = vq->put_n;
	if (n == 0)
		return 0;
	/* the whole batch must be visible before its first descriptor */
	store_release(virtq_packed_word(&vq->ring[vq->first_slot]), vq->first_word);
	slots = passed(vq);
	if (vq->inflight)
		clear_staged(vq);
	if (unlikely(vq->log))
		log_used(vq, vq->first_slot, slots);
	vq->put_n = 0;
	vq->put_to = &vq->first_word;
	vq->first_slot = vq->used_slot;
	virtq_tell(vq, n, wants_interrupt(vq, slots));
	return n;
}

/* --- kicks --- */

static void ask(struct virtq *vq, uint16_t off_wrap, uint16_t flags)
{
	le32 *event = (le32 *)(void *)vq->device_event;

	WRITE_ONCE(*event, to_le32((uint32_t)flags << 16 | off_wrap));
}

bool virtq_packed_enable_kick(struct virtq *vq)
{
	if (vq->event_idx)
		ask(vq, (uint16_t)(vq->next | (vq->next_wrap ? VIRTQ_WRAP : 0)), VIRTQ_EVENT_DESC);
	else
		ask(vq, 0, VIRTQ_EVENT_ENABLE);
	full_barrier(); /* the wish must be visible before the next descriptor is read again */
	if (!virtq_packed_has_work(vq))
		return true;
	virtq_packed_disable_kick(vq);
	return false;
}

void virtq_packed_disable_kick(struct virtq *vq)
{
	ask(vq, 0, VIRTQ_EVENT_DISABLE);
}
