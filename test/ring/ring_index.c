/* Hostile and extreme ring indices. VIRTIO 1.3, sections 2.7.6, 2.7.8 and 2.7.13. */
#include "ring/ring.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

static void index_jump(struct probe *p, unsigned by, const char *what)
{
	struct ring_test *t = p->t;
	struct virtq_used_elem e;
	uint64_t errors;
	unsigned i, used = 0;
	long log, busy;
	int rc;

	if (t->failed)
		return;
	for (i = 0; i < 3; i++)
		if (!probe_good(p, what))
			return;
	log = daemon_log_size(&t->env->daemon);
	p->q->avail_idx = (uint16_t)(p->q->avail_idx + by);
	guest_publish(p->q);
	guest_kick(p->q);
	while (!(rc = guest_used_wait(p->q, &e, 700)) && used < 1000)
		used++;
	REQUIRE(t, used == 0, "%s: %u used entries", what, used);
	REQUIRE(t, rc == -EPIPE, "%s: the error eventfd was not signalled", what);
	busy = ring_busy_percent(t);
	REQUIRE(t, busy < 50, "%s: the daemon is %ld %% busy over a broken ring", what, busy);
	errors = guest_event_take(p->q->err);
	REQUIRE(t, errors == 1, "%s: the error eventfd was signalled %llu times", what,
		(unsigned long long)errors);
	guest_kick(p->q);
	usleep(50000);
	log = daemon_log_size(&t->env->daemon) - log;
	REQUIRE(t, log < 4096, "%s: %ld bytes of log", what, log);
	rc = guest_queue_restart(p->q);
	REQUIRE(t, !rc, "%s: cannot restart the queue: %s", what, strerror(-rc));
	probe_good(p, what);
}

static void case_37(struct ring_test *t)
{
	struct probe p;

	if (!probe_open(t, RING_DISK, 64, &p))
		return;
	index_jump(&p, 65, "avail.idx += queue size + 1");
	index_jump(&p, 0x8000, "avail.idx += 0x8000");
	index_jump(&p, 0xffff, "avail.idx -= 1");
}

static void case_37_reconnect(struct ring_test *t)
{
	struct probe p;

	if (!probe_open(t, RING_DISK, 64, &p) || !probe_good(&p, "first guest"))
		return;
	p.q->avail_idx = (uint16_t)(p.q->avail_idx + 1000);
	guest_notify(p.q);
	usleep(50000);
	ring_close(t, p.g);
	if (probe_open(t, RING_DISK, 64, &p))
		probe_good(&p, "a new guest after a broken ring");
}

static void case_head_range(struct ring_test *t)
{
	static const unsigned heads[] = { 64, 65, 0x7fff, 0xffff };
	struct probe p;
	unsigned i;

	if (!probe_open(t, RING_DISK, 64, &p))
		return;
	for (i = 0; i < sizeof(heads) / sizeof(heads[0]) && !t->failed; i++) {
		probe_plain(&p, BLK_IN, 0, 512);
		probe_expect(&p, heads[i], ANSWER_MALFORMED | ANSWER_SILENT,
			     "head beyond the queue");
	}
}

static void case_40(struct ring_test *t)
{
	struct virtq_used_elem e;
	unsigned i, full = 0, all = 0;
	struct probe p;
	int rc;

	if (!probe_open(t, RING_SLOW, 64, &p))
		return;
	probe_plain(&p, BLK_IN, 0, 4096);
	for (i = 0; i < 3; i++)
		guest_avail(p.q, 0);
	guest_notify(p.q);
	while (!(rc = guest_used_wait(p.q, &e, 4 * RING_SLOW_MS))) {
		all++;
		REQUIRE(t, e.id == 0, "a head that was never available: %u", e.id);
		REQUIRE(t, e.len <= 4097, "length %u", e.len);
		full += e.len != 0;
	}
	tap_diag("%u of 3 came back, %u of them done%s", all, full,
		 rc == -EPIPE ? "; the queue was given up" : "");
	REQUIRE(t, all <= 3 && full <= 1, "%u completions of one head in flight", full);
	rc = guest_queue_restart(p.q);
	REQUIRE(t, !rc, "cannot restart the queue: %s", strerror(-rc));
	probe_good(&p, "same head three times");
}

/*
 * A queue of one descriptor has no room for a request: one that is readable and writable is two
 * descriptors, and no chain may be longer than the queue (2.7.5.3.1), in a table or not. What
 * can be served is a chain of one, which comes back with length 0.
 */
