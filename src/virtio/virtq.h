/*
 * virtq: a virtqueue from the device's side, split (virtio 1.2, 2.7) or packed (2.8).
 *
 * virtq_pop() takes the next chain and turns it into an iovec of host memory; virtq_push() stages
 * its end; virtq_flush() publishes all staged ends with one store - of the used index, or of the
 * flags of the batch's first descriptor -, looks once whether the driver wants an interrupt, and
 * sends at most one.
 *
 * What both formats share is in virtq.c (life) and virtq_chain.c (descriptors to iovec);
 * virtq_split.c and virtq_packed.c are the formats. A chain is known by its head: the descriptor's
 * index in a split ring, the buffer id in a packed one; both are below the ring's size and in
 * flight once.
 *
 * Everything in the rings is the guest's to forge. Each field is read once and the copy is checked;
 * a chain that breaks the rules comes back as malformed and is given back to the driver; a ring
 * that breaks them is broken: nothing more is read from it until it is set up again. Owner: the
 * session thread while stopped, the ring's reactor while started.
 */
#ifndef VIRTIO_VIRTQ_H
#define VIRTIO_VIRTQ_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#include "reactor/reactor.h"
#include "virtio/guest_mem.h"
#include "virtio/inflight.h"
#include "virtio/spec.h"

/* Entries of a chain's iovec: seg_max + 2 = 256, and room for buffers that cross regions or lie in
 * many small pieces. */
#define VIRTQ_IOV_MAX 1026

struct dirty_log;

struct virtq_chain {
	uint16_t head;
	bool malformed;		  /* no byte of it can be trusted; push it with length 0 */
	unsigned out_n;		  /* device-readable entries: iov[0, out_n) */
	unsigned in_n;		  /* device-writable entries: iov[out_n, out_n + in_n) */
	uint32_t out_len, in_len; /* their bytes */
	struct iovec *iov;	  /* valid, and the caller's to change, until the next pop */
};

/* A copy of the region that was used last: most addresses of a guest lie in one. */
struct virtq_span {
	uint64_t gpa, size;
	uint64_t inner; /* at offsets below it VIRTQ_SMALL bytes lie together */
	char *host;
};

#define VIRTQ_SMALL 64

struct virtq {
	/* hot, ours alone */
	union {
		const struct virtq_desc *desc;
		struct virtq_packed_desc *ring; /* packed */
	};
	union {
		struct virtq_avail *avail;
		const struct virtq_event *driver_event; /* packed */
	};
	union {
		struct virtq_used *used;
		struct virtq_event *device_event; /* packed */
	};
	const struct guest_mem *mem;
	struct guest_mem_use *use; /* counts the requests that hold mem */
	struct virtq_span near;
	uint8_t *busy; /* split, per head: popped and not pushed yet */
	struct iovec *iov;
	struct virtq_inflight *inflight; /* NULL: not tracked */
	struct dirty_log *log;		 /* NULL: not migrating */
	uint16_t num, mask;
	bool packed;
	bool event_idx;
	bool signal_next; /* notify without asking: what the driver wants is stale after a start */
	bool broken;
	bool resubmitting; /* what was in flight at a crash is served before the ring */
	int call_fd;	   /* -1: the driver polls */
	uint16_t max_chain;

	/* split: free-running indexes */
	uint16_t last_avail; /* next entry of the avail ring to take */
	uint16_t avail_idx;  /* as last read */
	uint16_t used_idx;   /* staged */
	uint16_t published;  /* used_idx as the driver sees it */
	uint16_t event_at;   /* the avail event index that the driver sees, with EVENT_IDX */

	/* packed: slots, and the AVAIL and USED bits that belong to their laps */
	uint16_t next, avail_flags; /* of the next chain: the bits that say "available" */
	uint16_t avail_indirect;    /* avail_flags and INDIRECT */
	bool next_wrap;
	bool used_wrap;
	uint16_t used_slot;  /* of the next used descriptor */
	uint16_t first_slot; /* of the batch that is not published yet */
	uint16_t put_n;	     /* descriptors of that batch */
	le64 first_word;     /* its first one, which publishes it */
	le64 *put_to;	     /* where the next one goes: first_word, or its place in the ring */
	uint64_t used_word;  /* flags of the next used descriptor, << 48 */
	uint16_t *chain_n;   /* per head: slots of its chain in flight; 0: it is not */
	uint64_t *staged;    /* with an in-flight region: ends to be put: length, and head << 32 */
	uint16_t staged_n;

	/* counters, read relaxed by control */
	uint64_t requests, calls;

	/* cold */
	struct virtq_desc *copy; /* max_chain entries: a private copy of a chain or of an indirect
				    table that lies oddly */
	struct virtq_packed_desc *ring_copy; /* packed: num entries: the chain as it stood there */
	uint16_t *pushed; /* split: heads by used slot, for the in-flight region */
	int err_fd;
	struct reactor *reactor; /* of a started ring */
	uint64_t log_addr;	 /* GPA of the used ring, for the dirty log */
	const char *name;
	unsigned index;
};

/* What the messages said of a ring. */
struct virtq_setup {
	unsigned index;
	uint32_t num;
	uint64_t desc_user, avail_user, used_user;
	uint32_t base; /* SET_VRING_BASE: as virtq_base() */
	uint64_t features;
};

static inline bool virtq_is_packed(const struct virtq_setup *s)
{
	return s->features & FEATURE(VIRTIO_F_RING_PACKED);
}

/* Allocate for the ring that s describes; its size is 1 to VIRTQ_SIZE_MAX. Errors: -ENOMEM. */
int virtq_create(const struct virtq_setup *s, struct virtq **out);
void virtq_destroy(struct virtq *vq);

