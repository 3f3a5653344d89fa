#include "virtio/virtq.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "reactor/uring.h"
#include "util/log.h"
#include "virtio/dirty_log.h"
#include "virtio/inflight.h"
#include "virtio/virtq_internal.h"

/*
 * A chain has at most as many descriptors as the ring has entries (2.7.5.3.1). But a driver that
 * was told seg_max 254 puts 256 entries into indirect tables whatever the ring's size (Linux does),
 * and a ring smaller than this is a driver that knows the rule.
 */
#define SMALL_RING	 32
#define CHAIN_OF_SEG_MAX 256

/* --- life --- */

static int alloc_common(struct virtq *vq)
{
	vq->iov = calloc(VIRTQ_IOV_MAX, sizeof(*vq->iov));
	vq->copy = calloc(vq->max_chain, sizeof(*vq->copy));
	return vq->iov && vq->copy ? 0 : -ENOMEM;
}

static int alloc_format(struct virtq *vq)
{
	if (!vq->packed) {
		vq->busy = calloc(vq->num, sizeof(*vq->busy));
		vq->pushed = calloc(vq->num, sizeof(*vq->pushed));
		return vq->busy && vq->pushed ? 0 : -ENOMEM;
	}
	vq->chain_n = calloc(vq->num, sizeof(*vq->chain_n));
	vq->staged = calloc(vq->num, sizeof(*vq->staged));
	vq->ring_copy = calloc(vq->num, sizeof(*vq->ring_copy));
	return vq->chain_n && vq->staged && vq->ring_copy ? 0 : -ENOMEM;
}

int virtq_create(const struct virtq_setup *s, struct virtq **out)
{
	struct virtq *vq = aligned_alloc(CACHE_LINE, ROUND_UP(sizeof(*vq), CACHE_LINE));

	if (!vq)
		return -ENOMEM;
	memset(vq, 0, sizeof(*vq));
	vq->num = (uint16_t)s->num;
	vq->mask = (uint16_t)(s->num - 1);
	vq->packed = virtq_is_packed(s);
	vq->max_chain = (uint16_t)(s->num < SMALL_RING ? s->num : MAX(s->num, CHAIN_OF_SEG_MAX));
	vq->call_fd = vq->err_fd = -1;
	if (alloc_common(vq) || alloc_format(vq)) {
		virtq_destroy(vq);
		return -ENOMEM;
	}
	*out = vq;
	return 0;
}

void virtq_destroy(struct virtq *vq)
{
	if (!vq)
		return;
	free(vq->busy);
	free(vq->pushed);
	free(vq->chain_n);
	free(vq->staged);
	free(vq->ring_copy);
	free(vq->iov);
	free(vq->copy);
	free(vq);
}

static void *map_part(const struct guest_mem *mem, uint64_t user, uint64_t len, unsigned align,
		      const char *part, unsigned index, int *rc, struct err *e)
{
	void *p = guest_mem_from_user(mem, user, len);

	/* Ours too: a front-end may map a region so that the two differ. */
	if (!IS_ALIGNED(user, align) || !IS_ALIGNED((uintptr_t)p, align))
		*rc = err_set(e, -EINVAL,
			      "the %s of ring %u at 0x%" PRIx64 " is not aligned to %u bytes", part,
			      index, user, align);
	else if (!p)
		*rc = err_set(e, -EFAULT,
			      "the %s of ring %u at 0x%" PRIx64 " is not in one memory region",
			      part, index, user);
	return p;
}

int virtq_map(struct virtq *vq, const struct virtq_setup *s, const struct guest_mem *mem,
	      struct err *e)
{
	struct virtq_layout l = virtq_layout(vq->num, vq->packed);
	int rc = 0;
	void *desc, *avail, *used;

	if (!vq->packed && !IS_POWER_OF_2(vq->num))
		return err_set(e, -EINVAL,
			       "ring %u has %u entries: a split ring has a power of 2 of them",
			       s->index, vq->num);
	desc = map_part(mem, s->desc_user, l.desc, VIRTQ_DESC_ALIGN, "descriptor table", s->index,
			&rc, e);
	avail = map_part(mem, s->avail_user, l.avail, l.avail_align,
			 vq->packed ? "driver event suppression" : "avail ring", s->index, &rc, e);
	used = map_part(mem, s->used_user, l.used, l.used_align,
			vq->packed ? "device event suppression" : "used ring", s->index, &rc, e);
	if (rc)
		return rc;
	vq->desc = desc;
	vq->avail = avail;
	vq->used = used;
	vq->mem = mem;
	vq->use = &mem->use[s->index];
	vq->near = (struct virtq_span){ 0 };
	return 0;
}

