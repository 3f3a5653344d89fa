/* Malformed, unusual and limit-long descriptor chains. VIRTIO 1.3, section 2.7.5. */
#include "ring/ring.h"

static void loop_case(struct probe *p, unsigned len, unsigned next, const char *what)
{
	if (p->t->failed)
		return;
	probe_header(p, BLK_IN, 0);
	guest_desc(p->q, 0, p->header, len, DESC_NEXT, next);
	guest_desc(p->q, 1, p->data, len, DESC_NEXT, 0);
	probe_expect(p, 0, ANSWER_MALFORMED, what);
}

static void case_36(struct ring_test *t)
{
	struct probe p;

	if (!probe_open(t, RING_DISK, 64, &p))
		return;
	loop_case(&p, 16, 0, "self loop of 16 bytes");
	loop_case(&p, 0, 0, "self loop of 0 bytes");
	loop_case(&p, 16, 1, "0 -> 1 -> 0");
	loop_case(&p, 0, 1, "0 -> 1 -> 0 of 0 bytes");
	loop_case(&p, 16, 64, "next = queue size");
	loop_case(&p, 16, 0xffff, "next = 0xffff");
}

static void case_36_writable(struct ring_test *t)
{
	struct probe p;

	if (!probe_open(t, RING_DISK, 64, &p))
		return;
	probe_plain(&p, BLK_IN, 0, 512);
	guest_desc(p.q, 1, p.data, 512, DESC_NEXT | DESC_WRITE, 1);
	if (!probe_expect(&p, 0, ANSWER_MALFORMED, "loop of a writable descriptor"))
		return;
	probe_header(&p, BLK_IN, 0);
	guest_desc(p.q, 0, p.table, 32, DESC_INDIRECT, 0);
	guest_table(p.g, p.table, 0, p.header, 16, DESC_NEXT, 1);
	guest_table(p.g, p.table, 1, p.data, 512, DESC_NEXT | DESC_WRITE, 0);
	if (!probe_expect(&p, 0, ANSWER_MALFORMED, "loop in a table"))
		return;
	probe_header(&p, BLK_IN, 0);
	guest_desc(p.q, 0, p.table, 32, DESC_INDIRECT, 0);
	guest_table(p.g, p.table, 1, p.data, 512, DESC_NEXT | DESC_WRITE, 2);
	probe_expect(&p, 0, ANSWER_MALFORMED, "next = size of the table");
}

static void case_39(struct ring_test *t)
{
	struct probe p;
	unsigned i;

	if (!probe_open(t, RING_DISK, 64, &p))
		return;
	for (i = 0; i < 64; i++) {
		probe_header(&p, BLK_IN, 0);
		guest_desc(p.q, i, p.header, 16, 0, 0);
		guest_avail(p.q, i);
	}
	guest_notify(p.q);
	for (i = 0; i < 64; i++) {
		REQUIRE(t, !guest_used_wait(p.q, &p.used, PROBE_ANSWER_MS),
			"head %u of 64 did not come back", i);
		REQUIRE(t, p.used.id == i && p.used.len == 0, "head %u came back as %u, length %u",
			i, p.used.id, p.used.len);
	}
	probe_good(&p, "64 headers without more");
}

static void indirect_len(struct probe *p, uint64_t table, uint32_t len, const char *what)
{
	if (p->t->failed)
		return;
	probe_header(p, BLK_IN, 0);
	guest_table(p->g, table, 0, p->header, 16, DESC_NEXT, 1);
	guest_table(p->g, table, 1, p->data, 512, DESC_NEXT | DESC_WRITE, 2);
	guest_table(p->g, table, 2, p->status, 1, DESC_WRITE, 0);
	guest_desc(p->q, 0, table, len, DESC_INDIRECT, 0);
	probe_expect(p, 0, ANSWER_MALFORMED, what);
}

static void case_42(struct ring_test *t)
{
	uint64_t table;
	struct probe p;

	if (!probe_open(t, RING_DISK, 64, &p))
		return;
	table = guest_alloc(p.g, 16 * 65536, 16);
	REQUIRE(t, table, "guest memory is full");
	indirect_len(&p, table, 24, "indirect length 24");
	indirect_len(&p, table, 0, "indirect length 0");
	indirect_len(&p, table, 15, "indirect length 15");
	indirect_len(&p, table, 16 * 65536, "indirect length 1 MiB");
	indirect_len(&p, table, 49, "indirect length 49");
	indirect_len(&p, table, 0xfffffff0u, "indirect length 4 GiB - 16");
}

