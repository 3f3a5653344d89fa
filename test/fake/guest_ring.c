/* The virtqueues of a fake guest; split here, packed in guest_packed.c. VIRTIO 1.3, section 2.7. */
#define _GNU_SOURCE 1
#include "fake/guest.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#define LOOK_AGAIN_MS 5

static bool has_event_idx(const struct guest_queue *q)
{
	return q->guest->acked & VIRTIO_EVENT_IDX;
}

/* The two event fields lie behind the rings. */
static uint16_t *used_event(const struct guest_queue *q)
{
	return &q->avail->ring[q->size];
}

static uint16_t *avail_event(const struct guest_queue *q)
{
	return (uint16_t *)&q->used->ring[q->size];
}

uint64_t guest_event_take(int fd)
{
	uint64_t n = 0;

	if (fd < 0 || read(fd, &n, sizeof(n)) != sizeof(n))
		return 0;
	return n;
}

static int queue_alloc_private(struct guest_queue *q)
{
	if (q->packed) {
		q->desc = calloc(q->size, sizeof(*q->desc));
		q->slots = calloc(q->size, sizeof(*q->slots));
		if (!q->desc || !q->slots)
			return -ENOMEM;
	}
	q->free_next = calloc(q->size, sizeof(*q->free_next));
	q->chain_len = calloc(q->size, sizeof(*q->chain_len));
	q->by_head = calloc(q->size, sizeof(struct guest_req *));
	q->kick = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	q->call = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	q->err = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (!q->free_next || !q->chain_len || !q->by_head)
		return -ENOMEM;
	return q->kick < 0 || q->call < 0 || q->err < 0 ? -EMFILE : 0;
}

int guest_queue_setup_at(struct guest *g, unsigned index, unsigned size, uint64_t desc,
			 uint64_t avail, uint64_t used, struct guest_queue **out)
{
	struct guest_queue *q;
	int rc;

	if (index >= GUEST_MAX_QUEUES || g->queue[index])
		return -EINVAL;
	q = calloc(1, sizeof(*q));
	if (!q)
		return -ENOMEM;
	*q = (struct guest_queue){ .guest = g,
				   .index = index,
				   .size = size,
				   .packed = g->acked & VIRTIO_RING_PACKED,
				   .desc_gpa = desc,
				   .avail_gpa = avail,
				   .used_gpa = used };
	if (q->packed) {
		q->ring = guest_ptr(g, desc);
		q->driver_event = guest_ptr(g, avail);
		q->device_event = guest_ptr(g, used);
	} else {
		q->desc = guest_ptr(g, desc);
		q->avail = guest_ptr(g, avail);
		q->used = guest_ptr(g, used);
	}
	rc = queue_alloc_private(q);
	if (rc) {
		guest_queue_free(q);
		return rc;
	}
	guest_queue_reset(q, guest_queue_first(q));
	g->queue[index] = q;
	if (out)
		*out = q;
	return 0;
}

int guest_queue_setup(struct guest *g, unsigned index, unsigned size, struct guest_queue **out)
{
	bool packed = g->acked & VIRTIO_RING_PACKED;
	uint64_t desc = guest_alloc(g, 16ull * size, 16);
	uint64_t avail = guest_alloc(g, packed ? 4 : 6 + 2ull * size, packed ? 4 : 2);
	uint64_t used = guest_alloc(g, packed ? 4 : 6 + 8ull * size, 4);

	if (!desc || !avail || !used)
		return -ENOSPC;
	return guest_queue_setup_at(g, index, size, desc, avail, used, out);
}

uint32_t guest_queue_base(const struct guest_queue *q)
{
	if (!q->packed)
		return q->avail_idx;
	return q->avail_idx | (uint32_t)q->avail_wrap << 15 | (uint32_t)q->used_idx << 16 |
	       (uint32_t)q->used_wrap << 31;
}

static void split_reset(struct guest_queue *q, uint16_t base)
{
	memset(q->desc, 0, sizeof(struct virtq_desc) * q->size);
	memset(q->avail, 0, 6 + sizeof(uint16_t) * q->size);
	memset(q->used, 0, 6 + sizeof(struct virtq_used_elem) * q->size);
	q->avail->idx = base;
	q->used->idx = base;
	q->avail_idx = base;
	q->kicked_idx = base;
	q->used_idx = base;
	*used_event(q) = base;
}

void guest_queue_reset(struct guest_queue *q, uint32_t base)
{
	unsigned i;

	if (q->packed)
		guest_packed_reset(q, base);
	else
		split_reset(q, (uint16_t)base);
	for (i = 0; i < q->size; i++)
		q->free_next[i] = (uint16_t)(i + 1);
	q->free_head = 0;
	q->nfree = q->size;
	memset(q->by_head, 0, sizeof(struct guest_req *) * q->size);
	guest_queue_quiet(q, q->quiet);
}

