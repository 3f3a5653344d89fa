/* What every filter does with the bdev below it. */
#ifndef FILTER_BASE_H
#define FILTER_BASE_H

#include "bdev/bdev.h"

/*
 * Make b look like its base: size, blocks, limits. Buffers need no alignment, since the base fits
 * what it is given. own: bytes of the filter's part of a request, which ends with the child's
 * struct bdev_io. At create.
 */
void filter_take_over(struct bdev *b, const struct bdev *base, size_t own);

#endif