static void queue_of_one(struct ring_test *t, bool event_idx, unsigned rounds)
{
	struct guest_params params = { .queue_size = 1, .indirect = true, .event_idx = event_idx };
	struct guest *g = ring_open(t, RING_DISK, params);
	struct probe p;
	enum answer a;
	unsigned i;

	if (!g || !probe_on(t, g->queue[0], &p))
		return;
	probe_header(&p, BLK_IN, 0);
	guest_desc(p.q, 0, p.header, 16, 0, 0);
	for (i = 0; i < rounds; i++) {
		a = probe_send(&p, 0);
		REQUIRE(t, a == ANSWER_LEN0, "queue of 1, round %u: %s", i, answer_name(a));
	}
	ring_close(t, g);
}

/* Header, then data and status in one: each head a table of two, with a status of its own. */
static void fill_heads(struct probe *p, uint64_t tables, uint64_t data, unsigned n)
{
	unsigned i;

	for (i = 0; i < n; i++) {
		guest_table(p->g, tables + 32ull * i, 0, p->header, 16, DESC_NEXT, 1);
		guest_table(p->g, tables + 32ull * i, 1, data + 513ull * i, 513, DESC_WRITE, 0);
		guest_desc(p->q, i, tables + 32ull * i, 32, DESC_INDIRECT, 0);
		*(uint8_t *)guest_ptr(p->g, data + 513ull * i + 512) = BLK_NO_STATUS;
		guest_avail(p->q, i);
	}
}

static void full_ring(struct ring_test *t, unsigned n)
{
	struct guest_params params = { .queue_size = n, .indirect = true, .mem_size = 32u << 20 };
	struct guest *g = ring_open(t, RING_DISK, params);
	uint64_t tables, data;
	struct virtq_used_elem e;
	uint8_t *status;
	struct probe p;
	unsigned i;

	if (!g || !probe_on(t, g->queue[0], &p))
		return;
	tables = guest_alloc(g, 32ull * n, 16);
	data = guest_alloc(g, 513ull * n, 1);
	REQUIRE(t, tables && data, "guest memory is full");
	probe_header(&p, BLK_IN, 0);
	fill_heads(&p, tables, data, n);
	guest_notify(p.q);
	for (i = 0; i < n; i++) {
		REQUIRE(t, !guest_used_wait(p.q, &e, GUEST_DEADLINE_MS), "queue of %u: %u served",
			n, i);
		REQUIRE(t, e.id < n && e.len == 513, "queue of %u: head %u, length %u", n, e.id,
			e.len);
		status = guest_ptr(g, data + 513ull * e.id + 512);
		REQUIRE(t, *status == BLK_OK, "queue of %u: head %u twice or not done", n, e.id);
		*status = BLK_NO_STATUS;
	}
	ring_close(t, g);
}

static void case_53(struct ring_test *t)
{
	static const unsigned sizes[] = { 2, 4, 256, 32768 };
	unsigned i;

	queue_of_one(t, false, 1);
	for (i = 0; i < sizeof(sizes) / sizeof(sizes[0]) && !t->failed; i++)
		full_ring(t, sizes[i]);
}

static void case_smallest(struct ring_test *t)
{
	struct guest_params params = { .queue_size = 4, .event_idx = true };
	struct guest *g;
	struct probe p;
	unsigned i;

	queue_of_one(t, false, 300);
	if (!t->failed)
		queue_of_one(t, true, 300);
	for (i = 0; i < 100 && !t->failed; i++)
		full_ring(t, 2);
	g = t->failed ? NULL : ring_open(t, RING_DISK, params);
	if (!g || !probe_on(t, g->queue[0], &p))
		return;
	for (i = 0; i < 200 && !t->failed; i++)
		probe_good(&p, "queue of 4");
}

const struct ring_case ring_index_cases[] = {
	{ "RING 37: avail.idx jumps", case_37, true, false },
	{ "RING 37: a new guest after a broken ring", case_37_reconnect, false, false },
	{ "heads beyond the queue", case_head_range, false, false },
	{ "RING 40: one head three times in flight", case_40, true, true },
	{ "RING 53: completely full avail rings of 1, 2, 256, 32768", case_53, false, true },
	{ "queues of one, two and four descriptors", case_smallest, false, true },
	{ 0 },
};
