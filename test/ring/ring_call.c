/* Kicks, interrupts and index wraps. VIRTIO 1.3, sections 2.7.7 and 2.7.10. */
#include "ring/ring.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define CALL_TIMEOUT_MS 5000 /* 2 s would do on a machine of its own */

struct caller {
	pthread_t thread;
	struct guest_queue *q;
	struct guest_req req;
	unsigned rounds, done;
	uint64_t deadline;
	int rc;
};

/* Suppressed while the request is sent, wanted right after: the window where one gets lost. */
static void *toggle_interrupts(void *arg)
{
	struct caller *c = arg;
	struct virtq_used_elem e;

	while (c->done < c->rounds && !c->rc && vhost_ms_left(c->deadline)) {
		guest_queue_quiet(c->q, true);
		c->rc = guest_req_submit(c->q, &c->req, BLK_IN, c->done % 1024, 512);
		if (c->rc)
			break;
		guest_notify(c->q);
		guest_queue_quiet(c->q, false);
		c->rc = guest_used_wait_call(c->q, &e, CALL_TIMEOUT_MS);
		if (!c->rc && !guest_req_take(c->q, &e))
			c->rc = -EPROTO;
		if (!c->rc)
			c->done++;
	}
	return NULL;
}

static void lost_calls(struct ring_test *t, bool event_idx)
{
	struct guest_params params = {
		.queues = 2, .queue_size = 16, .indirect = true, .event_idx = event_idx
	};
	unsigned ms = t->env->long_run ? 60000 : 2000, i;
	struct guest *g = ring_open(t, RING_DISK, params);
	struct caller c[2];

	if (!g)
		return;
	for (i = 0; i < 2; i++) {
		c[i] = (struct caller){ .q = g->queue[i], .rounds = 1000000 };
		REQUIRE(t, !guest_req_init(g, &c[i].req, 4096), "guest memory is full");
		c[i].deadline = vhost_now_ns() + ms * 1000000ull;
	}
	for (i = 0; i < 2; i++)
		pthread_create(&c[i].thread, NULL, toggle_interrupts, &c[i]);
	for (i = 0; i < 2; i++)
		pthread_join(c[i].thread, NULL);
	tap_diag("%s: %u and %u rounds, %llu and %llu interrupts",
		 event_idx ? "EVENT_IDX" : "flags", c[0].done, c[1].done,
		 (unsigned long long)g->queue[0]->calls, (unsigned long long)g->queue[1]->calls);
	for (i = 0; i < 2; i++)
		REQUIRE(t, !c[i].rc, "round %u of queue %u: %s%s", c[i].done, i, strerror(-c[i].rc),
			c[i].rc == -ETIMEDOUT ? ": an interrupt was lost" : "");
	REQUIRE(t, c[0].done > 50 && c[1].done > 50, "only %u and %u rounds", c[0].done, c[1].done);
}

static void case_54(struct ring_test *t)
{
	lost_calls(t, false);
}

static void case_54_event(struct ring_test *t)
{
	lost_calls(t, true);
}

/* Idle long enough between requests that the device sleeps: every kick must wake it. */
static void case_lost_kicks(struct ring_test *t)
{
	struct guest_params params = { .queue_size = 16, .indirect = true };
	struct guest *g;
	unsigned i, event;
	uint64_t before;
	uint8_t buf[512];
	int rc;

	for (event = 0; event < 2; event++) {
		params.event_idx = event;
		g = ring_open(t, RING_DISK, params);
		if (!g)
			return;
		before = g->queue[0]->kicks;
		for (i = 0; i < 300; i++) {
			rc = guest_read(g, 0, i, buf, sizeof(buf));
			REQUIRE(t, !rc, "request %u: %s", i, rc < 0 ? strerror(-rc) : "failed");
			usleep(i % 30 * 100);
		}
		tap_diag("%s: 300 requests, %llu kicks", event ? "EVENT_IDX" : "flags",
			 (unsigned long long)(g->queue[0]->kicks - before));
		ring_close(t, g);
	}
}

/* One burst of requests with one interrupt wanted, for the last of them. */
static int burst(struct guest_queue *q, struct guest_req *reqs, unsigned n)
{
	struct virtq_used_elem e;
	struct guest_req *r;
	unsigned i;
	int rc;

	for (i = 0; i < n; i++) {
		rc = guest_req_submit(q, &reqs[i], BLK_IN, i, 512);
		if (rc)
			return rc;
	}
	guest_notify(q);
	for (i = 0; i < n; i++) {
		rc = guest_used_wait_call(q, &e, CALL_TIMEOUT_MS);
		if (rc)
			return rc;
		r = guest_req_take(q, &e);
		if (!r)
			return -EPROTO;
		if (guest_req_status(q->guest, r) != BLK_OK)
			return -EIO;
	}
	return 0;
}

