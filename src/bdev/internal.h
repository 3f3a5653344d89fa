/* What the files of this room share and nobody else sees. */
#ifndef BDEV_INTERNAL_H
#define BDEV_INTERNAL_H

#include "bdev/bdev.h"

/* fit.c: requests that a driver cannot take as they are. Never completes in the call. */
void bdev_fit_submit(struct bdev_io *io);
int bdev_fit_open(struct bdev_queue *q, struct err *e); /* -ENOMEM, those of dma_zalloc() */
void bdev_fit_close(struct bdev_queue *q);
/* The room fit.c needs in a request that it takes apart. */
uint32_t bdev_fit_ctx_size(void);

#endif
