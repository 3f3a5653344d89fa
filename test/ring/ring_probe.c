/* Guests of a case, and requests made by hand. */
#include "ring/ring.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define GUARD	     4096u
#define GUARD_BYTE   0x5a
#define STATUS_GUARD 32u

void ring_fail(struct ring_test *t, const char *fmt, ...)
{
	va_list ap;

	if (t->failed)
		return;
	t->failed = true;
	va_start(ap, fmt);
	vsnprintf(t->why, sizeof(t->why), fmt, ap);
	va_end(ap);
}

uint64_t ring_random(uint64_t *state)
{
	uint64_t z = (*state += 0x9e3779b97f4a7c15u);

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

void ring_random_fill(uint64_t *state, void *p, size_t len)
{
	uint8_t *b = p;
	uint64_t r;
	size_t n;

	for (; len; len -= n, b += n) {
		n = len < sizeof(r) ? len : sizeof(r);
		r = ring_random(state);
		memcpy(b, &r, n);
	}
}

void ring_keep(struct ring_test *t, struct guest *g)
{
	unsigned i;

	for (i = 0; i < t->nguests && t->guest[i]; i++)
		;
	if (i == RING_MAX_GUESTS) {
		ring_fail(t, "the case opened more guests than it may");
		guest_close(g);
		return;
	}
	t->guest[i] = g;
	if (i == t->nguests)
		t->nguests++;
}

void ring_close(struct ring_test *t, struct guest *g)
{
	unsigned i;

	for (i = 0; i < t->nguests; i++)
		if (t->guest[i] == g)
			t->guest[i] = NULL;
	guest_close(g);
}

struct guest *ring_open(struct ring_test *t, const char *ctrlr, struct guest_params p)
{
	char path[256];
	struct guest *g;
	int rc;

	daemon_socket(&t->env->daemon, ctrlr, path, sizeof(path));
	p.path = path;
	p.packed = p.packed || t->packed;
	rc = guest_open(&p, &g);
	if (rc) {
		ring_fail(t, "cannot open a guest on %s: %s", ctrlr, strerror(-rc));
		return NULL;
	}
	ring_keep(t, g);
	return g;
}

bool probe_on(struct ring_test *t, struct guest_queue *q, struct probe *p)
{
	struct guest *g = q->guest;

	*p = (struct probe){ .t = t, .g = g, .q = q };
	p->header = guest_alloc(g, 16, 16);
	p->table = guest_alloc(g, 16 * 512, 16);
	p->data = guest_alloc(g, PROBE_DATA_SIZE + 2 * GUARD, 4096);
	p->status = guest_alloc(g, 1 + 2 * STATUS_GUARD, 1);
	REQUIRE_TRUE(t, p->header && p->table && p->data && p->status, "guest memory is full");
	p->data += GUARD;
	p->status += STATUS_GUARD;
	return true;
}

bool probe_open(struct ring_test *t, const char *ctrlr, unsigned queue_size, struct probe *p)
{
	struct guest_params params = { .queue_size = queue_size, .indirect = true };
	struct guest *g = ring_open(t, ctrlr, params);

	return g && probe_on(t, g->queue[0], p);
}

void probe_header(struct probe *p, uint32_t type, uint64_t sector)
{
	struct blk_header h = { .type = type, .sector = sector };
	uint8_t *data = guest_ptr(p->g, p->data), *status = guest_ptr(p->g, p->status);

	memcpy(guest_ptr(p->g, p->header), &h, sizeof(h));
	memset(data - GUARD, GUARD_BYTE, GUARD);
	memset(data + PROBE_DATA_SIZE, GUARD_BYTE, GUARD);
	memset(status - STATUS_GUARD, GUARD_BYTE, 2 * STATUS_GUARD + 1);
	*status = BLK_NO_STATUS;
}

static bool all_bytes(const uint8_t *p, size_t n, uint8_t byte)
{
	size_t i;

	for (i = 0; i < n; i++)
		if (p[i] != byte)
			return false;
	return true;
}

bool probe_guards(struct probe *p, const char *what)
{
	uint8_t *data = guest_ptr(p->g, p->data), *status = guest_ptr(p->g, p->status);

	REQUIRE_TRUE(p->t,
		     all_bytes(data - GUARD, GUARD, GUARD_BYTE) &&
			     all_bytes(data + PROBE_DATA_SIZE, GUARD, GUARD_BYTE),
		     "%s: bytes around the data buffer were written", what);
	REQUIRE_TRUE(p->t,
		     all_bytes(status - STATUS_GUARD, STATUS_GUARD, GUARD_BYTE) &&
			     all_bytes(status + 1, STATUS_GUARD, GUARD_BYTE),
		     "%s: bytes around the status byte were written", what);
	return true;
}

const char *answer_name(enum answer a)
{
	switch (a) {
	case ANSWER_OK:
		return "OK";
	case ANSWER_IOERR:
		return "IOERR";
	case ANSWER_UNSUPP:
		return "UNSUPP";
	case ANSWER_LEN0:
		return "returned with length 0";
	case ANSWER_BROKEN:
		return "the queue was given up";
	case ANSWER_SILENT:
		return "neither returned nor the error eventfd signalled";
	case ANSWER_WRONG:
		break;
	}
	return "returned with a wrong head, or with a length but no valid status";
}

enum answer probe_verdict(struct probe *p, unsigned head)
{
	uint8_t status = __atomic_load_n((uint8_t *)guest_ptr(p->g, p->status), __ATOMIC_ACQUIRE);

	if (p->used.id != head)
		return ANSWER_WRONG;
	if (p->used.len == 0)
		return status == BLK_NO_STATUS ? ANSWER_LEN0 : ANSWER_WRONG;
	switch (status) {
	case BLK_OK:
		return ANSWER_OK;
	case BLK_IOERR:
		return ANSWER_IOERR;
	case BLK_UNSUPP:
		return ANSWER_UNSUPP;
	}
	return ANSWER_WRONG;
}

enum answer probe_wait(struct probe *p, unsigned head)
{
	int rc;

	guest_notify(p->q);
	rc = guest_used_wait(p->q, &p->used, PROBE_ANSWER_MS);
	if (rc == -ECONNRESET)
		ring_fail(p->t, "the daemon closed the session over one request");
	if (rc == -ETIMEDOUT)
		return ANSWER_SILENT;
	return rc ? ANSWER_BROKEN : probe_verdict(p, head);
}

enum answer probe_send(struct probe *p, unsigned head)
{
	guest_avail(p->q, head);
	return probe_wait(p, head);
}

void probe_plain(struct probe *p, uint32_t type, uint64_t sector, uint32_t len)
{
	bool in = type == BLK_IN || type == BLK_GET_ID;

	probe_header(p, type, sector);
	guest_desc(p->q, 0, p->header, 16, DESC_NEXT, len ? 1 : 2);
	guest_desc(p->q, 1, p->data, len, DESC_NEXT | (in ? DESC_WRITE : 0u), 2);
	guest_desc(p->q, 2, p->status, 1, DESC_WRITE, 0);
}

enum answer probe_request(struct probe *p, uint32_t type, uint64_t sector, uint32_t len)
{
	probe_plain(p, type, sector, len);
	return probe_send(p, 0);
}

bool probe_good(struct probe *p, const char *what)
{
	static uint64_t seed = 1;
	uint8_t want[4096];
	enum answer a;

	ring_random_fill(&seed, want, sizeof(want));
	memcpy(guest_ptr(p->g, p->data), want, sizeof(want));
	a = probe_request(p, BLK_OUT, PROBE_SECTOR, sizeof(want));
	REQUIRE_TRUE(p->t, a == ANSWER_OK, "%s: the good write after it: %s", what, answer_name(a));
	memset(guest_ptr(p->g, p->data), 0, sizeof(want));
	a = probe_request(p, BLK_IN, PROBE_SECTOR, sizeof(want));
	REQUIRE_TRUE(p->t, a == ANSWER_OK, "%s: the good read after it: %s", what, answer_name(a));
	REQUIRE_TRUE(p->t, !memcmp(guest_ptr(p->g, p->data), want, sizeof(want)),
		     "%s: the good read after it returned other data", what);
	return probe_guards(p, what);
}

bool probe_settle(struct probe *p, enum answer a, unsigned allowed, const char *what)
{
	int rc;

	REQUIRE_TRUE(p->t, !p->t->failed, "%s", what);
	REQUIRE_TRUE(p->t, a & allowed, "%s: %s", what, answer_name(a));
	if (!probe_guards(p, what))
		return false;
	if (a == ANSWER_BROKEN || a == ANSWER_SILENT) {
		tap_diag("%s: %s", what, answer_name(a));
		rc = guest_queue_restart(p->q);
		REQUIRE_TRUE(p->t, !rc, "%s: cannot restart the queue: %s", what, strerror(-rc));
	}
	return probe_good(p, what);
}

bool probe_expect(struct probe *p, unsigned head, unsigned allowed, const char *what)
{
	return probe_settle(p, probe_send(p, head), allowed, what);
}
