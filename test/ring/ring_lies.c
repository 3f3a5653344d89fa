/* In-flight regions that were not left by an honest back-end. */
#define _GNU_SOURCE 1
#include "ring/crash.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SPLIT_HEAD  16u
#define SPLIT_DESC  16u
#define PACKED_HEAD 32u
#define PACKED_DESC 32u

struct lie {
	const char *what;
	unsigned at;	/* in the header, or in every descriptor */
	unsigned width; /* bytes */
	bool every;
	uint64_t value;
};

static const struct lie split_lies[] = {
	{ "features", 0, 8, false, UINT64_MAX },
	{ "version 7", 8, 2, false, 7 },
	{ "desc_num 65535", 10, 2, false, 65535 },
	{ "desc_num 0", 10, 2, false, 0 },
	{ "last_batch_head 0xffff", 12, 2, false, 0xffff },
	{ "used_idx 0x8000", 14, 2, false, 0x8000 },
	{ "all in flight", 0, 1, true, 1 },
	{ "in flight 255", 0, 1, true, 255 },
	{ "next 0xffff", 6, 2, true, 0xffff },
	{ "next 0", 6, 2, true, 0 },
	{ "counter", 8, 8, true, UINT64_MAX },
};

static const struct lie packed_lies[] = {
	{ "features", 0, 8, false, UINT64_MAX },
	{ "version 7", 8, 2, false, 7 },
	{ "version 0", 8, 2, false, 0 },
	{ "desc_num 65535", 10, 2, false, 65535 },
	{ "desc_num 0", 10, 2, false, 0 },
	{ "desc_num one less", 10, 2, false, 36 },
	{ "free_head = n", 12, 2, false, 37 },
	{ "free_head 0xffff", 12, 2, false, 0xffff },
	{ "free_head of one in flight", 12, 2, false, 0 },
	{ "old_free_head 0xffff", 14, 2, false, 0xffff },
	{ "used_idx = n", 16, 2, false, 37 },
	{ "used_idx 0xffff", 16, 2, false, 0xffff },
	{ "old_used_idx = n", 18, 2, false, 37 },
	{ "old_used_idx 0xffff", 18, 2, false, 0xffff },
	{ "old_used_idx elsewhere", 18, 2, false, 3 },
	{ "used_wrap_counter 255", 20, 1, false, 255 },
	{ "used_wrap_counter 0", 20, 1, false, 0 },
	{ "old_used_wrap_counter 255", 21, 1, false, 255 },
	{ "all in flight", 0, 1, true, 1 },
	{ "none in flight", 0, 1, true, 0 },
	{ "in flight 255", 0, 1, true, 255 },
	{ "next 0xffff", 2, 2, true, 0xffff },
	{ "next = n", 2, 2, true, 37 },
	{ "next 0", 2, 2, true, 0 },
	{ "last 0xffff", 4, 2, true, 0xffff },
	{ "last = n", 4, 2, true, 37 },
	{ "last 0", 4, 2, true, 0 },
	{ "num 0", 6, 2, true, 0 },
	{ "num 0xffff", 6, 2, true, 0xffff },
	{ "counter", 8, 8, true, UINT64_MAX },
	{ "id = n", 16, 2, true, 37 },
	{ "id 0xffff", 16, 2, true, 0xffff },
	{ "id 0", 16, 2, true, 0 },
	{ "flags NEXT", 18, 2, true, 1 },
	{ "flags INDIRECT", 18, 2, true, 4 },
	{ "len", 20, 4, true, UINT32_MAX },
	{ "addr", 24, 8, true, UINT64_MAX },
};

static void tell(uint8_t *region, const struct lie *l, bool packed, unsigned n)
{
	unsigned head = packed ? PACKED_HEAD : SPLIT_HEAD, i;
	unsigned step = packed ? PACKED_DESC : SPLIT_DESC;

	for (i = 0; i < (l->every ? n : 1); i++)
		memcpy(region + (l->every ? head + i * step : 0) + l->at, &l->value, l->width);
}

