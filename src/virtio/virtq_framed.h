/*
 * The chain of nearly every block request - header, one buffer, status - taken on a straight line:
 * a 4 KiB read from ring to null and back costs 231 instructions this way and 548 through
 * virtq_pop() (scripts/cost vhost-null). What does not look like that is left for virtq_pop(),
 * which takes every chain and says what is wrong with it.
 */
#ifndef VIRTIO_VIRTQ_FRAMED_H
#define VIRTIO_VIRTQ_FRAMED_H

#include "virtio/virtq.h"

/* A readable header, a buffer, and a writable trailer. */
struct virtq_framed {
	uint16_t head;
	bool in; /* the buffer is device-writable */
	const void *header;
	void *trailer;
	struct iovec body;
};

/* A descriptor, each half of it read once. The second half is compared as a whole. */
struct virtq_raw {
	uint64_t addr;
	uint64_t rest; /* length; split: flags << 32, next << 48; packed: id << 32, flags << 48 */
};

#define VIRTQ_RAW_REST(len, flags, next) \
	((uint64_t)(len) | (uint64_t)(flags) << 32 | (uint64_t)(next) << 48)

static inline struct virtq_raw virtq_raw_load(const struct virtq_desc *d)
{
	const le64 *halves = (const le64 *)(const void *)d;

	return (struct virtq_raw){ from_le64(READ_ONCE(halves[0])),
				   from_le64(READ_ONCE(halves[1])) };
}

static inline uint32_t virtq_raw_len(struct virtq_raw d)
{
	return (uint32_t)d.rest;
}

static inline uint16_t virtq_raw_flags(struct virtq_raw d)
{
	return (uint16_t)(d.rest >> 32);
}

static inline bool virtq_raw_has(struct virtq_raw d, uint16_t flag)
{
	return d.rest & (uint64_t)flag << 32;
}

static inline uint32_t virtq_raw_next(struct virtq_raw d)
{
	return (uint32_t)(d.rest >> 48);
}

/* hot. Where the table of an indirect descriptor lies; false: not three entries, or not near. */
static inline bool virtq_table_of_three(const struct virtq *vq, struct virtq_raw d,
					const void **table)
{
	uint64_t offset = d.addr - vq->near.gpa;

	*table = (const void *)((uintptr_t)vq->near.host + offset); /* perhaps nowhere */
	return likely(virtq_raw_len(d) == 3 * sizeof(struct virtq_desc)) &&
	       likely(offset < vq->near.inner) && likely(IS_ALIGNED((uintptr_t)*table, 8));
}

/* hot. A table of three, in the order of the request: what drivers build. */
static inline bool virtq_load_table(const struct virtq_desc *table, uint32_t header_len,
				    uint32_t trailer_len, struct virtq_raw d[3])
{
	d[0] = virtq_raw_load(&table[0]);
	d[1] = virtq_raw_load(&table[1]);
	d[2] = virtq_raw_load(&table[2]);
	return likely(d[0].rest == VIRTQ_RAW_REST(header_len, VIRTQ_DESC_F_NEXT, 1)) &&
	       likely((d[1].rest >> 32 | VIRTQ_DESC_F_WRITE) ==
		      (VIRTQ_DESC_F_NEXT | VIRTQ_DESC_F_WRITE | 2 << 16)) &&
	       /* no next: what stands there means nothing */
	       likely(d[2].rest << 16 == VIRTQ_RAW_REST(trailer_len, VIRTQ_DESC_F_WRITE, 0) << 16);
}

/* hot. Three descriptors of the ring, which the driver may have found anywhere. */
static inline bool virtq_load_links(const struct virtq *vq, struct virtq_raw first,
				    uint32_t header_len, uint32_t trailer_len,
				    struct virtq_raw d[3])
{
	d[0] = first;
	if (unlikely(virtq_raw_flags(d[0]) != VIRTQ_DESC_F_NEXT || virtq_raw_next(d[0]) >= vq->num))
		return false;
	d[1] = virtq_raw_load(&vq->desc[virtq_raw_next(d[0])]);
	if (unlikely((virtq_raw_flags(d[1]) | VIRTQ_DESC_F_WRITE) !=
			     (VIRTQ_DESC_F_NEXT | VIRTQ_DESC_F_WRITE) ||
		     virtq_raw_next(d[1]) >= vq->num))
		return false;
	d[2] = virtq_raw_load(&vq->desc[virtq_raw_next(d[1])]);
	return likely(virtq_raw_len(d[0]) == header_len) &&
	       likely(d[2].rest << 16 == VIRTQ_RAW_REST(trailer_len, VIRTQ_DESC_F_WRITE, 0) << 16);
}

