/*
 * iommu: the addresses by which devices know our memory.
 *
 * All devices that this process drives share one I/O address space. Whoever opens the first of them
 * (pci/vfio.c; a fake in tests) attaches a struct iommu; from then on every registered range of
 * memory is mapped into it as a whole, those of before included, and unmapped when it is
 * unregistered. The IOVA of a range is its own address where the IOMMU can take that, else a place
 * that iommu.c finds inside the ranges that the IOMMU reports.
 *
 * Control threads attach and detach; any thread translates.
 */
#ifndef MEM_IOMMU_H
#define MEM_IOMMU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "util/err.h"

typedef uint64_t iova_t;

#define IOVA_NONE UINT64_MAX

struct iova_range {
	iova_t first, last; /* inclusive */
};

#define IOVA_RANGES_MAX 16

struct iommu {
	/*
	 * [vaddr, vaddr + len) becomes [iova, iova + len) for all devices, to read and to write.
	 * Multiples of page. Errors: -ENOMEM with a sentence (RLIMIT_MEMLOCK, too many mappings),
	 * the kernel's.
	 */
	int (*map)(struct iommu *m, void *vaddr, size_t len, iova_t iova, struct err *e);
	/* What was mapped by one call; the device no longer reaches it on return. */
	void (*unmap)(struct iommu *m, iova_t iova, size_t len);
	size_t page; /* smallest unit of a mapping: a power of 2 */
	unsigned ranges_n;
	struct iova_range usable[IOVA_RANGES_MAX]; /* ascending */
};

/*
 * m is the I/O address space from now on. Memory that was registered before is mapped; what cannot
 * be is logged, has no IOVA and is copied where it is used. Errors: -EBUSY (there is another).
 */
int iommu_attach(struct iommu *m, struct err *e);
/* No device uses it any more: unmap everything. */
void iommu_detach(struct iommu *m);

/*
 * A place for len bytes that no memory is mapped to: for a device's own memory (NVMe's CMB).
 * Errors: -ENOSPC.
 */
int iommu_reserve(size_t len, iova_t *out, struct err *e);
void iommu_release(iova_t iova);

/*
 * What a translation of before found: makes the next one in the same range cheap. Zeroed at first;
 * owned by one thread.
 */
struct iommu_hint {
	uintptr_t start;
	size_t len;
	size_t last_page; /* len - 4096 */
	uint64_t delta;	  /* IOVA - address, modulo 2^64 */
	uint64_t generation;
};

/* One that knows nothing. */
#define IOMMU_HINT_VOID ((struct iommu_hint){ .start = UINTPTR_MAX })

/* Changes with every change of the table; a hint of another generation is void. */
extern uint64_t iommu_generation;

/* The range around p into *h. Returns the IOVA of p; IOVA_NONE: devices do not reach it. */
iova_t iommu_lookup(const void *p, size_t len, struct iommu_hint *h);

/* hot. The IOVA of all of [p, p + len), len > 0; IOVA_NONE: devices do not reach it all. */
static inline iova_t iommu_iova(const void *p, size_t len, struct iommu_hint *h)
{
	uintptr_t at = (uintptr_t)p - h->start;

	if (likely(at < h->len && len <= h->len - at &&
		   h->generation == READ_ONCE(iommu_generation)))
		return (uintptr_t)p + h->delta;
	return iommu_lookup(p, len, h);
}

/* hot. Of at most 4096 bytes, only where the range of before has them. False: iommu_iova() may know
 * more. */
static inline bool iommu_hinted(const void *p, const struct iommu_hint *h, iova_t *out)
{
	uintptr_t at = (uintptr_t)p;

	*out = at + h->delta;
	return likely(at - h->start <= h->last_page) &&
	       likely(h->generation == READ_ONCE(iommu_generation));
}

#endif
