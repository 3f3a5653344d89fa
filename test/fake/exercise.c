/*
 * exercise SOCKET [SECONDS] [SOCKET [SECONDS]]...: what a guest would do with a vhost-user-blk
 * disk, without a guest. OVERWRITES the first 64 MiB of each disk.
 *
 * It writes stamped blocks, flushes, reads them back and compares; then measures random reads
 * and writes of 4 KiB at depth 1 and 32 for SECONDS each (2), and compares everything once more.
 * Exit status: 0, 1 if any block held something else or a request failed, 2 for a wrong command.
 *
 * Every block carries its number and a generation that counts how often it was written; all its
 * words follow from the two and from a seed of this run. A block is in flight once at a time.
 */
#define _GNU_SOURCE 1
#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "fake/guest.h"

#define BLOCK	     4096u
#define WORDS	     (BLOCK / 8)
#define AREA_BLOCKS  16384u /* at most: 64 MiB */
#define CHUNK_BLOCKS 16u    /* 64 KiB at once when stamping */
#define MAX_DEPTH    32u
#define PROGRESS_NS  200000000u
#define STUCK_MS     30000
#define BUCKETS	     (64 * 16)
#define MAX_ROWS     64

struct job {
	const char *name;
	uint32_t type;
	unsigned depth;
	unsigned blocks; /* per request */
	bool random;	 /* for a time; otherwise once over the area */
};

static const struct job jobs[] = {
	{ "stamp 64k", BLK_OUT, 8, CHUNK_BLOCKS, false },
	{ "check 64k", BLK_IN, 8, CHUNK_BLOCKS, false },
	{ "randread 4k, depth 1", BLK_IN, 1, 1, true },
	{ "randread 4k, depth 32", BLK_IN, 32, 1, true },
	{ "randwrite 4k, depth 1", BLK_OUT, 1, 1, true },
	{ "randwrite 4k, depth 32", BLK_OUT, 32, 1, true },
	{ "check again 64k", BLK_IN, 8, CHUNK_BLOCKS, false },
};

struct slot {
	struct guest_req req;
	uint32_t block;
};

struct disk {
	const char *path;
	const char *name; /* the last part of path */
	struct guest *g;
	bool read_only;
	unsigned blocks; /* of the area */
	uint64_t seed;
	uint32_t *generation;
	bool *busy; /* block in flight */
	struct slot slot[MAX_DEPTH];
};

struct row {
	const char *disk;
	const char *job;
	uint64_t done, bytes, ns, sum_ns;
	uint64_t bad;	 /* blocks that held something else */
	uint64_t failed; /* requests */
	bool verified;
	uint32_t bucket[BUCKETS];
};

static bool tty;

