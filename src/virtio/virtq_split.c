/* The split format: virtio 1.2, 2.7. */
#include <errno.h>
#include <string.h>

#include "virtio/dirty_log.h"
#include "virtio/inflight.h"
#include "virtio/virtq_internal.h"

#define EVENT_STALE 0x8000 /* entries behind; the index has 16 bits */

/* Behind the used ring: 2.7.8 */
static le16 *avail_event(struct virtq *vq)
{
	return (le16 *)(void *)&vq->used->ring[vq->num];
}

int virtq_split_begin(struct virtq *vq, uint32_t base, struct err *e)
{
	const struct virtq_inflight *f = vq->inflight;
	uint16_t used_idx = from_le16(READ_ONCE(vq->used->idx));

	if (base > UINT16_MAX)
		return err_set(e, -EINVAL,
			       "ring %u cannot start at %u: a split ring's index has 16 bits",
			       vq->index, base);
	memset(vq->busy, 0, vq->num);
	vq->used_idx = vq->published = used_idx;
	/* What is in flight was taken from the avail ring after what is used: the index in the
	 * message may be stale. */
	vq->last_avail =
		f && f->used_before ? (uint16_t)(used_idx + f->resubmit_n) : (uint16_t)base;
	vq->avail_idx = vq->last_avail;
	WRITE_ONCE(vq->used->flags, to_le16(0)); /* the first kick starts the ring */
	vq->event_at = vq->last_avail;
	if (vq->event_idx)
		WRITE_ONCE(*avail_event(vq), to_le16(vq->event_at));
	return 0;
}

/* --- pop --- */

/* The avail index moved, or was not looked at: 1: there is work; 0; -EPROTO. */
static noinline int look_again(struct virtq *vq)
{
	/* the index must be read before the entries it covers */
	vq->avail_idx = from_le16(load_acquire(&vq->avail->idx));
	if (vq->last_avail == vq->avail_idx)
		return 0;
	if (unlikely((uint16_t)(vq->avail_idx - vq->last_avail) > vq->num))
		return virtq_fail(vq, "the avail index jumped by more than the ring's size");
	return 1;
}

/* hot */
int virtq_split_pop(struct virtq *vq, struct virtq_chain *c)
{
	uint16_t head;
	int rc;

	if (unlikely(vq->broken))
		return -EPROTO;
	if (unlikely(vq->resubmitting)) {
		rc = virtq_next_resubmit(vq);
		head = (uint16_t)rc;
		if (rc >= 0)
			goto take;
	}
	if (vq->last_avail == vq->avail_idx) {
		rc = look_again(vq);
		if (rc <= 0)
			return rc;
	}
	head = from_le16(READ_ONCE(vq->avail->ring[vq->last_avail & vq->mask]));
	if (unlikely(head >= vq->num))
		return virtq_fail(vq, "a head is not below the ring's size");
	vq->last_avail++;
take:
	if (unlikely(vq->busy[head]))
		return virtq_fail(vq, "a head was made available again while it is in flight");
	vq->busy[head] = 1;
	if (vq->inflight)
		inflight_take(vq->inflight, head);
	c->head = head;
	virtq_walk(vq, vq->desc, vq->num, head, c);
	return 1;
}

/* --- flush --- */

static void ask(struct virtq *vq, le16 *where, uint16_t what)
{
	WRITE_ONCE(*where, to_le16(what));
	if (unlikely(vq->log))
		virtq_log_part(vq, where, sizeof(*where));
}

/*
 * Polled for long, with EVENT_IDX: before the driver's index comes round to the event index and it
 * kicks in vain, the latter is moved behind all that may be on its way. Rings of more than half the
 * index space are spared the care: they kick once per lap.
 */
static noinline void move_event(struct virtq *vq)
{
	vq->event_at = (uint16_t)(vq->last_avail - vq->num - 1);
	if (vq->num <= EVENT_STALE / 2)
		ask(vq, avail_event(vq), vq->event_at);
}

/* Does the driver want an interrupt for the entries [old, used_idx)? 2.7.7, 2.7.10 */
static inline bool wants_interrupt(struct virtq *vq, uint16_t old)
{
	uint16_t event;

	full_barrier(); /* the used index must be visible before the driver's wish is read */
	if (unlikely(vq->signal_next)) {
		vq->signal_next = false;
		return true;
	}
	if (!vq->event_idx)
		return !(from_le16(READ_ONCE(vq->avail->flags)) & VIRTQ_AVAIL_F_NO_INTERRUPT);
	event = from_le16(READ_ONCE(vq->avail->ring[vq->num]));
	return (uint16_t)(vq->used_idx - event - 1) < (uint16_t)(vq->used_idx - old);
}

static noinline void log_used(struct virtq *vq, uint16_t old)
{
	for (uint16_t i = old; i != vq->used_idx; i++)
		dirty_log_mark(vq->log,
			       vq->log_addr + offsetof(struct virtq_used, ring) +
				       (i & vq->mask) * sizeof(struct virtq_used_elem),
			       sizeof(struct virtq_used_elem));
	dirty_log_mark(vq->log, vq->log_addr, offsetof(struct virtq_used, ring));
}

/* hot: once per turn and ring */
unsigned virtq_split_flush(struct virtq *vq)
{
	uint16_t old = vq->published, n = (uint16_t)(vq->used_idx - old);

	if (n == 0)
		return 0;
	/* the entries must be visible before the index that covers them */
	store_release(&vq->used->idx, to_le16(vq->used_idx));
	vq->published = vq->used_idx;
	if (vq->inflight)
		inflight_publish(vq->inflight, vq->pushed, vq->mask, old, vq->used_idx);
	if (unlikely(vq->log))
		log_used(vq, old);
	if (unlikely((uint16_t)(vq->last_avail - vq->event_at) > EVENT_STALE) && vq->event_idx)
		move_event(vq);
	virtq_tell(vq, n, wants_interrupt(vq, old));
	return n;
}

/* --- kicks --- */

bool virtq_split_enable_kick(struct virtq *vq)
{
	vq->event_at = vq->last_avail;
	if (vq->event_idx)
		ask(vq, avail_event(vq), vq->event_at);
	else
		ask(vq, &vq->used->flags, 0);
	full_barrier(); /* the wish must be visible before the avail index is read again */
	if (from_le16(load_acquire(&vq->avail->idx)) == vq->last_avail)
		return true;
	virtq_split_disable_kick(vq);
	return false;
}

void virtq_split_disable_kick(struct virtq *vq)
{
	/*
	 * With EVENT_IDX the event index is left where it is: behind what the driver makes
	 * available from now on. It stays behind: see move_event().
	 */
	if (!vq->event_idx)
		ask(vq, &vq->used->flags, VIRTQ_USED_F_NO_NOTIFY);
}