static void wrap(struct ring_test *t, bool event_idx, uint32_t base)
{
	struct guest_params params = { .queue_size = 8, .indirect = true, .event_idx = event_idx };
	struct guest *g = ring_open(t, RING_DISK, params);
	struct guest_req reqs[8];
	struct guest_queue *q;
	uint32_t index;
	unsigned i;
	int rc;

	if (!g)
		return;
	q = g->queue[0];
	for (i = 0; i < 8; i++)
		REQUIRE(t, !guest_req_init(g, &reqs[i], 512), "guest memory is full");
	if (t->packed)
		base = GUEST_PACKED_BASE(base % 8, base & 1);
	rc = guest_queue_stop(q, NULL);
	REQUIRE(t, !rc, "cannot stop the queue: %s", strerror(-rc));
	guest_queue_reset(q, base);
	rc = guest_queue_start(q, base);
	REQUIRE(t, !rc, "cannot start the queue at %u: %s", base, strerror(-rc));
	for (i = 0; i < 60; i++) {
		rc = burst(q, reqs, i % 8 + 1);
		REQUIRE(t, !rc, "burst %u from index %u: %s", i, base, strerror(-rc));
		if (i % 5 == 0)
			usleep(500);
	}
	rc = guest_queue_stop(q, &index);
	REQUIRE(t, !rc && index == guest_queue_base(q), "GET_VRING_BASE says 0x%x, it is 0x%x",
		index, guest_queue_base(q));
	ring_close(t, g);
}

static void case_wrap(struct ring_test *t)
{
	static const uint16_t base[] = { 65535, 65528, 65500, 32760 };
	unsigned i;

	for (i = 0; i < sizeof(base) / sizeof(base[0]); i++) {
		if (!t->failed)
			wrap(t, true, base[i]);
		if (!t->failed)
			wrap(t, false, base[i]);
	}
}

/* The device polls (no kick fd) and does not interrupt (no call fd). */
static void case_no_fds(struct ring_test *t)
{
	struct guest_params params = { .queue_size = 16, .indirect = true };
	struct guest *g = ring_open(t, RING_DISK, params);
	uint8_t buf[4096];
	unsigned i;
	int rc;

	if (!g)
		return;
	rc = guest_queue_stop(g->queue[0], NULL);
	REQUIRE(t, !rc, "cannot stop the queue: %s", strerror(-rc));
	guest_queue_reset(g->queue[0], guest_queue_first(g->queue[0]));
	g->queue[0]->no_call_fd = true;
	g->queue[0]->no_kick_fd = true;
	rc = guest_queue_start(g->queue[0], guest_queue_first(g->queue[0]));
	if (rc == -EREMOTEIO) {
		t->skip = "the daemon refuses a ring without a kick fd";
		return;
	}
	REQUIRE(t, !rc, "cannot start the queue: %s", strerror(-rc));
	for (i = 0; i < 50; i++) {
		rc = guest_read(g, 0, i * 8, buf, sizeof(buf));
		REQUIRE(t, !rc, "request %u: %s", i, rc < 0 ? strerror(-rc) : "failed");
		usleep(i * 50);
	}
}

/* A call eventfd that blocks and is full: whoever writes to it without care waits for ever. */
static void case_full_call(struct ring_test *t)
{
	struct guest_params params = { .queue_size = 16, .indirect = true };
	struct guest *g = ring_open(t, RING_DISK, params);
	uint64_t full = UINT64_MAX - 1;
	struct guest_queue *q;
	uint8_t buf[4096];
	unsigned i;
	int rc;

	if (!g)
		return;
	q = g->queue[0];
	rc = guest_queue_stop(q, NULL);
	REQUIRE(t, !rc, "cannot stop the queue: %s", strerror(-rc));
	close(q->call);
	q->call = eventfd(0, EFD_CLOEXEC);
	REQUIRE(t, write(q->call, &full, sizeof(full)) == sizeof(full), "cannot fill an eventfd");
	guest_queue_reset(q, guest_queue_first(q));
	rc = guest_queue_start(q, guest_queue_first(q));
	REQUIRE(t, !rc, "cannot start the queue: %s", strerror(-rc));
	/* Interrupts are wanted, but not taken: that would make room. */
	q->no_call_fd = true;
	for (i = 0; i < 5; i++) {
		rc = guest_read(g, 0, i * 8, buf, sizeof(buf));
		REQUIRE(t, !rc, "request %u: %s", i, rc < 0 ? strerror(-rc) : "failed");
	}
}

const struct ring_case ring_call_cases[] = {
	{ "RING 54: no interrupt is lost, with flags", case_54, true, true },
	{ "RING 54: no interrupt is lost, with EVENT_IDX", case_54_event, true, true },
	{ "no kick is lost after idle times", case_lost_kicks, true, true },
	{ "indices wrap from 65535 to 0", case_wrap, false, true },
	{ "a full call eventfd does not block the daemon", case_full_call, false, true },
	{ "a ring without kick and call fds", case_no_fds, false, true },
	{ 0 },
};