int virtq_begin(struct virtq *vq, const struct virtq_setup *s, struct virtq_inflight *inflight,
		struct err *e)
{
	vq->index = s->index;
	vq->event_idx = s->features & FEATURE(VIRTIO_F_EVENT_IDX);
	vq->inflight = inflight;
	vq->resubmitting = inflight && inflight->resubmit_n;
	vq->signal_next = true;
	vq->broken = false;
	return vq->packed ? virtq_packed_begin(vq, s->base, e) : virtq_split_begin(vq, s->base, e);
}

uint32_t virtq_base(const struct virtq *vq)
{
	uint32_t avail, used;

	if (!vq->packed)
		return vq->last_avail;
	avail = vq->next | (vq->next_wrap ? VIRTQ_WRAP : 0);
	used = vq->used_slot | (vq->used_wrap ? VIRTQ_WRAP : 0);
	return avail | used << 16;
}

/* --- the end --- */

static void stop_taking(struct virtq *vq)
{
	vq->broken = true;
	vq->resubmitting = false;
	/* for who looks at no more than the ring */
	vq->avail_idx = vq->last_avail;
	vq->avail_flags = vq->avail_indirect = VIRTQ_NEVER;
}

size_t virtq_scratch_size(const struct virtq *vq)
{
	return vq->packed ? virtq_layout(vq->num, true).desc : virtq_used_size(vq->num);
}

void virtq_abandon(struct virtq *vq, void *scratch)
{
	if (vq->packed)
		vq->ring = scratch;
	else
		vq->used = scratch;
	vq->inflight = NULL;
	vq->log = NULL;
	vq->call_fd = -1;
	stop_taking(vq);
}

void virtq_break(struct virtq *vq, const char *why)
{
	if (vq->broken)
		return;
	stop_taking(vq);
	log_error("%s: ring %u is broken: %s; it stays stopped until the driver sets it up again",
		  vq->name ? vq->name : "virtq", vq->index, why);
	if (vq->err_fd >= 0)
		uring_signal(vq->reactor, vq->err_fd);
}

int virtq_fail(struct virtq *vq, const char *why)
{
	virtq_break(vq, why);
	return -EPROTO;
}

/* --- what is the same in both formats --- */

int virtq_next_resubmit(struct virtq *vq)
{
	struct virtq_inflight *f = vq->inflight;

	if (f->resubmit_at < f->resubmit_n)
		return f->resubmit[f->resubmit_at++];
	vq->resubmitting = false; /* all served: this path is not taken again */
	return -1;
}

void virtq_tell(struct virtq *vq, unsigned n, bool interrupt)
{
	counter_add(&vq->requests, n);
	if (interrupt && vq->call_fd >= 0) {
		counter_add(&vq->calls, 1);
		uring_signal(vq->reactor, vq->call_fd);
	}
}

int virtq_pop(struct virtq *vq, struct virtq_chain *c)
{
	return vq->packed ? virtq_packed_pop(vq, c) : virtq_split_pop(vq, c);
}

unsigned virtq_flush(struct virtq *vq)
{
	return vq->packed ? virtq_packed_flush(vq) : virtq_split_flush(vq);
}

bool virtq_enable_kick(struct virtq *vq)
{
	if (vq->broken)
		return true;
	if (vq->resubmitting) /* no kick will tell of those */
		return false;
	return vq->packed ? virtq_packed_enable_kick(vq) : virtq_split_enable_kick(vq);
}

void virtq_disable_kick(struct virtq *vq)
{
	if (vq->broken)
		return;
	if (vq->packed)
		virtq_packed_disable_kick(vq);
	else
		virtq_split_disable_kick(vq);
}

bool virtq_looks_unshared(const struct virtq *vq)
{
	if (vq->requests || vq->broken)
		return false;
	return vq->packed ? from_le16(READ_ONCE(vq->ring[vq->next].flags)) == 0
			  : from_le16(READ_ONCE(vq->avail->idx)) == 0;
}

void virtq_log_iov(struct virtq *vq, const struct guest_mem *mem, const struct iovec *iov, int n,
		   uint64_t len)
{
	for (int i = 0; i < n && len > 0; i++) {
		uint64_t part = MIN(len, iov[i].iov_len),
			 gpa = guest_mem_to_gpa(mem, iov[i].iov_base);

		if (gpa != UINT64_MAX)
			dirty_log_mark(vq->log, gpa, part);
		len -= part;
	}
}

void virtq_log_part(struct virtq *vq, const void *part, size_t len)
{
	struct iovec iov = { (void *)(uintptr_t)part, len };

	virtq_log_iov(vq, vq->mem, &iov, 1, len);
}
