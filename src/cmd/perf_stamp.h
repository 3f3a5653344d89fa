/*
 * What the verify job of riffle perf writes into each block: who it is (offset, generation, run), a
 * checksum of the whole block, and contents that follow from these and do not compress.
 */
#ifndef CMD_PERF_STAMP_H
#define CMD_PERF_STAMP_H

#include <stddef.h>
#include <stdint.h>

enum stamp_state {
	STAMP_WHOLE,  /* a stamp, and the block is as it was written */
	STAMP_BROKEN, /* a stamp, but the rest of the block does not belong to it */
	STAMP_ZEROES, /* nothing but zeroes */
	STAMP_NONE,   /* something else */
};

struct stamp_found {
	enum stamp_state state;
	uint32_t generation; /* these only with a stamp */
	uint64_t offset, run;
};

/* Before the others, once. */
void stamp_init(void);

/* size: a multiple of 8, at least 512; block aligned to 8. */
void stamp_fill(void *block, size_t size, uint64_t run, uint64_t offset, uint32_t generation);
void stamp_examine(const void *block, size_t size, struct stamp_found *f);

/* How many of the block's 8-byte words are those that stamp_fill() writes. */
size_t stamp_words_of(const void *block, size_t size, uint64_t run, uint64_t offset,
		      uint32_t generation);

/* CRC32C (Castagnoli), as RFC 3720 B.4 has it; crc: 0, or that of what came before. */
uint32_t crc32c(uint32_t crc, const void *data, size_t len);

#endif
