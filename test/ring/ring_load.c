/* Random requests of every size and alignment, compared with a copy of the disk. */
#include "ring/ring.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LANE_SECTORS 4096u	/* of disk per lane: 2 MiB */
#define LANE_MAX     (1u << 20) /* longest request */
#define LANE_PIECES  12u
#define LANE_GAP     64u /* at most, between two pieces in memory */
#define LANE_BUFFER  (LANE_MAX + LANE_PIECES * LANE_GAP + 4096)

/* One request slot with a piece of the disk of its own, and what should be there. */
struct lane {
	struct guest_req req;
	struct guest_seg seg[LANE_PIECES];
	uint64_t first;	 /* sector of the piece */
	uint8_t *shadow; /* LANE_SECTORS * 512 */
	uint64_t buffer; /* gpa, LANE_BUFFER */
	uint32_t type;
	uint32_t offset; /* of the request, within the piece */
	uint32_t len;
};

/* One queue, its lanes, one thread. */
struct load {
	struct ring_test *t;
	pthread_t thread;
	struct guest_queue *q;
	struct lane *lane;
	unsigned nlanes;
	unsigned rounds;
	uint64_t seed;
	uint64_t bytes;
	char why[256];
};

static uint32_t below(struct load *l, uint32_t n)
{
	return (uint32_t)(ring_random(&l->seed) % n);
}

/* Cuts len bytes into pieces at odd places, with gaps between them. */
static void cut(struct load *l, struct lane *a, bool write)
{
	uint64_t at = a->buffer + below(l, 4096);
	uint32_t left = a->len, n;
	unsigned i, pieces = 1 + below(l, LANE_PIECES);

	for (i = 0; i < pieces && left; i++) {
		n = i + 1 == pieces ? left : 1 + below(l, left);
		a->seg[i] = (struct guest_seg){ .gpa = at, .len = n, .write = write };
		at += n + below(l, LANE_GAP);
		left -= n;
	}
	a->req.segs = a->seg;
	a->req.nsegs = i;
}

static void scatter(struct load *l, struct lane *a)
{
	uint8_t *from = a->shadow + a->offset;
	unsigned i;

	for (i = 0; i < a->req.nsegs; i++) {
		memcpy(guest_ptr(l->q->guest, a->seg[i].gpa), from, a->seg[i].len);
		from += a->seg[i].len;
	}
}

static bool gathered_equal(struct load *l, struct lane *a)
{
	const uint8_t *want = a->shadow + a->offset;
	unsigned i;

	for (i = 0; i < a->req.nsegs; i++) {
		if (memcmp(guest_ptr(l->q->guest, a->seg[i].gpa), want, a->seg[i].len))
			return false;
		want += a->seg[i].len;
	}
	return true;
}

/* Small ones often, up to 1 MiB now and then. */
static uint32_t random_len(struct load *l)
{
	uint32_t len = 512u << below(l, 12);

	return len >= LANE_MAX ? LANE_MAX : len + below(l, len / 512) * 512;
}

static int submit_zeroes(struct load *l, struct lane *a)
{
	struct blk_segment s = { .sector = a->first + a->offset / 512,
				 .num_sectors = a->len / 512 };

	memset(a->shadow + a->offset, 0, a->len);
	memcpy(guest_ptr(l->q->guest, a->buffer), &s, sizeof(s));
	a->seg[0] = (struct guest_seg){ .gpa = a->buffer, .len = sizeof(s) };
	a->req.segs = a->seg;
	a->req.nsegs = 1;
	return guest_req_submit(l->q, &a->req, BLK_WRITE_ZEROES, 0, 0);
}

static int submit_random(struct load *l, struct lane *a)
{
	uint32_t dice = below(l, 16);

	a->len = random_len(l);
	a->offset = below(l, LANE_SECTORS - a->len / 512 + 1) * 512;
	a->type = dice < 8    ? BLK_IN
		  : dice < 14 ? BLK_OUT
		  : dice < 15 ? BLK_FLUSH
			      : BLK_WRITE_ZEROES;
	if (a->type == BLK_WRITE_ZEROES &&
	    (!(l->q->guest->acked & VIRTIO_BLK_WRITE_ZEROES) ||
	     l->q->guest->config.max_write_zeroes_sectors < a->len / 512))
		a->type = BLK_FLUSH;
	if (a->type == BLK_WRITE_ZEROES)
		return submit_zeroes(l, a);
	a->req.segs = NULL;
	if (a->type == BLK_FLUSH)
		return guest_req_submit(l->q, &a->req, BLK_FLUSH, 0, 0);
	cut(l, a, a->type == BLK_IN);
	if (a->type == BLK_OUT) {
		ring_random_fill(&l->seed, a->shadow + a->offset, a->len);
		scatter(l, a);
	}
	l->bytes += a->len;
	return guest_req_submit(l->q, &a->req, a->type, a->first + a->offset / 512, 0);
}

