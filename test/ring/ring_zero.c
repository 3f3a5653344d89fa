/* DISCARD, WRITE_ZEROES and read-only disks. VIRTIO 1.3, section 5.2.6. */
#include "ring/ring.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define PATTERN_SECTOR	256u /* cases write a pattern from here */
#define PATTERN_SECTORS 64u

/* What is not offered is UNSUPP, or fails for the reason that applies anyway. */
static unsigned if_offered(const struct probe *p, uint64_t feature, unsigned allowed)
{
	return p->g->offered & feature ? allowed : ANSWER_UNSUPP | ANSWER_IOERR;
}

/* A request with @n bytes from @segs as its data. */
static enum answer send_segments(struct probe *p, uint32_t type, const struct blk_segment *segs,
				 uint32_t bytes)
{
	memcpy(guest_ptr(p->g, p->data), segs, bytes);
	return probe_request(p, type, 0, bytes);
}

static enum answer send_segment(struct probe *p, uint32_t type, uint64_t sector, uint32_t num,
				uint32_t flags)
{
	struct blk_segment s = { .sector = sector, .num_sectors = num, .flags = flags };

	return send_segments(p, type, &s, sizeof(s));
}

static bool write_pattern(struct probe *p, uint8_t byte)
{
	memset(guest_ptr(p->g, p->data), byte, PATTERN_SECTORS * 512);
	REQUIRE_TRUE(p->t,
		     probe_request(p, BLK_OUT, PATTERN_SECTOR, PATTERN_SECTORS * 512) == ANSWER_OK,
		     "cannot write the pattern");
	return true;
}

/* Sectors of the pattern area from @first on (@n of them) hold @byte. */
static bool sectors_hold(struct probe *p, unsigned first, unsigned n, uint8_t byte,
			 const char *what)
{
	uint8_t *data = guest_ptr(p->g, p->data);
	unsigned i;

	memset(data, 0xdd, PATTERN_SECTORS * 512);
	REQUIRE_TRUE(p->t,
		     probe_request(p, BLK_IN, PATTERN_SECTOR, PATTERN_SECTORS * 512) == ANSWER_OK,
		     "%s: cannot read back", what);
	for (i = first * 512; i < (first + n) * 512; i++)
		REQUIRE_TRUE(p->t, data[i] == byte, "%s: sector %u holds 0x%02x, not 0x%02x", what,
			     PATTERN_SECTOR + i / 512, data[i], byte);
	return true;
}

static bool beyond(struct probe *p, uint64_t sector, uint32_t num, const char *what)
{
	static const uint32_t types[] = { BLK_DISCARD, BLK_WRITE_ZEROES };
	uint64_t feature[] = { VIRTIO_BLK_DISCARD, VIRTIO_BLK_WRITE_ZEROES };
	enum answer a;
	unsigned i;

	for (i = 0; i < 2; i++) {
		a = send_segment(p, types[i], sector, num, 0);
		REQUIRE_TRUE(p->t, a & if_offered(p, feature[i], ANSWER_IOERR), "%s %s: %s",
			     i ? "WRITE_ZEROES" : "DISCARD", what, answer_name(a));
	}
	return true;
}

static bool beyond_all(struct probe *p)
{
	uint64_t cap = p->g->config.capacity;

	return beyond(p, cap - 1, 2, "{capacity - 1, 2}") && beyond(p, cap, 1, "{capacity, 1}") &&
	       beyond(p, UINT64_MAX, 1, "{2^64 - 1, 1}") &&
	       beyond(p, 0, UINT32_MAX, "{0, 2^32 - 1}") && beyond(p, 1ull << 55, 8, "{2^55, 8}");
}

