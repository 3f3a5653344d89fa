/* Every driver of bdevs, and the methods that their tables give: bdev_NAME_create,
 * bdev_NAME_delete. */
#ifndef CTL_DRIVERS_H
#define CTL_DRIVERS_H

#include "bdev/bdev.h"
#include "ctl/rpc.h"

/* NULL-terminated. */
extern const struct bdev_driver *const drivers[];

const struct bdev_driver *driver_find(const char *name);

/* "bdev_malloc_create" */
const char *driver_create_method(const struct bdev_driver *d);

/* Fill out[] with at most max methods and an end mark behind them. */
void drivers_make_methods(struct rpc_method *out, unsigned max);

#endif
