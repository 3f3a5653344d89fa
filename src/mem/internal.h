/* What the files of this room share and nobody else sees. */
#ifndef MEM_INTERNAL_H
#define MEM_INTERNAL_H

#include <stdatomic.h>

#include "mem/iommu.h"
#include "mem/mem.h"

struct region {
	uintptr_t start, end;
	enum mem_kind kind;
	_Atomic bool lost;
	_Atomic iova_t iova; /* of start; IOVA_NONE: devices do not reach it */
};

/* Immutable once published, sorted by start. */
struct table {
	size_t n;
	struct region *region[];
};

/* -ENOMEM with a sentence when len bytes would push the machine into swap. */
int mem_check_available(size_t len, struct err *e);

/*
 * table.c: mem_register(), which also tells in *unmapped why a MEM_DMA range could not be mapped
 * for devices (its code stays 0 otherwise).
 */
int mem_table_add(void *vaddr, size_t len, enum mem_kind kind, struct err *unmapped);
/* The table of now, which stays as it is until it is unlocked. */
const struct table *mem_table_lock(void);
void mem_table_unlock(void);

/* alloc.c: register memory that is of no use when devices do not reach it. Errors: -ENOMEM, those
 * of struct iommu.map. */
int mem_register_dma(void *p, size_t len, struct err *e);

/* iommu.c, under the table's lock. t: all other regions. */
void mem_map_region(const struct table *t, struct region *r, struct err *unmapped);
void mem_unmap_region(struct region *r);

#endif
