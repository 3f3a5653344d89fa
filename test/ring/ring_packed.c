/* Hostile and unusual packed rings. VIRTIO 1.3, section 2.8. */
#define _GNU_SOURCE 1
#include "ring/ring.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MARK (DESC_AVAIL | DESC_USED)

/* A descriptor made by hand; AVAIL and USED come on top. */
struct raw {
	uint64_t addr;
	uint32_t len;
	unsigned id, flags;
};

/* Puts them into the ring, the first one last; the driver's position passes @take of them. */
static void raw_put(struct probe *p, const struct raw *r, unsigned n, unsigned take)
{
	unsigned i;

	for (i = n; i--;)
		guest_packed_desc(p->q, i, r[i].addr, r[i].len, r[i].id,
				  r[i].flags | guest_packed_mark(p->q, i));
	guest_packed_advance(p->q, take, r[take - 1].id);
}

static enum answer raw_send(struct probe *p, const struct raw *r, unsigned n)
{
	raw_put(p, r, n, n);
	return probe_wait(p, r[n - 1].id);
}

/* A read of 512 bytes as buffer @id. */
static void raw_read(struct probe *p, struct raw r[3], unsigned id)
{
	probe_header(p, BLK_IN, 0);
	r[0] = (struct raw){ p->header, 16, 0xbeef, DESC_NEXT };
	r[1] = (struct raw){ p->data, 512, 0xbeef, DESC_NEXT | DESC_WRITE };
	r[2] = (struct raw){ p->status, 1, id, DESC_WRITE };
}

/* A request in one descriptor: a table of three. Moves the position by one. */
static enum answer one_slot(struct probe *p)
{
	probe_header(p, BLK_IN, 0);
	guest_table(p->g, p->table, 0, p->header, 16, 0, 0);
	guest_table(p->g, p->table, 1, p->data, 512, DESC_WRITE, 0);
	guest_table(p->g, p->table, 2, p->status, 1, DESC_WRITE, 0);
	guest_desc(p->q, 0, p->table, 48, DESC_INDIRECT, 0);
	return probe_send(p, 0);
}

/* ---- ids ---- */

/* The ring is given up: said once, without noise, and without harm to the one beside it. */
static void bad_id(struct probe *p, struct probe *beside, unsigned id)
{
	struct ring_test *t = p->t;
	struct raw r[3];
	uint64_t errors;
	enum answer a;
	char what[64];
	long log;

	if (t->failed)
		return;
	snprintf(what, sizeof(what), "id 0x%x in a ring of 8", id);
	log = daemon_log_size(&t->env->daemon);
	raw_read(p, r, id);
	a = raw_send(p, r, 3);
	REQUIRE(t, a == ANSWER_BROKEN, "%s: %s", what, answer_name(a));
	REQUIRE(t, ring_busy_percent(t) < 50, "%s: the daemon is busy over a broken ring", what);
	guest_kick(p->q);
	usleep(20000);
	errors = guest_event_take(p->q->err);
	REQUIRE(t, errors == 1, "%s: the error eventfd was signalled %llu times", what,
		(unsigned long long)errors);
	log = daemon_log_size(&t->env->daemon) - log;
	REQUIRE(t, log < 4096, "%s: %ld bytes of log", what, log);
	if (probe_good(beside, "the ring beside a broken one"))
		probe_settle(p, a, ANSWER_BROKEN, what);
}

static void case_61(struct ring_test *t)
{
	struct guest_params params = { .queues = 2, .queue_size = 8, .indirect = true };
	struct guest *g = ring_open(t, RING_DISK, params);
	struct probe p, beside;
	struct raw r[3];
	unsigned id;

	if (!g || !probe_on(t, g->queue[0], &p) || !probe_on(t, g->queue[1], &beside))
		return;
	for (id = 0; id < 8 && !t->failed; id++) {
		raw_read(&p, r, 7 - id);
		probe_settle(&p, raw_send(&p, r, 3), ANSWER_OK, "an id below the ring's size");
	}
	bad_id(&p, &beside, 8);
	bad_id(&p, &beside, 9);
	bad_id(&p, &beside, 0x7fff);
	bad_id(&p, &beside, 0x8000);
	bad_id(&p, &beside, 0xffff);
}

/* The id of every descriptor but the last means nothing: 0xbeef above, and here ids in flight. */
static void case_id_of_last(struct ring_test *t)
{
	struct probe p;
	struct raw r[3];
	unsigned i;

	if (!probe_open(t, RING_DISK, 8, &p))
		return;
	for (i = 0; i < 20 && !t->failed; i++) {
		raw_read(&p, r, i % 8);
		r[0].id = (i + 1) % 8;
		r[1].id = 0;
		probe_settle(&p, raw_send(&p, r, 3), ANSWER_OK, "ids in the middle of a chain");
	}
}

