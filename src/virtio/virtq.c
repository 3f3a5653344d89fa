#include "virtio/virtq.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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
	if (!vq->busy || !vq->pushed || !vq->iov) {
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
	free(vq);
}

static void *map_part(const struct guest_mem *mem, uint64_t user, uint64_t len, unsigned align,
		      const char *part, unsigned index, int *rc, struct err *e)
{
	void *p = guest_mem_from_user(mem, user, len);

	if (!IS_ALIGNED(user, align))
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
	vq->hint = NULL;
	return 0;
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
	vq->signal_next = true;
	vq->broken = false;
	memset(vq->busy, 0, vq->num);
	WRITE_ONCE(vq->used->flags, to_le16(0)); /* the first kick starts the ring */
}

void virtq_abandon(struct virtq *vq, void *scratch)
{
	vq->used = scratch;
	vq->inflight = NULL;
	vq->log = NULL;
	vq->call_fd = -1;
	vq->broken = true; /* nothing more is taken */
}

void virtq_break(struct virtq *vq, const char *why)
{
	static const uint64_t one = 1;

	if (vq->broken)
		return;
	vq->broken = true;
	log_error("%s: ring %u is broken: %s; it stays stopped until the driver sets it up again",
		  vq->name ? vq->name : "virtq", vq->index, why);
	if (vq->err_fd >= 0 && write(vq->err_fd, &one, sizeof(one)) < 0)
		log_debug("ring %u: nobody takes the error event", vq->index);
}

/* --- pop --- */

/* A private copy of a descriptor, each field read once. */
struct desc {
	uint64_t addr;
	uint32_t len;
	uint16_t flags, next;
};

/* Where a chain's descriptors come from: the ring's table, or an indirect one. */
struct desc_table {
	const struct virtq_desc *at; /* NULL: in pieces, at gpa */
	uint64_t gpa;
	uint32_t n;
	bool indirect;
};

static inline struct desc desc_load(const struct virtq_desc *d)
{
	struct desc copy = {
		.addr = from_le64(READ_ONCE(d->addr)),
		.len = from_le32(READ_ONCE(d->len)),
		.flags = from_le16(READ_ONCE(d->flags)),
		.next = from_le16(READ_ONCE(d->next)),
	};

	return copy;
}

/* One descriptor of a table that crosses regions. */
static noinline bool desc_gather(struct virtq *vq, uint64_t gpa, struct desc *d)
{
	struct virtq_desc copy;

	for (size_t done = 0, part; done < sizeof(copy); done += part) {
		uint64_t run;
		const char *p = guest_mem_at(vq->mem, &vq->hint, gpa + done, &run);

		if (!p)
			return false;
		part = MIN(sizeof(copy) - done, run);
		memcpy((char *)&copy + done, p, part);
	}
	*d = desc_load(&copy);
	return true;
}

static inline bool desc_fetch(struct virtq *vq, const struct desc_table *t, uint32_t i,
			      struct desc *d)
{
	if (unlikely(!t->at))
		return desc_gather(vq, t->gpa + i * sizeof(struct virtq_desc), d);
	*d = desc_load(&t->at[i]);
	return true;
}

/* Is all of a table that crosses regions guest memory? */
static noinline bool all_mapped(struct virtq *vq, uint64_t gpa, uint64_t len)
{
	uint64_t run;

	while (guest_mem_at(vq->mem, &vq->hint, gpa, &run)) {
		if (run >= len)
			return true;
		gpa += run;
		len -= run;
	}
	return false;
}

/* 2.7.5.3: d refers to a table. false: it must not. */
static inline bool enter_table(struct virtq *vq, const struct desc *d, struct desc_table *t)
{
	uint64_t run;
	const void *at;

	if (unlikely(t->indirect || d->flags & VIRTQ_DESC_F_NEXT || d->len == 0 ||
		     d->len % sizeof(struct virtq_desc) ||
		     d->len / sizeof(struct virtq_desc) > vq->max_chain))
		return false;
	at = guest_mem_at(vq->mem, &vq->hint, d->addr, &run);
	if (unlikely(!at || (run < d->len && !all_mapped(vq, d->addr, d->len))))
		return false;
	/* A table needs no alignment, but loads do: an odd one is copied entry by entry. */
	t->at = likely(run >= d->len && IS_ALIGNED((uintptr_t)at, 8)) ? at : NULL;
	t->gpa = d->addr;
	t->indirect = true;
	t->n = d->len / (uint32_t)sizeof(struct virtq_desc);
	return true;
}

/* Append one buffer to the chain's iovec, in as many entries as it touches regions. */
static inline bool add_buffer(struct virtq *vq, struct virtq_chain *c, const struct desc *d)
{
	unsigned n = (unsigned)c->out_n + c->in_n;
	uint64_t addr = d->addr;
	uint32_t left = d->len;
	bool in = d->flags & VIRTQ_DESC_F_WRITE;

	if (unlikely(left == 0))
		return true; /* legal, and its address means nothing */
	if (unlikely(!in && c->in_n))
		return false; /* readable after writable: 2.7.4.2 */
	if (unlikely(left > UINT32_MAX - (in ? c->in_len : c->out_len)))
		return false;
	*(in ? &c->in_len : &c->out_len) += left;
	for (;;) {
		uint64_t run;
		void *p = guest_mem_at(vq->mem, &vq->hint, addr, &run);
		uint32_t part = (uint32_t)MIN(left, run);

		if (unlikely(!p || n == VIRTQ_IOV_MAX))
			return false;
		vq->iov[n++] = (struct iovec){ p, part };
		left -= part;
		if (likely(left == 0))
			break;
		addr += part;
	}
	if (in)
		c->in_n = (uint16_t)(n - c->out_n);
	else
		c->out_n = (uint16_t)n;
	return true;
}

