/*
 * Packed rings: what messages say of them, event suppression, and memory that changes under the
 * device. VIRTIO 1.3, section 2.8.
 */
#define _GNU_SOURCE 1
#include "ring/ring.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MEM_END	      (GUEST_BASE + (8u << 20))
#define CALL_MS	      5000
#define RESTART_DEPTH 40u

static int send_state(struct guest *g, uint32_t request, unsigned index, uint32_t num)
{
	struct vhost_msg m = { .request = request, .size = sizeof(struct vhost_vring_state) };

	m.u.state = (struct vhost_vring_state){ .index = index, .num = num };
	return vhost_command(g->sock, &m, NULL, 0, true, GUEST_DEADLINE_MS);
}

static int send_addr(struct guest *g, uint64_t desc, uint64_t driver, uint64_t device)
{
	struct vhost_msg m = { .request = VHOST_SET_VRING_ADDR,
			       .size = sizeof(struct vhost_vring_addr) };

	m.u.addr = (struct vhost_vring_addr){ .desc = (uintptr_t)guest_ptr(g, desc),
					      .avail = (uintptr_t)guest_ptr(g, driver),
					      .used = (uintptr_t)guest_ptr(g, device) };
	return vhost_command(g->sock, &m, NULL, 0, true, GUEST_DEADLINE_MS);
}

/* ---- messages ---- */

static void case_num(struct ring_test *t)
{
	static const uint32_t bad[] = { 0,     32769,	65535,	    65536,
					65537, 0x10003, 0x80000003, UINT32_MAX };
	static const uint32_t good[] = { 1, 3, 255, 32767, 32768 };
	struct guest_params params = { .queue_size = 8, .indirect = true };
	struct guest *g = ring_open(t, RING_DISK, params);
	struct probe p;
	unsigned i;
	int rc;

	if (!g || !probe_on(t, g->queue[0], &p) || !probe_good(&p, "before"))
		return;
	rc = guest_queue_stop(g->queue[0], NULL);
	REQUIRE(t, !rc, "stop: %s", strerror(-rc));
	for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		rc = send_state(g, VHOST_SET_VRING_NUM, 0, bad[i]);
		REQUIRE(t, rc == -EREMOTEIO, "a packed ring of %u: %s", bad[i],
			rc ? strerror(-rc) : "taken");
	}
	for (i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		rc = send_state(g, VHOST_SET_VRING_NUM, 0, good[i]);
		REQUIRE(t, !rc, "a packed ring of %u: %s", good[i], strerror(-rc));
	}
	rc = guest_queue_restart(g->queue[0]);
	REQUIRE(t, !rc, "restart: %s", strerror(-rc));
	probe_good(&p, "after wrong sizes");
}

/* A ring at such addresses is refused, or served by nobody; then it is put right. */
static void bad_areas(struct probe *p, uint64_t desc, uint64_t driver, uint64_t device,
		      const char *what)
{
	struct ring_test *t = p->t;
	struct guest *g = p->g;
	int rc;

	if (t->failed)
		return;
	rc = guest_queue_stop(p->q, NULL);
	REQUIRE(t, !rc, "%s: stop: %s", what, strerror(-rc));
	rc = send_addr(g, desc, driver, device);
	REQUIRE(t, rc == -EREMOTEIO, "%s: %s", what, rc ? strerror(-rc) : "taken");
	guest_kick(p->q);
	rc = guest_queue_restart(p->q);
	REQUIRE(t, !rc, "%s: restart: %s", what, strerror(-rc));
	probe_good(p, what);
}

