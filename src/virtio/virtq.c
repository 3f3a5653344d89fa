#include "virtio/virtq.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "reactor/uring.h"
#include "util/log.h"
#include "virtio/dirty_log.h"
#include "virtio/inflight.h"

/*
 * A chain has at most as many descriptors as the ring has entries (2.7.5.3.1). But a driver that
 * was told seg_max 254 puts 256 entries into indirect tables whatever the ring's size (Linux does),
 * and a ring smaller than this is a driver that knows the rule.
 */
#define SMALL_RING	 32
#define CHAIN_OF_SEG_MAX 256

/* --- life --- */

int virtq_create(uint32_t num, struct virtq **out)
{
	struct virtq *vq = aligned_alloc(CACHE_LINE, ROUND_UP(sizeof(*vq), CACHE_LINE));

	if (!vq)
		return -ENOMEM;
	memset(vq, 0, sizeof(*vq));
	vq->num = (uint16_t)num;
	vq->mask = (uint16_t)(num - 1);
	vq->max_chain = (uint16_t)(num < SMALL_RING ? num : MAX(num, CHAIN_OF_SEG_MAX));
	vq->call_fd = vq->err_fd = -1;
	vq->busy = calloc(num, 1);
	vq->pushed = calloc(num, sizeof(*vq->pushed));
	vq->iov = calloc(VIRTQ_IOV_MAX, sizeof(*vq->iov));
	vq->odd_table = calloc(vq->max_chain, sizeof(*vq->odd_table));
	if (!vq->busy || !vq->pushed || !vq->iov || !vq->odd_table) {
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
	free(vq->iov);
	free(vq->odd_table);
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
	unsigned n = vq->num;
	int rc = 0;
	void *desc, *avail, *used;

	desc = map_part(mem, s->desc_user, virtq_desc_size(n), VIRTQ_DESC_ALIGN, "descriptor table",
			s->index, &rc, e);
	avail = map_part(mem, s->avail_user, virtq_avail_size(n), VIRTQ_AVAIL_ALIGN, "avail ring",
			 s->index, &rc, e);
	used = map_part(mem, s->used_user, virtq_used_size(n), VIRTQ_USED_ALIGN, "used ring",
			s->index, &rc, e);
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

/* Behind the used ring: 2.7.8 */
static le16 *avail_event(struct virtq *vq)
{
	return (le16 *)(void *)&vq->used->ring[vq->num];
}

void virtq_begin(struct virtq *vq, const struct virtq_setup *s, struct virtq_inflight *inflight)
{
	uint16_t used_idx = from_le16(READ_ONCE(vq->used->idx));

	vq->index = s->index;
	vq->event_idx = s->features & FEATURE(VIRTIO_F_EVENT_IDX);
	vq->used_idx = vq->published = used_idx;
	vq->inflight = inflight;
	/* What is in flight was taken from the avail ring after what is used: the index in the
	 * message may be stale. */
	vq->last_avail = inflight && inflight->used_before
				 ? (uint16_t)(used_idx + inflight->resubmit_n)
				 : s->last_avail;
	vq->avail_idx = vq->last_avail;
	vq->resubmitting = inflight && inflight->resubmit_n;
	vq->signal_next = true;
	vq->broken = false;
	memset(vq->busy, 0, vq->num);
	WRITE_ONCE(vq->used->flags, to_le16(0)); /* the first kick starts the ring */
	if (vq->event_idx)
		WRITE_ONCE(*avail_event(vq), to_le16(vq->last_avail));
}

static void stop_taking(struct virtq *vq)
{
	vq->broken = true;
	vq->resubmitting = false;
	vq->avail_idx = vq->last_avail;
}

void virtq_abandon(struct virtq *vq, void *scratch)
{
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

/* --- push, flush --- */

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
unsigned virtq_flush(struct virtq *vq)
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
	WRITE_ONCE(vq->requests, vq->requests + n);
	if (wants_interrupt(vq, old) && vq->call_fd >= 0) {
		WRITE_ONCE(vq->calls, vq->calls + 1);
		uring_signal(vq->reactor, vq->call_fd);
	}
	return n;
}

bool virtq_looks_unshared(const struct virtq *vq)
{
	return vq->requests == 0 && !vq->broken && from_le16(READ_ONCE(vq->avail->idx)) == 0;
}

bool virtq_enable_kick(struct virtq *vq)
{
	if (vq->broken)
		return true;
	if (vq->event_idx)
		WRITE_ONCE(*avail_event(vq), to_le16(vq->last_avail));
	else
		WRITE_ONCE(vq->used->flags, to_le16(0));
	full_barrier(); /* the wish must be visible before the avail index is read again */
	if (from_le16(load_acquire(&vq->avail->idx)) == vq->last_avail)
		return true;
	virtq_disable_kick(vq);
	return false;
}

void virtq_disable_kick(struct virtq *vq)
{
	/*
	 * With EVENT_IDX the event index is left where it is: behind what the driver makes
	 * available from now on, so that it kicks at most once in 65536 entries.
	 */
	if (!vq->event_idx && !vq->broken)
		WRITE_ONCE(vq->used->flags, to_le16(VIRTQ_USED_F_NO_NOTIFY));
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
