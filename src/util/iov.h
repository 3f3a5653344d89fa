/* Scatter/gather lists as plain struct iovec: what io_uring, sendmsg and guests speak alike. */
#ifndef UTIL_IOV_H
#define UTIL_IOV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

/* Total bytes. */
size_t iov_len(const struct iovec *iov, int n);

/* Copy up to len bytes from / to the list, starting `offset` bytes into it; returns the bytes
 * copied. */
size_t iov_copy_out(const struct iovec *iov, int n, size_t offset, void *dst, size_t len);
size_t iov_copy_in(const struct iovec *iov, int n, size_t offset, const void *src, size_t len);

/*
 * The part [offset, offset + len) of a list as a list of its own in out[0..max). Returns the
 * entries used, or -1 when more than max would be needed. Zero-length entries are dropped.
 */
int iov_slice(const struct iovec *iov, int n, size_t offset, size_t len, struct iovec *out,
	      int max);

/* True when every entry starts at a multiple of align and has a length that is a multiple of unit
 * (powers of 2). */
bool iov_aligned(const struct iovec *iov, int n, size_t align, size_t unit);

#endif
