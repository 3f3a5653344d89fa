/*
 * The dirty log of a migration (vhost-user, "Migration"): one bit per 4 KiB page of guest physical
 * memory that the device has written. Set atomically, since other devices and QEMU share it. Owner:
 * the session thread; rings write through it.
 */
#ifndef VIRTIO_DIRTY_LOG_H
#define VIRTIO_DIRTY_LOG_H

#include <stddef.h>
#include <stdint.h>

#include "util/err.h"

struct dirty_log {
	uint8_t *bits;
	uint64_t size; /* bytes of bitmap */
	void *map;
	size_t map_len;
};

/* Map the log from fd (which stays the caller's). Errors: -EINVAL, the kernel's. */
int dirty_log_open(int fd, uint64_t size, uint64_t offset, struct dirty_log **out, struct err *e);
void dirty_log_close(struct dirty_log *log);

/* Pages beyond the log are ignored. */
void dirty_log_mark(struct dirty_log *log, uint64_t gpa, uint64_t len);

#endif