static int set_state(struct guest_queue *q, uint32_t request, uint32_t num)
{
	struct guest *g = q->guest;
	struct vhost_msg m = { .request = request, .size = sizeof(struct vhost_vring_state) };

	m.u.state = (struct vhost_vring_state){ .index = q->index, .num = num };
	return vhost_command(g->sock, &m, NULL, 0, !!(g->protocol & VHOST_PROTOCOL_REPLY_ACK),
			     GUEST_DEADLINE_MS);
}

static int set_addr(struct guest_queue *q)
{
	struct guest *g = q->guest;
	struct vhost_msg m = { .request = VHOST_SET_VRING_ADDR,
			       .size = sizeof(struct vhost_vring_addr) };

	m.u.addr = (struct vhost_vring_addr){ .index = q->index,
					      .desc = (uintptr_t)guest_ptr(g, q->desc_gpa),
					      .used = (uintptr_t)guest_ptr(g, q->used_gpa),
					      .avail = (uintptr_t)guest_ptr(g, q->avail_gpa) };
	return vhost_command(g->sock, &m, NULL, 0, !!(g->protocol & VHOST_PROTOCOL_REPLY_ACK),
			     GUEST_DEADLINE_MS);
}

static int set_fd(struct guest_queue *q, uint32_t request, int fd, bool none)
{
	struct guest *g = q->guest;
	struct vhost_msg m = { .request = request, .size = sizeof(uint64_t) };

	m.u.u64 = q->index | (none ? VHOST_NO_FD : 0);
	return vhost_command(g->sock, &m, &fd, none ? 0 : 1,
			     !!(g->protocol & VHOST_PROTOCOL_REPLY_ACK), GUEST_DEADLINE_MS);
}

int guest_queue_start(struct guest_queue *q, uint32_t base)
{
	int rc;

	rc = set_state(q, VHOST_SET_VRING_NUM, q->size);
	if (rc)
		return rc;
	rc = set_state(q, VHOST_SET_VRING_BASE, base);
	if (rc)
		return rc;
	rc = set_addr(q);
	if (rc)
		return rc;
	rc = set_fd(q, VHOST_SET_VRING_CALL, q->call, q->no_call_fd);
	if (rc)
		return rc;
	rc = set_fd(q, VHOST_SET_VRING_ERR, q->err, false);
	if (rc)
		return rc;
	rc = set_fd(q, VHOST_SET_VRING_KICK, q->kick, q->no_kick_fd);
	if (rc)
		return rc;
	if (q->guest->acked & VHOST_USER_PROTOCOL)
		rc = set_state(q, VHOST_SET_VRING_ENABLE, 1);
	if (!rc)
		guest_kick(q);
	return rc;
}

int guest_queue_stop(struct guest_queue *q, uint32_t *base)
{
	struct vhost_msg m = { .request = VHOST_GET_VRING_BASE,
			       .size = sizeof(struct vhost_vring_state) };
	int rc;

	m.u.state = (struct vhost_vring_state){ .index = q->index };
	rc = vhost_call(q->guest->sock, &m, GUEST_DEADLINE_MS);
	if (rc)
		return rc;
	if (m.size != sizeof(struct vhost_vring_state) || m.u.state.index != q->index)
		return -EPROTO;
	if (base)
		*base = m.u.state.num;
	return 0;
}

int guest_queue_restart(struct guest_queue *q)
{
	int rc = guest_queue_stop(q, NULL);

	if (rc)
		return rc;
	guest_event_take(q->kick);
	guest_event_take(q->call);
	guest_event_take(q->err);
	guest_queue_reset(q, guest_queue_first(q));
	return guest_queue_start(q, guest_queue_first(q));
}

void guest_queue_free(struct guest_queue *q)
{
	if (!q)
		return;
	if (q->kick > 0)
		close(q->kick);
	if (q->call > 0)
		close(q->call);
	if (q->err > 0)
		close(q->err);
	if (q->packed)
		free(q->desc);
	free(q->slots);
	free(q->free_next);
	free(q->chain_len);
	free(q->by_head);
	free(q);
}

void guest_queue_quiet(struct guest_queue *q, bool on)
{
	q->quiet = on;
	if (q->packed)
		guest_packed_quiet(q, on);
	else if (has_event_idx(q))
		__atomic_store_n(used_event(q), (uint16_t)(q->used_idx + (on ? 0x8000 : 0)),
				 __ATOMIC_RELAXED);
	else
		__atomic_store_n(&q->avail->flags, on ? AVAIL_NO_INTERRUPT : 0, __ATOMIC_RELAXED);
}

void guest_desc(struct guest_queue *q, unsigned i, uint64_t addr, uint32_t len, unsigned flags,
		unsigned next)
{
	q->desc[i] = (struct virtq_desc){
		.addr = addr, .len = len, .flags = (uint16_t)flags, .next = (uint16_t)next
	};
}