static void case_61_twice(struct ring_test *t)
{
	struct guest_params params = { .queues = 2, .queue_size = 8, .indirect = true };
	struct guest *g = ring_open(t, RING_SLOW, params);
	struct probe p, beside;
	struct virtq_used_elem e;
	struct raw r[6];
	unsigned full = 0;
	int rc;

	if (!g || !probe_on(t, g->queue[0], &p) || !probe_on(t, g->queue[1], &beside))
		return;
	raw_read(&p, r, 5);
	raw_read(&p, r + 3, 5);
	raw_put(&p, r, 6, 6);
	p.q->slots[5] = 3;
	guest_notify(p.q);
	while (!(rc = guest_used_wait(p.q, &e, 4 * RING_SLOW_MS))) {
		REQUIRE(t, e.id == 5, "id %u came back", e.id);
		full += e.len != 0;
	}
	REQUIRE(t, rc == -EPIPE, "an id twice in flight: the error eventfd was not signalled");
	REQUIRE(t, full <= 1, "%u completions of one id in flight", full);
	if (probe_good(&beside, "the ring beside a broken one"))
		probe_settle(&p, ANSWER_BROKEN, ANSWER_BROKEN, "one id twice in flight");
}

/* ---- lengths and offsets ---- */

/* Header, single sectors, status in @n descriptors; with two, data and status are one. */
static bool chain_of(struct probe *p, unsigned n, const char *what)
{
	unsigned i, at = 0;

	probe_header(p, BLK_IN, 0);
	if (n == 2)
		p->status = p->data + 512;
	*(uint8_t *)guest_ptr(p->g, p->status) = BLK_NO_STATUS;
	guest_desc(p->q, at++, p->header, 16, DESC_NEXT, 1);
	for (i = 0; i + 2 < n; i++, at++)
		guest_desc(p->q, at, p->data + 512ull * i, 512, DESC_NEXT | DESC_WRITE, at + 1);
	if (n == 2)
		guest_desc(p->q, at, p->data, 513, DESC_WRITE, 0);
	else
		guest_desc(p->q, at, p->status, 1, DESC_WRITE, 0);
	REQUIRE_TRUE(p->t, probe_send(p, 0) == ANSWER_OK, "%s: slot %u, wrap %u: not served", what,
		     p->q->used_idx, p->q->used_wrap);
	return true;
}

static void case_63(struct ring_test *t)
{
	struct probe p;
	enum answer a;

	if (!probe_open(t, RING_DISK, 4, &p))
		return;
	if (!chain_of(&p, 4, "chain of 4 in a ring of 4") ||
	    !chain_of(&p, 4, "the second chain of 4 in a ring of 4"))
		return;
	a = one_slot(&p);
	REQUIRE(t, a == ANSWER_OK, "chain of 1 after two of 4: %s", answer_name(a));
	probe_good(&p, "chains of 4 in a ring of 4");
}

/* As many rounds as it takes to begin in every slot with either wrap counter. */
static void case_every_offset(struct ring_test *t)
{
	static const unsigned sizes[] = { 3, 4, 5, 7, 8, 33 };
	struct guest_params params = { .indirect = true };
	char what[64];
	struct probe p;
	struct guest *g;
	unsigned i, k, n;
	enum answer a;

	for (i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		n = params.queue_size = sizes[i];
		params.event_idx = i & 1;
		snprintf(what, sizeof(what), "chain of %u in a ring of %u", n, n);
		g = ring_open(t, RING_DISK, params);
		if (!g || !probe_on(t, g->queue[0], &p))
			return;
		for (k = 0; k < 4 * n; k++) {
			if (!chain_of(&p, n, what))
				return;
			a = one_slot(&p);
			REQUIRE(t, a == ANSWER_OK, "%s, then one of 1: %s", what, answer_name(a));
		}
		ring_close(t, g);
	}
}