/* next of each is itself: a list that never ends. */
static void tell_loop(uint8_t *region, bool packed, unsigned n)
{
	uint16_t i;

	for (i = 0; i < n; i++)
		memcpy(region + (packed ? PACKED_HEAD + 2 + i * PACKED_DESC
					: SPLIT_HEAD + 6 + i * SPLIT_DESC),
		       &i, 2);
}

/* Anything may become of the ring; the daemon lives, and is not busy with it for ever. */
static bool try_lie(struct crash *c, const char *what)
{
	char path[256];
	long cpu;
	int rc;

	daemon_socket(&c->d, "slow", path, sizeof(path));
	rc = guest_reconnect(c->g, path);
	if (!rc)
		rc = guest_queue_start(c->q, crash_known_base(c->q));
	if (!rc) {
		usleep(30000);
		guest_kick(c->q);
	}
	usleep(CRASH_HOLD_MS * 1000 + 100000);
	cpu = daemon_cpu_ms(&c->d);
	usleep(50000);
	cpu = daemon_cpu_ms(&c->d) - cpu;
	REQUIRE_TRUE(c->t, daemon_alive(&c->d), "%s: the daemon died", what);
	REQUIRE_TRUE(c->t, cpu <= 40, "%s: the daemon is busy (%ld ms of 50)", what, cpu);
	return true;
}

static void tell_lies(struct crash *c, uint8_t *region, size_t size)
{
	const struct lie *lies = c->q->packed ? packed_lies : split_lies;
	unsigned n = c->q->packed ? sizeof(packed_lies) / sizeof(packed_lies[0])
				  : sizeof(split_lies) / sizeof(split_lies[0]);
	uint8_t *truth = malloc(size), *ring = malloc(16ull * c->q->size);
	unsigned i;

	if (!truth || !ring)
		abort();
	memcpy(truth, region, size);
	memcpy(ring, guest_ptr(c->g, c->q->desc_gpa), 16ull * c->q->size);
	for (i = 0; i <= n; i++) {
		memcpy(region, truth, size);
		memcpy(guest_ptr(c->g, c->q->desc_gpa), ring, 16ull * c->q->size);
		if (i < n)
			tell(region, &lies[i], c->q->packed, c->q->size);
		else
			tell_loop(region, c->q->packed, c->q->size);
		if (!try_lie(c, i < n ? lies[i].what : "next of each is itself"))
			break;
	}
	free(truth);
	free(ring);
}

static void case_lies(struct ring_test *t)
{
	struct guest_params params = { .queue_size = 8, .packed = t->packed };
	struct guest *fresh = NULL;
	uint8_t *region, buf[4096];
	struct crash c;
	char path[256];
	size_t size;

	if (crash_open(&c, t, "slow", t->packed ? 37 : 64, false) && crash_fill(&c)) {
		daemon_kill(&c.d);
		size = c.g->inflight.mmap_size;
		region = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, c.g->inflight_fd,
			      (off_t)c.g->inflight.mmap_offset);
		if (region == MAP_FAILED)
			ring_fail(t, "cannot map the in-flight region: %s", strerror(errno));
		else if (crash_start(&c))
			tell_lies(&c, region, size);
		if (region != MAP_FAILED)
			munmap(region, size);
	}
	if (!t->failed) {
		guest_close(c.g);
		c.g = NULL;
		daemon_socket(&c.d, "slow", path, sizeof(path));
		params.path = path;
		if (guest_open(&params, &fresh) || guest_read(fresh, 0, 0, buf, sizeof(buf)))
			ring_fail(t, "a guest after all the lies is not served");
		guest_close(fresh);
	}
	crash_close(&c);
}

const struct ring_case ring_lies_cases[] = {
	{ "INF 89: in-flight regions that lie", case_lies, false, true },
	{ 0 },
};