static void case_66(struct ring_test *t)
{
	struct stat before, after;
	struct probe p;

	if (!probe_open(t, RING_FILE, 64, &p) || !write_pattern(&p, 0x66))
		return;
	REQUIRE(t, probe_request(&p, BLK_FLUSH, 0, 0) == ANSWER_OK, "FLUSH failed");
	REQUIRE(t, !stat(t->env->file, &before), "no file: %s", strerror(errno));
	if (!beyond_all(&p))
		return;
	REQUIRE(t, probe_request(&p, BLK_FLUSH, 0, 0) == ANSWER_OK, "FLUSH failed");
	REQUIRE(t, !stat(t->env->file, &after), "no file: %s", strerror(errno));
	REQUIRE(t, before.st_size == after.st_size, "the file's size changed to %lld",
		(long long)after.st_size);
	REQUIRE(t, before.st_blocks == after.st_blocks,
		"the file's blocks changed from %lld to "
		"%lld",
		(long long)before.st_blocks, (long long)after.st_blocks);
	if (!sectors_hold(&p, 0, PATTERN_SECTORS, 0x66, "file"))
		return;
	ring_close(t, p.g);
	if (probe_open(t, RING_DISK, 64, &p) && write_pattern(&p, 0x67) && beyond_all(&p))
		sectors_hold(&p, 0, PATTERN_SECTORS, 0x67, "malloc");
}

static void case_68(struct ring_test *t)
{
	static const uint32_t sizes[] = { 0, 15, 17, 24 };
	struct blk_segment segs[1024];
	unsigned i, k, max[2];
	struct probe p;
	enum answer a;

	if (!probe_open(t, RING_DISK, 64, &p) || !write_pattern(&p, 0x68))
		return;
	max[0] = p.g->config.max_discard_seg;
	max[1] = p.g->config.max_write_zeroes_seg;
	for (i = 0; i < 1024; i++)
		segs[i] = (struct blk_segment){ .sector = PATTERN_SECTOR + i % PATTERN_SECTORS,
						.num_sectors = 1 };
	for (k = 0; k < 2; k++) {
		if (max[k] < 1023) {
			a = send_segments(&p, k ? BLK_WRITE_ZEROES : BLK_DISCARD, segs,
					  16 * (max[k] + 1));
			REQUIRE(t, a & (ANSWER_IOERR | ANSWER_UNSUPP), "%u segments of %u: %s",
				max[k] + 1, max[k], answer_name(a));
		}
		for (i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
			a = send_segments(&p, k ? BLK_WRITE_ZEROES : BLK_DISCARD, segs, sizes[i]);
			REQUIRE(t, a & (ANSWER_IOERR | ANSWER_UNSUPP), "%u bytes of segments: %s",
				sizes[i], answer_name(a));
		}
	}
	sectors_hold(&p, 0, PATTERN_SECTORS, 0x68, "after refused segments");
}

static void case_segments(struct ring_test *t)
{
	struct blk_segment segs[2] = {
		{ .sector = PATTERN_SECTOR + 2, .num_sectors = 3 },
		{ .sector = PATTERN_SECTOR + 20, .num_sectors = 1 },
	};
	struct probe p;
	enum answer a;

	if (!probe_open(t, RING_DISK, 64, &p) || !write_pattern(&p, 0x69))
		return;
	if (!(p.g->offered & VIRTIO_BLK_WRITE_ZEROES) || p.g->config.max_write_zeroes_seg < 2) {
		t->skip = "max_write_zeroes_seg is below 2";
		return;
	}
	a = send_segments(&p, BLK_WRITE_ZEROES, segs, sizeof(segs));
	REQUIRE(t, a == ANSWER_OK, "two segments: %s", answer_name(a));
	if (!sectors_hold(&p, 0, 2, 0x69, "before both") ||
	    !sectors_hold(&p, 2, 3, 0, "first segment") ||
	    !sectors_hold(&p, 5, 15, 0x69, "between both") ||
	    !sectors_hold(&p, 20, 1, 0, "second segment") ||
	    !sectors_hold(&p, 21, PATTERN_SECTORS - 21, 0x69, "behind both"))
		return;
	/* One good and one bad: the request fails, and nothing is done beyond the disk. */
	segs[1].sector = p.g->config.capacity;
	a = send_segments(&p, BLK_WRITE_ZEROES, segs, sizeof(segs));
	REQUIRE(t, a == ANSWER_IOERR, "a good and a bad segment: %s", answer_name(a));
}

