#include "ctl/base64.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static const char common[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";

static char digit(unsigned value, int for_urls)
{
	if (value < 62)
		return common[value];
	return value == 62 ? (for_urls ? '-' : '+') : (for_urls ? '_' : '/');
}

static int value_of(char c)
{
	const char *at = c ? strchr(common, c) : NULL;

	if (at)
		return (int)(at - common);
	if (c == '+' || c == '-')
		return 62;
	return c == '/' || c == '_' ? 63 : -1;
}

char *base64_encode(const void *data, size_t len, int for_urls)
{
	const uint8_t *in = data;
	char *text = malloc((len + 2) / 3 * 4 + 1), *out = text;

	for (size_t i = 0; text && i < len; i += 3) {
		size_t n = len - i < 3 ? len - i : 3;
		unsigned group = (unsigned)in[i] << 16;

		group |= n > 1 ? (unsigned)in[i + 1] << 8 : 0;
		group |= n > 2 ? in[i + 2] : 0;
		*out++ = digit(group >> 18 & 63, for_urls);
		*out++ = digit(group >> 12 & 63, for_urls);
		*out++ = n > 1 ? digit(group >> 6 & 63, for_urls) : '=';
		*out++ = n > 2 ? digit(group & 63, for_urls) : '=';
	}
	if (text)
		*out = '\0';
	return text;
}

int base64_decode(const char *text, void **out, size_t *len)
{
	size_t n = strlen(text);
	unsigned group = 0, bits = 0;
	uint8_t *data, *to;

	while (n > 0 && text[n - 1] == '=')
		n--;
	if (n % 4 == 1)
		return -EINVAL;
	to = data = malloc(n / 4 * 3 + 3);
	if (!data)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++) {
		int v = value_of(text[i]);

		if (v < 0) {
			free(data);
			return -EINVAL;
		}
		group = group << 6 | (unsigned)v;
		bits += 6;
		if (bits >= 8) {
			bits -= 8;
			*to++ = (uint8_t)(group >> bits);
		}
	}
	*out = data;
	*len = (size_t)(to - data);
	return 0;
}
