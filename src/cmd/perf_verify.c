/*
 * The job "verify": writes stamped blocks of random sizes, reads them back and compares them with
 * what it remembers: for each block of its part of the target the generation written last and the
 * one before. No two requests in flight overlap. At the end, or as soon as something is wrong, all
 * is read back in order; a chunk never cuts a write in two, so that a torn write can be told from a
 * lost one.
 *
 * Every structure here belongs to the worker's thread.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/perf.h"
#include "util/ticks.h"

/* 8 bytes and 2 bits are remembered per block. */
#define BLOCKS_MAX	 (UINT64_C(1) << 27)
#define READ_GAPS_BELOW	 (UINT64_C(1) << 30) /* parts up to here are read back whole */
#define RECENT		 1024
#define TRIES		 8
#define FLUSH_ONE_IN	 64
#define DEPTH_CHANGE_MAX 512 /* requests between two changes of depth */

enum phase {
	PHASE_RUN,  /* random writes, reads and flushes */
	PHASE_BACK, /* reading back */
};

struct range {
	uint64_t first;
	uint32_t n;
};

struct perf_verify {
	struct perf_slot *ready; /* checked, free to be used */
	enum phase phase;
	bool failed;	       /* something was wrong: the run ends */
	uint64_t run;	       /* tells our stamps from earlier ones */
	uint64_t offset;       /* of the first block of our part, in bytes */
	uint64_t blocks, back; /* back: the next block to read back */
	uint32_t block_size, max_blocks, fixed_blocks;
	uint32_t generation;
	uint32_t limit, until_change; /* the present depth, and requests until the next */
	uint32_t *now, *before;	      /* generation per block; 0: not ours */
	uint64_t *busy, *seen;	      /* bit per block: in flight; read back well since its write */
	struct range recent[RECENT];  /* what was written lately: reads go there mostly */
	unsigned recent_n;
	struct stamp_found *found; /* max_blocks, of the chunk under examination */
	struct perf_fault first;   /* as seen by a read during the run */
	struct perf_faults faults;
};

uint32_t perf_verify_max(const struct perf_options *o, const struct bdev *b)
{
	uint64_t most = o->size_given ? o->io_size : PERF_VERIFY_MAX;

	return (uint32_t)ROUND_UP(most, b->block_size);
}

/* --- bits --- */

static bool bit(const uint64_t *map, uint64_t i)
{
	return map[i / 64] >> i % 64 & 1;
}

static void set_bits(uint64_t *map, uint64_t first, uint64_t n, bool value)
{
	for (uint64_t i = first; i < first + n; i++) {
		if (value)
			map[i / 64] |= UINT64_C(1) << i % 64;
		else
			map[i / 64] &= ~(UINT64_C(1) << i % 64);
	}
}

static bool any_bit(const uint64_t *map, uint64_t first, uint64_t n)
{
	for (uint64_t i = first; i < first + n; i++)
		if (bit(map, i))
			return true;
	return false;
}

/* --- looking at what was read --- */

static uint64_t offset_of(const struct perf_verify *v, uint64_t block)
{
	return v->offset + block * v->block_size;
}

static uint64_t first_of(const struct perf_verify *v, const struct bdev_io *io)
{
	return (io->offset - v->offset) / v->block_size;
}

static bool as_expected(const struct perf_verify *v, uint64_t block, const struct stamp_found *f)
{
	bool ours = f->state != STAMP_ZEROES && f->state != STAMP_NONE && f->run == v->run;

	if (v->now[block] == 0)
		return !ours; /* anything but what we wrote elsewhere */
	return ours && f->state == STAMP_WHOLE && f->offset == offset_of(v, block) &&
	       f->generation == v->now[block];
}

/* A block that is half the one that was written last. */
static bool torn_inside(const struct perf_verify *v, uint64_t block, const void *data)
{
	return v->now[block] && stamp_words_of(data, v->block_size, v->run, offset_of(v, block),
					       v->now[block]) >= v->block_size / 64;
}

/* torn: blocks of the same write are there, this one is not. */
static enum perf_fault_kind kind_of(const struct perf_verify *v, uint64_t block,
				    const struct stamp_found *f, const void *data, bool torn)
{
	bool ours = f->run == v->run;

	if (f->state == STAMP_WHOLE && ours && f->offset != offset_of(v, block))
		return FAULT_MISPLACED;
	if (f->state == STAMP_BROKEN || f->state == STAMP_NONE) {
		if (torn_inside(v, block, data))
			return FAULT_TORN;
		if (f->state == STAMP_BROKEN)
			return FAULT_CORRUPT;
	}
	if (f->state == STAMP_WHOLE && ours && f->generation > v->now[block])
		return FAULT_CORRUPT;
	/* What was there once and is gone has been overwritten with something older. */
	if (bit(v->seen, block))
		return f->state == STAMP_WHOLE ? FAULT_STALE : FAULT_CORRUPT;
	/* Where a write has not arrived there is what was there before it. */
	if (f->state == STAMP_WHOLE && ours && f->generation < v->before[block])
		return FAULT_STALE;
	return torn ? FAULT_TORN : FAULT_LOST;
}