/* A segment of no sectors does nothing, and hurts nobody. */
static void case_no_sectors(struct ring_test *t)
{
	static const char *const ctrlrs[] = { RING_DISK, RING_FILE };
	static const uint32_t types[] = { BLK_DISCARD, BLK_WRITE_ZEROES };
	struct probe p;
	enum answer a;
	unsigned i;

	for (i = 0; i < 4; i++) {
		if (!probe_open(t, ctrlrs[i / 2], 64, &p) || !write_pattern(&p, 0x6a))
			return;
		a = send_segment(&p, types[i % 2], PATTERN_SECTOR, 0, 0);
		REQUIRE(t, a & (ANSWER_OK | ANSWER_IOERR | ANSWER_UNSUPP), "%s, type %u: %s",
			ctrlrs[i / 2], types[i % 2], answer_name(a));
		if (!sectors_hold(&p, 0, PATTERN_SECTORS, 0x6a, ctrlrs[i / 2]))
			return;
		ring_close(t, p.g);
	}
}

static void case_69(struct ring_test *t)
{
	static const struct {
		uint32_t type, flags;
	} bad[] = {
		{ BLK_DISCARD, 1 },	 { BLK_DISCARD, 2 },	  { BLK_DISCARD, 0x80000000u },
		{ BLK_WRITE_ZEROES, 2 }, { BLK_WRITE_ZEROES, 3 },
	};
	struct probe p;
	enum answer a;
	unsigned i;

	if (!probe_open(t, RING_DISK, 64, &p) || !write_pattern(&p, 0x69))
		return;
	for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		a = send_segment(&p, bad[i].type, PATTERN_SECTOR, 8, bad[i].flags);
		REQUIRE(t, a == ANSWER_UNSUPP, "type %u with flags 0x%x: %s", bad[i].type,
			bad[i].flags, answer_name(a));
	}
	sectors_hold(&p, 0, PATTERN_SECTORS, 0x69, "after refused flags");
}

/* Old data may never be read after WRITE_ZEROES was answered with OK. */
static bool zero_on(struct ring_test *t, const char *ctrlr, uint32_t flags)
{
	bool null = !strcmp(ctrlr, RING_NULL);
	char what[64];
	struct probe p;
	enum answer a;

	snprintf(what, sizeof(what), "%s, flags %u", ctrlr, flags);
	if (!probe_open(t, ctrlr, 64, &p) || !write_pattern(&p, 0x71))
		return false;
	a = send_segment(&p, BLK_WRITE_ZEROES, PATTERN_SECTOR + 3, 21, flags);
	REQUIRE_TRUE(t,
		     a == ANSWER_OK ||
			     (a == ANSWER_UNSUPP && !(p.g->offered & VIRTIO_BLK_WRITE_ZEROES)),
		     "%s: %s", what, answer_name(a));
	if (a == ANSWER_OK && !sectors_hold(&p, 3, 21, 0, what))
		return false;
	/* null keeps nothing: what surrounds the zeroes says nothing. */
	if (!null && (!sectors_hold(&p, 0, 3, 0x71, what) ||
		      !sectors_hold(&p, 24, PATTERN_SECTORS - 24, 0x71, what)))
		return false;
	ring_close(t, p.g);
	return true;
}

static void case_70(struct ring_test *t)
{
	if (zero_on(t, RING_DISK, BLK_UNMAP) && zero_on(t, RING_FILE, BLK_UNMAP) &&
	    zero_on(t, RING_SLOW, BLK_UNMAP))
		zero_on(t, RING_NULL, BLK_UNMAP);
}

static void case_71(struct ring_test *t)
{
	if (zero_on(t, RING_DISK, 0) && zero_on(t, RING_FILE, 0) && zero_on(t, RING_SLOW, 0))
		zero_on(t, RING_NULL, 0);
}

/* What a discarded range holds is open, but its neighbours must not change. */
static void case_discard(struct ring_test *t)
{
	static const char *const ctrlrs[] = { RING_DISK, RING_FILE };
	struct probe p;
	enum answer a;
	unsigned i;

	for (i = 0; i < 2; i++) {
		if (!probe_open(t, ctrlrs[i], 64, &p) || !write_pattern(&p, 0x44))
			return;
		a = send_segment(&p, BLK_DISCARD, PATTERN_SECTOR + 8, 16, 0);
		REQUIRE(t, a & if_offered(&p, VIRTIO_BLK_DISCARD, ANSWER_OK), "%s: %s", ctrlrs[i],
			answer_name(a));
		if (!sectors_hold(&p, 0, 8, 0x44, ctrlrs[i]) ||
		    !sectors_hold(&p, 24, PATTERN_SECTORS - 24, 0x44, ctrlrs[i]))
			return;
		ring_close(t, p.g);
	}
}

