/*
 * The medium of a fake drive and its volatile cache: sparse bytes at any 64-bit offset, in chunks
 * that are allocated when first written. A chunk that holds what is not durable yet has a second
 * copy of what is. No locks: whoever owns it has one.
 */
#ifndef FAKE_NVME_STORE_H
#define FAKE_NVME_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct chunk;

struct nvme_store {
	struct chunk **bucket;
	unsigned buckets;
	unsigned chunks, dirty; /* how many there are, how many have a second copy */
};

/* False: no memory. */
bool store_init(struct nvme_store *s);
void store_free(struct nvme_store *s);

/* What was never written reads 0. */
void store_read(const struct nvme_store *s, uint64_t at, void *to, size_t len);
/* False: no memory. durable: at once; else after store_flush(). */
bool store_write(struct nvme_store *s, uint64_t at, const void *from, size_t len, bool durable);
/* A range becomes all v; ranges of zeroes may be vast. */
bool store_fill(struct nvme_store *s, uint64_t at, uint64_t len, uint8_t v, bool durable);
/* What is in the cache of [at, at + len), or of everything, becomes durable; what was not is lost.
 */
void store_harden(struct nvme_store *s, uint64_t at, uint64_t len);
void store_flush(struct nvme_store *s);
void store_lose(struct nvme_store *s);

#endif
