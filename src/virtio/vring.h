/*
 * vring: a split virtqueue from the driver's side (virtio 1.2, 2.7): the counterpart of virtq.h.
 *
 * The driver fills descriptors and stages heads (vring_add), publishes them once per turn
 * (vring_publish, which says whether the device wants a kick), and takes what the device has used
 * (vring_next_used). Owner: one reactor.
 */
#ifndef VIRTIO_VRING_H
#define VIRTIO_VRING_H

#include <stdbool.h>
#include <stdint.h>

#include "util/compiler.h"
#include "virtio/spec.h"

struct vring {
	struct virtq_desc *desc;
	struct virtq_avail *avail;
	struct virtq_used *used;
	uint16_t num, mask;
	uint16_t avail_idx; /* staged */
	uint16_t published; /* avail_idx as the device sees it */
	uint16_t used_idx;  /* next one to take */
	bool event_idx;
};

/* Bytes that a ring of num entries takes, at a page boundary. */
static inline size_t vring_size(unsigned num)
{
	return ROUND_UP(virtq_desc_size(num) + virtq_avail_size(num), 4096) +
	       ROUND_UP(virtq_used_size(num), 4096);
}

/* Lay a ring into zeroed, page-aligned memory of vring_size(num) bytes. Interrupts are off. */
static inline void vring_init(struct vring *v, void *memory, uint16_t num, bool event_idx)
{
	char *at = memory;

	*v = (struct vring){
		.desc = memory,
		.avail = (struct virtq_avail *)(void *)(at + virtq_desc_size(num)),
		.used = (struct virtq_used *)(void *)(at + ROUND_UP(virtq_desc_size(num) +
									    virtq_avail_size(num),
								    4096)),
		.num = num,
		.mask = (uint16_t)(num - 1),
		.event_idx = event_idx,
	};
	v->avail->flags = to_le16(event_idx ? 0 : VIRTQ_AVAIL_F_NO_INTERRUPT);
}

/* hot */
static inline void vring_add(struct vring *v, uint16_t head)
{
	v->avail->ring[v->avail_idx++ & v->mask] = to_le16(head);
}

/* hot, once per turn. true: the device wants a kick. */
static inline bool vring_publish(struct vring *v)
{
	uint16_t old = v->published, event;

	if (old == v->avail_idx)
		return false;
	/* the entries must be visible before the index that covers them */
	store_release(&v->avail->idx, to_le16(v->avail_idx));
	v->published = v->avail_idx;
	full_barrier(); /* the index must be visible before the device's wish is read */
	if (!v->event_idx)
		return !(from_le16(READ_ONCE(v->used->flags)) & VIRTQ_USED_F_NO_NOTIFY);
	event = from_le16(READ_ONCE(*(le16 *)(void *)&v->used->ring[v->num]));
	return (uint16_t)(v->avail_idx - event - 1) < (uint16_t)(v->avail_idx - old);
}

/* hot. How many used entries wait to be taken; more than num: the device has broken the ring. */
static inline uint16_t vring_used_n(const struct vring *v)
{
	/* the index must be read before the entries it covers */
	return (uint16_t)(from_le16(load_acquire(&v->used->idx)) - v->used_idx);
}

/* hot. The next of them; the device's word, to be checked. */
static inline uint32_t vring_next_used(struct vring *v)
{
	return from_le32(READ_ONCE(v->used->ring[v->used_idx++ & v->mask].id));
}

/* Ask for an interrupt and look again; false: there is work, and none was asked for. */
static inline bool vring_enable_call(struct vring *v)
{
	if (v->event_idx)
		WRITE_ONCE(v->avail->ring[v->num], to_le16(v->used_idx));
	else
		WRITE_ONCE(v->avail->flags, to_le16(0));
	full_barrier(); /* the wish must be visible before the used index is read again */
	if (vring_used_n(v) == 0)
		return true;
	if (!v->event_idx)
		WRITE_ONCE(v->avail->flags, to_le16(VIRTQ_AVAIL_F_NO_INTERRUPT));
	return false;
}

static inline void vring_disable_call(struct vring *v)
{
	if (!v->event_idx)
		WRITE_ONCE(v->avail->flags, to_le16(VIRTQ_AVAIL_F_NO_INTERRUPT));
}

#endif