static void case_43(struct ring_test *t)
{
	/* A packed chain has a table, or it has NEXT (2.8.19). */
	unsigned mixed = t->packed ? ANSWER_MALFORMED : ANSWER_OK;
	struct probe p;

	if (!probe_open(t, RING_DISK, 64, &p))
		return;
	probe_header(&p, BLK_IN, 0);
	guest_desc(p.q, 0, p.header, 16, DESC_NEXT, 1);
	guest_desc(p.q, 1, p.table, 32, DESC_INDIRECT, 0);
	guest_table(p.g, p.table, 0, p.data, 512, DESC_NEXT | DESC_WRITE, 1);
	guest_table(p.g, p.table, 1, p.status, 1, DESC_WRITE, 0);
	if (!probe_expect(&p, 0, mixed, "plain header, then a table"))
		return;
	probe_header(&p, BLK_IN, 0);
	guest_desc(p.q, 0, p.header, 16, DESC_NEXT, 1);
	guest_desc(p.q, 1, p.table, 32, DESC_INDIRECT | DESC_WRITE, 0);
	if (!probe_expect(&p, 0, mixed, "INDIRECT | WRITE"))
		return;
	probe_header(&p, BLK_IN, 0);
	guest_desc(p.q, 0, p.header, 16, DESC_NEXT, 1);
	guest_desc(p.q, 1, p.table, 32, DESC_INDIRECT | DESC_NEXT, 2);
	guest_desc(p.q, 2, p.status, 1, DESC_WRITE, 0);
	if (!probe_expect(&p, 0, ANSWER_MALFORMED, "INDIRECT | NEXT"))
		return;
	probe_header(&p, BLK_IN, 0);
	guest_desc(p.q, 0, p.header, 16, DESC_NEXT, 1);
	guest_desc(p.q, 1, p.table, 16, DESC_INDIRECT, 0);
	guest_table(p.g, p.table, 0, p.table + 64, 32, DESC_INDIRECT, 0);
	guest_table(p.g, p.table + 64, 0, p.data, 512, DESC_NEXT | DESC_WRITE, 1);
	guest_table(p.g, p.table + 64, 1, p.status, 1, DESC_WRITE, 0);
	/* Packed tables know no flag but WRITE: others may be ignored (2.8.7). */
	probe_expect(&p, 0, t->packed ? ANSWER_FAILED : ANSWER_MALFORMED,
		     "INDIRECT inside a table");
}

/* A table that is the ring's own: whoever tells the two apart by address never comes out. */
static void case_own_table(struct ring_test *t)
{
	struct probe p;

	if (!probe_open(t, RING_DISK, 64, &p))
		return;
	probe_plain(&p, BLK_IN, 0, 512);
	guest_desc(p.q, 0, p.q->desc_gpa, 16 * 64, DESC_INDIRECT, 0);
	if (!probe_expect(&p, 0, ANSWER_MALFORMED, "table that is the ring, with itself inside"))
		return;
	probe_plain(&p, BLK_IN, 0, 512);
	guest_desc(p.q, 5, p.q->desc_gpa, 16 * 3, DESC_INDIRECT, 0);
	if (!probe_expect(&p, 5, ANSWER_OK | ANSWER_MALFORMED, "table that is the ring"))
		return;
	probe_header(&p, BLK_IN, 0);
	guest_desc(p.q, 0, p.header, 16, DESC_NEXT, 1);
	guest_desc(p.q, 1, p.q->desc_gpa + 16, 16, DESC_INDIRECT, 0);
	probe_expect(&p, 0, ANSWER_MALFORMED, "table that is its own descriptor");
}

static bool table_at(struct probe *p, uint64_t table, const char *what)
{
	probe_header(p, BLK_IN, 0);
	guest_table(p->g, table, 0, p->header, 16, DESC_NEXT, 1);
	guest_table(p->g, table, 1, p->data, 4096, DESC_NEXT | DESC_WRITE, 2);
	guest_table(p->g, table, 2, p->status, 1, DESC_WRITE, 0);
	guest_desc(p->q, 0, table, 48, DESC_INDIRECT, 0);
	return probe_expect(p, 0, ANSWER_OK, what);
}

