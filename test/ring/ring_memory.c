/* Buffers at and across the edges of guest memory, and memory that changes under the device. */
#define _GNU_SOURCE 1
#include "ring/ring.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#define MEM_END (GUEST_BASE + (8u << 20))

static void outside(struct probe *p, unsigned i, uint64_t addr, uint32_t len, unsigned flags,
		    unsigned allowed, const char *what)
{
	if (p->t->failed)
		return;
	probe_plain(p, BLK_IN, 0, 512);
	guest_desc(p->q, i, addr, len, flags, i + 1);
	probe_expect(p, 0, allowed, what);
}

static void case_49(struct ring_test *t)
{
	const unsigned in = DESC_NEXT | DESC_WRITE;
	struct probe p;

	if (!probe_open(t, RING_DISK, 64, &p))
		return;
	outside(&p, 1, MEM_END - 512, 4096, in, ANSWER_FAILED, "data half outside");
	outside(&p, 1, MEM_END, 512, in, ANSWER_FAILED, "data outside");
	outside(&p, 1, GUEST_BASE - 512, 1024, in, ANSWER_FAILED, "data begins outside");
	outside(&p, 1, UINT64_MAX - 511, 1024, in, ANSWER_FAILED, "data wraps");
	outside(&p, 1, 0, 512, in, ANSWER_FAILED, "data at 0");
	outside(&p, 2, MEM_END, 1, DESC_WRITE, ANSWER_MALFORMED, "status outside");
	outside(&p, 2, MEM_END - 1, 2, DESC_WRITE, ANSWER_MALFORMED, "status half outside");
	outside(&p, 0, MEM_END - 8, 16, DESC_NEXT, ANSWER_FAILED, "header ends outside");
	outside(&p, 0, MEM_END, 16, DESC_NEXT, ANSWER_FAILED, "header outside");
	outside(&p, 0, UINT64_MAX - 7, 16, DESC_NEXT, ANSWER_FAILED, "header wraps");
	outside(&p, 0, MEM_END - 16, 48, DESC_INDIRECT, ANSWER_MALFORMED, "table half outside");
	outside(&p, 0, MEM_END + 4096, 48, DESC_INDIRECT, ANSWER_MALFORMED, "table outside");
	outside(&p, 0, UINT64_MAX - 15, 48, DESC_INDIRECT, ANSWER_MALFORMED, "table wraps");
	if (t->failed)
		return;
	probe_plain(&p, BLK_OUT, 0, 512);
	guest_desc(p.q, 1, MEM_END - 512, 4096, DESC_NEXT, 2);
	probe_expect(&p, 0, ANSWER_FAILED, "written data half outside");
}

static void case_60(struct ring_test *t)
{
	uint64_t seed = 60, last = MEM_END - 4096;
	uint8_t want[4096], *end;
	struct probe p;

	if (!probe_open(t, RING_DISK, 64, &p))
		return;
	end = guest_ptr(p.g, last);
	ring_random_fill(&seed, want, sizeof(want));
	memcpy(end, want, sizeof(want));
	probe_plain(&p, BLK_OUT, 8, 4096);
	guest_desc(p.q, 1, last, 4096, DESC_NEXT, 2);
	if (!probe_expect(&p, 0, ANSWER_OK, "write from the last 4 KiB"))
		return;
	memset(end, 0, 4096);
	probe_plain(&p, BLK_IN, 8, 4096);
	guest_desc(p.q, 1, last, 4096, DESC_NEXT | DESC_WRITE, 2);
	if (!probe_expect(&p, 0, ANSWER_OK, "read into the last 4 KiB"))
		return;
	REQUIRE(t, !memcmp(end, want, sizeof(want)), "the last 4 KiB of memory hold other data");
	p.status = MEM_END - 1;
	end[4095] = BLK_NO_STATUS;
	guest_desc(p.q, 1, p.data, 512, DESC_NEXT | DESC_WRITE, 2);
	guest_desc(p.q, 2, p.status, 1, DESC_WRITE, 0);
	REQUIRE(t, probe_send(&p, 0) == ANSWER_OK && end[4095] == BLK_OK,
		"status in the last byte of memory was not written");
}

/* A read or a write of @len at @gpa, everything else where the probe has it. */
static bool rw_at(struct probe *p, uint32_t type, uint64_t gpa, uint32_t len, const char *what)
{
	enum answer a;

	probe_plain(p, type, 16, len);
	guest_desc(p->q, 1, gpa, len, DESC_NEXT | (type == BLK_IN ? DESC_WRITE : 0u), 2);
	a = probe_send(p, 0);
	REQUIRE_TRUE(p->t, a == ANSWER_OK, "%s: %s", what, answer_name(a));
	return true;
}