static struct perf_fault make_fault(const struct perf_verify *v, uint64_t block,
				    const struct stamp_found *f, const void *data, bool torn)
{
	return (struct perf_fault){
		.kind = kind_of(v, block, f, data, torn),
		.offset = offset_of(v, block),
		.blocks = 1,
		.expected = v->now[block],
		.foreign = f->run != v->run,
		.found = *f,
	};
}

/* The neighbour's fault goes on. */
static bool continues(const struct perf_verify *v, const struct perf_fault *a,
		      const struct perf_fault *b)
{
	uint64_t distance = a->blocks * v->block_size;

	return a->kind == b->kind && a->offset + distance == b->offset &&
	       a->expected == b->expected && a->found.state == b->found.state &&
	       a->found.run == b->found.run && a->found.generation == b->found.generation &&
	       (a->found.state != STAMP_WHOLE || a->found.offset + distance == b->found.offset);
}

static void add_fault(struct perf_verify *v, const struct perf_fault *f)
{
	struct perf_faults *all = &v->faults;

	all->blocks[f->kind] += f->blocks;
	if (all->n && continues(v, &all->v[all->n - 1], f))
		all->v[all->n - 1].blocks++;
	else if (all->n < PERF_FAULTS_MAX)
		all->v[all->n++] = *f;
}

/* During the run: one fault is enough to stop; what it is will be seen when all is read back. */
static void check_read(struct perf_verify *v, uint64_t first, uint32_t n, const char *data)
{
	struct stamp_found f;

	for (uint32_t i = 0; i < n; i++, data += v->block_size) {
		stamp_examine(data, v->block_size, &f);
		if (likely(as_expected(v, first + i, &f))) {
			set_bits(v->seen, first + i, 1, true);
			continue;
		}
		if (!v->failed)
			v->first = make_fault(v, first + i, &f, data, false);
		v->failed = true;
	}
}

/* One write, or what later ones left of it: blocks [from, to) of the chunk. */
static void examine_write(struct perf_verify *v, uint64_t first, uint32_t from, uint32_t to,
			  const char *data)
{
	bool torn = false;

	for (uint32_t i = from; i < to; i++)
		torn |= as_expected(v, first + i, &v->found[i]);
	for (uint32_t i = from; i < to; i++) {
		struct perf_fault f;

		if (as_expected(v, first + i, &v->found[i]))
			continue;
		f = make_fault(v, first + i, &v->found[i], data + (size_t)i * v->block_size, torn);
		add_fault(v, &f);
	}
}

static void check_chunk(struct perf_verify *v, uint64_t first, uint32_t n, const char *data)
{
	uint32_t from = 0;

	for (uint32_t i = 0; i < n; i++)
		stamp_examine(data + (size_t)i * v->block_size, v->block_size, &v->found[i]);
	for (uint32_t i = 1; i <= n; i++) {
		if (i < n && v->now[first + i] == v->now[first + from])
			continue;
		examine_write(v, first, from, i, data);
		from = i;
	}
}

/* What has come back since the last pass: look at it and let go of its blocks. */
void perf_verify_settle(struct perf_job *j)
{
	struct perf_verify *v = j->verify;

	while (j->free) {
		struct perf_slot *s = j->free;
		uint64_t first = first_of(v, &s->io);
		uint32_t n = s->io.len / v->block_size;

		j->free = s->next;
		s->next = v->ready;
		v->ready = s;
		if (n == 0)
			continue; /* a flush, or a new slot */
		if (s->io.op == BDEV_READ && s->io.status == 0) {
			if (v->phase == PHASE_RUN)
				check_read(v, first, n, s->iov[0].iov_base);
			else
				check_chunk(v, first, n, s->iov[0].iov_base);
		}
		set_bits(v->busy, first, n, false);
		s->io.len = 0;
	}
}

/* --- making requests --- */