static void case_areas(struct ring_test *t)
{
	uint64_t d, a, u;
	struct probe p;

	if (!probe_open(t, RING_DISK, 8, &p))
		return;
	d = p.q->desc_gpa;
	a = p.q->avail_gpa;
	u = p.q->used_gpa;
	bad_areas(&p, d + 8, a, u, "ring at 8 modulo 16");
	bad_areas(&p, d + 1, a, u, "ring at 1 modulo 16");
	bad_areas(&p, d, a + 2, u, "driver's area at 2 modulo 4");
	bad_areas(&p, d, a + 1, u, "driver's area at 1 modulo 4");
	bad_areas(&p, d, a, u + 2, "device's area at 2 modulo 4");
	bad_areas(&p, d, a, u + 3, "device's area at 3 modulo 4");
	bad_areas(&p, MEM_END, a, u, "ring behind memory");
	bad_areas(&p, MEM_END - 64, a, u, "ring half behind memory");
	bad_areas(&p, d, MEM_END, u, "driver's area behind memory");
	bad_areas(&p, d, a, MEM_END, "device's area behind memory");
	bad_areas(&p, d, GUEST_BASE - 4, u, "driver's area before memory");
	bad_areas(&p, UINT64_MAX - 63 - (uintptr_t)guest_ptr(p.g, 0), a, u, "ring that wraps");
}

/* Where memory begins and ends, and one on the other: odd, but to be served or refused. */
static void case_area_edges(struct ring_test *t)
{
	struct probe p;
	enum answer a;
	unsigned i;
	int rc;

	if (!probe_open(t, RING_DISK, 8, &p))
		return;
	for (i = 0; i < 3 && !t->failed; i++) {
		rc = guest_queue_stop(p.q, NULL);
		REQUIRE(t, !rc, "stop: %s", strerror(-rc));
		p.q->avail_gpa = i == 2 ? p.q->desc_gpa + 24 : MEM_END - (i ? 4 : 8);
		p.q->used_gpa = i ? p.q->avail_gpa : MEM_END - 4;
		p.q->driver_event = guest_ptr(p.g, p.q->avail_gpa);
		p.q->device_event = guest_ptr(p.g, p.q->used_gpa);
		guest_queue_reset(p.q, guest_queue_first(p.q));
		rc = guest_queue_start(p.q, guest_queue_first(p.q));
		REQUIRE(t, !rc || (i && rc == -EREMOTEIO), "areas %u: %s", i, strerror(-rc));
		if (i == 0)
			probe_good(&p, "event areas in the last 8 bytes of memory");
		if (i == 0 || rc)
			continue;
		/* Both write to one place: requests may hang, the daemon may not. */
		a = probe_request(&p, BLK_IN, 0, 512);
		tap_diag("event areas on %s: %s", i == 1 ? "each other" : "the ring",
			 answer_name(a));
	}
}

static void case_not_offered(struct ring_test *t)
{
	struct vhost_msg m = { .request = VHOST_SET_FEATURES, .size = sizeof(uint64_t) };
	char path[256];
	struct guest *g;
	int rc;

	daemon_socket(&t->env->daemon, RING_NOSERIAL, path, sizeof(path));
	rc = guest_connect(path, &g);
	REQUIRE(t, !rc, "connect: %s", strerror(-rc));
	ring_keep(t, g);
	rc = guest_negotiate(g, GUEST_FEATURES | VIRTIO_RING_PACKED, GUEST_PROTOCOL);
	REQUIRE(t, !rc, "negotiate: %s", strerror(-rc));
	REQUIRE(t, !(g->offered & VIRTIO_RING_PACKED), "packed rings are offered unasked");
	m.u.u64 = g->acked | VIRTIO_RING_PACKED;
	rc = vhost_command(g->sock, &m, NULL, 0, true, GUEST_DEADLINE_MS);
	REQUIRE(t, rc == -EREMOTEIO, "RING_PACKED that was not offered: %s",
		rc ? strerror(-rc) : "taken");
}

