/* From descriptors to an iovec: virtio 1.2, 2.7.4 and 2.7.5. Everything read here is the guest's.
 */
#include <string.h>

#include "virtio/virtq_framed.h"
#include "virtio/virtq_internal.h"

/* --- guest addresses --- */

/* Make the region that holds gpa the near one. false: it is not guest memory. */
static noinline bool go_near(struct virtq *vq, uint64_t gpa)
{
	const struct guest_region *r = guest_mem_find(vq->mem, gpa);

	if (!r)
		return false;
	vq->near = (struct virtq_span){
		.gpa = r->gpa,
		.size = r->size,
		.inner = r->size > VIRTQ_SMALL ? r->size - VIRTQ_SMALL : 0,
		.host = r->host,
	};
	return true;
}

char *virtq_far(const struct virtq *vq, uint64_t gpa, uint64_t len)
{
	const struct guest_region *r = guest_mem_find(vq->mem, gpa);

	return r && range_fits(gpa - r->gpa, len, r->size) ? r->host + (gpa - r->gpa) : NULL;
}

/* hot. Host address of gpa and how many bytes from there lie together; NULL: not guest memory. */
static inline char *at_gpa(struct virtq *vq, uint64_t gpa, uint64_t *run)
{
	uint64_t offset = gpa - vq->near.gpa;

	if (unlikely(offset >= vq->near.size)) {
		if (!go_near(vq, gpa))
			return NULL;
		offset = gpa - vq->near.gpa;
	}
	*run = vq->near.size - offset;
	return vq->near.host + offset;
}

bool virtq_gather(struct virtq *vq, uint64_t gpa, void *to, size_t len)
{
	for (size_t done = 0, part; done < len; done += part) {
		uint64_t run;
		const char *p = at_gpa(vq, gpa + done, &run);

		if (!p)
			return false;
		part = MIN(len - done, run);
		memcpy((char *)to + done, p, part);
	}
	return true;
}

/* --- one chain --- */

/* 2.7.5.3. The table that d refers to, with *n entries; NULL: malformed. */
static inline const struct virtq_desc *enter_table(struct virtq *vq, struct virtq_raw d,
						   uint32_t *n)
{
	uint32_t len = virtq_raw_len(d);
	uint64_t run;
	char *at;

	/* one comparison for "not empty" and "not too long" */
	if (unlikely(virtq_raw_has(d, VIRTQ_DESC_F_NEXT) || len % sizeof(struct virtq_desc) ||
		     len - sizeof(struct virtq_desc) >= vq->max_chain * sizeof(struct virtq_desc)))
		return NULL;
	*n = len / (uint32_t)sizeof(struct virtq_desc);
	at = at_gpa(vq, d.addr, &run);
	if (unlikely(!at))
		return NULL;
	if (likely(run >= len && IS_ALIGNED((uintptr_t)at, 8)))
		return (const struct virtq_desc *)(const void *)at;
	/* It needs no alignment and may cross regions: such a one is copied. */
	return virtq_gather(vq, d.addr, vq->copy, len) ? vq->copy : NULL;
}

/*
 * A buffer that crosses regions, lies in another than the last one, or has no bytes (legal, and its
 * address means nothing), as entries from iov on. Returns the next free entry; NULL: malformed.
 */
static noinline struct iovec *add_oddly(struct virtq *vq, struct iovec *iov, struct virtq_raw d)
{
	uint64_t addr = d.addr;

	for (uint32_t left = virtq_raw_len(d), part; left > 0; left -= part, addr += part) {
		uint64_t run;
		char *p = at_gpa(vq, addr, &run);

		if (!p || iov == vq->iov + VIRTQ_IOV_MAX)
			return NULL;
		part = (uint32_t)MIN(left, run);
		*iov++ = (struct iovec){ p, part };
	}
	return iov;
}

/*
 * hot. The buffers from d on become vq->iov. false: malformed. The near region and all counts are
 * in local variables: with aliasing as it is, each store would make the compiler load them again.
 */
static bool walk(struct virtq *vq, const struct virtq_desc *table, uint32_t table_n,
		 struct virtq_raw d, struct virtq_chain *c)
{
	struct iovec *iov = vq->iov, *first_in = NULL, *const end = iov + VIRTQ_IOV_MAX;
	struct virtq_span near = vq->near;
	uint32_t left = vq->max_chain;
	uint64_t len = 0, out_len = 0; /* bytes since the direction changed; of the readable part */
	bool indirect = false;

	for (;;) {
		uint64_t offset;

		if (virtq_raw_has(d, VIRTQ_DESC_F_INDIRECT)) {
			if (unlikely(indirect))
				return false; /* a table in a table */
			indirect = true;
			table = enter_table(vq, d, &table_n);
			if (unlikely(!table))
				return false;
			near = vq->near;
			d = virtq_raw_load(table);
			continue;
		}
		if (virtq_raw_has(d, VIRTQ_DESC_F_WRITE)) {
			if (!first_in) {
				first_in = iov;
				out_len = len;
				len = 0;
			}
		} else if (unlikely(first_in)) {
			return false; /* readable after writable: 2.7.4.2 */
		}
		if (unlikely(left-- == 0))
			return false;
		len += virtq_raw_len(d);
		offset = d.addr - near.gpa;
		if (likely(offset < near.size &&
			   (uint64_t)virtq_raw_len(d) - 1 < near.size - offset && iov < end)) {
			iov->iov_base = near.host + offset;
			iov->iov_len = virtq_raw_len(d);
			iov++;
		} else {
			iov = add_oddly(vq, iov, d);
			if (!iov)
				return false;
			near = vq->near;
		}
		if (!virtq_raw_has(d, VIRTQ_DESC_F_NEXT))
			break;
		if (unlikely(virtq_raw_next(d) >= table_n))
			return false;
		d = virtq_raw_load(&table[virtq_raw_next(d)]);
	}
	c->out_n = (unsigned)((first_in ? first_in : iov) - vq->iov);
	c->in_n = (unsigned)(iov - vq->iov) - c->out_n;
	c->out_len = (uint32_t)(first_in ? out_len : len);
	c->in_len = first_in ? (uint32_t)len : 0;
	return likely((len | out_len) <= UINT32_MAX);
}

void virtq_walk(struct virtq *vq, const struct virtq_desc *table, uint32_t n, uint16_t first,
		struct virtq_chain *c)
{
	c->iov = vq->iov;
	c->malformed = !walk(vq, table, n, virtq_raw_load(&table[first]), c);
}
