/*
 * kill -9 with requests in flight, then a second daemon: the in-flight region, in both formats.
 * vhost-user, "Inflight I/O tracking"; VIRTIO 1.3, sections 2.7 and 2.8.
 */
#define _GNU_SOURCE 1
#include "ring/crash.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WRITES	8u
#define READS	6u
#define HOLD_US "250000"

static bool make_disk(struct crash *c, const char *name, const char *file, bool held)
{
	char bdev[64], arg[300], ctrlr[64], dev[80];
	struct daemon *d = &c->d;

	snprintf(bdev, sizeof(bdev), "name=%s_file", name);
	snprintf(arg, sizeof(arg), "filename=%s", file);
	snprintf(ctrlr, sizeof(ctrlr), "ctrlr=%s", name);
	snprintf(dev, sizeof(dev), "dev_name=%s", held ? "held" : bdev + 5);
	return !daemon_rpc(d, "bdev_aio_create", bdev, arg, "block_size=512", NULL) &&
	       (!held ||
		!daemon_rpc(d, "bdev_delay_create", "base_bdev_name=slow_file", "name=held",
			    "avg_read_latency=0", "p99_read_latency=0",
			    "avg_write_latency=" HOLD_US, "p99_write_latency=" HOLD_US, NULL)) &&
	       !daemon_rpc(d, "vhost_create_blk_controller", ctrlr, dev, "packed_ring=true", NULL);
}

bool crash_start(struct crash *c)
{
	const char *exe = c->t->env->daemon.exe;
	int rc = daemon_start(&c->d, exe, "0x1", NULL);

	REQUIRE_TRUE(c->t, !rc, "cannot start %s: %s", exe, strerror(-rc));
	REQUIRE_TRUE(c->t,
		     make_disk(c, "slow", c->slow, true) && make_disk(c, "fast", c->fast, false),
		     "a daemon's disks: %s", c->d.reply);
	return true;
}

static bool make_file(const char *path)
{
	FILE *f = fopen(path, "w");
	bool ok = f && !ftruncate(fileno(f), 8 << 20);

	if (f)
		fclose(f);
	return ok;
}

bool crash_open(struct crash *c, struct ring_test *t, const char *disk, unsigned size,
		bool event_idx)
{
	struct guest_params p = { .queue_size = size,
				  .indirect = true,
				  .event_idx = event_idx,
				  .packed = t->packed,
				  .inflight = true };
	char path[256];
	unsigned i;
	int rc;

	memset(c, 0, sizeof(*c));
	c->t = t;
	daemon_path(&t->env->daemon, "slow.img", c->slow, sizeof(c->slow));
	daemon_path(&t->env->daemon, "fast.img", c->fast, sizeof(c->fast));
	REQUIRE_TRUE(t, make_file(c->slow) && make_file(c->fast), "files: %s", strerror(errno));
	if (!crash_start(c))
		return false;
	daemon_socket(&c->d, disk, path, sizeof(path));
	p.path = path;
	rc = guest_open(&p, &c->g);
	REQUIRE_TRUE(t, !rc, "cannot open a guest: %s", strerror(-rc));
	c->q = c->g->queue[0];
	for (i = 0; !rc && i < CRASH_LANES; i++)
		rc = guest_req_init(c->g, &c->req[i], 4096);
	REQUIRE_TRUE(t, !rc, "guest memory is full");
	return true;
}

uint32_t crash_known_base(const struct guest_queue *q)
{
	if (q->packed)
		return guest_queue_first(q);
	return __atomic_load_n(&q->used->idx, __ATOMIC_ACQUIRE);
}

static bool crash_reconnect(struct crash *c, const char *disk, uint32_t base)
{
	char path[256];
	int rc;

	daemon_socket(&c->d, disk, path, sizeof(path));
	rc = guest_reconnect(c->g, path);
	REQUIRE_TRUE(c->t, !rc, "cannot reconnect: %s", strerror(-rc));
	rc = guest_queue_start(c->q, base);
	REQUIRE_TRUE(c->t, !rc, "cannot start the ring at 0x%x again: %s", base, strerror(-rc));
	return true;
}

