/* Rings that stop, restart and vanish with requests in flight. */
#include "ring/ring.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#define STOP_DEPTH 16u

/* GET_VRING_BASE answers after the ring's own requests are done, with the right index. */
static void case_stop_slow(struct ring_test *t)
{
	struct guest_params params = { .queues = 4, .queue_size = 16, .indirect = true };
	struct guest *g = ring_open(t, RING_SLOW, params);
	struct guest_req req[4];
	struct guest_queue *q;
	uint32_t base;
	unsigned i;
	int rc;

	if (!g)
		return;
	for (i = 0; i < 4; i++) {
		REQUIRE(t, !guest_req_init(g, &req[i], 4096), "guest memory is full");
		rc = guest_req_submit(g->queue[i], &req[i], BLK_IN, i * 8, 4096);
		REQUIRE(t, !rc, "submit: %s", strerror(-rc));
		guest_notify(g->queue[i]);
	}
	usleep(50000);
	for (i = 0; i < 4; i++) {
		q = g->queue[i];
		rc = guest_queue_stop(q, &base);
		REQUIRE(t, !rc, "GET_VRING_BASE of ring %u: %s", i, strerror(-rc));
		REQUIRE(t, guest_req_poll(q) == &req[i] && guest_req_status(g, &req[i]) == BLK_OK,
			"ring %u answered GET_VRING_BASE before its request was done", i);
		REQUIRE(t, base == guest_queue_base(q), "ring %u: index 0x%x", i, base);
	}
}

/* Requests that the device has not fetched stay in the ring; the others are done. */
static void stop_once(struct ring_test *t, struct guest_queue *q, struct guest_req *req)
{
	unsigned i, done = 0;
	struct guest_req *r;
	uint32_t base, used;
	int rc;

	for (i = 0; i < STOP_DEPTH; i++) {
		req[i].owner = &req[i];
		rc = guest_req_submit(q, &req[i], i & 1 ? BLK_OUT : BLK_IN, i * 64, 4096);
		REQUIRE(t, !rc, "submit: %s", strerror(-rc));
		guest_notify(q);
	}
	rc = guest_queue_stop(q, &base);
	REQUIRE(t, !rc, "GET_VRING_BASE: %s", strerror(-rc));
	used = q->packed ? base >> 16 : __atomic_load_n(&q->used->idx, __ATOMIC_ACQUIRE);
	REQUIRE(t, used == (base & 0xffff), "stopped at index %u, but the used index is %u",
		base & 0xffff, used);
	/* An interrupt must come for what is used and made available after it. */
	rc = guest_queue_start(q, base);
	REQUIRE(t, !rc, "start at %u: %s", base, strerror(-rc));
	while (done < STOP_DEPTH) {
		rc = guest_req_wait(q, GUEST_DEADLINE_MS, &r);
		REQUIRE(t, !rc, "%u of %u requests came back: %s", done, STOP_DEPTH, strerror(-rc));
		done++;
		REQUIRE(t, r->owner == r && guest_req_status(q->guest, r) == BLK_OK,
			"a request came back twice, or failed");
		r->owner = NULL;
	}
	REQUIRE(t, !guest_req_poll(q), "one request more than there were");
}

static void case_restart(struct ring_test *t)
{
	struct guest_params params = {
		.queues = 2, .queue_size = 32, .indirect = true, .event_idx = true
	};
	unsigned i, rounds = t->env->long_run ? 2000 : 60;
	struct guest *g = ring_open(t, RING_DISK, params);
	struct guest_req req[STOP_DEPTH];
	struct probe p;

	if (!g)
		return;
	for (i = 0; i < STOP_DEPTH; i++)
		REQUIRE(t, !guest_req_init(g, &req[i], 4096), "guest memory is full");
	for (i = 0; i < rounds && !t->failed; i++)
		stop_once(t, g->queue[1], req);
	if (!t->failed && probe_on(t, g->queue[0], &p))
		probe_good(&p, "the queue that was never stopped");
}