static void cross_data(struct probe *p, uint64_t border, int before, const char *what)
{
	uint64_t seed = 50, gpa = border - (uint64_t)before;
	uint8_t want[8192];

	ring_random_fill(&seed, want, sizeof(want));
	memcpy(guest_ptr(p->g, gpa), want, sizeof(want));
	if (p->t->failed || !rw_at(p, BLK_OUT, gpa, sizeof(want), what))
		return;
	memset(guest_ptr(p->g, gpa), 0, sizeof(want));
	if (!rw_at(p, BLK_IN, gpa, sizeof(want), what))
		return;
	REQUIRE(p->t, !memcmp(guest_ptr(p->g, gpa), want, sizeof(want)), "%s: other data", what);
	memset(guest_ptr(p->g, p->data), 0, sizeof(want));
	if (!rw_at(p, BLK_IN, p->data, sizeof(want), what))
		return;
	REQUIRE(p->t, !memcmp(guest_ptr(p->g, p->data), want, sizeof(want)),
		"%s: other data on the disk", what);
}

/* Two regions adjacent for the guest, on memfds of their own. */
static struct guest *open_two_regions(struct ring_test *t, const char *ctrlr, uint64_t first,
				      uint64_t second)
{
	char path[256];
	struct guest *g;
	int rc;

	daemon_socket(&t->env->daemon, ctrlr, path, sizeof(path));
	rc = guest_connect(path, &g);
	if (rc) {
		ring_fail(t, "cannot connect: %s", strerror(-rc));
		return NULL;
	}
	ring_keep(t, g);
	rc = guest_negotiate(g,
			     GUEST_FEATURES | VIRTIO_INDIRECT_DESC |
				     (t->packed ? VIRTIO_RING_PACKED : 0),
			     GUEST_PROTOCOL);
	if (!rc)
		rc = guest_mem_add(g, GUEST_BASE, first, false);
	if (!rc)
		rc = guest_mem_add(g, GUEST_BASE + first, second, false);
	if (!rc)
		rc = guest_mem_share(g);
	if (!rc)
		rc = guest_queue_setup(g, 0, 64, NULL);
	if (!rc)
		rc = guest_queue_start(g->queue[0], guest_queue_first(g->queue[0]));
	if (rc)
		ring_fail(t, "cannot set up two regions: %s", strerror(-rc));
	return rc ? NULL : g;
}

static void cross_header_and_table(struct probe *p, uint64_t border)
{
	uint64_t header = p->header, table = p->table;

	p->header = border - 5;
	probe_plain(p, BLK_IN, 16, 512);
	if (!probe_expect(p, 0, ANSWER_OK, "header across two regions"))
		return;
	p->header = header;
	p->table = border - 24;
	probe_header(p, BLK_IN, 16);
	guest_table(p->g, p->table, 0, p->header, 16, DESC_NEXT, 1);
	guest_table(p->g, p->table, 1, p->data, 512, DESC_NEXT | DESC_WRITE, 2);
	guest_table(p->g, p->table, 2, p->status, 1, DESC_WRITE, 0);
	guest_desc(p->q, 0, p->table, 48, DESC_INDIRECT, 0);
	probe_expect(p, 0, ANSWER_OK, "table across two regions");
	p->table = table;
}

static void case_50_on(struct ring_test *t, const char *ctrlr)
{
	uint64_t border = GUEST_BASE + (4u << 20);
	struct guest *g = open_two_regions(t, ctrlr, 4u << 20, 4u << 20);
	struct probe p;

	if (!g || !probe_on(t, g->queue[0], &p))
		return;
	cross_data(&p, border, 4096, "8 KiB across two regions");
	cross_data(&p, border, 1, "one byte before the border");
	cross_data(&p, border, 8191, "one byte behind the border");
	cross_data(&p, border, 777, "at an odd address across two regions");
	if (!t->failed)
		cross_header_and_table(&p, border);
}

static void case_50(struct ring_test *t)
{
	case_50_on(t, RING_DISK);
	if (!t->failed)
		case_50_on(t, RING_FILE);
}

/* ---- values that change while the device looks at them ---- */

struct flipper {
	pthread_t thread;
	volatile bool stop;
	volatile uint32_t *len;	      /* 512 <-> 0x7ffff000 */
	volatile uint32_t *type;      /* IN <-> OUT */
	volatile uint64_t *sector;    /* 0 <-> capacity */
	volatile uint32_t *table_len; /* 48 <-> 16 */
	uint64_t capacity;
};

