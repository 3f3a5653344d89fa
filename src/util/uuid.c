#include "util/uuid.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

bool uuid_parse(const char *text, struct uuid *u)
{
	struct uuid v;
	unsigned nibbles = 0;

	memset(&v, 0, sizeof(v));
	for (size_t i = 0; i < UUID_TEXT - 1; i++) {
		bool dash = i == 8 || i == 13 || i == 18 || i == 23;
		unsigned c = (unsigned char)text[i];

		if (dash && c == '-')
			continue;
		if (dash || !isxdigit((int)c))
			return false;
		c = isdigit((int)c) ? c - '0' : (unsigned)tolower((int)c) - 'a' + 10;
		v.bytes[nibbles / 2] = (uint8_t)(v.bytes[nibbles / 2] << 4 | c);
		nibbles++;
	}
	if (text[UUID_TEXT - 1] != '\0')
		return false;
	*u = v;
	return true;
}

void uuid_format(const struct uuid *u, char text[UUID_TEXT])
{
	char *p = text;

	for (int i = 0; i < 16; i++) {
		if (i == 4 || i == 6 || i == 8 || i == 10)
			*p++ = '-';
		p += snprintf(p, 3, "%02x", u->bytes[i]);
	}
}

void uuid_random(struct uuid *u)
{
	if (getrandom(u->bytes, sizeof(u->bytes), 0) != (ssize_t)sizeof(u->bytes))
		abort(); /* 16 bytes always come whole once the pool is up (getrandom(2)) */
	u->bytes[6] = (uint8_t)((u->bytes[6] & 0x0f) | 0x40);
	u->bytes[8] = (uint8_t)((u->bytes[8] & 0x3f) | 0x80);
}

bool uuid_is_null(const struct uuid *u)
{
	static const struct uuid null;

	return memcmp(u, &null, sizeof(null)) == 0;
}