static void case_44(struct ring_test *t)
{
	struct probe p;

	if (probe_open(t, RING_DISK, 64, &p) && table_at(&p, p.table + 8, "table at 8 modulo 16"))
		table_at(&p, p.table + 1, "table at 1 modulo 16");
}

/* The part of a read behind its header: n - 1 sectors and the status. */
static void fill_tail(struct probe *p, uint64_t table, unsigned n)
{
	unsigned i;

	for (i = 0; i < n - 1; i++)
		guest_table(p->g, table, i, p->data + 512ull * (i % 128), 512,
			    DESC_NEXT | DESC_WRITE, i + 1);
	guest_table(p->g, table, n - 1, p->status, 1, DESC_WRITE, 0);
}

/* A read of n - 2 sectors in a table of n entries. */
static void fill_table(struct probe *p, uint64_t table, unsigned n)
{
	unsigned i;

	guest_table(p->g, table, 0, p->header, 16, DESC_NEXT, 1);
	for (i = 1; i < n - 1; i++)
		guest_table(p->g, table, i, p->data + 512ull * (i % 128), 512,
			    DESC_NEXT | DESC_WRITE, i + 1);
	guest_table(p->g, table, n - 1, p->status, 1, DESC_WRITE, 0);
}

/* The same in the ring itself. */
static void fill_ring(struct probe *p, unsigned n)
{
	unsigned i;

	guest_desc(p->q, 0, p->header, 16, DESC_NEXT, 1);
	for (i = 1; i < n - 1; i++)
		guest_desc(p->q, i, p->data + 512ull * (i % 128), 512, DESC_NEXT | DESC_WRITE,
			   i + 1);
	guest_desc(p->q, n - 1, p->status, 1, DESC_WRITE, 0);
}

static void case_45(struct ring_test *t)
{
	struct probe p;

	if (!probe_open(t, RING_DISK, 8, &p))
		return;
	probe_header(&p, BLK_IN, 0);
	fill_ring(&p, 8);
	if (!probe_expect(&p, 0, ANSWER_OK, "chain of 8 in a queue of 8"))
		return;
	probe_header(&p, BLK_IN, 0);
	fill_table(&p, p.table, 8);
	guest_desc(p.q, 0, p.table, 128, DESC_INDIRECT, 0);
	if (!probe_expect(&p, 0, ANSWER_OK, "table of 8 in a queue of 8"))
		return;
	probe_header(&p, BLK_IN, 0);
	fill_table(&p, p.table, 9);
	guest_desc(p.q, 0, p.table, 144, DESC_INDIRECT, 0);
	if (!probe_expect(&p, 0, ANSWER_MALFORMED, "table of 9 in a queue of 8"))
		return;
	probe_header(&p, BLK_IN, 0);
	fill_tail(&p, p.table, 7);
	guest_desc(p.q, 0, p.header, 16, DESC_NEXT, 1);
	guest_desc(p.q, 1, p.table, 112, DESC_INDIRECT, 0);
	if (!probe_expect(&p, 0, t->packed ? ANSWER_MALFORMED : ANSWER_OK,
			  "header and a table of 7 in a queue of 8"))
		return;
	probe_header(&p, BLK_IN, 0);
	fill_tail(&p, p.table, 8);
	guest_desc(p.q, 0, p.header, 16, DESC_NEXT, 1);
	guest_desc(p.q, 1, p.table, 128, DESC_INDIRECT, 0);
	probe_expect(&p, 0, ANSWER_MALFORMED, "header and a table of 8 in a queue of 8");
}

/* seg_max promises a chain of seg_max + 2 to every driver, whatever the size of its ring. */
static void case_seg_max(struct ring_test *t)
{
	unsigned n;
	struct probe p;

	if (!probe_open(t, RING_DISK, 64, &p))
		return;
	n = p.g->config.seg_max + 2;
	if (n > 256)
		n = 256;
	probe_header(&p, BLK_IN, 0);
	fill_table(&p, p.table, n);
	guest_desc(p.q, 0, p.table, 16 * n, DESC_INDIRECT, 0);
	if (!probe_expect(&p, 0, ANSWER_OK, "table of seg_max + 2 in a queue of 64"))
		return;
	probe_header(&p, BLK_IN, 0);
	fill_ring(&p, 64);
	probe_expect(&p, 0, n >= 64 ? ANSWER_OK : ANSWER_OK | ANSWER_IOERR,
		     "chain of 64 in a queue of 64");
}