/* BIOS and system on one connection: each with a format of its own. */
static void case_formats(struct ring_test *t)
{
	struct guest_params params = { .queue_size = 8, .indirect = true };
	struct guest *g = ring_open(t, RING_DISK, params);
	struct vhost_msg m;
	struct probe p;
	unsigned i;
	int rc;

	for (i = 0; g && i < 6; i++) {
		if (!probe_on(t, g->queue[0], &p) || !probe_good(&p, i & 1 ? "split" : "packed"))
			return;
		rc = guest_queue_stop(g->queue[0], NULL);
		REQUIRE(t, !rc, "stop: %s", strerror(-rc));
		guest_queue_free(g->queue[0]);
		g->queue[0] = NULL;
		g->acked ^= VIRTIO_RING_PACKED;
		m = (struct vhost_msg){ .request = VHOST_SET_FEATURES, .size = sizeof(uint64_t) };
		m.u.u64 = g->acked;
		rc = vhost_command(g->sock, &m, NULL, 0, true, GUEST_DEADLINE_MS);
		REQUIRE(t, !rc, "SET_FEATURES: %s", strerror(-rc));
		rc = guest_queue_setup(g, 0, i & 1 ? 7 : 8, NULL);
		if (!rc)
			rc = guest_queue_start(g->queue[0], guest_queue_first(g->queue[0]));
		REQUIRE(t, !rc, "another format: %s", strerror(-rc));
	}
}

/* The format changes while the ring runs: nobody does that, and nobody may suffer from it. */
static void case_format_running(struct ring_test *t)
{
	struct guest_params params = { .queue_size = 64, .indirect = true };
	struct vhost_msg m;
	struct guest *g;
	struct probe p;
	unsigned i, size;
	enum answer a;
	int rc;

	for (size = 63; size <= 64; size++) {
		params.queue_size = size;
		g = ring_open(t, RING_DISK, params);
		if (!g || !probe_on(t, g->queue[0], &p) || !probe_good(&p, "before"))
			return;
		for (i = 0; i < 4; i++) {
			m = (struct vhost_msg){ .request = VHOST_SET_FEATURES,
						.size = sizeof(uint64_t) };
			m.u.u64 = g->acked ^ (i & 1 ? 0 : VIRTIO_RING_PACKED);
			rc = vhost_command(g->sock, &m, NULL, 0, true, GUEST_DEADLINE_MS);
			if (rc == -ECONNRESET)
				break;
			probe_plain(&p, BLK_IN, 0, 512);
			guest_avail(p.q, 0);
			guest_notify(p.q);
			guest_used_wait(p.q, &p.used, 100);
		}
		ring_close(t, g);
	}
	if (probe_open(t, RING_DISK, 8, &p)) {
		a = probe_request(&p, BLK_IN, 0, 512);
		REQUIRE(t, a == ANSWER_OK, "a guest after that: %s", answer_name(a));
	}
}

/* ---- stop and go on ---- */

/* A random chain shape per request, as many as the ring has room for. */
static unsigned submit_some(struct guest_queue *q, struct guest_req *req, uint64_t *seed)
{
	unsigned i, n;

	for (i = n = 0; i < RESTART_DEPTH; i++) {
		req[i].owner = NULL;
		req[i].how = (enum guest_how)(ring_random(seed) % 3);
		if (guest_req_submit(q, &req[i], i & 1 ? BLK_OUT : BLK_IN, i * 64, 4096))
			continue;
		req[i].owner = &req[i];
		n++;
		if (ring_random(seed) % 4 == 0)
			guest_notify(q);
	}
	guest_notify(q);
	return n;
}