void guest_table(struct guest *g, uint64_t table, unsigned i, uint64_t addr, uint32_t len,
		 unsigned flags, unsigned next)
{
	struct virtq_desc d = {
		.addr = addr, .len = len, .flags = (uint16_t)flags, .next = (uint16_t)next
	};
	struct packed_desc pd = {
		.addr = addr, .len = len, .id = (uint16_t)next, .flags = (uint16_t)flags
	};
	bool packed = g->acked & VIRTIO_RING_PACKED;

	/* Tables need no alignment. */
	memcpy(guest_ptr(g, table + 16ull * i), packed ? (void *)&pd : &d, 16);
}

void guest_avail(struct guest_queue *q, unsigned head)
{
	if (q->packed) {
		guest_packed_avail(q, head);
		return;
	}
	q->avail->ring[q->avail_idx % q->size] = (uint16_t)head;
	q->avail_idx++;
}

void guest_publish(struct guest_queue *q)
{
	if (q->packed) {
		guest_packed_publish(q);
		return;
	}
	/* The chains and ring entries must be visible before the index that covers them. */
	__atomic_store_n(&q->avail->idx, q->avail_idx, __ATOMIC_RELEASE);
}

void guest_kick(struct guest_queue *q)
{
	uint64_t one = 1;

	if (!q->no_kick_fd && write(q->kick, &one, sizeof(one)) == sizeof(one))
		q->kicks++;
}

static bool kick_wanted(struct guest_queue *q)
{
	uint16_t event, now = q->avail_idx, old = q->kicked_idx;

	if (q->packed)
		return guest_packed_kick_wanted(q);
	q->kicked_idx = now;
	if (!has_event_idx(q))
		return !(__atomic_load_n(&q->used->flags, __ATOMIC_RELAXED) & USED_NO_NOTIFY);
	event = __atomic_load_n(avail_event(q), __ATOMIC_RELAXED);
	return (uint16_t)(now - event - 1) < (uint16_t)(now - old);
}

void guest_notify(struct guest_queue *q)
{
	guest_publish(q);
	/* The new avail index must be visible before the device's wish is read. */
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	if (kick_wanted(q))
		guest_kick(q);
}

bool guest_used_pop(struct guest_queue *q, struct virtq_used_elem *e)
{
	if (q->packed)
		return guest_packed_used_pop(q, e);
	/* The elements must not be read before the index that covers them. */
	if (__atomic_load_n(&q->used->idx, __ATOMIC_ACQUIRE) == q->used_idx)
		return false;
	*e = q->used->ring[q->used_idx % q->size];
	q->used_idx++;
	if (q->quiet && has_event_idx(q))
		guest_queue_quiet(q, true);
	return true;
}

/* Sleeps until an interrupt, an error or a closed socket; @ms at most. */
static int wait_event(struct guest_queue *q, int ms)
{
	struct pollfd p[3] = {
		{ .fd = q->guest->sock, .events = POLLRDHUP },
		{ .fd = q->err, .events = POLLIN },
		{ .fd = q->quiet || q->no_call_fd ? -1 : q->call, .events = POLLIN },
	};
	struct timespec ts = { .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L };

	if (p[2].fd < 0)
		ts = (struct timespec){ .tv_nsec = 20000 };
	if (ppoll(p, 3, &ts, NULL) <= 0)
		return 0;
	if (p[2].revents && guest_event_take(q->call))
		q->calls++;
	if (p[1].revents)
		return -EPIPE;
	return p[0].revents ? -ECONNRESET : 0;
}

static int used_wait(struct guest_queue *q, struct virtq_used_elem *e, int timeout_ms,
		     bool look_again)
{
	uint64_t deadline = vhost_now_ns() + (uint64_t)timeout_ms * 1000000u;
	int rc = 0, left;

	for (;;) {
		if (guest_used_pop(q, e))
			return 0;
		if (!q->quiet)
			guest_queue_quiet(q, false);
		/* The wish to be interrupted must be visible before the last look. */
		__atomic_thread_fence(__ATOMIC_SEQ_CST);
		if (guest_used_pop(q, e))
			return 0;
		if (rc)
			return rc;
		left = vhost_ms_left(deadline);
		if (!left)
			return -ETIMEDOUT;
		if (look_again && left > LOOK_AGAIN_MS)
			left = LOOK_AGAIN_MS;
		rc = wait_event(q, left);
	}
}

int guest_used_wait(struct guest_queue *q, struct virtq_used_elem *e, int timeout_ms)
{
	return used_wait(q, e, timeout_ms, true);
}

int guest_used_wait_call(struct guest_queue *q, struct virtq_used_elem *e, int timeout_ms)
{
	uint64_t deadline = vhost_now_ns() + (uint64_t)timeout_ms * 1000000u;
	struct pollfd p = { .fd = q->call, .events = POLLIN };

	while (!guest_used_pop(q, e)) {
		guest_queue_quiet(q, false);
		/* The wish to be interrupted must be visible before the last look. */
		__atomic_thread_fence(__ATOMIC_SEQ_CST);
		if (guest_used_pop(q, e))
			return 0;
		if (poll(&p, 1, vhost_ms_left(deadline)) <= 0)
			return -ETIMEDOUT;
		if (guest_event_take(q->call))
			q->calls++;
	}
	return 0;
}
