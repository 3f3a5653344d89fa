/*
 * virtq: a split virtqueue from the device's side (virtio 1.2, 2.7).
 *
 * virtq_pop() takes the next chain and turns it into an iovec of host memory; virtq_push() stages
 * its end; virtq_flush() publishes all staged ends with one store of the used index, looks once
 * whether the driver wants an interrupt, and sends at most one.
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
	const struct virtq_desc *desc;
	struct virtq_avail *avail;
	struct virtq_used *used;
	const struct guest_mem *mem;
	struct guest_mem_use *use; /* counts the requests that hold mem */
	struct virtq_span near;
	uint8_t *busy; /* per head: popped and not pushed yet */
	struct iovec *iov;
	struct virtq_inflight *inflight; /* NULL: not tracked */
	struct dirty_log *log;		 /* NULL: not migrating */
	uint16_t num, mask;
	uint16_t max_chain;
	uint16_t last_avail; /* next entry of the avail ring to take */
	uint16_t avail_idx;  /* as last read */
	uint16_t used_idx;   /* staged */
	uint16_t published;  /* used_idx as the driver sees it */
	bool event_idx;
	bool signal_next; /* notify without asking: the driver's used_event is stale after a start
			   */
	bool broken;
	bool resubmitting; /* what was in flight at a crash is served before the ring */
	int call_fd;	   /* -1: the driver polls */

	/* counters, read relaxed by control */
	uint64_t requests, calls;

	/* cold */
	struct virtq_desc
		*odd_table; /* max_chain entries: a copy of an indirect table that lies oddly */
	uint16_t *pushed;   /* heads by used slot, for the in-flight region */
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
	uint16_t last_avail; /* SET_VRING_BASE */
	uint64_t features;
};

/* Allocate for a ring of num entries. Errors: -ENOMEM. */
int virtq_create(uint32_t num, struct virtq **out);
void virtq_destroy(struct virtq *vq);

/* Find the rings in guest memory. Errors: -EINVAL (alignment), -EFAULT (not in one region), with a
 * sentence. */
int virtq_map(struct virtq *vq, const struct virtq_setup *s, const struct guest_mem *mem,
	      struct err *e);

/* Indexes at a start, kicks asked for; with an in-flight region (else NULL) also what was in
 * flight. */
void virtq_begin(struct virtq *vq, const struct virtq_setup *s, struct virtq_inflight *inflight);

/* hot. 1: *c is the next chain; 0: the ring is empty; -EPROTO: the ring is broken (logged and
 * signalled once). */
int virtq_pop(struct virtq *vq, struct virtq_chain *c);

/* Host address of [gpa, gpa + len) when it lies in one region, which does not become the near one;
 * else NULL. */
char *virtq_far(const struct virtq *vq, uint64_t gpa, uint64_t len);

/* hot. May virtq_pop() find something in the ring? One load of the driver's line, and no call, for
 * rings that are idle. */
static inline bool virtq_has_work(const struct virtq *vq)
{
	return from_le16(READ_ONCE(vq->avail->idx)) != vq->last_avail;
}

/* hot. Stage the end of a chain: written is what the driver may rely on in its writable part. */
static inline void virtq_push(struct virtq *vq, uint16_t head, uint32_t written)
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
 * scratch, a private used ring of virtq_used_size(num) bytes, and stays in flight in the in-flight
 * region. On the ring's reactor.
 */
void virtq_abandon(struct virtq *vq, void *scratch);

/* Nothing more is read from the ring; says why once in the log and on the error fd. */
void virtq_break(struct virtq *vq, const char *why);

#endif