/* hot. Where the three lie; false: not so that it can be told on a straight line. */
static inline bool virtq_place(const struct virtq *vq, const struct virtq_raw d[3],
			       struct virtq_framed *f)
{
	const struct virtq_span *near = &vq->near;
	uint64_t header = d[0].addr - near->gpa, body = d[1].addr - near->gpa,
		 trailer = d[2].addr - near->gpa;
	uint32_t len = virtq_raw_len(d[1]);

	if (unlikely(header >= near->inner) || unlikely(trailer >= near->inner))
		return false;
	f->body.iov_base = (void *)((uintptr_t)near->host + body); /* perhaps nowhere */
	if (unlikely(body >= near->inner) || unlikely(len > near->size - body)) {
		f->body.iov_base = virtq_far(vq, d[1].addr, len);
		if (!f->body.iov_base)
			return false;
	}
	f->body.iov_len = len;
	f->header = near->host + header;
	f->trailer = near->host + trailer;
	return true;
}

/*
 * hot. Take the next chain if it is one of a header and a trailer of these lengths (each at most
 * VIRTQ_SMALL) around one buffer. false: ask virtq_pop().
 */
static inline bool virtq_split_pop_framed(struct virtq *vq, uint32_t header_len,
					  uint32_t trailer_len, struct virtq_framed *f)
{
	struct virtq_raw first, d[3];
	uint16_t head;

	if (vq->last_avail == vq->avail_idx)
		return false;
	head = from_le16(READ_ONCE(vq->avail->ring[vq->last_avail & vq->mask]));
	if (unlikely(head >= vq->num) || unlikely(vq->busy[head]))
		return false;
	first = virtq_raw_load(&vq->desc[head]);
	if (likely(virtq_raw_flags(first) == VIRTQ_DESC_F_INDIRECT)) {
		const void *table;

		if (!virtq_table_of_three(vq, first, &table) ||
		    !virtq_load_table(table, header_len, trailer_len, d))
			return false;
	} else if (!virtq_load_links(vq, first, header_len, trailer_len, d)) {
		return false;
	}
	if (unlikely(!virtq_place(vq, d, f)))
		return false;
	f->in = virtq_raw_has(d[1], VIRTQ_DESC_F_WRITE);
	vq->last_avail++;
	vq->busy[head] = 1;
	if (vq->inflight)
		inflight_take(vq->inflight, head);
	f->head = head;
	return true;
}

/* --- packed --- */

static inline struct virtq_raw virtq_packed_raw(const struct virtq_packed_desc *d)
{
	return virtq_raw_load((const struct virtq_desc *)(const void *)d);
}

static inline uint16_t virtq_packed_flags(struct virtq_raw d)
{
	return (uint16_t)(d.rest >> 48);
}

static inline uint16_t virtq_packed_id(struct virtq_raw d)
{
	return (uint16_t)(d.rest >> 32);
}

/* hot. n slots have been taken. */
static inline void virtq_packed_advance(struct virtq *vq, uint16_t n)
{
	vq->next = (uint16_t)(vq->next + n);
	if (unlikely(vq->next >= vq->num)) {
		vq->next = (uint16_t)(vq->next - vq->num);
		vq->next_wrap = !vq->next_wrap;
		vq->avail_flags ^= VIRTQ_LAP;
		vq->avail_indirect ^= VIRTQ_LAP;
	}
}

/* hot. The chain of the next n slots is in flight. */
static inline void virtq_packed_take(struct virtq *vq, uint16_t id, uint16_t n)
{
	vq->chain_n[id] = n;
	virtq_packed_advance(vq, n);
}

/* Slots that are in flight: from the next used descriptor to the next chain. */
static inline unsigned virtq_packed_held(const struct virtq *vq)
{
	return (unsigned)vq->next - vq->used_slot + (vq->next_wrap == vq->used_wrap ? 0 : vq->num);
}

/* hot. May the next slot be taken? Not when all are in flight. */
static inline bool virtq_packed_has_room(const struct virtq *vq)
{
	return likely(vq->next != vq->used_slot) || virtq_packed_held(vq) == 0;
}

static inline bool virtq_packed_is_free(const struct virtq *vq, uint16_t id)
{
	return likely(id < vq->num) && likely(vq->chain_n[id] == 0);
}

#define VIRTQ_PACKED_REST(len, flags) ((uint64_t)(len) | (uint64_t)(flags) << 48)
#define VIRTQ_PACKED_NO_ID	      ~(UINT64_C(0xffff) << 32)