/* A ring full of requests of one descriptor each, several times around. */
static void full_laps(struct ring_test *t, unsigned n, unsigned laps, bool event_idx)
{
	struct guest_params params = {
		.queue_size = n, .indirect = true, .event_idx = event_idx, .mem_size = 32u << 20
	};
	struct guest *g = ring_open(t, RING_DISK, params);
	uint64_t tables, data;
	struct virtq_used_elem e;
	uint8_t *status;
	struct probe p;
	unsigned i, k;

	if (!g || !probe_on(t, g->queue[0], &p))
		return;
	tables = guest_alloc(g, 32ull * n, 16);
	data = guest_alloc(g, 513ull * n, 1);
	REQUIRE(t, tables && data, "guest memory is full");
	probe_header(&p, BLK_IN, 0);
	for (i = 0; i < n; i++) {
		guest_table(g, tables + 32ull * i, 0, p.header, 16, 0, 0);
		guest_table(g, tables + 32ull * i, 1, data + 513ull * i, 513, DESC_WRITE, 0);
		guest_desc(p.q, i, tables + 32ull * i, 32, DESC_INDIRECT, 0);
	}
	for (k = 0; k < laps; k++) {
		for (i = 0; i < n; i++) {
			*(uint8_t *)guest_ptr(g, data + 513ull * i + 512) = BLK_NO_STATUS;
			guest_avail(p.q, k & 1 ? n - 1 - i : i);
		}
		guest_notify(p.q);
		for (i = 0; i < n; i++) {
			REQUIRE(t, !guest_used_wait(p.q, &e, GUEST_DEADLINE_MS),
				"ring of %u, lap %u: %u served", n, k, i);
			REQUIRE(t, e.id < n && e.len == 513, "ring of %u: id %u, length %u", n,
				e.id, e.len);
			status = guest_ptr(g, data + 513ull * e.id + 512);
			REQUIRE(t, *status == BLK_OK, "ring of %u: id %u twice or not done", n,
				e.id);
			*status = BLK_NO_STATUS;
		}
	}
	ring_close(t, g);
}

static void case_sizes(struct ring_test *t)
{
	static const unsigned sizes[] = { 2, 3, 5, 6, 7, 100, 255, 1000, 32767, 32768 };
	unsigned i;

	for (i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		if (!t->failed)
			full_laps(t, sizes[i], sizes[i] > 10000 ? 3 : 21, false);
		if (!t->failed)
			full_laps(t, sizes[i], sizes[i] > 10000 ? 3 : 21, true);
	}
}

/* ---- chains without an end ---- */

static void case_endless(struct ring_test *t)
{
	struct raw r[8];
	struct probe p;
	unsigned i, k;

	if (!probe_open(t, RING_DISK, 8, &p))
		return;
	for (k = 0; k < 4 && !t->failed; k++) {
		probe_header(&p, BLK_IN, 0);
		for (i = 0; i < 8; i++)
			r[i] = (struct raw){ p.data + 512 * i, k & 1 ? 0 : 512, i,
					     DESC_NEXT | (k & 2 ? DESC_WRITE : 0u) };
		r[0] = (struct raw){ p.header, 16, 0, DESC_NEXT };
		probe_settle(&p, raw_send(&p, r, 8), ANSWER_MALFORMED,
			     "NEXT in all descriptors of the ring");
	}
	/* The same from the middle of the ring, so that it goes around its end. */
	for (i = 0; i < 3 && !t->failed; i++)
		REQUIRE(t, one_slot(&p) == ANSWER_OK, "a request in one descriptor failed");
	if (t->failed)
		return;
	for (i = 0; i < 8; i++)
		r[i] = (struct raw){ p.header, 16, 3, DESC_NEXT };
	probe_settle(&p, raw_send(&p, r, 8), ANSWER_MALFORMED, "NEXT around the end of the ring");
}

/* NEXT leads to a descriptor that is not available: what was used there before is not its rest. */
static void case_next_unavailable(struct ring_test *t)
{
	struct raw r[3];
	struct probe p;
	unsigned i, k;

	if (!probe_open(t, RING_DISK, 8, &p))
		return;
	for (k = 0; k < 12 && !t->failed; k++) {
		for (i = 0; i < k && !t->failed; i++)
			REQUIRE(t, one_slot(&p) == ANSWER_OK, "a request failed");
		raw_read(&p, r, 3);
		if (k & 1)
			r[0].flags |= DESC_WRITE;
		raw_put(&p, r, 1 + k % 2, 1 + k % 2);
		probe_settle(&p, probe_wait(&p, 0xbeef), ANSWER_MALFORMED,
			     "NEXT into a descriptor that is not available");
	}
}

/* ---- AVAIL and USED ---- */