static void submit(struct perf_job *j, enum bdev_op op, uint64_t first, uint32_t n)
{
	struct perf_verify *v = j->verify;
	struct perf_slot *s = v->ready;

	v->ready = s->next;
	s->io.op = (uint8_t)op;
	s->io.offset = offset_of(v, first);
	s->io.len = n * v->block_size;
	s->iov[0].iov_len = s->io.len;
	s->io.iovcnt = n > 0;
	set_bits(v->busy, first, n, true);
	if (op == BDEV_WRITE) {
		v->generation++;
		for (uint32_t i = 0; i < n; i++)
			stamp_fill((char *)s->iov[0].iov_base + (size_t)i * v->block_size,
				   v->block_size, v->run, offset_of(v, first + i), v->generation);
	} else if (n) {
		/* What a read does not bring must not be found. */
		memset(s->iov[0].iov_base, 0xa5, s->io.len);
	}
	s->submitted = ticks();
	j->inflight++;
	bdev_submit(&s->io);
}

static void remember_write(struct perf_verify *v, uint64_t first, uint32_t n)
{
	for (uint64_t b = first; b < first + n; b++) {
		v->before[b] = v->now[b];
		v->now[b] = v->generation + 1;
	}
	set_bits(v->seen, first, n, false);
	v->recent[v->generation % RECENT] = (struct range){ first, n };
	v->recent_n = MIN(v->recent_n + 1, RECENT);
}

/* Sizes of all orders alike: as many below 4 KiB as from 128 KiB to 1 MiB. */
static uint32_t random_size(struct perf_job *j)
{
	struct perf_verify *v = j->verify;
	unsigned orders = 1 + (unsigned)(31 - __builtin_clz(v->max_blocks));
	uint32_t n;

	if (v->fixed_blocks)
		return v->fixed_blocks;
	n = 1u << (perf_random(&j->pattern.seed) >> 32) % orders;
	n += (uint32_t)((perf_random(&j->pattern.seed) >> 32) % n);
	return MIN(n, v->max_blocks);
}

static struct range random_range(struct perf_job *j, bool read)
{
	struct perf_verify *v = j->verify;
	struct range r;

	if (read && v->recent_n && (perf_random(&j->pattern.seed) >> 32) % 4)
		return v->recent[(perf_random(&j->pattern.seed) >> 32) % v->recent_n];
	r.n = random_size(j);
	r.first = (uint64_t)((unsigned __int128)perf_random(&j->pattern.seed) *
				     (v->blocks - r.n + 1) >>
			     64);
	return r;
}

/* false: no place was found where nothing is in flight. */
static bool submit_random(struct perf_job *j)
{
	struct perf_verify *v = j->verify;
	bool read = perf_random(&j->pattern.seed) >> 32 < j->pattern.read_share;

	if ((perf_random(&j->pattern.seed) >> 32) % FLUSH_ONE_IN == 0) {
		submit(j, BDEV_FLUSH, 0, 0);
		return true;
	}
	for (int i = 0; i < TRIES; i++) {
		struct range r = random_range(j, read);

		if (any_bit(v->busy, r.first, r.n))
			continue;
		if (!read)
			remember_write(v, r.first, r.n);
		submit(j, read ? BDEV_READ : BDEV_WRITE, r.first, r.n);
		return true;
	}
	return false;
}

static unsigned run_pass(struct perf_job *j)
{
	struct perf_verify *v = j->verify;
	unsigned n = 0;

	while (!j->stopping && !v->failed && v->ready && j->inflight < v->limit) {
		if (v->until_change-- == 0) {
			v->limit = 1 + (uint32_t)((perf_random(&j->pattern.seed) >> 32) %
						  j->pattern.depth);
			v->until_change = (perf_random(&j->pattern.seed) >> 32) % DEPTH_CHANGE_MAX;
		}
		if (!submit_random(j))
			break;
		n++;
	}
	return n;
}

/* --- reading back --- */

static void skip_unwritten(struct perf_verify *v)
{
	if (v->blocks * v->block_size <= READ_GAPS_BELOW)
		return;
	while (v->back < v->blocks && v->now[v->back] == 0)
		v->back++;
}

/* Blocks of the next chunk: it ends where a write ends. */
static uint32_t chunk_size(const struct perf_verify *v)
{
	uint32_t most = (uint32_t)MIN(v->max_blocks, v->blocks - v->back), n = most;

	if (v->back + n == v->blocks || v->now[v->back + n] == 0)
		return n;
	while (n > 0 && v->now[v->back + n - 1] == v->now[v->back + most])
		n--;
	return n ? n : most;
}

static unsigned back_pass(struct perf_job *j)
{
	struct perf_verify *v = j->verify;
	unsigned n = 0;

	while (v->ready && j->error == 0 && !perf_interrupted) {
		uint32_t blocks;

		skip_unwritten(v);
		if (v->back == v->blocks)
			break;
		blocks = chunk_size(v);
		submit(j, BDEV_READ, v->back, blocks);
		v->back += blocks;
		n++;
	}
	return n;
}