static uint64_t mix(uint64_t z)
{
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

static uint64_t stamp_base(const struct disk *d, uint32_t block)
{
	return mix(d->seed + ((uint64_t)d->generation[block] << 32) + block);
}

static void stamp_fill(const struct disk *d, uint32_t block, uint64_t *words)
{
	uint64_t base = stamp_base(d, block);
	unsigned i;

	words[0] = block;
	words[1] = d->generation[block];
	for (i = 2; i < WORDS; i++)
		words[i] = base + i * 0x9e3779b97f4a7c15u;
}

static bool stamp_ok(const struct disk *d, uint32_t block, const uint64_t *words)
{
	uint64_t base = stamp_base(d, block);
	unsigned i;

	for (i = 2; i < WORDS; i++)
		if (words[i] != base + i * 0x9e3779b97f4a7c15u)
			return false;
	return words[0] == block && words[1] == d->generation[block];
}

/* ---- latency: 16 buckets per power of two ---- */

static unsigned bucket_of(uint64_t ns)
{
	unsigned log = ns < 16 ? 0 : 63u - (unsigned)__builtin_clzll(ns) - 3;

	return ns < 16 ? (unsigned)ns : log * 16 + (unsigned)((ns >> (log - 1)) & 15);
}

static uint64_t bucket_ns(unsigned b)
{
	unsigned log = b / 16;

	return log ? (16ull + b % 16) << (log - 1) : b;
}

static double percentile_us(const struct row *r, unsigned percent)
{
	uint64_t want = (r->done * percent + 99) / 100, seen = 0;
	unsigned b;

	for (b = 0; b < BUCKETS; b++) {
		seen += r->bucket[b];
		if (seen && seen >= want)
			return (double)bucket_ns(b) / 1000;
	}
	return 0;
}

static double row_iops(const struct row *r)
{
	return r->ns ? (double)r->done * 1e9 / (double)r->ns : 0;
}

/* ---- running a job ---- */

static void progress(const struct row *r, bool last)
{
	if (!tty && !last)
		return;
	fprintf(stderr, "%s%s: %s: %.0f IOPS%s", tty ? "\r" : "", r->disk, r->job, row_iops(r),
		tty ? "\033[K" : "\n");
	if (tty && last)
		fprintf(stderr, "\r\033[K");
}

static uint32_t pick_block(struct disk *d, const struct job *j, uint64_t n)
{
	uint32_t b;

	if (!j->random)
		return (uint32_t)(n * j->blocks);
	do {
		b = (uint32_t)(mix(d->seed + n++ * 0x9e3779b97f4a7c15u) % d->blocks);
	} while (d->busy[b]);
	return b;
}

static bool start_request(struct disk *d, const struct job *j, struct slot *s, uint64_t n)
{
	uint64_t *data = guest_ptr(d->g, s->req.data);
	unsigned i;

	s->block = pick_block(d, j, n);
	d->busy[s->block] = true;
	for (i = 0; j->type == BLK_OUT && i < j->blocks; i++) {
		d->generation[s->block + i]++;
		stamp_fill(d, s->block + i, data + i * WORDS);
	}
	s->req.owner = s;
	s->req.start_ns = vhost_now_ns();
	return guest_req_submit(d->g->queue[0], &s->req, j->type,
				(uint64_t)s->block * (BLOCK / BLK_SECTOR), j->blocks * BLOCK) == 0;
}

static void end_request(struct disk *d, const struct job *j, struct row *r, struct slot *s)
{
	uint64_t ns = vhost_now_ns() - s->req.start_ns;
	const uint64_t *data = guest_ptr(d->g, s->req.data);
	unsigned i;

	d->busy[s->block] = false;
	r->done++;
	r->bytes += j->blocks * BLOCK;
	r->sum_ns += ns;
	r->bucket[bucket_of(ns)]++;
	if (guest_req_status(d->g, &s->req) != BLK_OK) {
		r->failed++;
		return;
	}
	for (i = 0; j->type == BLK_IN && r->verified && i < j->blocks; i++)
		r->bad += !stamp_ok(d, s->block + i, data + i * WORDS);
}

/* Polls; gives the CPU away now and then, for machines that have one. */
static struct guest_req *next_finished(struct disk *d)
{
	uint64_t deadline = vhost_now_ns() + STUCK_MS * 1000000ull;
	struct guest_req *req;
	unsigned n = 0;

	while (!(req = guest_req_poll(d->g->queue[0]))) {
		if (++n % 1024)
			continue;
		sched_yield();
		if (!vhost_ms_left(deadline)) {
			fprintf(stderr, "%s: no answer for %d seconds.\n", d->path,
				STUCK_MS / 1000);
			return NULL;
		}
	}
	return req;
}

static bool run_job(struct disk *d, const struct job *j, unsigned seconds, struct row *r)
{
	uint64_t start = vhost_now_ns(), shown = start, now = start, n = 0;
	uint64_t total = j->random ? UINT64_MAX : d->blocks / j->blocks;
	uint64_t end = start + seconds * 1000000000ull;
	struct guest_queue *q = d->g->queue[0];
	struct guest_req *req;
	unsigned busy = 0;

	r->disk = d->name;
	r->job = j->name;
	r->verified = !d->read_only;
	while (busy < j->depth && n < total) {
		if (!start_request(d, j, &d->slot[busy++], n++))
			return false;
	}
	guest_notify(q);
	while (busy) {
		req = next_finished(d);
		if (!req)
			return false;
		end_request(d, j, r, req->owner);
		busy--;
		now = vhost_now_ns();
		r->ns = now - start;
		if (now - shown > PROGRESS_NS) {
			progress(r, false);
			shown = now;
		}
		if (n < total && (!j->random || now < end)) {
			if (!start_request(d, j, req->owner, n++))
				return false;
			guest_notify(q);
			busy++;
		}
	}
	progress(r, true);
	return true;
}

static bool open_disk(struct disk *d, const char *path)
{
	struct guest_params p = { .path = path, .indirect = true, .event_idx = true };
	const char *slash = strrchr(path, '/');
	unsigned i;
	int rc;

	*d = (struct disk){ .path = path, .name = slash ? slash + 1 : path };
	/* guest_open() would wait for the socket to appear. */
	rc = access(path, F_OK) ? -errno : guest_open(&p, &d->g);
	if (rc) {
		fprintf(stderr,
			"%s: %s. Is the daemon running, is there a controller of that "
			"name, and is no other guest connected to it?\n",
			path, strerror(-rc));
		return false;
	}
	guest_queue_quiet(d->g->queue[0], true);
	d->seed = vhost_now_ns();
	d->read_only = d->g->offered & VIRTIO_BLK_RO;
	d->blocks = AREA_BLOCKS;
	if (d->g->config.capacity / (BLOCK / BLK_SECTOR) < AREA_BLOCKS)
		d->blocks = (unsigned)(d->g->config.capacity / (BLOCK / BLK_SECTOR));
	d->blocks -= d->blocks % CHUNK_BLOCKS;
	if (d->blocks < MAX_DEPTH * 2) {
		fprintf(stderr,
			"%s: the disk has %" PRIu64 " sectors; that is too small to "
			"exercise.\n",
			path, d->g->config.capacity);
		return false;
	}
	d->generation = calloc(d->blocks, sizeof(*d->generation));
	d->busy = calloc(d->blocks, sizeof(*d->busy));
	for (i = 0; i < MAX_DEPTH && !rc; i++)
		rc = guest_req_init(d->g, &d->slot[i].req, CHUNK_BLOCKS * BLOCK);
	if (rc || !d->generation || !d->busy)
		fprintf(stderr, "%s: out of memory.\n", path);
	return !rc && d->generation && d->busy;
}

static void close_disk(struct disk *d)
{
	guest_close(d->g);
	free(d->generation);
	free(d->busy);
}

static bool flush_disk(struct disk *d)
{
	int rc;

	if (!(d->g->acked & VIRTIO_BLK_FLUSH))
		return true;
	rc = guest_flush(d->g, 0);
	if (rc)
		fprintf(stderr, "%s: FLUSH failed%s%s.\n", d->path, rc < 0 ? ": " : "",
			rc < 0 ? strerror(-rc) : "");
	return rc == 0;
}

/* Where a later check found bad blocks, the writes before it are to blame as well. */
static void exercise_rows(struct row *rows, unsigned n)
{
	unsigned i;

	if (!n || !rows[n - 1].bad)
		return;
	for (i = 0; i < n - 1; i++)
		if (!strncmp(rows[i].job, "randwrite", 9) && rows[i].disk == rows[n - 1].disk)
			rows[i].bad = rows[n - 1].bad;
}

static bool exercise(const char *path, unsigned seconds, struct row *rows, unsigned *n)
{
	struct disk d;
	bool ok = open_disk(&d, path);
	unsigned i;

	for (i = 0; ok && i < sizeof(jobs) / sizeof(jobs[0]) && *n < MAX_ROWS; i++) {
		if (d.read_only && (jobs[i].type == BLK_OUT || !jobs[i].random))
			continue;
		ok = run_job(&d, &jobs[i], seconds, &rows[*n]);
		exercise_rows(rows, ++*n);
		if (ok && jobs[i].type == BLK_OUT)
			ok = flush_disk(&d);
	}
	close_disk(&d);
	return ok;
}

static void print_verify(const struct row *r)
{
	if (r->failed)
		printf("%" PRIu64 " FAILED\n", r->failed);
	else if (r->bad)
		printf("%" PRIu64 " BAD\n", r->bad);
	else
		printf("%s\n", r->verified ? "ok" : "read-only");
}

static void print_table(const struct row *rows, unsigned n)
{
	const struct row *r;
	int width = 4, w;
	unsigned i;

	for (i = 0; i < n; i++) {
		w = (int)strlen(rows[i].disk);
		width = w > width ? w : width;
	}
	printf("%-*s  %-22s  %9s  %8s  %9s  %9s  %9s  %s\n", width, "disk", "job", "IOPS", "MiB/s",
	       "mean us", "P50 us", "P99 us", "verify");
	for (r = rows; r < rows + n; r++) {
		printf("%-*s  %-22s  %9.0f  %8.1f  %9.1f  %9.1f  %9.1f  ", width, r->disk, r->job,
		       row_iops(r), r->ns ? (double)r->bytes * 1e9 / 1048576 / (double)r->ns : 0,
		       r->done ? (double)r->sum_ns / 1000 / (double)r->done : 0,
		       percentile_us(r, 50), percentile_us(r, 99));
		print_verify(r);
	}
}

static bool is_number(const char *s)
{
	return *s && strspn(s, "0123456789") == strlen(s);
}

static int usage(void)
{
	fprintf(stderr,
		"usage: exercise SOCKET [SECONDS] [SOCKET [SECONDS]]...\n"
		"Writes, verifies and measures vhost-user-blk disks; overwrites their first "
		"64 MiB.\n"
		"SECONDS: how long each of the four measurements runs (2).\n");
	return 2;
}

int main(int argc, char **argv)
{
	static struct row rows[MAX_ROWS];
	unsigned n = 0, i, seconds;
	bool ok = true;
	int a;

	if (argc < 2 || argv[1][0] == '-' || is_number(argv[1]))
		return usage();
	signal(SIGPIPE, SIG_IGN);
	tty = isatty(2);
	for (a = 1; a < argc; a++) {
		if (is_number(argv[a]))
			continue;
		seconds = 2;
		if (a + 1 < argc && is_number(argv[a + 1]))
			seconds = (unsigned)strtoul(argv[a + 1], NULL, 10);
		ok = exercise(argv[a], seconds, rows, &n) && ok;
	}
	if (n)
		print_table(rows, n);
	for (i = 0; i < n; i++)
		ok = ok && !rows[i].bad && !rows[i].failed;
	return ok ? 0 : 1;
}