static void *flip(void *arg)
{
	struct flipper *f = arg;
	unsigned i;

	for (i = 0; !f->stop; i++) {
		*f->len = i & 1 ? 512 : 0x7ffff000;
		*f->type = i & 2 ? BLK_IN : BLK_OUT;
		*f->sector = i & 4 ? 0 : f->capacity;
		*f->table_len = i & 8 ? 48 : 16;
	}
	return NULL;
}

static void flip_fields(struct probe *p, struct flipper *f, bool indirect)
{
	static volatile uint32_t nowhere;
	uint8_t *table = guest_ptr(p->g, p->table);
	/* A chain of 3 in a packed ring of 3 lies in the same place each time. */
	uint8_t *ring = p->q->packed ? (uint8_t *)p->q->ring : (uint8_t *)p->q->desc;
	uint8_t *desc1 = (indirect ? table : ring) + 16;
	uint8_t *header = guest_ptr(p->g, p->header);

	probe_plain(p, BLK_IN, 0, 512);
	guest_table(p->g, p->table, 0, p->header, 16, DESC_NEXT, 1);
	guest_table(p->g, p->table, 1, p->data, 512, DESC_NEXT | DESC_WRITE, 2);
	guest_table(p->g, p->table, 2, p->status, 1, DESC_WRITE, 0);
	if (indirect)
		guest_desc(p->q, 0, p->table, 48, DESC_INDIRECT, 0);
	else
		guest_desc(p->q, 1, p->data, 512, DESC_NEXT | DESC_WRITE, 2);
	*f = (struct flipper){ .capacity = p->g->config.capacity };
	f->len = (uint32_t *)(void *)(desc1 + 8);
	f->type = (uint32_t *)(void *)header;
	f->sector = (uint64_t *)(void *)(header + 8);
	/* A direct chain has no table, and in a packed ring the device writes where its length is.
	 */
	f->table_len = indirect && !p->q->packed ? &p->q->desc[0].len : &nowhere;
}

/* The flips must not hide a request that got lost: would another kick have helped? */
static void flip_silent(struct probe *p, unsigned round)
{
	bool helped;

	guest_kick(p->q);
	helped = !guest_used_wait(p->q, &p->used, PROBE_ANSWER_MS);
	ring_fail(p->t, "round %u: no answer in %u ms%s", round, PROBE_ANSWER_MS,
		  helped ? ", but after another kick" : ", nor after another kick");
}

static void flip_begin(struct probe *p, struct flipper *f, bool indirect)
{
	flip_fields(p, f, indirect);
	pthread_create(&f->thread, NULL, flip, f);
}

static void flip_end(struct flipper *f)
{
	f->stop = true;
	pthread_join(f->thread, NULL);
}

static void flip_run(struct probe *p, bool indirect, unsigned rounds)
{
	unsigned seen[ANSWER_WRONG + 1] = { 0 }, i;
	struct ring_test *t = p->t;
	struct flipper f;
	enum answer a;
	int rc;

	flip_begin(p, &f, indirect);
	for (i = 0; i < rounds && !t->failed && seen[ANSWER_BROKEN] < 10; i++) {
		*(volatile uint8_t *)guest_ptr(p->g, p->status) = BLK_NO_STATUS;
		a = probe_send(p, 0);
		seen[a]++;
		if (a == ANSWER_WRONG)
			ring_fail(t, "round %u: %s (head %u, length %u)", i, answer_name(a),
				  p->used.id, p->used.len);
		if (a == ANSWER_SILENT)
			flip_silent(p, i);
		if (a != ANSWER_BROKEN)
			continue;
		flip_end(&f);
		rc = guest_queue_restart(p->q);
		if (rc)
			ring_fail(t, "cannot restart the queue: %s", strerror(-rc));
		flip_begin(p, &f, indirect);
	}
	flip_end(&f);
	tap_diag("%u %s rounds: OK %u, IOERR %u, UNSUPP %u, length 0 %u, given up %u", i,
		 indirect ? "indirect" : "direct", seen[ANSWER_OK], seen[ANSWER_IOERR],
		 seen[ANSWER_UNSUPP], seen[ANSWER_LEN0], seen[ANSWER_BROKEN]);
}