/* Descriptors of a read, whose first one has @marks; they must not be looked at. */
static void not_available(struct probe *p, unsigned marks)
{
	unsigned good = guest_packed_mark(p->q, 0), i;
	struct virtq_used_elem e;
	struct raw r[3];
	enum answer a;
	int rc;

	if (p->t->failed)
		return;
	raw_read(p, r, 2);
	for (i = 1; i < 3; i++)
		guest_packed_desc(p->q, i, r[i].addr, r[i].len, r[i].id,
				  r[i].flags | guest_packed_mark(p->q, i));
	guest_packed_desc(p->q, 0, r[0].addr, r[0].len, r[0].id, r[0].flags | marks);
	guest_kick(p->q);
	rc = guest_used_wait(p->q, &e, 40);
	if (rc == 0) /* what the driver would see is its own mark */
		rc = *(uint8_t *)guest_ptr(p->g, p->status) == BLK_NO_STATUS ? -ETIMEDOUT : 0;
	REQUIRE(p->t, rc == -ETIMEDOUT,
		"slot %u, wrap %u: a descriptor with AVAIL %u and USED %u: %s", p->q->avail_idx,
		p->q->avail_wrap, !!(marks & DESC_AVAIL), !!(marks & DESC_USED),
		rc ? strerror(-rc) : "taken");
	/* used_wait() may have stepped over a forged mark. */
	p->q->used_idx = p->q->avail_idx;
	p->q->used_wrap = p->q->avail_wrap;
	guest_packed_desc(p->q, 0, r[0].addr, r[0].len, r[0].id, r[0].flags | good);
	guest_packed_advance(p->q, 3, 2);
	a = probe_wait(p, 2);
	REQUIRE(p->t, a == ANSWER_OK, "AVAIL and USED set right after they were wrong: %s",
		answer_name(a));
}

static void case_marks(struct ring_test *t)
{
	static const unsigned all[] = { 0, DESC_AVAIL, DESC_USED, DESC_AVAIL | DESC_USED };
	unsigned i, k;
	struct probe p;

	if (!probe_open(t, RING_DISK, 5, &p))
		return;
	for (k = 0; k < 8; k++)
		for (i = 0; i < 4; i++)
			if (all[i] != guest_packed_mark(p.q, 0))
				not_available(&p, all[i]);
	if (!t->failed)
		probe_good(&p, "all combinations of AVAIL and USED");
}

/* Everything behind the position carries the mark of the next round: nobody may run ahead. */
static void case_next_round(struct ring_test *t)
{
	struct virtq_used_elem e;
	unsigned i, slot;
	struct probe p;
	enum answer a;
	int rc;

	if (!probe_open(t, RING_DISK, 8, &p))
		return;
	for (i = 0; i < 20 && !t->failed; i++) {
		a = one_slot(&p);
		REQUIRE(t, a == ANSWER_OK, "round %u: %s", i, answer_name(a));
		for (slot = 0; slot < 8; slot++)
			guest_packed_desc(p.q, slot, p.header, 16, slot,
					  guest_packed_mark(p.q, slot) ^ MARK);
		guest_kick(p.q);
		usleep(3000);
		rc = guest_used_pop(p.q, &e) ? 0 : -EPIPE;
		REQUIRE(t, rc, "round %u: a descriptor of the next round was used", i);
		REQUIRE(t, guest_event_take(p.q->err) == 0, "round %u: the ring was given up", i);
	}
	if (!t->failed)
		probe_good(&p, "marks of the next round");
}

static void case_reserved_flags(struct ring_test *t)
{
	struct raw r[3];
	struct probe p;
	unsigned bit, i;

	if (!probe_open(t, RING_DISK, 8, &p))
		return;
	for (bit = 3; bit < 15 && !t->failed; bit++) {
		if (bit == 7)
			continue;
		raw_read(&p, r, 1);
		for (i = 0; i < 3; i++)
			r[i].flags |= 1u << bit;
		probe_settle(&p, raw_send(&p, r, 3), ANSWER_OK | ANSWER_MALFORMED,
			     "a reserved flag");
	}
}

/* ---- what the device writes ---- */

static bool used_flags(struct probe *p, uint32_t type, uint64_t sector, uint32_t len, uint32_t want)
{
	struct packed_desc rest[2];
	enum answer a;
	uint16_t slot;

	probe_plain(p, type, sector, len);
	slot = p->q->avail_idx;
	guest_avail(p->q, 0);
	memcpy(rest, &p->q->ring[slot + 1], sizeof(rest));
	a = probe_wait(p, 0);
	REQUIRE_TRUE(p->t, p->used.len == want, "type %u: length %u", type, p->used.len);
	/* Drivers ignore a length without WRITE (2.8.4). */
	REQUIRE_TRUE(p->t, p->q->used_flags & DESC_WRITE,
		     "type %u: length %u, but the used descriptor's flags are 0x%04x", type, want,
		     p->q->used_flags);
	REQUIRE_TRUE(p->t, !memcmp(rest, &p->q->ring[slot + 1], (len ? 2u : 1u) * 16u),
		     "type %u: more than the first descriptor of a chain was written", type);
	return a == ANSWER_OK || want == 0;
}

