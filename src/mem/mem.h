/*
 * mem: the memory that devices and kernels may touch on our behalf.
 *
 * Every range that I/O can target - guest memory above all - is registered once, by the control
 * thread that mapped it. The table of ranges is an immutable sorted snapshot behind one pointer.
 * It lets the process survive memory that vanishes (SIGBUS): a guest that shrinks its shared file
 * gets zeroes, a device that is pulled reads as all ones, we go on. With an IOMMU it is the place
 * where IOVAs are found (iommu.h).
 *
 * mem_zalloc() gives memory that only we touch, RAM disks say: hugepages when the system has
 * reserved some, ordinary pages otherwise, populated either way so that the data path takes no page
 * faults. dma_zalloc() gives the same, registered: for rings and buffers that devices reach.
 */
#ifndef MEM_MEM_H
#define MEM_MEM_H

#include <stdbool.h>
#include <stddef.h>

#include "util/err.h"

enum mem_kind {
	MEM_SHARED, /* with another process, and no device's business */
	MEM_DMA,    /* what devices read and write: guest memory, rings, buffers */
	MEM_BAR,    /* a device's registers: all ones when they vanish */
};

/* Control threads. Page-aligned ranges that do not overlap others. What an IOMMU cannot map is
 * logged, and is copied where it is used. Errors: -EEXIST (overlap), -ENOMEM, -EINVAL. */
int mem_register(void *vaddr, size_t len, enum mem_kind kind);
/* vaddr as given to mem_register; nobody touches the range any more, no device either. */
void mem_unregister(void *vaddr);

/* True when the range's backing vanished (a guest shrank its shared memory, a device was pulled)
 * and was replaced. Any thread. */
bool mem_lost(const void *vaddr);

/*
 * Make accesses to registered memory whose backing is gone harmless: the range is replaced by
 * private zeroes (MEM_BAR: ones) and marked lost. SIGBUS elsewhere stays fatal. Once, at start.
 */
int mem_guard_sigbus(void);

/* align: power of two <= 2 MiB. Errors: -ENOMEM with a sentence, checked against what the machine
 * has free beforehand. */
int mem_zalloc(size_t len, size_t align, void **out, struct err *e);
void mem_free(void *p, size_t len); /* len as given to mem_zalloc */

/* The same, in the devices' reach. Errors: also those of struct iommu.map. */
int dma_zalloc(size_t len, size_t align, void **out, struct err *e);
void dma_free(void *p, size_t len);

/*
 * DMA memory that can also be shared with another process by its fd: what a vhost-user front-end
 * reads and writes into. Zeroed and page-aligned; touched now (populate), or when it is used.
 * Errors: as dma_zalloc(), the kernel's.
 */
int dma_zalloc_shared(size_t len, bool populate, void **out, struct err *e);
void dma_free_shared(void *p);

struct dma_shared {
	void *base;
	size_t len;
	int fd;
};

/* All memory of that kind that there is now, at most max ranges, oldest first. Returns their
 * number. */
unsigned dma_shared_list(struct dma_shared *ranges, unsigned max);

#endif