static bool load_reap(struct load *l, struct lane **out)
{
	struct guest_req *r;
	struct lane *a;
	int rc = guest_req_wait(l->q, GUEST_DEADLINE_MS, &r);

	if (rc) {
		snprintf(l->why, sizeof(l->why), "no answer: %s", strerror(-rc));
		return false;
	}
	a = r->owner;
	if (guest_req_status(l->q->guest, r) != BLK_OK)
		snprintf(l->why, sizeof(l->why),
			 "type %u at sector %llu, %u bytes, %u pieces: "
			 "status %u",
			 a->type, (unsigned long long)(a->first + a->offset / 512), a->len,
			 r->nsegs, guest_req_status(l->q->guest, r));
	else if (a->type == BLK_IN && !gathered_equal(l, a))
		snprintf(l->why, sizeof(l->why), "sector %llu, %u bytes in %u pieces: other data",
			 (unsigned long long)(a->first + a->offset / 512), a->len, r->nsegs);
	*out = a;
	return !l->why[0];
}

/* The whole piece is written once, so that the shadow is true. */
static int submit_fill(struct load *l, struct lane *a, uint32_t offset)
{
	a->type = BLK_OUT;
	a->offset = offset;
	a->len = LANE_MAX;
	ring_random_fill(&l->seed, a->shadow + offset, a->len);
	cut(l, a, false);
	scatter(l, a);
	return guest_req_submit(l->q, &a->req, BLK_OUT, a->first + offset / 512, 0);
}

static bool load_fill(struct load *l)
{
	uint32_t offset;
	struct lane *a;
	unsigned i;

	for (offset = 0; offset < LANE_SECTORS * 512; offset += LANE_MAX) {
		for (i = 0; i < l->nlanes; i++)
			if (submit_fill(l, &l->lane[i], offset))
				return false;
		guest_notify(l->q);
		for (i = 0; i < l->nlanes; i++)
			if (!load_reap(l, &a))
				return false;
	}
	return true;
}

static void *load_run(void *arg)
{
	struct load *l = arg;
	unsigned i, started = 0, busy = 0;
	struct lane *a;
	int rc = 0;

	if (!load_fill(l)) {
		if (!l->why[0])
			snprintf(l->why, sizeof(l->why), "cannot fill the disk");
		return NULL;
	}
	for (i = 0; i < l->nlanes && !rc; i++, started++, busy++)
		rc = submit_random(l, &l->lane[i]);
	guest_notify(l->q);
	while (!rc && busy && load_reap(l, &a)) {
		busy--;
		if (started++ < l->rounds) {
			rc = submit_random(l, a);
			guest_notify(l->q);
			busy++;
		}
	}
	if (rc)
		snprintf(l->why, sizeof(l->why), "submit: %s", strerror(-rc));
	return NULL;
}

static bool load_init(struct load *l, struct guest_queue *q, unsigned nlanes, unsigned rounds,
		      uint64_t first)
{
	struct lane *a;
	unsigned i;

	l->q = q;
	l->nlanes = nlanes;
	l->rounds = rounds;
	l->seed = first + q->index + 1;
	l->lane = calloc(nlanes, sizeof(*l->lane));
	for (i = 0; l->lane && i < nlanes; i++) {
		a = &l->lane[i];
		a->first = first + (uint64_t)i * LANE_SECTORS;
		a->shadow = calloc(LANE_SECTORS, 512);
		a->buffer = guest_alloc(q->guest, LANE_BUFFER, 4096);
		if (!a->shadow || !a->buffer || guest_req_init(q->guest, &a->req, 0))
			return false;
		a->req.owner = a;
	}
	return l->lane;
}

static void load_free(struct load *l)
{
	unsigned i;

	for (i = 0; l->lane && i < l->nlanes; i++)
		free(l->lane[i].shadow);
	free(l->lane);
}