static void stop_and_go(struct ring_test *t, struct guest_queue *q, struct guest_req *req,
			uint64_t *seed, bool half)
{
	unsigned n = submit_some(q, req, seed), i;
	struct virtq_used_elem e;
	struct guest_req *r;
	uint32_t base;
	int rc;

	if (ring_random(seed) % 2)
		usleep((useconds_t)(ring_random(seed) % 200));
	rc = guest_queue_stop(q, &base);
	REQUIRE(t, !rc, "GET_VRING_BASE: %s", strerror(-rc));
	REQUIRE(t, base >> 16 == (base & 0xffff), "stopped at 0x%08x: something is in flight",
		base);
	REQUIRE(t, (base & 0x7fff) < q->size, "stopped at 0x%08x, beyond the ring", base);
	/* DPDK gives the lower half only: both positions. */
	rc = guest_queue_start(q, half ? base & 0xffff : base);
	REQUIRE(t, !rc, "start at 0x%08x: %s", base, strerror(-rc));
	for (i = 0; i < n; i++) {
		rc = guest_used_wait_call(q, &e, CALL_MS);
		REQUIRE(t, !rc, "stopped at 0x%08x: %u of %u came back, then no interrupt", base, i,
			n);
		r = guest_req_take(q, &e);
		REQUIRE(t, r && r->owner == r && guest_req_status(q->guest, r) == BLK_OK,
			"stopped at 0x%08x: id %u came back twice, or failed", base, e.id);
		r->owner = NULL;
	}
	REQUIRE(t, !guest_used_pop(q, &e), "one more than there were");
}

static void stop_and_go_on(struct ring_test *t, unsigned size, bool event_idx)
{
	struct guest_params params = { .queue_size = size,
				       .indirect = true,
				       .event_idx = event_idx };
	unsigned i, rounds = t->env->long_run ? 3000 : 80;
	struct guest *g = ring_open(t, RING_DISK, params);
	struct guest_req req[RESTART_DEPTH];
	uint64_t seed = size;

	if (!g)
		return;
	for (i = 0; i < RESTART_DEPTH; i++)
		REQUIRE(t, !guest_req_init(g, &req[i], 4096), "guest memory is full");
	for (i = 0; i < rounds && !t->failed; i++)
		stop_and_go(t, g->queue[0], req, &seed, i & 1);
	ring_close(t, g);
}

static void case_restart(struct ring_test *t)
{
	static const unsigned sizes[] = { 4, 5, 61, 128 };
	unsigned i;

	for (i = 0; i < 8 && !t->failed; i++)
		stop_and_go_on(t, sizes[i / 2], i & 1);
}

/* What a stopped ring says is where the driver is, for every position and both wrap counters. */
static void case_base(struct ring_test *t)
{
	uint32_t base;
	struct probe p;
	unsigned i;
	int rc;

	if (!probe_open(t, RING_DISK, 5, &p))
		return;
	for (i = 0; i < 12 && !t->failed; i++) {
		REQUIRE(t, probe_request(&p, BLK_FLUSH, 0, 0) == ANSWER_OK, "FLUSH %u failed", i);
		rc = guest_queue_stop(p.q, &base);
		REQUIRE(t, !rc && base == guest_queue_base(p.q),
			"after %u chains of 2 GET_VRING_BASE says 0x%08x, it is 0x%08x", i + 1,
			base, guest_queue_base(p.q));
		rc = guest_queue_stop(p.q, &base);
		REQUIRE(t, rc || base == guest_queue_base(p.q), "the second time it says 0x%08x",
			base);
		rc = guest_queue_start(p.q, base);
		REQUIRE(t, !rc, "start at 0x%08x: %s", base, strerror(-rc));
	}
}

/* Positions that are not in the ring. */
static void case_wrong_base(struct ring_test *t)
{
	static const uint32_t bad[] = { 5,	    0x8005,	0x7fff,	    0xffff,    0x80058005,
					0x80058000, 0xffff8000, 0xffffffff, 0x7fff7fff };
	struct probe p;
	unsigned i;
	int rc;

	if (!probe_open(t, RING_DISK, 5, &p))
		return;
	for (i = 0; i < sizeof(bad) / sizeof(bad[0]) && !t->failed; i++) {
		rc = guest_queue_stop(p.q, NULL);
		REQUIRE(t, !rc, "stop: %s", strerror(-rc));
		guest_queue_reset(p.q, guest_queue_first(p.q));
		rc = guest_queue_start(p.q, bad[i]);
		REQUIRE(t, !rc || rc == -EREMOTEIO, "base 0x%08x: %s", bad[i], strerror(-rc));
		probe_plain(&p, BLK_IN, 0, 512);
		guest_avail(p.q, 0);
		guest_notify(p.q);
		guest_used_wait(p.q, &p.used, 50);
		rc = guest_queue_restart(p.q);
		REQUIRE(t, !rc, "after base 0x%08x: %s", bad[i], strerror(-rc));
		probe_good(&p, "after a base beyond the ring");
	}
}

