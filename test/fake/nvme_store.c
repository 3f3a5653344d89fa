#include "fake/nvme_store.h"

#include <stdlib.h>
#include <string.h>

#include "util/compiler.h"

#define CHUNK (32u << 10)

struct chunk {
	uint64_t index;
	struct chunk *next;
	uint8_t *durable; /* NULL: now is durable */
	uint8_t now[CHUNK];
};

/* The bytes of a range that lie in one chunk. */
struct piece {
	uint64_t index;
	size_t off, len;
};

static struct piece piece_at(uint64_t at, uint64_t len)
{
	size_t off = at % CHUNK;

	return (struct piece){ .index = at / CHUNK, .off = off, .len = MIN(len, CHUNK - off) };
}

static struct chunk **slot_of(const struct nvme_store *s, uint64_t index)
{
	return &s->bucket[index * 0x9e3779b97f4a7c15u >> 32 & (s->buckets - 1)];
}

static struct chunk *chunk_find(const struct nvme_store *s, uint64_t index)
{
	struct chunk *c = *slot_of(s, index);

	while (c && c->index != index)
		c = c->next;
	return c;
}

static struct chunk *chunk_get(struct nvme_store *s, uint64_t index)
{
	struct chunk *c = chunk_find(s, index), **slot;

	if (c)
		return c;
	c = calloc(1, sizeof(*c));
	if (!c)
		return NULL;
	slot = slot_of(s, index);
	c->index = index;
	c->next = *slot;
	*slot = c;
	s->chunks++;
	return c;
}

static void chunk_settle(struct nvme_store *s, struct chunk *c)
{
	if (!c->durable)
		return;
	free(c->durable);
	c->durable = NULL;
	s->dirty--;
}

static bool chunk_soil(struct nvme_store *s, struct chunk *c)
{
	if (c->durable)
		return true;
	c->durable = malloc(CHUNK);
	if (!c->durable)
		return false;
	memcpy(c->durable, c->now, CHUNK);
	s->dirty++;
	return true;
}

bool store_init(struct nvme_store *s)
{
	*s = (struct nvme_store){ .buckets = 4096 };
	s->bucket = calloc(s->buckets, sizeof(*s->bucket));
	return s->bucket != NULL;
}

void store_free(struct nvme_store *s)
{
	struct chunk *c, *next;

	for (unsigned i = 0; s->bucket && i < s->buckets; i++) {
		for (c = s->bucket[i]; c; c = next) {
			next = c->next;
			free(c->durable);
			free(c);
		}
	}
	free(s->bucket);
	*s = (struct nvme_store){ 0 };
}

void store_read(const struct nvme_store *s, uint64_t at, void *to, size_t len)
{
	uint8_t *p = to;
	const struct chunk *c;
	struct piece x;

	for (; len; at += x.len, p += x.len, len -= x.len) {
		x = piece_at(at, len);
		c = chunk_find(s, x.index);
		if (c)
			memcpy(p, c->now + x.off, x.len);
		else
			memset(p, 0, x.len);
	}
}

/* One piece of a write; from NULL: all v. */
static bool piece_write(struct nvme_store *s, struct piece x, const uint8_t *from, uint8_t v,
			bool durable)
{
	struct chunk *c = chunk_get(s, x.index);

	if (!c || (!durable && !chunk_soil(s, c)))
		return false;
	if (from)
		memcpy(c->now + x.off, from, x.len);
	else
		memset(c->now + x.off, v, x.len);
	if (durable && c->durable)
		memcpy(c->durable + x.off, c->now + x.off, x.len);
	return true;
}

bool store_write(struct nvme_store *s, uint64_t at, const void *from, size_t len, bool durable)
{
	const uint8_t *p = from;
	struct piece x;

	for (; len; at += x.len, p += x.len, len -= x.len) {
		x = piece_at(at, len);
		if (!piece_write(s, x, p, 0, durable))
			return false;
	}
	return true;
}

/* The part of [at, at + len) that lies in c; len 0: nothing. */
static struct piece piece_in(const struct chunk *c, uint64_t at, uint64_t len)
{
	uint64_t start = c->index * CHUNK;
	uint64_t first = MAX(start, at), end = MIN(start + CHUNK, at + len);

	return (struct piece){ .index = c->index,
			       .off = (size_t)(first - start),
			       .len = end > first ? (size_t)(end - first) : 0 };
}

/* Only chunks that are there need zeroes. */
static bool fill_zero(struct nvme_store *s, uint64_t at, uint64_t len, bool durable)
{
	struct piece x;

	for (unsigned i = 0; i < s->buckets; i++) {
		for (struct chunk *c = s->bucket[i]; c; c = c->next) {
			x = piece_in(c, at, len);
			if (x.len && !piece_write(s, x, NULL, 0, durable))
				return false;
		}
	}
	return true;
}

bool store_fill(struct nvme_store *s, uint64_t at, uint64_t len, uint8_t v, bool durable)
{
	struct piece x;

	if (v == 0)
		return fill_zero(s, at, len, durable);
	for (; len; at += x.len, len -= x.len) {
		x = piece_at(at, len);
		if (!piece_write(s, x, NULL, v, durable))
			return false;
	}
	return true;
}

void store_harden(struct nvme_store *s, uint64_t at, uint64_t len)
{
	struct chunk *c;
	struct piece x;

	for (; len; at += x.len, len -= x.len) {
		x = piece_at(at, len);
		c = chunk_find(s, x.index);
		if (c && c->durable)
			memcpy(c->durable + x.off, c->now + x.off, x.len);
	}
}

void store_flush(struct nvme_store *s)
{
	for (unsigned i = 0; s->dirty && i < s->buckets; i++)
		for (struct chunk *c = s->bucket[i]; c; c = c->next)
			chunk_settle(s, c);
}

void store_lose(struct nvme_store *s)
{
	for (unsigned i = 0; s->dirty && i < s->buckets; i++) {
		for (struct chunk *c = s->bucket[i]; c; c = c->next) {
			if (c->durable)
				memcpy(c->now, c->durable, CHUNK);
			chunk_settle(s, c);
		}
	}
}