static void case_used(struct ring_test *t)
{
	struct probe p;

	if (!probe_open(t, RING_DISK, 64, &p))
		return;
	if (!used_flags(&p, BLK_IN, 0, 4096, 4097) || !used_flags(&p, BLK_OUT, 0, 4096, 1) ||
	    !used_flags(&p, BLK_FLUSH, 0, 0, 1))
		return;
	probe_header(&p, BLK_IN, 0);
	guest_desc(p.q, 0, p.header, 16, 0, 0);
	REQUIRE(t, probe_send(&p, 0) == ANSWER_LEN0, "a header alone");
	if (p.q->used_flags & DESC_WRITE)
		tap_diag("a header alone: the used descriptor has WRITE, and length 0");
}

/* ---- tables ---- */

/* The ring as a table: its entries are what rounds before have left. */
static void case_own_ring(struct ring_test *t)
{
	const unsigned any = ANSWER_OK | ANSWER_UNSUPP | ANSWER_FAILED | ANSWER_WRONG;
	unsigned i, len;
	struct probe p;

	if (!probe_open(t, RING_DISK, 64, &p))
		return;
	for (i = 0; i < 30 && !t->failed; i++) {
		len = i % 3 == 0 ? 16 * 64 : i % 3 == 1 ? 48 : 16;
		probe_header(&p, BLK_IN, 0);
		guest_desc(p.q, 0, p.q->desc_gpa + 16 * (i % 4), len, DESC_INDIRECT, 0);
		probe_settle(&p, probe_send(&p, 0), any, "a table that is the ring");
	}
}

/* A driver that reads NEXT in a table, or looks for ids there, would fail here. */
static void case_table_flags(struct ring_test *t)
{
	static const unsigned junk[] = { DESC_NEXT, DESC_AVAIL, DESC_USED, MARK | DESC_NEXT };
	struct probe p;
	unsigned i;

	if (!probe_open(t, RING_DISK, 8, &p))
		return;
	for (i = 0; i < 4 && !t->failed; i++) {
		probe_header(&p, BLK_IN, 0);
		guest_table(p.g, p.table, 0, p.header, 16, junk[i], 0xffff);
		guest_table(p.g, p.table, 1, p.data, 512, DESC_WRITE | junk[i], 0);
		guest_table(p.g, p.table, 2, p.status, 1, DESC_WRITE | junk[i], 0x7fff);
		guest_desc(p.q, 0, p.table, 48, DESC_INDIRECT | (i & 1 ? DESC_WRITE : 0u), 0);
		probe_settle(&p, probe_send(&p, 0), ANSWER_OK, "flags other than WRITE in a table");
	}
	if (t->failed)
		return;
	probe_header(&p, BLK_IN, 0);
	guest_table(p.g, p.table, 0, p.header, 16, 0, 0);
	guest_table(p.g, p.table, 1, p.table + 64, 32, DESC_INDIRECT, 0);
	guest_table(p.g, p.table + 64, 0, p.data, 512, DESC_WRITE, 0);
	guest_table(p.g, p.table + 64, 1, p.status, 1, DESC_WRITE, 0);
	guest_desc(p.q, 0, p.table, 32, DESC_INDIRECT, 0);
	probe_settle(&p, probe_send(&p, 0), ANSWER_FAILED, "a table in a table");
}

const struct ring_case ring_packed_cases[] = {
	{ "PACK 61: ids beyond the ring break it, and nothing else", case_61, false, true },
	{ "the id is that of a chain's last descriptor", case_id_of_last, false, true },
	{ "PACK 61: one id twice in flight breaks the ring", case_61_twice, false, true },
	{ "PACK 63: ring of 4: chains of 4, 4, 1", case_63, false, true },
	{ "PACK 63: a chain as long as the ring, from every slot", case_every_offset, false, true },
	{ "full rings of 2 to 32768, most no power of two", case_sizes, false, true },
	{ "NEXT for ever ends", case_endless, false, true },
	{ "NEXT into a descriptor that is not available", case_next_unavailable, false, true },
	{ "only the right AVAIL and USED make available", case_marks, false, true },
	{ "marks of the next round are not followed", case_next_round, false, true },
	{ "reserved flags", case_reserved_flags, false, true },
	{ "used descriptors: WRITE says that there is a length", case_used, false, true },
	{ "a table that is the ring", case_own_ring, false, true },
	{ "flags and ids in a table mean nothing", case_table_flags, false, true },
	{ 0 },
};