static void case_52(struct ring_test *t)
{
	unsigned rounds = t->env->long_run ? 500000 : 30000;
	struct probe p;

	if (!probe_open(t, RING_DISK, t->packed ? 3 : 64, &p))
		return;
	flip_run(&p, false, rounds);
	if (t->failed || !probe_guards(&p, "direct"))
		return;
	flip_run(&p, true, rounds);
	if (!t->failed && probe_guards(&p, "indirect"))
		probe_good(&p, "after the flips");
}

/* ---- memory that shrinks ---- */

#define SHRINK_FIRST  (2u << 20)
#define SHRINK_SECOND (16u << 20)
#define SHRINK_DEPTH  16u

static void shrink_submit(struct guest *g, struct guest_req *r, unsigned n)
{
	r->data = GUEST_BASE + SHRINK_FIRST + n % 64 * 131072 + n % 7;
	guest_req_submit(g->queue[0], r, n & 1 ? BLK_IN : BLK_OUT, n % 256 * 256, 131072);
	guest_notify(g->queue[0]);
}

static void shrink_data(struct ring_test *t, const char *ctrlr)
{
	struct guest *g = open_two_regions(t, ctrlr, SHRINK_FIRST, SHRINK_SECOND);
	struct guest_req req[SHRINK_DEPTH], *r;
	unsigned i, n = 0, ok = 0, bad = 0, gone = 0;

	if (!g)
		return;
	for (i = 0; i < SHRINK_DEPTH; i++) {
		REQUIRE(t, !guest_req_init(g, &req[i], 0), "guest memory is full");
		shrink_submit(g, &req[i], n++);
	}
	for (i = 0; i < 400; i++) {
		if (i == 200 && ftruncate(g->region[1].fd, 0))
			ring_fail(t, "cannot shrink: %s", strerror(errno));
		if (guest_req_wait(g->queue[0], 1000, &r)) {
			gone++;
			break;
		}
		if (guest_req_status(g, r) == BLK_OK)
			ok++;
		else
			bad++;
		shrink_submit(g, r, n++);
	}
	tap_diag("%s: %u requests OK, %u failed%s", ctrlr, ok, bad,
		 gone ? ", then no more answers" : "");
	REQUIRE(t, ok >= 100, "only %u requests OK before the memory went", ok);
	REQUIRE(t, daemon_alive(&t->env->daemon),
		"%s: the daemon died when its guest's data "
		"memory shrank",
		ctrlr);
	ring_close(t, g);
}

/* From here on this process may not touch the guest's memory either. */
static void shrink_rings(struct ring_test *t, const char *ctrlr)
{
	struct guest *g = open_two_regions(t, ctrlr, SHRINK_FIRST, SHRINK_SECOND);
	struct guest_req req[SHRINK_DEPTH];
	unsigned i;

	if (!g)
		return;
	for (i = 0; i < SHRINK_DEPTH; i++) {
		REQUIRE(t, !guest_req_init(g, &req[i], 0), "guest memory is full");
		shrink_submit(g, &req[i], i);
	}
	REQUIRE(t, !ftruncate(g->region[0].fd, 0), "cannot shrink: %s", strerror(errno));
	/* Long enough for slow requests to complete into the rings that are gone. */
	for (i = 0; i < 100; i++) {
		guest_kick(g->queue[0]);
		usleep(4000);
	}
	REQUIRE(t, daemon_alive(&t->env->daemon),
		"%s: the daemon died when the memory of its "
		"guest's rings shrank",
		ctrlr);
	ring_close(t, g);
}

static void case_shrink(struct ring_test *t)
{
	struct probe p;

	shrink_data(t, RING_DISK);
	if (!t->failed)
		shrink_data(t, RING_FILE);
	if (!t->failed && probe_open(t, RING_DISK, 64, &p))
		probe_good(&p, "a new guest after data memory shrank");
}

static void case_shrink_rings(struct ring_test *t)
{
	struct probe p;

	shrink_rings(t, RING_DISK);
	if (!t->failed)
		shrink_rings(t, RING_FILE);
	if (!t->failed)
		shrink_rings(t, RING_SLOW);
	if (!t->failed && probe_open(t, RING_DISK, 64, &p))
		probe_good(&p, "a new guest after ring memory shrank");
}

const struct ring_case ring_memory_cases[] = {
	{ "RING 49: buffers partly outside guest memory", case_49, false, true },
	{ "RING 50: buffers across two adjacent regions", case_50, false, true },
	{ "RING 52: fields that change while they are read", case_52, true, true },
	{ "RING 60: buffers that end where memory ends", case_60, false, true },
	{ "memory with data shrinks under the daemon", case_shrink, true, true },
	{ "memory with rings shrinks under the daemon", case_shrink_rings, true, true },
	{ 0 },
};