static void empty_desc(struct probe *p, uint64_t addr, unsigned flags, const char *what)
{
	if (p->t->failed)
		return;
	probe_header(p, BLK_IN, 0);
	guest_desc(p->q, 0, p->header, 16, DESC_NEXT, 1);
	guest_desc(p->q, 1, addr, 0, DESC_NEXT | flags, 2);
	guest_desc(p->q, 2, p->data, 512, DESC_NEXT | DESC_WRITE, 3);
	guest_desc(p->q, 3, p->status, 1, DESC_WRITE, 0);
	probe_expect(p, 0, ANSWER_OK | ANSWER_FAILED, what);
}

static void case_57(struct ring_test *t)
{
	struct probe p;

	if (!probe_open(t, RING_DISK, 64, &p))
		return;
	empty_desc(&p, UINT64_MAX, DESC_WRITE, "empty writable descriptor at 2^64 - 1");
	empty_desc(&p, UINT64_MAX, 0, "empty readable descriptor at 2^64 - 1");
	empty_desc(&p, 0, DESC_WRITE, "empty writable descriptor at 0");
	empty_desc(&p, 0, 0, "empty readable descriptor at 0");
	if (t->failed)
		return;
	probe_plain(&p, BLK_IN, 0, 512);
	guest_desc(p.q, 2, p.status, 1, DESC_WRITE | DESC_NEXT, 3);
	guest_desc(p.q, 3, UINT64_MAX, 0, DESC_WRITE, 0);
	probe_expect(&p, 0, ANSWER_OK | ANSWER_FAILED, "empty descriptor after the status byte");
}

static void case_59(struct ring_test *t)
{
	struct guest_params params = { .queue_size = 64, .indirect = false };
	struct guest *g = ring_open(t, RING_DISK, params);
	struct probe p;

	if (!g || !probe_on(t, g->queue[0], &p))
		return;
	table_at(&p, p.table, "INDIRECT that was not negotiated");
}

static void case_huge_total(struct ring_test *t)
{
	struct probe p;
	unsigned i;

	if (!probe_open(t, RING_DISK, 64, &p))
		return;
	/* 60 times 7 MiB of the same memory are more bytes than the disk has. */
	probe_header(&p, BLK_OUT, 0);
	guest_desc(p.q, 0, p.header, 16, DESC_NEXT, 1);
	for (i = 1; i <= 60; i++)
		guest_desc(p.q, i, GUEST_BASE, 7u << 20, DESC_NEXT, i + 1);
	guest_desc(p.q, 61, p.status, 1, DESC_WRITE, 0);
	if (!probe_expect(&p, 0, ANSWER_FAILED, "420 MiB in one request"))
		return;
	/* Their sum wraps in 32 bits to something small. */
	probe_header(&p, BLK_IN, 0);
	for (i = 1; i <= 60; i++)
		guest_desc(p.q, i, GUEST_BASE, 0x80000000u, DESC_NEXT | DESC_WRITE, i + 1);
	probe_expect(&p, 0, ANSWER_FAILED, "60 descriptors of 2 GiB");
}

const struct ring_case ring_chain_cases[] = {
	{ "RING 36: descriptor loops and next out of range", case_36, true, false },
	{ "RING 36: loops of writable and indirect descriptors", case_36_writable, false, false },
	{ "RING 39: chains of a header only", case_39, false, true },
	{ "RING 42: indirect lengths", case_42, false, true },
	{ "RING 43: plain and indirect mixed, WRITE ignored, no nesting", case_43, false, true },
	{ "indirect tables that lie in the ring's own table", case_own_table, false, false },
	{ "RING 44: unaligned indirect tables", case_44, false, true },
	{ "RING 45: chain limit", case_45, false, true },
	{ "chain of seg_max + 2 in a table, chain as long as the ring", case_seg_max, false, true },
	{ "RING 57: empty descriptors at invalid addresses", case_57, false, true },
	{ "RING 59: INDIRECT without negotiation", case_59, false, true },
	{ "chains longer than the disk and than 4 GiB", case_huge_total, false, true },
	{ 0 },
};
