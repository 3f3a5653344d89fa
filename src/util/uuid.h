/* RFC 4122 UUIDs as 16 bytes in text order. */
#ifndef UTIL_UUID_H
#define UTIL_UUID_H

#include <stdbool.h>
#include <stdint.h>

#define UUID_TEXT 37

struct uuid {
	uint8_t bytes[16];
};

bool uuid_parse(const char *text, struct uuid *u); /* false: not a UUID; *u untouched */
void uuid_format(const struct uuid *u, char text[UUID_TEXT]);
void uuid_random(struct uuid *u); /* version 4 */
bool uuid_is_null(const struct uuid *u);

#endif
