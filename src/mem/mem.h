/*
 * mem: the memory that devices and kernels may touch on our behalf.
 *
 * Every range that I/O can target - guest memory above all - is registered once, by the control
 * thread that mapped it. The table of ranges is an immutable sorted snapshot behind one pointer.
 * With an IOMMU it will be the place where IOVAs are found; today it lets the process survive
 * memory that vanishes (SIGBUS): a guest that shrinks its shared file gets zeroes, we go on.
 *
 * dma_zalloc() gives memory for rings, RAM disks and bounce buffers: hugepages when the system has
 * reserved some, ordinary pages otherwise, populated either way so that the data path takes no page
 * faults.
 */
#ifndef MEM_MEM_H
#define MEM_MEM_H

#include <stdbool.h>
#include <stddef.h>

#include "util/err.h"

/* Control threads. Page-aligned ranges that do not overlap others. Errors: -EEXIST (overlap),
 * -ENOMEM, -EINVAL. */
int mem_register(void *vaddr, size_t len);
/* vaddr as given to mem_register; nobody touches the range any more. */
void mem_unregister(void *vaddr);

/* True when the range's backing vanished (a guest shrank its shared memory) and was replaced by
 * zeroes. Any thread. */
bool mem_lost(const void *vaddr);

/*
 * Make accesses to registered memory whose backing is gone harmless: the range is replaced by
 * private zeroes and marked lost. SIGBUS elsewhere stays fatal. Once, at start.
 */
int mem_guard_sigbus(void);

/* align: power of two <= 2 MiB. Errors: -ENOMEM with a sentence, checked against what the machine
 * has free beforehand. */
int dma_zalloc(size_t len, size_t align, void **out, struct err *e);
void dma_free(void *p, size_t len); /* len as given to dma_zalloc */

/*
 * Memory that can also be shared with another process by its fd: what a vhost-user front-end reads
 * and writes into. Zeroed and page-aligned; touched now (populate), or when it is used. Errors: as
 * dma_zalloc(), the kernel's.
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
