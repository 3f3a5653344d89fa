/* Requests in unusual shapes, and what comes back with them. VIRTIO 1.3, section 5.2.6. */
#include "ring/ring.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

static uint64_t file_size(struct ring_test *t)
{
	struct stat st;

	return stat(t->env->file, &st) ? 0 : (uint64_t)st.st_size;
}

/* A request of eight descriptors of 512 bytes each. */
static void eight(struct probe *p, uint32_t type, uint64_t sector, unsigned allowed,
		  const char *what)
{
	unsigned i;

	if (p->t->failed)
		return;
	probe_header(p, type, sector);
	guest_desc(p->q, 0, p->header, 16, DESC_NEXT, 1);
	for (i = 1; i <= 8; i++)
		guest_desc(p->q, i, p->data + 512 * i, 512,
			   DESC_NEXT | (type == BLK_IN ? DESC_WRITE : 0u), i + 1);
	guest_desc(p->q, 9, p->status, 1, DESC_WRITE, 0);
	probe_expect(p, 0, allowed, what);
}

static void case_41(struct ring_test *t)
{
	uint64_t cap = RING_DISK_SECTORS, before = file_size(t);
	struct probe p;

	if (!probe_open(t, RING_FILE, 64, &p))
		return;
	REQUIRE(t, p.g->config.capacity == cap, "capacity is %llu",
		(unsigned long long)p.g->config.capacity);
	eight(&p, BLK_OUT, cap - 1, ANSWER_IOERR, "write of 8 sectors at capacity - 1");
	eight(&p, BLK_IN, cap - 1, ANSWER_IOERR, "read of 8 sectors at capacity - 1");
	eight(&p, BLK_OUT, cap - 7, ANSWER_IOERR, "write of 8 sectors at capacity - 7");
	eight(&p, BLK_OUT, cap - 8, ANSWER_OK, "write of the last 8 sectors");
	eight(&p, BLK_OUT, cap, ANSWER_IOERR, "write at capacity");
	eight(&p, BLK_OUT, UINT64_MAX, ANSWER_IOERR, "write at sector 2^64 - 1");
	eight(&p, BLK_OUT, UINT64_MAX - 7, ANSWER_IOERR, "write at sector 2^64 - 8");
	eight(&p, BLK_OUT, 1ull << 55, ANSWER_IOERR, "write at byte 2^64");
	eight(&p, BLK_IN, (1ull << 55) - 8, ANSWER_IOERR, "read that ends at byte 2^64");
	REQUIRE(t, t->failed || file_size(t) == before, "the file grew from %llu to %llu bytes",
		(unsigned long long)before, (unsigned long long)file_size(t));
}

static void case_74(struct ring_test *t)
{
	uint64_t seed = 74;
	uint8_t want[4096];
	struct probe p;
	unsigned i;

	if (!probe_open(t, RING_DISK, 64, &p))
		return;
	ring_random_fill(&seed, want, sizeof(want));
	/* Header and OUT data in one descriptor: the header goes right before the data. */
	p.header = p.data - 16;
	memcpy(guest_ptr(p.g, p.data), want, 4096);
	probe_plain(&p, BLK_OUT, 800, 4096);
	memset((uint8_t *)guest_ptr(p.g, p.data) - 16, 0, 16);
	*(struct blk_header *)guest_ptr(p.g, p.header) =
		(struct blk_header){ .type = BLK_OUT, .sector = 800 };
	guest_desc(p.q, 0, p.header, 16 + 4096, DESC_NEXT, 2);
	REQUIRE(t, probe_send(&p, 0) == ANSWER_OK, "header and data in one descriptor: failed");
	p.header = guest_alloc(p.g, 16, 16);

	/* Header as 16 descriptors of one byte. */
	memset(guest_ptr(p.g, p.data), 0, 4096);
	probe_header(&p, BLK_IN, 800);
	for (i = 0; i < 16; i++)
		guest_desc(p.q, i, p.header + i, 1, DESC_NEXT, i + 1);
	guest_desc(p.q, 16, p.data, 4096, DESC_NEXT | DESC_WRITE, 17);
	guest_desc(p.q, 17, p.status, 1, DESC_WRITE, 0);
	REQUIRE(t, probe_send(&p, 0) == ANSWER_OK, "header in 16 descriptors: failed");
	REQUIRE(t, !memcmp(guest_ptr(p.g, p.data), want, 4096),
		"header in 16 descriptors: other data");
	if (!probe_guards(&p, "header in 16 descriptors"))
		return;

	/* IN data and status in one descriptor. */
	probe_plain(&p, BLK_IN, 800, 4096);
	p.status = p.data + 4096;
	memset(guest_ptr(p.g, p.data), BLK_NO_STATUS, 4097);
	guest_desc(p.q, 1, p.data, 4097, DESC_WRITE, 0);
	REQUIRE(t, probe_send(&p, 0) == ANSWER_OK && p.used.len == 4097,
		"data and status in one descriptor: failed");
	REQUIRE(t, !memcmp(guest_ptr(p.g, p.data), want, 4096),
		"data and status in one descriptor: other data");
}

