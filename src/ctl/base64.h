/* Base64 (RFC 4648), for commands and data that travel in JSON. */
#ifndef CTL_BASE64_H
#define CTL_BASE64_H

#include <stddef.h>

/* len bytes as text in either alphabet, padded; malloc'ed. NULL: out of memory. */
char *base64_encode(const void *data, size_t len, int for_urls);

/*
 * Text of either alphabet, padded or not, to *out (malloc'ed) and *len. Errors: -EINVAL (it is no
 * Base64), -ENOMEM.
 */
int base64_decode(const char *text, void **out, size_t *len);

#endif
