/* Every backend. Those of NVMe come with their controllers. A leaf is removed by deleting its file
 * and its line here. */
#ifndef BACKEND_LIST_H
#define BACKEND_LIST_H

#include "backend/nvme.h"
#include "bdev/bdev.h"

extern const struct bdev_driver null_driver, malloc_driver, aio_driver, uring_driver, virtio_driver;

#define BACKEND_LIST &null_driver, &malloc_driver, &aio_driver, &uring_driver, &virtio_driver

#endif
