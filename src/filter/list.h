/* Every filter. A leaf is removed by deleting its file and its line here. */
#ifndef FILTER_LIST_H
#define FILTER_LIST_H

#include "bdev/bdev.h"

extern const struct bdev_driver delay_driver, faulty_driver;

#define FILTER_LIST &delay_driver, &faulty_driver

#endif