/* Find the rings in guest memory. Errors: -EINVAL (size, alignment), -EFAULT (not in one region),
 * with a sentence. */
int virtq_map(struct virtq *vq, const struct virtq_setup *s, const struct guest_mem *mem,
	      struct err *e);

/* Indexes at a start, kicks asked for; with an in-flight region (else NULL) also what was in
 * flight. Errors: -EINVAL (a base that is not in the ring), with a sentence. */
int virtq_begin(struct virtq *vq, const struct virtq_setup *s, struct virtq_inflight *inflight,
		struct err *e);

/*
 * Where the ring stands, as GET_VRING_BASE tells it. Split: the next avail index. Packed: the next
 * slot and its wrap counter in bits 0-15, those of the next used descriptor in bits 16-31.
 */
uint32_t virtq_base(const struct virtq *vq);

/* hot. 1: *c is the next chain; 0: the ring is empty; -EPROTO: the ring is broken (logged and
 * signalled once). */
int virtq_pop(struct virtq *vq, struct virtq_chain *c);

/* Host address of [gpa, gpa + len) when it lies in one region, which does not become the near one;
 * else NULL. */
char *virtq_far(const struct virtq *vq, uint64_t gpa, uint64_t len);

/* hot. May virtq_pop() find something in the ring? One load of the driver's line, and no call, for
 * rings that are idle. */
static inline bool virtq_split_has_work(const struct virtq *vq)
{
	return from_le16(READ_ONCE(vq->avail->idx)) != vq->last_avail;
}

#define VIRTQ_LAP   (VIRTQ_DESC_F_AVAIL | VIRTQ_DESC_F_USED)
#define VIRTQ_NEVER UINT16_MAX /* avail_flags of a ring of which nothing is taken */

static inline bool virtq_packed_has_work(const struct virtq *vq)
{
	return (from_le16(READ_ONCE(vq->ring[vq->next].flags)) & VIRTQ_LAP) == vq->avail_flags;
}

/* The second half of a descriptor: length, id << 32, flags << 48. */
static inline le64 *virtq_packed_word(struct virtq_packed_desc *d)
{
	return (le64 *)(void *)&d->len;
}

/* hot. Stage the end of a chain: written is what the driver may rely on in its writable part. */
static inline void virtq_split_push(struct virtq *vq, uint16_t head, uint32_t written)
{
	unsigned at = vq->used_idx & vq->mask;
	struct virtq_used_elem *u = &vq->used->ring[at];

	u->id = to_le32(head);
	u->len = to_le32(written);
	if (unlikely(vq->inflight)) {
		inflight_stage(vq->inflight, head);
		vq->pushed[at] = head;
	}
	vq->busy[head] = 0;
	vq->used_idx++;
}

/* hot. A used descriptor in the next place; the batch's first one is kept back, to publish it. */
static inline void virtq_packed_put(struct virtq *vq, uint16_t head, uint64_t word)
{
	unsigned slot = vq->used_slot + vq->chain_n[head];

	WRITE_ONCE(*vq->put_to, to_le64(word ^ vq->used_word));
	vq->chain_n[head] = 0;
	if (unlikely(slot >= vq->num)) {
		slot -= vq->num;
		vq->used_wrap = !vq->used_wrap;
		vq->used_word ^= (uint64_t)VIRTQ_LAP << 48;
	}
	vq->used_slot = (uint16_t)slot;
	vq->put_to = virtq_packed_word(&vq->ring[slot]);
	vq->put_n++;
}

/* Takes WRITE, "the length counts", out of a used descriptor. */
#define VIRTQ_NOTHING_WRITTEN ((uint64_t)VIRTQ_DESC_F_WRITE << 48)

/* end: written, and head << 32 */
static inline void virtq_packed_push(struct virtq *vq, uint64_t end)
{
	if (vq->inflight) /* it has to be told before the ring */
		vq->staged[vq->staged_n++] = end;
	else
		virtq_packed_put(vq, (uint16_t)(end >> 32), end);
}

static inline void virtq_push(struct virtq *vq, uint16_t head, uint32_t written)
{
	if (vq->packed)
		virtq_packed_push(vq, written | (uint64_t)head << 32 |
					      (written ? 0 : VIRTQ_NOTHING_WRITTEN));
	else
		virtq_split_push(vq, head, written);
}

/* Publish what was staged; at most one interrupt. Returns how many chains that were. */
unsigned virtq_flush(struct virtq *vq);

/*
 * For a kick that was not expected: true when the driver kicks and kicks, and has never made
 * anything available that we can see. Its memory is then most likely not shared with us.
 */
bool virtq_looks_unshared(const struct virtq *vq);

/* Ask for kicks and look again; false: there is work, kicks stay off. */
bool virtq_enable_kick(struct virtq *vq);
/* Ask the driver not to kick while we poll. */
void virtq_disable_kick(struct virtq *vq);

/* Remember that guest memory (of the table mem) was written; only when vq->log is set. */
void virtq_log_iov(struct virtq *vq, const struct guest_mem *mem, const struct iovec *iov, int n,
		   uint64_t len);

/*
 * The driver is gone: nothing more is written to its memory. What ends from now on goes into
 * scratch, zeroed memory of virtq_scratch_size(vq) bytes, and stays in flight in the in-flight
 * region. On the ring's reactor.
 */
void virtq_abandon(struct virtq *vq, void *scratch);
size_t virtq_scratch_size(const struct virtq *vq);

/* Nothing more is read from the ring; says why once in the log and on the error fd. */
void virtq_break(struct virtq *vq, const char *why);

#endif