static void case_74_status(struct ring_test *t)
{
	static const uint32_t types[] = { BLK_IN, BLK_GET_ID, BLK_FLUSH };
	uint64_t seed = 75;
	uint8_t want[4096], *end;
	struct probe p;
	unsigned i;

	if (!probe_open(t, RING_DISK, 64, &p))
		return;
	ring_random_fill(&seed, want, sizeof(want));
	memcpy(guest_ptr(p.g, p.data), want, 4096);
	REQUIRE(t, probe_request(&p, BLK_OUT, 808, 4096) == ANSWER_OK, "write failed");
	/* One byte, then 4 KiB whose last byte is the status. */
	for (i = 0; i < 3; i++) {
		probe_header(&p, types[i], 808);
		p.status = p.data + 4096;
		end = guest_ptr(p.g, p.status);
		memset(guest_ptr(p.g, p.data), BLK_NO_STATUS, 4098);
		guest_desc(p.q, 0, p.header, 16, DESC_NEXT, 1);
		guest_desc(p.q, 1, p.data, 1, DESC_NEXT | DESC_WRITE, 2);
		guest_desc(p.q, 2, p.data + 1, 4096, DESC_WRITE, 0);
		/* A FLUSH with room for data is the driver's mistake; its status has a place. */
		REQUIRE(t, probe_send(&p, 0) & (types[i] == BLK_FLUSH ? 3 : ANSWER_OK),
			"type %u with its status at the end of 4 KiB: failed (status %u)", types[i],
			*end);
		REQUIRE(t, end[1] == BLK_NO_STATUS, "type %u: wrote behind its status", types[i]);
		REQUIRE(t, types[i] != BLK_IN || !memcmp(guest_ptr(p.g, p.data), want, 4096),
			"data of a read with its status at the end of 4 KiB differ");
	}
}

static void case_75(struct ring_test *t)
{
	struct probe p;

	if (!probe_open(t, RING_DISK, 64, &p))
		return;
	REQUIRE(t, probe_request(&p, BLK_IN, 0, 4096) == ANSWER_OK && p.used.len == 4097,
		"IN of 4 KiB: length %u", p.used.len);
	REQUIRE(t, probe_request(&p, BLK_OUT, 0, 4096) == ANSWER_OK && p.used.len == 1,
		"OUT: length %u", p.used.len);
	REQUIRE(t, probe_request(&p, BLK_FLUSH, 0, 0) == ANSWER_OK && p.used.len == 1,
		"FLUSH: length %u", p.used.len);
	REQUIRE(t, probe_request(&p, BLK_GET_ID, 0, 20) == ANSWER_OK && p.used.len == 21,
		"GET_ID: length %u", p.used.len);
	REQUIRE(t,
		probe_request(&p, BLK_IN, RING_DISK_SECTORS, 4096) == ANSWER_IOERR &&
			p.used.len >= 1 && p.used.len <= 4097,
		"failed IN: length %u", p.used.len);
	REQUIRE(t, probe_request(&p, 999, 0, 512) == ANSWER_UNSUPP && p.used.len >= 1,
		"unknown type: status not UNSUPP, or length %u", p.used.len);
}

/* GET_ID into a buffer of @size: no more than @size and 20 bytes, NUL padded. */
static bool get_id(struct probe *p, unsigned size, const char *serial)
{
	unsigned i, n = size < 20 ? size : 20, room = 600;
	char want[21] = "";
	uint8_t *data;
	enum answer a;

	/* Serials beyond 20 bytes are cut. */
	memcpy(want, serial, strnlen(serial, 20));
	data = guest_ptr(p->g, p->data);
	memset(data, 0xcc, room);
	a = probe_request(p, BLK_GET_ID, 0, size);
	REQUIRE_TRUE(p->t, a == ANSWER_OK || (size < 20 && a == ANSWER_IOERR),
		     "GET_ID of %u bytes: %s", size, answer_name(a));
	for (i = a == ANSWER_OK ? n : 0; i < room; i++)
		REQUIRE_TRUE(p->t, data[i] == 0xcc || (i < size && data[i] == 0),
			     "GET_ID of %u bytes wrote byte %u", size, i);
	REQUIRE_TRUE(p->t, a != ANSWER_OK || p->used.len == n + 1,
		     "GET_ID of %u bytes: length %u in the used ring", size, p->used.len);
	if (a == ANSWER_OK)
		REQUIRE_TRUE(p->t, !memcmp(data, want, n), "GET_ID of %u bytes: \"%.*s\"", size,
			     (int)n, (char *)data);
	return probe_guards(p, "GET_ID");
}

