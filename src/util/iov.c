#include "util/iov.h"

#include <string.h>

#include "util/compiler.h"

size_t iov_len(const struct iovec *iov, int n)
{
	size_t total = 0;

	for (int i = 0; i < n; i++)
		total += iov[i].iov_len;
	return total;
}

static size_t copy(const struct iovec *iov, int n, size_t offset, char *flat, size_t len, bool out)
{
	size_t done = 0;

	for (int i = 0; i < n && done < len; i++) {
		size_t part;

		if (offset >= iov[i].iov_len) {
			offset -= iov[i].iov_len;
			continue;
		}
		part = MIN(iov[i].iov_len - offset, len - done);
		if (out)
			memcpy(flat + done, (char *)iov[i].iov_base + offset, part);
		else
			memcpy((char *)iov[i].iov_base + offset, flat + done, part);
		done += part;
		offset = 0;
	}
	return done;
}

size_t iov_copy_out(const struct iovec *iov, int n, size_t offset, void *dst, size_t len)
{
	return copy(iov, n, offset, dst, len, true);
}

size_t iov_copy_in(const struct iovec *iov, int n, size_t offset, const void *src, size_t len)
{
	return copy(iov, n, offset, (char *)(uintptr_t)src, len, false);
}

int iov_slice(const struct iovec *iov, int n, size_t offset, size_t len, struct iovec *out, int max)
{
	int used = 0;

	for (int i = 0; i < n && len > 0; i++) {
		size_t part;

		if (offset >= iov[i].iov_len) {
			offset -= iov[i].iov_len;
			continue;
		}
		if (used == max)
			return -1;
		part = MIN(iov[i].iov_len - offset, len);
		out[used].iov_base = (char *)iov[i].iov_base + offset;
		out[used].iov_len = part;
		used++;
		len -= part;
		offset = 0;
	}
	return used;
}

bool iov_aligned(const struct iovec *iov, int n, size_t align, size_t unit)
{
	uintptr_t bits = 0;
	size_t lens = 0;

	for (int i = 0; i < n; i++) {
		bits |= (uintptr_t)iov[i].iov_base;
		lens |= iov[i].iov_len;
	}
	return (bits & (align - 1)) == 0 && (lens & (unit - 1)) == 0;
}