void crash_close(struct crash *c)
{
	guest_close(c->g);
	if (c->t->failed && c->d.pid)
		daemon_show_log(&c->d);
	if (c->d.pid && daemon_stop(&c->d) && !c->t->failed)
		ring_fail(c->t, "the second daemon did not end with status 0");
	unlink(c->slow);
	unlink(c->fast);
}

/* ---- once ---- */

static bool submit(struct crash *c, unsigned i, uint32_t type, uint64_t sector)
{
	struct guest_req *r = &c->req[i];
	int rc;

	memset(guest_ptr(c->g, r->data), (int)(i + 1), 4096);
	r->owner = r;
	r->how = (enum guest_how)(i % 3);
	rc = guest_req_submit(c->q, r, type, sector, 4096);
	REQUIRE_TRUE(c->t, !rc, "submit %u: %s", i, strerror(-rc));
	guest_notify(c->q);
	return true;
}

/* @n requests come back, each once and with OK; @after: no more than these. */
static bool reap(struct crash *c, unsigned n, bool after)
{
	struct virtq_used_elem e;
	struct guest_req *r;
	unsigned i;
	int rc;

	for (i = 0; i < n; i++) {
		rc = guest_used_wait(c->q, &e, GUEST_DEADLINE_MS);
		REQUIRE_TRUE(c->t, !rc, "%u of %u requests came back: %s", i, n, strerror(-rc));
		r = guest_req_take(c->q, &e);
		REQUIRE_TRUE(c->t, r, "head %u came back, which was not in flight", e.id);
		REQUIRE_TRUE(c->t, r->owner == r && guest_req_status(c->g, r) == BLK_OK,
			     "head %u came back twice, or failed with status %u", e.id,
			     guest_req_status(c->g, r));
		r->owner = NULL;
	}
	rc = after ? guest_used_wait(c->q, &e, CRASH_HOLD_MS + 100) : -ETIMEDOUT;
	REQUIRE_TRUE(c->t, rc == -ETIMEDOUT, "one request more than there were: %s",
		     rc ? strerror(-rc) : "it came back twice");
	return true;
}

bool crash_fill(struct crash *c)
{
	unsigned i;

	for (i = 0; i < WRITES; i++) {
		if (!submit(c, i, BLK_OUT, i * 8) ||
		    (i < READS && !submit(c, WRITES + i, BLK_IN, 1024 + i * 8)))
			return false;
		if (i < READS && !reap(c, 1, false))
			return false;
	}
	return true;
}

static bool written_once(struct crash *c)
{
	uint8_t buf[WRITES * 4096];
	char want[64];
	unsigned i;
	FILE *f;
	bool ok;

	REQUIRE_TRUE(c->t, !daemon_rpc(&c->d, "bdev_get_iostat", "name=slow_file", NULL),
		     "bdev_get_iostat: %s", c->d.reply);
	snprintf(want, sizeof(want), "\"num_write_ops\": %u,", WRITES);
	REQUIRE_TRUE(c->t, strstr(c->d.reply, want), "the second daemon has not done %s but: %s",
		     want, c->d.reply);
	f = fopen(c->slow, "r");
	ok = f && fread(buf, sizeof(buf), 1, f) == 1;
	if (f)
		fclose(f);
	for (i = 0; i < sizeof(buf) && ok; i++)
		ok = buf[i] == i / 4096 + 1;
	REQUIRE_TRUE(c->t, ok, "the file does not hold what was written");
	return true;
}