static void get_ids(struct ring_test *t, const char *ctrlr, const char *serial)
{
	static const unsigned sizes[] = { 0, 1, 19, 20, 21, 512 };
	char own[21] = "";
	struct probe p;
	unsigned i;

	if (!probe_open(t, ctrlr, 64, &p))
		return;
	if (!serial) { /* whatever the daemon says, it must say the same every time */
		REQUIRE(t, probe_request(&p, BLK_GET_ID, 0, 20) == ANSWER_OK, "GET_ID failed");
		memcpy(own, guest_ptr(p.g, p.data), 20);
		serial = own;
	}
	for (i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
		if (!get_id(&p, sizes[i], serial))
			return;
	ring_close(t, p.g);
}

static void case_76(struct ring_test *t)
{
	get_ids(t, RING_NOSERIAL, NULL);
	if (!t->failed)
		get_ids(t, RING_SERIAL20, RING_SERIAL);
	if (!t->failed && t->env->serial40)
		get_ids(t, RING_SERIAL40, RING_SERIAL);
	else
		tap_diag("the daemon refused a serial of 40 characters");
}

static void without_data(struct ring_test *t, const char *ctrlr)
{
	struct probe p;

	if (!probe_open(t, ctrlr, 64, &p))
		return;
	probe_plain(&p, BLK_IN, 0, 0);
	if (!probe_expect(&p, 0, ANSWER_IOERR | ANSWER_OK, "IN without data"))
		return;
	probe_plain(&p, BLK_OUT, 0, 0);
	if (!probe_expect(&p, 0, ANSWER_IOERR | ANSWER_OK, "OUT without data"))
		return;
	probe_plain(&p, BLK_IN, RING_DISK_SECTORS + 1, 0);
	if (!probe_expect(&p, 0, ANSWER_IOERR | ANSWER_OK, "IN without data beyond the end"))
		return;
	probe_plain(&p, BLK_IN, 0, 511);
	if (!probe_expect(&p, 0, ANSWER_IOERR, "IN of 511 bytes"))
		return;
	probe_plain(&p, BLK_OUT, 0, 513);
	probe_expect(&p, 0, ANSWER_IOERR, "OUT of 513 bytes");
}

static void case_78(struct ring_test *t)
{
	without_data(t, RING_DISK);
	if (!t->failed)
		without_data(t, RING_FILE);
}

static void case_79(struct ring_test *t)
{
	static const uint32_t lens[] = { 0, 8, 15 };
	struct probe p;
	unsigned i;

	if (!probe_open(t, RING_DISK, 64, &p))
		return;
	for (i = 0; i < 3 && !t->failed; i++) {
		probe_plain(&p, BLK_IN, 0, 512);
		guest_desc(p.q, 0, p.header, lens[i], DESC_NEXT, 1);
		probe_expect(&p, 0, ANSWER_IOERR | ANSWER_MALFORMED, "short header");
	}
	if (t->failed)
		return;
	probe_plain(&p, BLK_IN, 0, 512);
	probe_expect(&p, 1, ANSWER_IOERR | ANSWER_MALFORMED, "no readable descriptor");
}

static void case_83(struct ring_test *t)
{
	struct guest_params params = { .queue_size = 256, .mem_size = 4u << 20 };
	struct guest *g = ring_open(t, RING_DISK, params);
	unsigned segs = 128, i;
	uint64_t data;
	enum answer a;
	struct probe p;

	if (!g || !probe_on(t, g->queue[0], &p))
		return;
	REQUIRE(t, !(g->offered & VIRTIO_BLK_SIZE_MAX) || g->config.size_max >= 1u << 20,
		"size_max is %u", g->config.size_max);
	REQUIRE(t, !(g->offered & VIRTIO_BLK_SEG_MAX) || g->config.seg_max > 1, "seg_max is %u",
		g->config.seg_max);
	tap_diag("seg_max %u, size_max %u", g->config.seg_max, g->config.size_max);
	data = guest_alloc(g, 1u << 20, 4096);
	REQUIRE(t, data, "guest memory is full");
	for (; segs >= 64; segs /= 2) {
		probe_header(&p, BLK_IN, 0);
		guest_desc(p.q, 0, p.header, 16, DESC_NEXT, 1);
		for (i = 0; i < segs; i++)
			guest_desc(p.q, i + 1, data + i * (1048576 / segs), 1048576 / segs,
				   DESC_NEXT | DESC_WRITE, i + 2);
		guest_desc(p.q, segs + 1, p.status, 1, DESC_WRITE, 0);
		a = probe_send(&p, 0);
		REQUIRE(t, a == ANSWER_OK || (a == ANSWER_IOERR && segs > g->config.seg_max),
			"1 MiB in %u descriptors: %s", segs, answer_name(a));
		if (a != ANSWER_OK)
			tap_diag("1 MiB in %u descriptors: %s (more than seg_max)", segs,
				 answer_name(a));
	}
	probe_good(&p, "1 MiB requests");
}

/* OUT whose data the device should write, IN whose data it should read, and so on. */
static bool wrong_way(struct probe *p, unsigned allowed, const char *what)
{
	uint8_t *data = guest_ptr(p->g, p->data), copy[16];
	enum answer a;
	unsigned i;

	memset(data, 0x33, 512);
	memcpy(copy, guest_ptr(p->g, p->header), 16);
	a = probe_send(p, 0);
	REQUIRE_TRUE(p->t, a & allowed, "%s: %s", what, answer_name(a));
	for (i = 0; i < 512 && !(p->q->desc[1].flags & DESC_WRITE); i++)
		REQUIRE_TRUE(p->t, data[i] == 0x33, "%s: readable memory was written", what);
	REQUIRE_TRUE(p->t,
		     !memcmp(copy, guest_ptr(p->g, p->header), 16) ||
			     p->q->desc[0].flags & DESC_WRITE,
		     "%s: the header was written", what);
	if (!probe_guards(p, what))
		return false;
	if (a == ANSWER_BROKEN && guest_queue_restart(p->q))
		REQUIRE_TRUE(p->t, false, "%s: cannot restart the queue", what);
	return probe_good(p, what);
}

static void case_86(struct ring_test *t)
{
	const unsigned bad = ANSWER_IOERR | ANSWER_MALFORMED;
	struct probe p;

	if (!probe_open(t, RING_DISK, 64, &p))
		return;
	probe_plain(&p, BLK_OUT, 0, 512);
	guest_desc(p.q, 1, p.data, 512, DESC_NEXT | DESC_WRITE, 2);
	if (!wrong_way(&p, bad, "OUT with writable data"))
		return;
	probe_plain(&p, BLK_IN, 0, 512);
	guest_desc(p.q, 1, p.data, 512, DESC_NEXT, 2);
	if (!wrong_way(&p, bad, "IN with readable data"))
		return;
	probe_plain(&p, BLK_OUT, 0, 512);
	guest_desc(p.q, 2, p.status, 1, 0, 0);
	if (!wrong_way(&p, ANSWER_MALFORMED, "status readable"))
		return;
	probe_plain(&p, BLK_OUT, 0, 512);
	guest_desc(p.q, 0, p.header, 16, DESC_NEXT | DESC_WRITE, 1);
	if (!wrong_way(&p, bad, "header writable"))
		return;
	probe_header(&p, BLK_IN, 0);
	guest_desc(p.q, 0, p.data, 512, DESC_NEXT | DESC_WRITE, 1);
	guest_desc(p.q, 1, p.header, 16, DESC_NEXT, 2);
	guest_desc(p.q, 2, p.status, 1, DESC_WRITE, 0);
	wrong_way(&p, bad, "readable after writable");
}

const struct ring_case ring_shape_cases[] = {
	{ "RING 41: capacity is checked over the whole chain", case_41, false, true },
	{ "BLK 74: header, data and status in any descriptors", case_74, false, true },
	{ "BLK 74: status in the last byte of 4 KiB", case_74_status, false, true },
	{ "BLK 75: lengths in the used ring", case_75, false, true },
	{ "BLK 76: serials and their buffers", case_76, false, false },
	{ "BLK 78: requests without data, or not in sectors", case_78, false, true },
	{ "BLK 79: short headers", case_79, false, true },
	{ "BLK 83: size_max, seg_max and 1 MiB requests", case_83, false, true },
	{ "BLK 86: descriptors in the wrong direction", case_86, false, true },
	{ 0 },
};
