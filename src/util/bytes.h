/*
 * Numbers from outside: little-endian wire types and arithmetic that cannot wrap.
 *
 * le16/le32/le64 hold bytes in the wire's order; only the conversion functions turn them into
 * numbers. sparse checks that nobody forgets (make check runs it when it is installed).
 */
#ifndef UTIL_BYTES_H
#define UTIL_BYTES_H

#include <endian.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __CHECKER__
#define WIRE_TYPE __attribute__((bitwise))
#define WIRE_CAST __attribute__((force))
#else
#define WIRE_TYPE
#define WIRE_CAST
#endif

typedef uint16_t WIRE_TYPE le16;
typedef uint32_t WIRE_TYPE le32;
typedef uint64_t WIRE_TYPE le64;

static inline uint16_t from_le16(le16 v)
{
	return le16toh((WIRE_CAST uint16_t)v);
}

static inline uint32_t from_le32(le32 v)
{
	return le32toh((WIRE_CAST uint32_t)v);
}

static inline uint64_t from_le64(le64 v)
{
	return le64toh((WIRE_CAST uint64_t)v);
}

static inline le16 to_le16(uint16_t v)
{
	return (WIRE_CAST le16)htole16(v);
}

static inline le32 to_le32(uint32_t v)
{
	return (WIRE_CAST le32)htole32(v);
}

static inline le64 to_le64(uint64_t v)
{
	return (WIRE_CAST le64)htole64(v);
}

/* One load of memory that another party may change, at any address: the compiler must not go back
 * for the value. */
static inline uint64_t load_le64(const void *p)
{
	uint64_t v;

	__builtin_memcpy(&v, p, sizeof(v));
	__asm__ __volatile__("" : "+r"(v));
	return le64toh(v);
}

/* True when [start, start + len) stays below 2^64 and inside [0, size). */
static inline bool range_fits(uint64_t start, uint64_t len, uint64_t size)
{
	return start <= size && len <= size - start;
}

/* True when start + len wraps past 2^64. */
static inline bool range_wraps(uint64_t start, uint64_t len)
{
	return len > UINT64_MAX - start;
}

static inline bool ranges_overlap(uint64_t a, uint64_t a_len, uint64_t b, uint64_t b_len)
{
	return a < b + b_len && b < a + a_len;
}

#endif
