#include "filter/base.h"

void filter_take_over(struct bdev *b, const struct bdev *base, size_t own)
{
	b->size = base->size;
	b->block_size = base->block_size;
	b->physical_block_size = base->physical_block_size;
	b->readonly = base->readonly;
	b->page_cache = base->page_cache;
	b->kernel_io = base->kernel_io;
	b->shared_buffers = base->shared_buffers;
	b->has_numa_node = base->has_numa_node;
	b->numa_node = base->numa_node;
	b->limits = base->limits;
	b->limits.buf_align = 1;
	b->ctx_size = (uint32_t)own + base->ctx_size;
}