static bool ro_intact(struct probe *p)
{
	uint8_t *data = guest_ptr(p->g, p->data);
	unsigned i;

	REQUIRE_TRUE(p->t, probe_request(p, BLK_IN, 0, 65536) == ANSWER_OK, "a read failed");
	for (i = 0; i < 65536; i++)
		REQUIRE_TRUE(p->t, data[i] == RING_RO_BYTE, "byte %u of a read-only disk changed",
			     i);
	return true;
}

static void read_only(struct ring_test *t, uint64_t without)
{
	struct guest_params params = { .queue_size = 64, .without = without };
	struct guest *g = ring_open(t, RING_RO, params);
	struct probe p;
	enum answer a;

	if (!g || !probe_on(t, g->queue[0], &p))
		return;
	REQUIRE(t, g->offered & VIRTIO_BLK_RO, "feature RO is not offered");
	a = probe_request(&p, BLK_OUT, 0, 4096);
	REQUIRE(t, a == ANSWER_IOERR, "OUT: %s", answer_name(a));
	/* Read-only and not offered: either word will do. */
	a = send_segment(&p, BLK_DISCARD, 0, 8, 0);
	REQUIRE(t, a & if_offered(&p, VIRTIO_BLK_DISCARD, ANSWER_IOERR), "DISCARD: %s",
		answer_name(a));
	a = send_segment(&p, BLK_WRITE_ZEROES, 0, 8, 0);
	REQUIRE(t, a & if_offered(&p, VIRTIO_BLK_WRITE_ZEROES, ANSWER_IOERR), "WRITE_ZEROES: %s",
		answer_name(a));
	a = probe_request(&p, BLK_FLUSH, 0, 0);
	REQUIRE(t, a == ANSWER_OK, "FLUSH: %s", answer_name(a));
	if (ro_intact(&p))
		ring_close(t, g);
}

static void case_73(struct ring_test *t)
{
	read_only(t, 0);
	if (!t->failed)
		read_only(t, VIRTIO_BLK_RO);
}

/* All data that was flushed is in the file, seen from outside. */
static void case_flush(struct ring_test *t)
{
	uint8_t want[4096], got[4096];
	uint64_t seed = 4;
	struct probe p;
	FILE *f;
	bool ok;

	if (!probe_open(t, RING_FILE, 64, &p))
		return;
	ring_random_fill(&seed, want, sizeof(want));
	memcpy(guest_ptr(p.g, p.data), want, sizeof(want));
	REQUIRE(t, probe_request(&p, BLK_OUT, 1000, 4096) == ANSWER_OK, "OUT failed");
	REQUIRE(t, probe_request(&p, BLK_FLUSH, 12345678901ull, 0) == ANSWER_OK, "FLUSH failed");
	f = fopen(t->env->file, "r");
	ok = f && !fseek(f, 1000 * 512, SEEK_SET) && fread(got, sizeof(got), 1, f) == 1;
	if (f)
		fclose(f);
	REQUIRE(t, ok && !memcmp(got, want, sizeof(want)), "the file holds other data");
}

const struct ring_case ring_zero_cases[] = {
	{ "BLK 66: DISCARD and WRITE_ZEROES beyond the disk", case_66, false, true },
	{ "BLK 68: too many segments, odd sizes", case_68, false, false },
	{ "WRITE_ZEROES of two segments", case_segments, false, false },
	{ "DISCARD and WRITE_ZEROES of no sectors", case_no_sectors, false, false },
	{ "BLK 69: reserved flags", case_69, false, false },
	{ "BLK 70: WRITE_ZEROES with unmap", case_70, false, false },
	{ "BLK 71: WRITE_ZEROES reads back zero", case_71, false, true },
	{ "DISCARD leaves its neighbours alone", case_discard, false, false },
	{ "BLK 73: read-only disks", case_73, false, false },
	{ "FLUSH: data are in the file", case_flush, false, true },
	{ 0 },
};
