/*
 * Registered files and buffers of a reactor's io_uring: io_uring_register(2), IORING_REGISTER_FILES
 * and _BUFFERS2, with tables that begin empty (Linux 5.13).
 */
#include <errno.h>
#include <string.h>
#include <strings.h>

#include "reactor/internal.h"
#include "reactor/uring.h"

_Static_assert(URING_FILES == 64, "one bit each in uring_fixed.files");

static bool have_files(struct reactor *r)
{
	int none[URING_FILES];

	if (!r->uring.fixed.have_files) {
		memset(none, -1, sizeof(none));
		r->uring.fixed.have_files =
			io_uring_register_files(&r->uring.ring, none, URING_FILES) == 0;
	}
	return r->uring.fixed.have_files;
}

static bool have_ranges(struct reactor *r)
{
	const struct iovec none[URING_RANGES] = { 0 };
	const __u64 tags[URING_RANGES] = { 0 };

	if (!r->uring.fixed.have_ranges)
		r->uring.fixed.have_ranges =
			io_uring_register_buffers_tags(&r->uring.ring, none, tags, URING_RANGES) ==
			0;
	return r->uring.fixed.have_ranges;
}

int uring_file_add(struct reactor *r, int fd)
{
	struct uring_fixed *fixed = &r->uring.fixed;
	int place = ffsll((long long)~fixed->files) - 1;

	if (r->uring.error || place < 0 || !have_files(r))
		return -ENOSPC;
	if (io_uring_register_files_update(&r->uring.ring, (unsigned)place, &fd, 1) < 0)
		return -ENOSPC;
	fixed->files |= UINT64_C(1) << place;
	return place;
}

void uring_file_remove(struct reactor *r, int place)
{
	int none = -1;

	io_uring_register_files_update(&r->uring.ring, (unsigned)place, &none, 1);
	r->uring.fixed.files &= ~(UINT64_C(1) << place);
}

void uring_memory_add(struct reactor *r, void *base, size_t len)
{
	struct uring_fixed *fixed = &r->uring.fixed;
	const struct iovec range = { base, len };
	__u64 tag = 0;

	if (r->uring.error || fixed->ranges_n == URING_RANGES || !have_ranges(r))
		return;
	if (io_uring_register_buffers_update_tag(&r->uring.ring, fixed->ranges_n, &range, &tag, 1) <
	    0)
		return;
	fixed->ranges[fixed->ranges_n++] = range;
}

/* Its range's index; -1: in none. */
static int find_range(const struct uring_fixed *fixed, const struct iovec *iov)
{
	for (unsigned i = 0; i < fixed->ranges_n; i++) {
		size_t at = (uintptr_t)iov->iov_base - (uintptr_t)fixed->ranges[i].iov_base;

		if (at < fixed->ranges[i].iov_len && iov->iov_len <= fixed->ranges[i].iov_len - at)
			return (int)i;
	}
	return -1;
}

void uring_prep_rw(const struct reactor *r, struct io_uring_sqe *sqe, bool write, int fd,
		   const struct iovec *iov, unsigned iovcnt, uint64_t offset)
{
	int range;

	if (iovcnt != 1) {
		io_uring_prep_rw(write ? IORING_OP_WRITEV : IORING_OP_READV, sqe, fd, iov, iovcnt,
				 offset);
		return;
	}
	range = find_range(&r->uring.fixed, iov);
	io_uring_prep_rw(write ? IORING_OP_WRITE : IORING_OP_READ, sqe, fd, iov->iov_base,
			 (unsigned)iov->iov_len, offset);
	if (range >= 0) {
		sqe->opcode = write ? IORING_OP_WRITE_FIXED : IORING_OP_READ_FIXED;
		sqe->buf_index = (uint16_t)range;
	}
}
