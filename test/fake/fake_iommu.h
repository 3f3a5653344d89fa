/*
 * A fake IOMMU: the I/O address space that fake controllers live in. What is not mapped here does
 * not exist for them.
 *
 * Theory of operation. fake_iommu_create() makes a struct iommu whose map and unmap keep a sorted
 * table; tests attach it (iommu_attach()) or call it themselves, and give it to every fake
 * controller. The controllers reach memory by fake_iommu_copy() and friends alone, which hold the
 * table's lock for reading: when unmap returns nobody touches that memory any more, as with the
 * real one. So a driver that frees or unmaps too early is found out by a fault, never by a crash.
 *
 * Any thread.
 */
#ifndef FAKE_IOMMU_H
#define FAKE_IOMMU_H

#include <stdbool.h>

#include "mem/iommu.h"

struct fake_iommu;

/* Addresses [first, last] are usable, to map pages of 4 KiB. NULL: no memory. */
struct fake_iommu *fake_iommu_create(iova_t first, iova_t last);
void fake_iommu_destroy(struct fake_iommu *m);

/* The seam. Its usable ranges and page may be changed as long as nothing is mapped. */
struct iommu *fake_iommu_hw(struct fake_iommu *m);
/* One more usable range, above those of before. */
void fake_iommu_add_range(struct fake_iommu *m, iova_t first, iova_t last);

/* After n more mappings map() fails with -ENOMEM; UINT_MAX: never (as at first). */
void fake_iommu_fail_after(struct fake_iommu *m, unsigned n);
/* Mappings that are there, and calls that asked for what no IOMMU does: overlaps, odd borders,
 * unmapping what was not mapped as such. */
unsigned fake_iommu_mappings(struct fake_iommu *m);
unsigned fake_iommu_mistakes(struct fake_iommu *m);

/*
 * For devices. False: not all of [iova, iova + len) is mapped, and nothing or a part was copied.
 * The word functions want aligned addresses: a release store, an acquire load.
 */
bool fake_iommu_read(struct fake_iommu *m, void *to, iova_t iova, size_t len);
bool fake_iommu_write(struct fake_iommu *m, iova_t iova, const void *from, size_t len);
bool fake_iommu_store64(struct fake_iommu *m, iova_t iova, uint64_t v);
bool fake_iommu_store32(struct fake_iommu *m, iova_t iova, uint32_t v);
bool fake_iommu_load32(struct fake_iommu *m, iova_t iova, uint32_t *out);

#endif
