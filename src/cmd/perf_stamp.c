#include "cmd/perf_stamp.h"

#include <stdbool.h>
#include <string.h>

#define MAGIC	 UINT64_C(0x52494646504d4154)
#define CRC_POLY 0x82f63b78u /* reflected */

/* Host byte order: what one machine writes is read by the same. */
struct stamp {
	uint64_t magic, run, offset;
	uint32_t generation;
	uint32_t crc; /* of the whole block, with this field 0 */
};

_Static_assert(sizeof(struct stamp) == 32, "four words");

/* --- CRC32C --- */

/* table[k][b]: byte b followed by k zero bytes; eight bytes are then done at once. */
static uint32_t table[8][256];

void stamp_init(void)
{
	for (uint32_t b = 0; b < 256; b++) {
		uint32_t crc = b;

		for (int bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (crc & 1 ? CRC_POLY : 0);
		table[0][b] = crc;
	}
	for (int k = 1; k < 8; k++)
		for (uint32_t b = 0; b < 256; b++)
			table[k][b] = table[k - 1][b] >> 8 ^ table[0][table[k - 1][b] & 255];
}

uint32_t crc32c(uint32_t crc, const void *data, size_t len)
{
	const unsigned char *p = data;

	crc = ~crc;
	for (; len >= 8; p += 8, len -= 8) {
		uint32_t a = crc ^ ((uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 |
				    (uint32_t)p[3] << 24);

		crc = table[7][a & 255] ^ table[6][a >> 8 & 255] ^ table[5][a >> 16 & 255] ^
		      table[4][a >> 24] ^ table[3][p[4]] ^ table[2][p[5]] ^ table[1][p[6]] ^
		      table[0][p[7]];
	}
	for (; len; len--)
		crc = crc >> 8 ^ table[0][(crc ^ *p++) & 255];
	return ~crc;
}

static uint32_t block_crc(const void *block, size_t size)
{
	static const uint32_t zero;
	uint32_t crc = crc32c(0, block, offsetof(struct stamp, crc));

	crc = crc32c(crc, &zero, sizeof(zero));
	return crc32c(crc, (const char *)block + sizeof(struct stamp), size - sizeof(struct stamp));
}

/* --- contents --- */

/* splitmix64: nothing to compress, and any word tells of run, offset and generation. */
static uint64_t mix(uint64_t z)
{
	z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
	return z ^ z >> 31;
}

static uint64_t seed_of(uint64_t run, uint64_t offset, uint32_t generation)
{
	return mix(run ^ mix(offset ^ mix(generation)));
}

/* Word i of a block; cheaper than mix(), since the seed is mixed already. */
static inline uint64_t word(uint64_t seed, size_t i)
{
	uint64_t z = (seed + i) * UINT64_C(0x9e3779b97f4a7c15);

	return z ^ z >> 32;
}

void stamp_fill(void *block, size_t size, uint64_t run, uint64_t offset, uint32_t generation)
{
	struct stamp *s = block;
	uint64_t *words = block, seed = seed_of(run, offset, generation);

	*s = (struct stamp){ MAGIC, run, offset, generation, 0 };
	for (size_t i = sizeof(*s) / 8; i < size / 8; i++)
		words[i] = word(seed, i);
	s->crc = block_crc(block, size);
}

static bool all_zero(const uint64_t *words, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (words[i])
			return false;
	return true;
}

void stamp_examine(const void *block, size_t size, struct stamp_found *f)
{
	const struct stamp *s = block;

	memset(f, 0, sizeof(*f));
	if (s->magic != MAGIC) {
		f->state = all_zero(block, size / 8) ? STAMP_ZEROES : STAMP_NONE;
		return;
	}
	f->state = s->crc == block_crc(block, size) ? STAMP_WHOLE : STAMP_BROKEN;
	f->run = s->run;
	f->offset = s->offset;
	f->generation = s->generation;
}

size_t stamp_words_of(const void *block, size_t size, uint64_t run, uint64_t offset,
		      uint32_t generation)
{
	const uint64_t *words = block;
	uint64_t seed = seed_of(run, offset, generation);
	size_t n = 0;

	for (size_t i = sizeof(struct stamp) / 8; i < size / 8; i++)
		n += words[i] == word(seed, i);
	return n;
}