unsigned perf_verify_poll(struct poller *p)
{
	struct perf_job *j = container_of(p, struct perf_job, poller);

	perf_verify_settle(j);
	return j->verify->phase == PHASE_RUN ? run_pass(j) : back_pass(j);
}

void perf_verify_readback(struct perf_job *j)
{
	j->verify->phase = PHASE_BACK;
	j->verify->back = 0;
}

/* A fault that only the run has seen is one all the same. */
static void settle_first(struct perf_verify *v)
{
	bool known = false;

	for (int k = 0; k < FAULT_KINDS; k++)
		known |= v->faults.blocks[k] > 0;
	if (v->failed && !known) {
		v->first.once = true;
		add_fault(v, &v->first);
	}
}

bool perf_verify_readback_over(const struct perf_job *j)
{
	const struct perf_verify *v = j->verify;

	return j->inflight == 0 && !j->free &&
	       (v->back == v->blocks || j->error || perf_interrupted);
}

bool perf_verify_failed(const struct perf_job *j)
{
	return j->verify && j->verify->failed;
}

const struct perf_faults *perf_verify_faults(const struct perf_job *j)
{
	settle_first(j->verify);
	return &j->verify->faults;
}

/* --- life --- */

void perf_verify_start(struct perf_job *j)
{
	struct perf_verify *v = j->verify;

	v->ready = NULL;
	v->phase = PHASE_RUN;
	v->limit = j->pattern.depth;
	v->until_change = 0;
}

int perf_verify_open(struct perf_job *j, unsigned index, unsigned workers, struct err *e)
{
	const struct bdev *b = j->target->bdev;
	struct perf_verify *v = calloc(1, sizeof(*v));
	uint64_t part = j->target->span / b->block_size / workers;
	size_t words = part / 64 + 1;

	if (!v)
		return err_set(e, -ENOMEM, "Out of memory.");
	j->verify = v;
	v->block_size = b->block_size;
	v->blocks = part;
	v->offset = part * index * b->block_size;
	v->max_blocks = (uint32_t)MIN(perf_verify_max(j->options, b) / b->block_size, part);
	v->fixed_blocks = j->options->size_given ? v->max_blocks : 0;
	v->run = j->options->run_id;
	if (part > BLOCKS_MAX)
		return err_set(
			e, -EINVAL,
			"%.100s: verify remembers 8 bytes for each block: use a part of at most "
			"%" PRIu64 " GiB for each worker (-s).",
			j->target->spec, BLOCKS_MAX * b->block_size >> 30);
	v->now = calloc(part, sizeof(*v->now));
	v->before = calloc(part, sizeof(*v->before));
	v->busy = calloc(words, sizeof(*v->busy));
	v->seen = calloc(words, sizeof(*v->seen));
	v->found = calloc(v->max_blocks, sizeof(*v->found));
	if (!v->now || !v->before || !v->busy || !v->seen || !v->found)
		return err_set(e, -ENOMEM, "Out of memory.");
	return 0;
}

void perf_verify_close(struct perf_job *j)
{
	struct perf_verify *v = j->verify;

	if (!v)
		return;
	free(v->now);
	free(v->before);
	free(v->busy);
	free(v->seen);
	free(v->found);
	free(v);
	j->verify = NULL;
}

/* --- words --- */

const char *const perf_fault_names[FAULT_KINDS] = { "torn", "lost", "stale", "misplaced",
						    "corrupt" };

static void found_words(const struct perf_fault *f, char *buf, size_t size)
{
	switch (f->found.state) {
	case STAMP_ZEROES:
		snprintf(buf, size, "zeroes");
		break;
	case STAMP_NONE:
		snprintf(buf, size, "data that verify did not write");
		break;
	case STAMP_BROKEN:
		snprintf(buf, size,
			 "the stamp of generation %" PRIu32 " of offset %" PRIu64
			 " on data with another checksum",
			 f->found.generation, f->found.offset);
		break;
	case STAMP_WHOLE:
		snprintf(buf, size, "generation %" PRIu32 " of offset %" PRIu64 "%s",
			 f->found.generation, f->found.offset,
			 f->foreign ? " of an earlier run" : "");
		break;
	}
}

void perf_fault_words(const struct perf_fault *f, uint32_t block_size, char *buf, size_t size)
{
	char found[160], expected[64] = "nothing that verify wrote";

	found_words(f, found, sizeof(found));
	if (f->expected)
		snprintf(expected, sizeof(expected), "generation %" PRIu32, f->expected);
	snprintf(buf, size,
		 "%s: %" PRIu64 " block%s of %u at offset %" PRIu64 ": expected %s, found %s%s",
		 perf_fault_names[f->kind], f->blocks, f->blocks == 1 ? "" : "s", block_size,
		 f->offset, expected, found,
		 f->once ? " (once; a second read found what was expected)" : "");
}
