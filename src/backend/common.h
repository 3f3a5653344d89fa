/* What backends with a made-up geometry (null, malloc) have in common: their parameters and the
 * checks of them. */
#ifndef BACKEND_COMMON_H
#define BACKEND_COMMON_H

#include "bdev/bdev.h"

#define BDEV_COMMON_ARGS                                            \
	char *name;                                                 \
	struct uuid uuid;                                           \
	uint64_t num_blocks, size, block_size, physical_block_size; \
	uint64_t md_size, dif_pi_format;                            \
	int64_t dif_type;                                           \
	bool dif_is_head_of_md

/* Metadata and DIF are accepted at their zero values, which SPDK's saved configurations spell out,
 * and refused otherwise. */
#define BDEV_COMMON_PARAMS(args)                                                           \
	PARAM_UUID(args, uuid, .help = "UUID (default: random)"),                          \
		PARAM_UINT(args, num_blocks, .required = true, .unless = "size", .min = 1, \
			   .help = "size in blocks"),                                      \
		PARAM_UINT(args, size, .help = "size in bytes, instead of num_blocks"),    \
		PARAM_UINT(args, block_size, .required = true, .min = 512, .max = 65536,   \
			   .help = "logical block size in bytes, a power of 2"),           \
		PARAM_UINT(args, physical_block_size, .max = 65536,                        \
			   .help = "physical block size in bytes (default: block_size)"),  \
		PARAM_UINT(args, md_size, .fixed = true),                                  \
		PARAM_INT(args, dif_type, .fixed = true),                                  \
		PARAM_BOOL(args, dif_is_head_of_md, .fixed = true),                        \
		PARAM_UINT(args, dif_pi_format, .obsolete = true)

/* Sets size, block_size and physical_block_size of b. Errors: -EINVAL naming the parameter. */
int bdev_common_geometry(uint64_t num_blocks, uint64_t size, uint64_t block_size,
			 uint64_t physical_block_size, struct bdev *b, struct err *e);

#endif
