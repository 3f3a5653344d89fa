/*
 * null: a disk that does nothing, as fast as it can: reads leave the buffer as it is, writes
 * vanish. It measures everything above it, and it is the reference text of the driver contract:
 * parameters, create, submit, table.
 */
#include <errno.h>
#include <stdlib.h>

#include "backend/common.h"
#include "backend/list.h"

struct null_args {
	BDEV_COMMON_ARGS;
	uint64_t preferred_write_granularity, preferred_write_alignment, optimal_write_size;
	uint64_t preferred_unmap_granularity, preferred_unmap_alignment;
};

static const struct param null_params[] = {
	PARAM_STRING(struct null_args, name, .required = true, .min = 1, .max = 255,
		     .help = "name of the new disk"),
	BDEV_COMMON_PARAMS(struct null_args),
	PARAM_UINT(struct null_args, preferred_write_granularity, .obsolete = true),
	PARAM_UINT(struct null_args, preferred_write_alignment, .obsolete = true),
	PARAM_UINT(struct null_args, optimal_write_size, .obsolete = true),
	PARAM_UINT(struct null_args, preferred_unmap_granularity, .obsolete = true),
	PARAM_UINT(struct null_args, preferred_unmap_alignment, .obsolete = true),
	{ 0 }
};

static int null_create(const void *args, struct bdev **out, struct err *e)
{
	const struct null_args *a = args;
	struct bdev *b = calloc(1, sizeof(*b));
	int rc;

	if (!b)
		return err_set(e, -ENOMEM, "Out of memory.");
	rc = bdev_common_geometry(a->num_blocks, a->size, a->block_size, a->physical_block_size, b,
				  e);
	if (rc) {
		free(b);
		return rc;
	}
	/* No DISCARD and no WRITE_ZEROES: what reads back afterwards would not be zeroes. */
	b->limits = (struct bdev_limits){
		.max_len = UINT32_MAX,
		.max_iov = UINT16_MAX,
		.buf_align = 1,
		.no_zeroes = true,
	};
	*out = b;
	return 0;
}

static void null_destroy(struct bdev *b)
{
	free(b);
}

/* hot */
static void null_submit(struct bdev_io *io)
{
	bdev_io_end(io, 0);
}

const struct bdev_driver null_driver = {
	.name = "null",
	.product_name = "Null disk",
	.help = "a disk that does nothing, for measuring",
	.params = null_params,
	.args_size = sizeof(struct null_args),
	.create = null_create,
	.destroy = null_destroy,
	.submit = null_submit,
};
