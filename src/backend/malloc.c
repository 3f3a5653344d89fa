/*
 * malloc: a disk in RAM. Its contents live as long as the bdev; nothing is volatile beyond that, so
 * FLUSH has nothing to do. The memory is allocated and touched at creation: no page faults later,
 * and a lack of memory shows at once.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "backend/common.h"
#include "backend/list.h"
#include "mem/mem.h"

/* What is copied or zeroed at once stays far below a millisecond, so that one request cannot hold
 * up a reactor. */
#define COPY_MAX (512u << 10)
#define ZERO_MAX (1u << 20)

struct malloc_args {
	BDEV_COMMON_ARGS;
	uint64_t optimal_io_boundary;
	int64_t numa_id;
	bool md_interleave;
};

static const struct param malloc_params[] = {
	PARAM_STRING(struct malloc_args, name, .min = 1, .max = 255,
		     .help = "name of the new disk (default: Malloc0, ...)"),
	BDEV_COMMON_PARAMS(struct malloc_args),
	PARAM_UINT(struct malloc_args, optimal_io_boundary, .obsolete = true),
	PARAM_BOOL(struct malloc_args, md_interleave, .fixed = true),
	PARAM_INT(struct malloc_args, numa_id, .obsolete = true, .def = UINT64_MAX),
	{ 0 }
};

struct malloc_bdev {
	struct bdev bdev;
	char *data;
};

static struct malloc_bdev *to_malloc(struct bdev *b)
{
	return container_of(b, struct malloc_bdev, bdev);
}

static int malloc_create(const void *args, struct bdev **out, struct err *e)
{
	const struct malloc_args *a = args;
	struct malloc_bdev *m = calloc(1, sizeof(*m));
	void *data;
	int rc;

	if (!m)
		return err_set(e, -ENOMEM, "Out of memory.");
	rc = bdev_common_geometry(a->num_blocks, a->size, a->block_size, a->physical_block_size,
				  &m->bdev, e);
	if (rc == 0)
		rc = mem_zalloc(m->bdev.size, 4096, &data, e);
	if (rc) {
		free(m);
		return rc;
	}
	m->data = data;
	m->bdev.limits = (struct bdev_limits){
		.max_len = COPY_MAX,
		.max_discard = ZERO_MAX,
		.max_zeroes = ZERO_MAX,
		.max_iov = UINT16_MAX,
		.buf_align = 1,
	};
	*out = &m->bdev;
	return 0;
}

static void malloc_destroy(struct bdev *b)
{
	struct malloc_bdev *m = to_malloc(b);

	mem_free(m->data, b->size);
	free(m);
}

/* hot */
static void malloc_submit(struct bdev_io *io)
{
	char *at = to_malloc(io->q->bdev)->data + io->offset;

	switch (io->op) {
	case BDEV_READ:
		for (int i = 0; i < io->iovcnt; at += io->iov[i++].iov_len)
			memcpy(io->iov[i].iov_base, at, io->iov[i].iov_len);
		break;
	case BDEV_WRITE:
		for (int i = 0; i < io->iovcnt; at += io->iov[i++].iov_len)
			memcpy(at, io->iov[i].iov_base, io->iov[i].iov_len);
		break;
	case BDEV_DISCARD:
	case BDEV_WRITE_ZEROES:
		memset(at, 0, io->len);
		break;
	default:
		break;
	}
	bdev_io_end(io, 0);
}

const struct bdev_driver malloc_driver = {
	.name = "malloc",
	.product_name = "Malloc disk",
	.help = "a disk in RAM",
	.params = malloc_params,
	.args_size = sizeof(struct malloc_args),
	.create = malloc_create,
	.destroy = malloc_destroy,
	.submit = malloc_submit,
};
