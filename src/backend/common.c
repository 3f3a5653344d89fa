#include "backend/common.h"

#include <errno.h>
#include <inttypes.h>

#include "util/compiler.h"

/* The largest disk whose byte offsets and 512-byte sectors every interface can name. */
#define SIZE_MAX_BYTES (UINT64_C(1) << 62)

static int not_power_of_2(const char *field, uint64_t given, struct err *e)
{
	char text[32];

	snprintf(text, sizeof(text), "%" PRIu64, given);
	return err_field(e, -EINVAL, field, text, "512, 1024, 2048, 4096, ... 65536",
			 "Parameter '%s' must be a power of 2 from 512 to 65536, not %s.", field,
			 text);
}

int bdev_common_geometry(uint64_t num_blocks, uint64_t size, uint64_t block_size,
			 uint64_t physical_block_size, struct bdev *b, struct err *e)
{
	char given[32];

	if (!IS_POWER_OF_2(block_size))
		return not_power_of_2("block_size", block_size, e);
	if (physical_block_size == 0)
		physical_block_size = block_size;
	if (!IS_POWER_OF_2(physical_block_size) || physical_block_size < block_size)
		return not_power_of_2("physical_block_size", physical_block_size, e);
	if (num_blocks && size)
		return err_field(e, -EINVAL, "size", NULL, NULL,
				 "Give num_blocks or size, not both.");
	if (size % block_size) {
		snprintf(given, sizeof(given), "%" PRIu64, size);
		return err_field(e, -EINVAL, "size", given, "a multiple of block_size",
				 "A size of %s bytes is not whole blocks of %" PRIu64 ".", given,
				 block_size);
	}
	if (num_blocks == 0)
		num_blocks = size / block_size;
	snprintf(given, sizeof(given), "%" PRIu64, num_blocks);
	if (num_blocks == 0 || num_blocks > SIZE_MAX_BYTES / block_size)
		return err_field(e, -EINVAL, "num_blocks", given, "1 block to 4 EiB",
				 "A disk of %s blocks of %" PRIu64
				 " bytes cannot be made: the size must be from one "
				 "block to 4 EiB.",
				 given, block_size);
	b->block_size = (uint32_t)block_size;
	b->physical_block_size = (uint32_t)physical_block_size;
	b->size = num_blocks * block_size;
	return 0;
}