/* hot. A table of three. Of its flags, WRITE and INDIRECT have a meaning; NEXT has none. */
static inline bool virtq_packed_load_table(const struct virtq_packed_desc *table,
					   uint32_t header_len, uint32_t trailer_len,
					   struct virtq_raw d[3])
{
	d[0] = virtq_packed_raw(&table[0]);
	d[1] = virtq_packed_raw(&table[1]);
	d[2] = virtq_packed_raw(&table[2]);
	return likely((d[0].rest & VIRTQ_PACKED_NO_ID) == VIRTQ_PACKED_REST(header_len, 0)) &&
	       likely(virtq_packed_flags(d[1]) <= (VIRTQ_DESC_F_NEXT | VIRTQ_DESC_F_WRITE)) &&
	       likely((d[2].rest & VIRTQ_PACKED_NO_ID) ==
		      VIRTQ_PACKED_REST(trailer_len, VIRTQ_DESC_F_WRITE));
}

/* Three slots that follow each other in memory. */
static inline bool virtq_packed_load_slots(const struct virtq *vq, uint32_t header_len,
					   uint32_t trailer_len, struct virtq_raw d[3])
{
	const struct virtq_packed_desc *slot = &vq->ring[vq->next];
	uint16_t lap = vq->avail_flags, write = VIRTQ_DESC_F_WRITE;

	/* the first descriptor must be read before what it makes valid */
	if (vq->next + 3 > vq->num || !virtq_packed_has_work(vq))
		return false;
	load_barrier();
	d[0] = virtq_packed_raw(&slot[0]);
	d[1] = virtq_packed_raw(&slot[1]);
	d[2] = virtq_packed_raw(&slot[2]);
	return (d[0].rest & VIRTQ_PACKED_NO_ID) ==
		       VIRTQ_PACKED_REST(header_len, lap | VIRTQ_DESC_F_NEXT) &&
	       (virtq_packed_flags(d[1]) | write) == (lap | VIRTQ_DESC_F_NEXT | write) &&
	       (d[2].rest & VIRTQ_PACKED_NO_ID) == VIRTQ_PACKED_REST(trailer_len, lap | write);
}

static noinline bool virtq_packed_pop_direct(struct virtq *vq, uint32_t header_len,
					     uint32_t trailer_len, struct virtq_framed *f)
{
	struct virtq_packed_desc copy[3];
	struct virtq_raw d[3];

	if (!virtq_packed_load_slots(vq, header_len, trailer_len, d) ||
	    !virtq_packed_is_free(vq, virtq_packed_id(d[2])) ||
	    virtq_packed_held(vq) + 3 > vq->num || !virtq_place(vq, d, f))
		return false;
	f->in = virtq_packed_flags(d[1]) & VIRTQ_DESC_F_WRITE;
	f->head = virtq_packed_id(d[2]);
	virtq_packed_take(vq, f->head, 3);
	for (int i = 0; vq->inflight && i < 3; i++)
		copy[i] = (struct virtq_packed_desc){ to_le64(d[i].addr),
						      to_le32(virtq_raw_len(d[i])),
						      to_le16(virtq_packed_id(d[i])),
						      to_le16(virtq_packed_flags(d[i])) };
	if (vq->inflight)
		inflight_packed_take(vq->inflight, f->head, copy, 3);
	return true;
}

/* hot. As virtq_split_pop_framed(). */
static inline bool virtq_packed_pop_framed(struct virtq *vq, uint32_t header_len,
					   uint32_t trailer_len, struct virtq_framed *f)
{
	const struct virtq_packed_desc *slot = &vq->ring[vq->next];
	/* the flags must be read before what they make valid */
	uint64_t rest = from_le64(load_acquire((const le64 *)(const void *)&slot->len));
	struct virtq_raw first = { from_le64(READ_ONCE(slot->addr)), rest }, d[3];
	struct virtq_framed direct;
	const void *table;

	if (unlikely(rest >> 48 != vq->avail_indirect)) {
		if (!virtq_packed_pop_direct(vq, header_len, trailer_len, &direct))
			return false;
		*f = direct;
		return true;
	}
	/* Without a region, a driver that hands over more slots than there are harms itself alone.
	 */
	if (!virtq_table_of_three(vq, first, &table) ||
	    !virtq_packed_is_free(vq, virtq_packed_id(first)) ||
	    (vq->inflight && !virtq_packed_has_room(vq)) ||
	    !virtq_packed_load_table(table, header_len, trailer_len, d) ||
	    unlikely(!virtq_place(vq, d, f)))
		return false;
	f->in = virtq_packed_flags(d[1]) & VIRTQ_DESC_F_WRITE;
	f->head = virtq_packed_id(first);
	virtq_packed_take(vq, f->head, 1);
	if (vq->inflight)
		inflight_packed_take_one(vq->inflight, f->head, first.addr, rest);
	return true;
}

#endif