/* A disabled ring leaves its requests alone. */
static void case_disabled(struct ring_test *t)
{
	struct guest_params params = { .queue_size = 32, .indirect = true };
	struct vhost_msg m = { .request = VHOST_SET_VRING_ENABLE,
			       .size = sizeof(struct vhost_vring_state) };
	struct guest *g = ring_open(t, RING_DISK, params);
	struct guest_req req, *r;
	uint32_t base;
	int rc;

	if (!g)
		return;
	REQUIRE(t, !guest_req_init(g, &req, 4096), "guest memory is full");
	rc = guest_flush(g, 0);
	REQUIRE(t, !rc, "FLUSH: %d", rc);
	m.u.state = (struct vhost_vring_state){ .index = 0, .num = 0 };
	rc = vhost_command(g->sock, &m, NULL, 0, true, GUEST_DEADLINE_MS);
	REQUIRE(t, !rc, "SET_VRING_ENABLE 0: %s", strerror(-rc));
	rc = guest_req_submit(g->queue[0], &req, BLK_IN, 0, 4096);
	REQUIRE(t, !rc, "submit: %s", strerror(-rc));
	guest_notify(g->queue[0]);
	guest_kick(g->queue[0]);
	rc = guest_req_wait(g->queue[0], 100, &r);
	REQUIRE(t, rc == -ETIMEDOUT, "a disabled ring was served");
	m = (struct vhost_msg){ .request = VHOST_SET_VRING_ENABLE,
				.size = sizeof(struct vhost_vring_state) };
	m.u.state = (struct vhost_vring_state){ .index = 0, .num = 1 };
	rc = vhost_command(g->sock, &m, NULL, 0, true, GUEST_DEADLINE_MS);
	REQUIRE(t, !rc, "SET_VRING_ENABLE 1: %s", strerror(-rc));
	rc = guest_req_wait(g->queue[0], GUEST_DEADLINE_MS, &r);
	REQUIRE(t, !rc && r == &req, "a ring that was enabled again is not served");
	/* Real front-ends disable a ring before they stop it: the index must not suffer. */
	m = (struct vhost_msg){ .request = VHOST_SET_VRING_ENABLE,
				.size = sizeof(struct vhost_vring_state) };
	rc = vhost_command(g->sock, &m, NULL, 0, true, GUEST_DEADLINE_MS);
	REQUIRE(t, !rc, "SET_VRING_ENABLE 0: %s", strerror(-rc));
	rc = guest_queue_stop(g->queue[0], &base);
	REQUIRE(t, !rc && base == guest_queue_base(g->queue[0]),
		"GET_VRING_BASE after a disable says 0x%x", base);
}

/* What the device writes: the used ring, or the packed ring. Queues of 16. */
static void used_copy(const struct guest_queue *q, uint8_t copy[16 * 16])
{
	memset(copy, 0, 16 * 16);
	if (q->packed)
		memcpy(copy, q->ring, 16ull * q->size);
	else
		memcpy(copy, q->used, 6 + 8ull * q->size);
}

/* EOF with @n requests in flight: nothing more appears in the used ring, and a new guest works. */
static void vanish(struct ring_test *t, unsigned n)
{
	struct guest_params params = { .queue_size = 16, .indirect = true };
	struct guest *g = ring_open(t, RING_SLOW, params);
	struct guest_req req[16];
	uint8_t before[16 * 16], after[16 * 16];
	struct probe p;
	unsigned i;

	if (!g)
		return;
	for (i = 0; i < n; i++) {
		REQUIRE(t, !guest_req_init(g, &req[i], 4096), "guest memory is full");
		REQUIRE(t,
			!guest_req_submit(g->queue[0], &req[i], i & 1 ? BLK_OUT : BLK_IN, i * 8,
					  4096),
			"submit");
	}
	guest_notify(g->queue[0]);
	usleep(20000);
	close(g->sock);
	g->sock = -1;
	usleep(50000);
	used_copy(g->queue[0], before);
	usleep((RING_SLOW_MS + 100) * 1000);
	used_copy(g->queue[0], after);
	REQUIRE(t, !memcmp(before, after, sizeof(before)),
		"the used ring changed after the session had ended");
	ring_close(t, g);
	if (probe_open(t, RING_SLOW, 64, &p) && probe_good(&p, "a guest after one that vanished"))
		ring_close(t, p.g);
}

static void case_vanish(struct ring_test *t)
{
	static const unsigned depth[] = { 0, 1, 16 };
	unsigned i;

	for (i = 0; i < 3 && !t->failed; i++)
		vanish(t, depth[i]);
}

/* Guests that come and go quickly, with requests in flight: nothing may pile up. */
static void case_churn(struct ring_test *t)
{
	struct guest_params params = { .queues = 4, .queue_size = 64, .indirect = true };
	unsigned i, k, rounds = t->env->long_run ? 500 : 30;
	struct guest_req req[16];
	struct guest *g;

	for (i = 0; i < rounds; i++) {
		g = ring_open(t, i & 1 ? RING_FILE : RING_DISK, params);
		if (!g)
			return;
		for (k = 0; k < 16; k++) {
			REQUIRE(t, !guest_req_init(g, &req[k], 65536), "guest memory is full");
			REQUIRE(t,
				!guest_req_submit(g->queue[k % 4], &req[k], BLK_IN, k * 128, 65536),
				"submit");
			guest_notify(g->queue[k % 4]);
		}
		ring_close(t, g);
	}
}

const struct ring_case ring_stop_cases[] = {
	{ "GET_VRING_BASE waits for slow requests of each ring", case_stop_slow, true, true },
	{ "rings stop and restart under load", case_restart, true, true },
	{ "a disabled ring leaves its requests alone", case_disabled, false, true },
	{ "guests vanish with 0, 1 and all requests in flight", case_vanish, true, true },
	{ "guests come and go with requests in flight", case_churn, true, true },
	{ 0 },
};