/* hot. false: malformed */
static inline bool walk(struct virtq *vq, struct virtq_chain *c)
{
	struct desc_table t = { .at = vq->desc, .n = vq->num };
	struct desc d;
	uint32_t i = c->head;

	for (unsigned count = 0;;) {
		if (unlikely(!desc_fetch(vq, &t, i, &d)))
			return false;
		if (d.flags & VIRTQ_DESC_F_INDIRECT) {
			if (unlikely(!enter_table(vq, &d, &t)))
				return false;
			i = 0;
			continue;
		}
		if (unlikely(++count > vq->max_chain || !add_buffer(vq, c, &d)))
			return false;
		if (!(d.flags & VIRTQ_DESC_F_NEXT))
			return true;
		i = d.next;
		if (unlikely(i >= t.n))
			return false;
	}
}

/* 1: *head is the next to serve again after a crash; 0: none is left. */
static noinline int pop_resubmitted(struct virtq *vq, uint16_t *head)
{
	struct virtq_inflight *f = vq->inflight;

	if (f->resubmit_at == f->resubmit_n) {
		f->resubmit_n = 0; /* all served: this path is not taken again */
		return 0;
	}
	*head = f->resubmit[f->resubmit_at++];
	return 1;
}

/* 1: *head is the next available one; 0: empty; -EPROTO */
static inline int pop_head(struct virtq *vq, uint16_t *head)
{
	if (vq->last_avail == vq->avail_idx) {
		/* the index must be read before the entries it covers */
		vq->avail_idx = from_le16(load_acquire(&vq->avail->idx));
		if (vq->last_avail == vq->avail_idx)
			return 0;
		if (unlikely((uint16_t)(vq->avail_idx - vq->last_avail) > vq->num)) {
			virtq_break(vq, "the avail index jumped by more than the ring's size");
			return -EPROTO;
		}
	}
	*head = from_le16(READ_ONCE(vq->avail->ring[vq->last_avail & vq->mask]));
	if (unlikely(*head >= vq->num)) {
		virtq_break(vq, "a head is not below the ring's size");
		return -EPROTO;
	}
	vq->last_avail++;
	return 1;
}

/* hot */
int virtq_pop(struct virtq *vq, struct virtq_chain *c)
{
	int rc = 0;

	if (unlikely(vq->broken))
		return -EPROTO;
	if (unlikely(vq->inflight && vq->inflight->resubmit_n))
		rc = pop_resubmitted(vq, &c->head);
	if (likely(rc == 0))
		rc = pop_head(vq, &c->head);
	if (rc <= 0)
		return rc;
	if (unlikely(vq->busy[c->head])) {
		virtq_break(vq, "a head was made available again while it is in flight");
		return -EPROTO;
	}
	vq->busy[c->head] = 1;
	if (vq->inflight)
		inflight_take(vq->inflight, c->head);
	c->out_n = c->in_n = 0;
	c->out_len = c->in_len = 0;
	c->iov = vq->iov;
	c->malformed = !walk(vq, c);
	return 1;
}

/* --- push, flush --- */

/* hot */
void virtq_push(struct virtq *vq, uint16_t head, uint32_t written)
{
	struct virtq_used_elem *u = &vq->used->ring[vq->used_idx & vq->mask];

	u->id = to_le32(head);
	u->len = to_le32(written);
	if (vq->inflight) {
		inflight_stage(vq->inflight, head);
		vq->pushed[vq->used_idx & vq->mask] = head;
	}
	vq->busy[head] = 0;
	vq->used_idx++;
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
void virtq_flush(struct virtq *vq)
{
	static const uint64_t one = 1;
	uint16_t old = vq->published;

	if (old == vq->used_idx)
		return;
	/* the entries must be visible before the index that covers them */
	store_release(&vq->used->idx, to_le16(vq->used_idx));
	vq->published = vq->used_idx;
	if (vq->inflight)
		inflight_publish(vq->inflight, vq->pushed, vq->mask, old, vq->used_idx);
	if (unlikely(vq->log))
		log_used(vq, old);
	WRITE_ONCE(vq->requests, vq->requests + (uint16_t)(vq->used_idx - old));
	WRITE_ONCE(vq->batches, vq->batches + 1);
	if (wants_interrupt(vq, old) && vq->call_fd >= 0) {
		WRITE_ONCE(vq->calls, vq->calls + 1);
		/* The fd is the front-end's; one that does not take the event is its own loss. */
		if (write(vq->call_fd, &one, sizeof(one)) < 0)
			return;
	}
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
		*(volatile le16 *)(void *)&vq->used->ring[vq->num] = to_le16(vq->last_avail);
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
