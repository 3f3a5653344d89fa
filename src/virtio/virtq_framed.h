/*
 * The chain of nearly every block request - header, one buffer, status - taken on a straight line:
 * a 4 KiB read from ring to null and back costs 244 instructions this way and 548 through
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

/* A descriptor, each half of it read once. */
struct desc {
	uint64_t addr;
	uint32_t len;
	uint32_t flags_next; /* flags, and next << 16 */
};

static inline struct desc desc_load(const struct virtq_desc *d)
{
	const le64 *halves = (const le64 *)(const void *)d;
	uint64_t rest = from_le64(READ_ONCE(halves[1]));

	return (struct desc){ from_le64(READ_ONCE(halves[0])), (uint32_t)rest,
			      (uint32_t)(rest >> 32) };
}

static inline bool desc_has(struct desc d, uint32_t flag)
{
	return d.flags_next & flag;
}

static inline uint32_t desc_next(struct desc d)
{
	return d.flags_next >> 16;
}

static inline uint16_t desc_flags(struct desc d)
{
	return (uint16_t)d.flags_next;
}

/* Both halves' second word as one number, for a comparison with what it should be. */
static inline uint64_t desc_rest(struct desc d)
{
	return (uint64_t)d.flags_next << 32 | d.len;
}

#define DESC_REST(len, flags, next) \
	((uint64_t)(len) | (uint64_t)(flags) << 32 | (uint64_t)(next) << 48)

/* hot. A table of three, in the order of the request: what drivers build. */
static inline bool virtq_load_table(const struct virtq_desc *table, uint32_t header_len,
				    uint32_t trailer_len, struct desc d[3])
{
	d[0] = desc_load(&table[0]);
	d[1] = desc_load(&table[1]);
	d[2] = desc_load(&table[2]);
	return likely(desc_rest(d[0]) == DESC_REST(header_len, VIRTQ_DESC_F_NEXT, 1)) &&
	       likely((d[1].flags_next | VIRTQ_DESC_F_WRITE) ==
		      (VIRTQ_DESC_F_NEXT | VIRTQ_DESC_F_WRITE | 2 << 16)) &&
	       /* no next: what stands there means nothing */
	       likely(desc_rest(d[2]) << 16 == DESC_REST(trailer_len, VIRTQ_DESC_F_WRITE, 0) << 16);
}

/* hot. Three descriptors of the ring, which the driver may have found anywhere. */
static inline bool virtq_load_links(const struct virtq *vq, struct desc first, uint32_t header_len,
				    uint32_t trailer_len, struct desc d[3])
{
	d[0] = first;
	if (unlikely(desc_flags(d[0]) != VIRTQ_DESC_F_NEXT || desc_next(d[0]) >= vq->num))
		return false;
	d[1] = desc_load(&vq->desc[desc_next(d[0])]);
	if (unlikely((desc_flags(d[1]) | VIRTQ_DESC_F_WRITE) !=
			     (VIRTQ_DESC_F_NEXT | VIRTQ_DESC_F_WRITE) ||
		     desc_next(d[1]) >= vq->num))
		return false;
	d[2] = desc_load(&vq->desc[desc_next(d[1])]);
	return likely(desc_flags(d[2]) == VIRTQ_DESC_F_WRITE) && likely(d[0].len == header_len) &&
	       likely(d[2].len == trailer_len);
}

/* hot. Where the three lie; false: not so that it can be told on a straight line. */
static inline bool virtq_place(const struct virtq *vq, const struct desc d[3],
			       struct virtq_framed *f)
{
	const struct virtq_span *near = &vq->near;
	uint64_t header = d[0].addr - near->gpa, body = d[1].addr - near->gpa,
		 trailer = d[2].addr - near->gpa;

	if (unlikely(header >= near->inner) || unlikely(trailer >= near->inner))
		return false;
	f->body.iov_base = near->host + body;
	if (unlikely(body >= near->inner) || unlikely(d[1].len > near->size - body)) {
		f->body.iov_base = virtq_far(vq, d[1].addr, d[1].len);
		if (!f->body.iov_base)
			return false;
	}
	f->body.iov_len = d[1].len;
	f->in = desc_has(d[1], VIRTQ_DESC_F_WRITE);
	f->header = near->host + header;
	f->trailer = near->host + trailer;
	return true;
}

/*
 * hot. Take the next chain if it is one of a header and a trailer of these lengths (each at most
 * VIRTQ_SMALL) around one buffer. false: ask virtq_pop().
 */
static inline bool virtq_pop_framed(struct virtq *vq, uint32_t header_len, uint32_t trailer_len,
				    struct virtq_framed *f)
{
	struct desc first, d[3];
	uint16_t head;

	if (vq->last_avail == vq->avail_idx)
		return false;
	head = from_le16(READ_ONCE(vq->avail->ring[vq->last_avail & vq->mask]));
	if (unlikely(head >= vq->num) || unlikely(vq->busy[head]))
		return false;
	first = desc_load(&vq->desc[head]);
	if (likely(desc_flags(first) == VIRTQ_DESC_F_INDIRECT)) {
		uint64_t offset = first.addr - vq->near.gpa;
		const struct virtq_desc *table =
			(const struct virtq_desc *)(const void *)(vq->near.host + offset);

		if (unlikely(first.len != sizeof(table[0]) * ARRAY_SIZE(d)) ||
		    unlikely(offset >= vq->near.inner) ||
		    unlikely(!IS_ALIGNED((uintptr_t)table, 8)) ||
		    !virtq_load_table(table, header_len, trailer_len, d))
			return false;
	} else if (!virtq_load_links(vq, first, header_len, trailer_len, d)) {
		return false;
	}
	if (unlikely(!virtq_place(vq, d, f)))
		return false;
	vq->last_avail++;
	vq->busy[head] = 1;
	if (vq->inflight)
		inflight_take(vq->inflight, head);
	f->head = head;
	return true;
}

#endif