static void run_load(struct ring_test *t, const char *ctrlr, struct guest_params params,
		     unsigned nlanes, unsigned rounds)
{
	struct load load[4] = { 0 };
	uint64_t start = vhost_now_ns(), bytes = 0;
	struct guest *g;
	unsigned i;

	params.mem_size = 32u << 20;
	params.queue_size = t->packed ? 127 : 128;
	if (t->env->long_run)
		rounds *= 20;
	g = ring_open(t, ctrlr, params);
	if (!g)
		return;
	for (i = 0; i < params.queues; i++)
		if (!load_init(&load[i], g->queue[i], nlanes, rounds,
			       (uint64_t)i * nlanes * LANE_SECTORS))
			ring_fail(t, "out of memory");
	for (i = 0; i < params.queues && !t->failed; i++)
		pthread_create(&load[i].thread, NULL, load_run, &load[i]);
	for (i = 0; i < params.queues && load[i].thread; i++)
		pthread_join(load[i].thread, NULL);
	for (i = 0; i < params.queues; i++) {
		if (load[i].why[0])
			ring_fail(t, "%s, queue %u: %s", ctrlr, i, load[i].why);
		bytes += load[i].bytes;
		load_free(&load[i]);
	}
	tap_diag("%s: %u requests, %llu MiB in %llu ms", ctrlr, rounds * params.queues,
		 (unsigned long long)(bytes >> 20),
		 (unsigned long long)(vhost_now_ns() - start) / 1000000);
	ring_close(t, g);
}

static void integrity(struct ring_test *t, const char *ctrlr, bool indirect, bool event_idx)
{
	struct guest_params params = { .queues = 1, .indirect = indirect, .event_idx = event_idx };

	run_load(t, ctrlr, params, 8, 500);
}

static void case_malloc_direct(struct ring_test *t)
{
	integrity(t, RING_DISK, false, false);
	if (!t->failed)
		integrity(t, RING_DISK, false, true);
}

static void case_malloc_indirect(struct ring_test *t)
{
	integrity(t, RING_DISK, true, false);
	if (!t->failed)
		integrity(t, RING_DISK, true, true);
}

static void case_file_direct(struct ring_test *t)
{
	integrity(t, RING_FILE, false, false);
	if (!t->failed)
		integrity(t, RING_FILE, false, true);
}

static void case_file_indirect(struct ring_test *t)
{
	integrity(t, RING_FILE, true, false);
	if (!t->failed)
		integrity(t, RING_FILE, true, true);
}

static void queues(struct ring_test *t, const char *ctrlr)
{
	struct guest_params params = { .queues = 4, .indirect = true, .event_idx = true };

	run_load(t, ctrlr, params, 2, 300);
}

static void case_queues_malloc(struct ring_test *t)
{
	queues(t, RING_DISK);
}

static void case_queues_file(struct ring_test *t)
{
	queues(t, RING_FILE);
}

/* As many huge pages more; negative gives them back, those in use when they are freed. false: not
 * to be had. */
static bool add_huge_pages(int n)
{
	FILE *f = fopen("/proc/sys/vm/nr_hugepages", "r+e");
	int have;
	bool ok;

	if (!f)
		return false;
	ok = fscanf(f, "%d", &have) == 1;
	rewind(f);
	ok = ok && fprintf(f, "%d", have + n) > 0;
	return fclose(f) == 0 && ok;
}

static void case_huge(struct ring_test *t)
{
	struct guest_params params = { .indirect = true, .huge = true, .queue_size = 64 };
	char path[256];
	struct probe p;
	struct guest *g;
	int rc;

	daemon_socket(&t->env->daemon, RING_DISK, path, sizeof(path));
	params.path = path;
	rc = guest_open(&params, &g);
	if (rc == -ENOMEM && add_huge_pages(8)) {
		rc = guest_open(&params, &g);
		add_huge_pages(-8);
	}
	if (rc == -ENOMEM || rc == -ENOSYS || rc == -EINVAL) {
		t->skip = "no free huge pages";
		return;
	}
	REQUIRE(t, !rc, "cannot open a guest: %s", strerror(-rc));
	ring_keep(t, g);
	if (probe_on(t, g->queue[0], &p))
		probe_good(&p, "guest memory in huge pages");
}

const struct ring_case ring_load_cases[] = {
	{ "data on malloc, direct chains, flags and EVENT_IDX", case_malloc_direct, false, true },
	{ "data on malloc, indirect chains, flags and EVENT_IDX", case_malloc_indirect, false,
	  true },
	{ "data on a file, direct chains, flags and EVENT_IDX", case_file_direct, false, false },
	{ "data on a file, indirect chains, flags and EVENT_IDX", case_file_indirect, false, true },
	{ "data on malloc, four queues", case_queues_malloc, true, true },
	{ "data on a file, four queues", case_queues_file, true, false },
	{ "guest memory in huge pages", case_huge, false, false },
	{ 0 },
};