/* ---- event suppression ---- */

/* Whatever the areas hold, requests are served; and when they are right again, interrupts come. */
static void garbage_events(struct ring_test *t, bool event_idx)
{
	static const uint16_t off[] = { 0, 6, 7, 8, 0x7fff, 0x8000, 0x8006, 0x8007, 0xffff };
	static const uint16_t flags[] = { 0, 1, 2, 3, 4, 0x8002, 0xffff };
	struct guest_params params = { .queue_size = 7, .indirect = true, .event_idx = event_idx };
	struct guest *g = ring_open(t, RING_DISK, params);
	struct probe p;
	unsigned i, k;
	int rc;

	if (!g || !probe_on(t, g->queue[0], &p))
		return;
	for (i = 0; i < sizeof(off) / sizeof(off[0]); i++) {
		for (k = 0; k < sizeof(flags) / sizeof(flags[0]); k++) {
			p.q->quiet = true; /* the wait leaves the area alone */
			*p.q->driver_event = (struct packed_event){ off[i], flags[k] };
			*p.q->device_event = (struct packed_event){ off[i], flags[k] };
			probe_plain(&p, BLK_IN, 0, 512);
			guest_avail(p.q, 0);
			guest_publish(p.q);
			guest_kick(p.q);
			rc = guest_used_wait(p.q, &p.used, PROBE_ANSWER_MS);
			REQUIRE(t, !rc && probe_verdict(&p, 0) == ANSWER_OK,
				"event areas {0x%04x, 0x%04x}: %s", off[i], flags[k],
				rc ? strerror(-rc) : "failed");
		}
		guest_queue_quiet(p.q, false);
		probe_plain(&p, BLK_IN, 0, 512);
		guest_avail(p.q, 0);
		guest_publish(p.q);
		guest_kick(p.q);
		rc = guest_used_wait_call(p.q, &p.used, CALL_MS);
		REQUIRE(t, !rc, "no interrupt after event areas {0x%04x, ..}", off[i]);
	}
	REQUIRE(t, guest_event_take(p.q->err) == 0, "the ring was given up");
	ring_close(t, g);
}

static void case_event_garbage(struct ring_test *t)
{
	garbage_events(t, false);
	if (!t->failed)
		garbage_events(t, true);
}

/* Suppressed means none: neither with the flag, nor before the position is passed. */
static void case_suppressed(struct ring_test *t)
{
	struct guest_params params = { .queue_size = 64, .indirect = true, .event_idx = true };
	struct guest *g = ring_open(t, RING_DISK, params);
	struct pollfd call = { .events = POLLIN };
	struct probe p;
	unsigned i, calls = 0;

	if (!g || !probe_on(t, g->queue[0], &p) || !probe_good(&p, "before"))
		return;
	call.fd = p.q->call;
	guest_queue_quiet(p.q, true);
	usleep(20000);
	guest_event_take(p.q->call);
	for (i = 0; i < 50; i++)
		REQUIRE(t, probe_request(&p, BLK_IN, 0, 512) == ANSWER_OK, "a read failed");
	usleep(20000);
	REQUIRE(t, !guest_event_take(p.q->call), "an interrupt although they are disabled");
	/* Wanted at 30 descriptors from here: ten reads. */
	p.q->driver_event->off_wrap =
		(uint16_t)((p.q->used_idx + 29) % 64 | (p.q->used_wrap ^ (p.q->used_idx + 29 >= 64))
							       << 15);
	p.q->driver_event->flags = EVENT_DESC;
	for (i = 0; i < 20; i++) {
		REQUIRE(t, probe_request(&p, BLK_IN, 0, 512) == ANSWER_OK, "a read failed");
		calls += poll(&call, 1, i == 9 ? CALL_MS : 3) > 0 && guest_event_take(p.q->call);
		REQUIRE(t, calls == (i >= 9), "%u interrupts after read %u; one is wanted after 10",
			calls, i + 1);
	}
}