/* @known: the front-end says where the driver stands, in-flight requests included. */
static void crash_once(struct crash *c, bool known)
{
	uint32_t base;
	unsigned i;

	if (!crash_fill(c))
		return;
	daemon_kill(&c->d);
	if (!crash_start(c))
		return;
	base = known ? guest_queue_base(c->q) : crash_known_base(c->q);
	/* One that the first daemon has never seen. */
	if (!submit(c, WRITES, BLK_IN, 2048) || !crash_reconnect(c, "slow", base) ||
	    !reap(c, WRITES + 1, true) || !written_once(c))
		return;
	for (i = 0; i < 40; i++)
		if (!submit(c, i % CRASH_LANES, BLK_IN, i * 8) || !reap(c, 1, false))
			return;
	base = 0;
	REQUIRE(c->t, !guest_queue_stop(c->q, &base) && base == guest_queue_base(c->q),
		"the ring stands at 0x%x, GET_VRING_BASE says 0x%x", guest_queue_base(c->q), base);
}

static void once(struct ring_test *t, unsigned size, bool event_idx, bool known)
{
	struct crash c;

	if (crash_open(&c, t, "slow", size, event_idx))
		crash_once(&c, known);
	crash_close(&c);
}

static void case_once(struct ring_test *t)
{
	/* Two chains of 3 fewer than that many: the ring goes around before the crash. */
	once(t, t->packed ? 37 : 64, false, false);
	if (!t->failed)
		once(t, t->packed ? 29 : 32, true, false);
	if (!t->failed)
		once(t, t->packed ? 29 : 32, true, true);
}

/* Stops the ring, and starts it empty at @base; @fresh: with a new in-flight region. */
static bool begin_at(struct crash *c, uint32_t base, bool fresh)
{
	int rc = guest_queue_stop(c->q, NULL);

	if (!rc && fresh) {
		close(c->g->inflight_fd);
		c->g->inflight_fd = -1;
		rc = guest_inflight_get(c->g, 1, c->q->size);
		if (!rc)
			rc = guest_inflight_set(c->g);
	}
	if (!rc) {
		guest_queue_reset(c->q, base);
		rc = guest_queue_start(c->q, base);
	}
	REQUIRE_TRUE(c->t, !rc, "cannot begin anew at 0x%x: %s", base, strerror(-rc));
	return true;
}

/* Nothing has ended since the ring was started in its middle. */
static void fresh_region(struct crash *c, uint32_t base)
{
	unsigned i;

	if (!begin_at(c, base, true))
		return;
	for (i = 0; i < WRITES; i++)
		if (!submit(c, i, BLK_OUT, i * 8))
			return;
	usleep(CRASH_HOLD_MS * 1000 / 4);
	daemon_kill(&c->d);
	if (crash_start(c) && crash_reconnect(c, "slow", base) && reap(c, WRITES, true))
		written_once(c);
}

static void case_fresh(struct ring_test *t)
{
	struct crash c;

	if (crash_open(&c, t, "slow", t->packed ? 37 : 64, false))
		fresh_region(&c, t->packed ? GUEST_PACKED_BASE(20u, 0) : 500);
	crash_close(&c);
}

/* After GET_VRING_BASE nothing is in flight: what SET_VRING_BASE says next is not stale. */
static void anew(struct crash *c, uint32_t base)
{
	unsigned i;

	for (i = 0; i < 7; i++)
		if (!submit(c, i, BLK_OUT, i * 8) || !reap(c, 1, false))
			return;
	if (!begin_at(c, base, false))
		return;
	for (i = 0; i < 7; i++)
		if (!submit(c, i, BLK_IN, i * 8) || !reap(c, 1, false))
			return;
}

static void case_anew(struct ring_test *t)
{
	struct crash c;

	if (crash_open(&c, t, "fast", t->packed ? 37 : 64, false))
		anew(&c, guest_queue_first(c.q));
	crash_close(&c);
}

/* ---- under load ---- */

struct lane {
	uint8_t disk[16]; /* what each of its 4 KiB blocks holds */
	uint8_t byte;
	unsigned block;
	bool write;
};

