/*
 * The registry: every bdev by name, and who holds it. One lock, never taken by reactors. Slow work
 * (create, destroy, opening queues) runs without it: a name being created is reserved, so that
 * other clients are served meanwhile.
 *
 * Control threads only.
 */
#ifndef BDEV_REGISTRY_H
#define BDEV_REGISTRY_H

#include "bdev/bdev.h"

/* The lock of the registry, which exports share for their own lists. */
void registry_lock(void);
void registry_unlock(void);

/*
 * Make a bdev from decoded args (which become the registry's, also on failure). A driver whose name
 * is optional gets one. name_out (may be NULL): the name, valid until the bdev is deleted. Errors:
 * -EEXIST, -EINVAL, -ENOMEM, the driver's.
 */
int bdev_create(const struct bdev_driver *driver, void *args, char **name_out, struct err *e);

/* Errors: -ENODEV (also when it is another driver's), -EBUSY when held. */
int bdev_delete(const struct bdev_driver *driver, const char *name, struct err *e);

/* The device of b has another size now, in whole blocks: requests beyond it fail from now on. The
 * driver's. */
void bdev_resize(struct bdev *b, uint64_t size);

/* The device of b is no more: its requests fail with -ENXIO from now on, and nobody can take hold
 * of b; those that the driver has are the driver's to end. The driver's. */
void bdev_set_gone(struct bdev *b);
/* True when a request's bdev has gone. On its reactor. */
bool bdev_io_is_gone(const struct bdev_io *io);

/* Hold a bdev by name or UUID so that it cannot be deleted. Errors: -ENODEV. */
int bdev_get(const char *name, struct bdev **out, struct err *e);
void bdev_put(struct bdev *b);

/* b is held. */
void bdev_watch(struct bdev *b, struct bdev_watcher *w);
void bdev_unwatch(struct bdev_watcher *w);

/* Call fn for each ready bdev, in order of creation, under the lock, until it returns non-zero;
 * returns that. */
int bdev_for_each(int (*fn)(struct bdev *b, void *arg), void *arg);

/* Sum over closed and open queues; call under the lock. */
void bdev_get_stats(const struct bdev *b, struct bdev_stats *s);

/* Destroy all that nobody holds, newest first: filters before their bases. */
void bdev_delete_all(void);

#endif