/* ---- descriptors that change ---- */

struct flipper {
	pthread_t thread;
	struct guest_queue *q;
	volatile bool stop;
};

/* Slots 1 and 2 of a ring of 3 in which every chain has 3: what is behind the first one. */
static void *flip(void *arg)
{
	static const uint16_t flags[] = {
		DESC_NEXT | DESC_WRITE,	  DESC_WRITE, 0, DESC_NEXT, DESC_INDIRECT,
		DESC_INDIRECT | DESC_NEXT
	};
	volatile struct packed_desc *ring;
	struct flipper *f = arg;
	unsigned i;

	ring = f->q->ring;
	for (i = 0; !f->stop; i++) {
		ring[1].len = i & 1 ? 512 : 0x7ffff000;
		ring[1].flags = (uint16_t)(flags[i / 2 % 6] | (i & 64 ? DESC_AVAIL : DESC_USED));
		ring[2].id = (uint16_t)(i & 4 ? i % 3 : i * 2654435761u >> 16);
		ring[2].len = i & 8 ? 1 : 0x7ffff000;
		ring[2].flags = (uint16_t)(flags[i / 16 % 6] | (i & 64 ? DESC_AVAIL : DESC_USED));
	}
	return NULL;
}

static void case_changes(struct ring_test *t)
{
	unsigned rounds = t->env->long_run ? 20000 : 600, i, ok = 0, broken = 0;
	struct flipper f = { 0 };
	struct probe p;
	int rc;

	if (!probe_open(t, RING_DISK, 3, &p))
		return;
	f.q = p.q;
	pthread_create(&f.thread, NULL, flip, &f);
	for (i = 0; i < rounds && !t->failed; i++) {
		probe_plain(&p, BLK_IN, 0, 512);
		guest_avail(p.q, 0);
		guest_notify(p.q);
		rc = guest_used_wait(p.q, &p.used, 20);
		ok += rc == 0 && probe_verdict(&p, 0) == ANSWER_OK;
		broken += rc == -EPIPE;
		if (rc || probe_verdict(&p, 0) != ANSWER_OK)
			rc = guest_queue_restart(p.q);
		if (rc)
			ring_fail(t, "round %u: %s", i, strerror(-rc));
	}
	f.stop = true;
	pthread_join(f.thread, NULL);
	tap_diag("%u rounds: OK %u, given up %u", i, ok, broken);
	if (t->failed || !probe_guards(&p, "changing descriptors"))
		return;
	rc = guest_queue_restart(p.q);
	REQUIRE(t, !rc, "restart: %s", strerror(-rc));
	probe_good(&p, "changing descriptors");
}

const struct ring_case ring_packed_setup_cases[] = {
	{ "sizes of packed rings: any up to 32768", case_num, false, true },
	{ "areas that are not aligned or not in memory are refused", case_areas, false, true },
	{ "event areas at the end of memory, and on each other", case_area_edges, false, true },
	{ "packed rings are offered only when asked for", case_not_offered, false, true },
	{ "split and packed rings in turns on one connection", case_formats, false, true },
	{ "the format changes under a running ring", case_format_running, false, true },
	{ "stopped and started anywhere, nothing is lost or repeated", case_restart, false, true },
	{ "GET_VRING_BASE has both positions and wrap counters", case_base, false, true },
	{ "bases beyond the ring", case_wrong_base, false, true },
	{ "garbage in the event areas", case_event_garbage, false, true },
	{ "no interrupt is sent that was not asked for", case_suppressed, false, true },
	{ "descriptors that change while they are read", case_changes, false, true },
	{ 0 },
};