static bool lane_submit(struct crash *c, struct lane *l, unsigned i, uint64_t *seed)
{
	struct guest_req *r = &c->req[i];
	int rc;

	l->block = (unsigned)(ring_random(seed) % 16);
	l->write = ring_random(seed) & 1;
	l->byte = (uint8_t)ring_random(seed);
	memset(guest_ptr(c->g, r->data), l->byte, 4096);
	r->owner = r;
	r->how = (enum guest_how)(ring_random(seed) % 3);
	rc = guest_req_submit(c->q, r, l->write ? BLK_OUT : BLK_IN, i * 128 + l->block * 8, 4096);
	REQUIRE_TRUE(c->t, !rc, "submit: %s", strerror(-rc));
	return true;
}

static bool lane_end(struct crash *c, struct lane *lanes, const struct virtq_used_elem *e,
		     unsigned *which)
{
	struct guest_req *r = guest_req_take(c->q, e);
	struct lane *l;
	uint8_t *data;

	REQUIRE_TRUE(c->t, r && r->owner == r, "head %u came back, which was not in flight", e->id);
	*which = (unsigned)(r - c->req);
	l = &lanes[*which];
	REQUIRE_TRUE(c->t, guest_req_status(c->g, r) == BLK_OK, "a request failed");
	data = guest_ptr(c->g, r->data);
	if (l->write)
		l->disk[l->block] = l->byte;
	else
		REQUIRE_TRUE(c->t, data[0] == l->disk[l->block] && data[4095] == l->disk[l->block],
			     "a read returned other data");
	r->owner = NULL;
	return true;
}

/* Serves until @deadline (0: until all have ended); busy[] says what is in flight. */
static bool load_until(struct crash *c, struct lane *lanes, uint64_t deadline, uint64_t *seed,
		       unsigned *busy)
{
	struct virtq_used_elem e;
	unsigned i;
	int rc;

	while (deadline ? vhost_ms_left(deadline) > 0 : *busy > 0) {
		rc = guest_used_wait(c->q, &e, GUEST_DEADLINE_MS);
		REQUIRE_TRUE(c->t, !rc, "%u requests do not come back: %s", *busy, strerror(-rc));
		if (!lane_end(c, lanes, &e, &i))
			return false;
		--*busy;
		if (!deadline)
			continue;
		if (!lane_submit(c, &lanes[i], i, seed))
			return false;
		++*busy;
		guest_notify(c->q);
	}
	return true;
}

static bool crash_rounds(struct crash *c, unsigned rounds)
{
	static struct lane lanes[CRASH_LANES];
	uint64_t seed = rounds;
	unsigned i, k, busy;

	memset(lanes, 0, sizeof(lanes));
	for (k = 0; k < rounds; k++) {
		for (i = busy = 0; i < CRASH_LANES; i++, busy++)
			if (!lane_submit(c, &lanes[i], i, &seed))
				return false;
		guest_notify(c->q);
		if (!load_until(c, lanes, vhost_now_ns() + (5 + ring_random(&seed) % 60) * 1000000,
				&seed, &busy))
			return false;
		/* In its middle, whatever it is doing. */
		usleep((useconds_t)(ring_random(&seed) % 300));
		daemon_kill(&c->d);
		if (!crash_start(c) || !crash_reconnect(c, "fast", crash_known_base(c->q)) ||
		    !load_until(c, lanes, 0, &seed, &busy))
			return false;
		guest_event_take(c->q->err);
	}
	return true;
}

static void case_load(struct ring_test *t)
{
	unsigned rounds = t->env->long_run ? 100 : 8;
	struct crash c;

	if (crash_open(&c, t, "fast", t->packed ? 77 : 128, true))
		crash_rounds(&c, rounds);
	crash_close(&c);
}

const struct ring_case ring_crash_cases[] = {
	{ "INF: requests in flight at a kill -9 are done once by the next daemon", case_once, false,
	  true },
	{ "INF 87: a region without a completion, a ring in its middle", case_fresh, false, true },
	{ "INF: a ring that is stopped and begun anew with the same region", case_anew, false,
	  true },
	{ "INF: kill -9 under load, again and again", case_load, false, true },
	{ 0 },
};
