/*
 * What a file or block device can do, found out by trying: pure control-plane work of the file
 * backend (file.c), apart from it so that it can be tested alone.
 */
#ifndef BACKEND_FILE_H
#define BACKEND_FILE_H

#include <stdbool.h>
#include <stdint.h>

#include "util/err.h"

struct file_facts {
	int fd;
	bool readonly;
	bool is_device;	     /* block device, else regular file */
	bool direct;	     /* O_DIRECT works */
	bool can_punch;	     /* FALLOC_FL_PUNCH_HOLE, or BLKDISCARD */
	bool can_zero_range; /* FALLOC_FL_ZERO_RANGE */
	bool has_numa_node;
	int numa_node;	     /* of the device, or of the one under the file system */
	uint64_t size;	     /* bytes, as the kernel tells */
	uint32_t block_size; /* smallest unit of direct I/O; 512 without */
	uint32_t physical_block_size;
	uint32_t buf_align; /* of memory for direct I/O; 1 without */
};

/* Open and probe. The caller closes f->fd. Errors: the kernel's, with a sentence. */
int file_open(const char *path, bool readonly, struct file_facts *f, struct err *e);

/* The device's or file's present size; 0 when it cannot be told. */
uint64_t file_size(int fd, bool is_device);

#endif
