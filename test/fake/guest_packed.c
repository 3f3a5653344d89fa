/* The packed virtqueues of a fake guest. VIRTIO 1.3, section 2.8. */
#include "fake/guest.h"

#include <string.h>

#define WRAP_BIT 0x8000u

/* What an id is in a descriptor that is not the last of its chain, where devices must not look. */
#define NO_ID 0xf00d

static unsigned mark(bool wrap)
{
	return wrap ? DESC_AVAIL : DESC_USED;
}

static unsigned slot_at(const struct guest_queue *q, unsigned ahead, bool *wrap)
{
	unsigned slot = q->avail_idx + ahead;

	*wrap = q->avail_wrap ^ (slot / q->size & 1);
	return slot % q->size;
}

unsigned guest_packed_mark(const struct guest_queue *q, unsigned ahead)
{
	bool wrap;

	slot_at(q, ahead, &wrap);
	return mark(wrap);
}

/*
 * Slots behind the position were used in this round, those from it on in the last one: there is
 * no other way to tell a used descriptor from one that never was (2.8.1).
 */
void guest_packed_reset(struct guest_queue *q, uint32_t base)
{
	unsigned i;
	bool wrap;

	q->avail_idx = base & 0x7fff;
	q->avail_wrap = base & WRAP_BIT;
	q->used_idx = base >> 16 & 0x7fff;
	q->used_wrap = base >> 31;
	q->unkicked = 0;
	q->staged = false;
	memset(q->ring, 0, sizeof(*q->ring) * q->size);
	memset(q->slots, 0, sizeof(*q->slots) * q->size);
	memset(q->desc, 0, sizeof(*q->desc) * q->size);
	for (i = 0; i < q->size; i++) {
		wrap = i < q->used_idx ? q->used_wrap : !q->used_wrap;
		q->ring[i].flags = (uint16_t)(wrap ? DESC_AVAIL | DESC_USED : 0);
	}
	*q->device_event = (struct packed_event){ 0 };
}

void guest_packed_quiet(struct guest_queue *q, bool on)
{
	bool event_idx = q->guest->acked & VIRTIO_EVENT_IDX;
	unsigned flags = event_idx ? EVENT_DESC : EVENT_ENABLE;

	if (!on && event_idx) {
		__atomic_store_n(&q->driver_event->off_wrap,
				 (uint16_t)(q->used_idx | (q->used_wrap ? WRAP_BIT : 0)),
				 __ATOMIC_RELAXED);
		/* The position must be visible before the flags that give it a meaning. */
		__atomic_thread_fence(__ATOMIC_RELEASE);
	}
	__atomic_store_n(&q->driver_event->flags, (uint16_t)(on ? EVENT_DISABLE : flags),
			 __ATOMIC_RELAXED);
}

void guest_packed_desc(struct guest_queue *q, unsigned ahead, uint64_t addr, uint32_t len,
		       unsigned id, unsigned flags)
{
	bool wrap;
	struct packed_desc *d = &q->ring[slot_at(q, ahead, &wrap)];

	d->addr = addr;
	d->len = len;
	d->id = (uint16_t)id;
	/* The descriptor must be visible before the flags that make it available. */
	__atomic_store_n(&d->flags, (uint16_t)flags, __ATOMIC_RELEASE);
}

void guest_packed_advance(struct guest_queue *q, unsigned n, unsigned id)
{
	bool wrap;

	q->avail_idx = (uint16_t)slot_at(q, n, &wrap);
	q->avail_wrap = wrap;
	q->unkicked = (uint16_t)(q->unkicked + n);
	if (id < q->size)
		q->slots[id] = (uint16_t)n;
}

/*
 * Only the first descriptor since guest_publish() is held back: the device takes them in order, so
 * that it finds the others behind it once that one is shown.
 */
void guest_packed_avail(struct guest_queue *q, unsigned head)
{
	unsigned i = head, n = 0, flags;
	struct virtq_desc *d;

	do {
		d = &q->desc[i];
		flags = d->flags | guest_packed_mark(q, n);
		if (!q->staged) {
			q->staged = true;
			q->staged_slot = q->avail_idx;
			q->staged_flags = (uint16_t)flags;
			/* as if used in the round before */
			flags = d->flags | (q->avail_wrap ? 0u : DESC_AVAIL | DESC_USED);
		}
		guest_packed_desc(q, n++, d->addr, d->len, d->flags & DESC_NEXT ? NO_ID : head,
				  flags);
		i = d->next;
	} while (d->flags & DESC_NEXT && i < q->size && n < q->size);
	guest_packed_advance(q, n, head);
}

void guest_packed_publish(struct guest_queue *q)
{
	/* The descriptors behind the first one must be visible before it. */
	if (q->staged)
		__atomic_store_n(&q->ring[q->staged_slot].flags, q->staged_flags, __ATOMIC_RELEASE);
	q->staged = false;
}

bool guest_packed_kick_wanted(struct guest_queue *q)
{
	uint16_t flags = __atomic_load_n(&q->device_event->flags, __ATOMIC_ACQUIRE);
	uint16_t off_wrap = __atomic_load_n(&q->device_event->off_wrap, __ATOMIC_RELAXED);
	uint16_t now = q->avail_idx, old = (uint16_t)(now - q->unkicked), event = off_wrap & 0x7fff;

	q->unkicked = 0;
	if (flags != EVENT_DESC)
		return flags != EVENT_DISABLE;
	/* A position of the round before, seen from this one. */
	if (!(off_wrap & WRAP_BIT) == q->avail_wrap)
		event = (uint16_t)(event - q->size);
	return (uint16_t)(now - event - 1) < (uint16_t)(now - old);
}

bool guest_packed_used_pop(struct guest_queue *q, struct virtq_used_elem *e)
{
	struct packed_desc *d = &q->ring[q->used_idx];
	/* The rest must not be read before the flags that say it is there. */
	uint16_t flags = __atomic_load_n(&d->flags, __ATOMIC_ACQUIRE);
	unsigned n;

	if (!(flags & DESC_AVAIL) != !(flags & DESC_USED) || !!(flags & DESC_USED) != q->used_wrap)
		return false;
	e->id = d->id;
	e->len = d->len;
	q->used_flags = flags;
	n = e->id < q->size && q->slots[e->id] ? q->slots[e->id] : 1;
	n += q->used_idx;
	q->used_wrap ^= n >= q->size;
	q->used_idx = (uint16_t)(n % q->size);
	return true;
}
