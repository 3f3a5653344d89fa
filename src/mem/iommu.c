#include "mem/iommu.h"

#include <errno.h>
#include <stdlib.h>

#include "mem/internal.h"
#include "util/bytes.h"
#include "util/list.h"
#include "util/log.h"

/* Places that start at the same offset in a large page as their memory can use large pages. */
#define LARGE_PAGE ((uint64_t)2 << 20)

/* A part of the I/O address space that belongs to no memory. */
struct reservation {
	struct list node;
	iova_t iova;
	size_t len;
};

/* The table's lock guards them. */
static struct iommu *iommu;
static struct list reservations = LIST_INIT(reservations);

/* --- finding a place --- */

/* A mapping or reservation that overlaps [iova, iova + len); where it ends. 0: none does. */
static iova_t conflict(const struct table *t, iova_t iova, size_t len)
{
	const struct reservation *r;

	for (size_t i = 0; t && i < t->n; i++) {
		iova_t other = atomic_load(&t->region[i]->iova);
		size_t other_len = t->region[i]->end - t->region[i]->start;

		if (other != IOVA_NONE && ranges_overlap(iova, len, other, other_len))
			return other + other_len;
	}
	list_for_each (r, &reservations, node)
		if (ranges_overlap(iova, len, r->iova, r->len))
			return r->iova + r->len;
	return 0;
}

static bool inside(const struct iova_range *u, iova_t iova, size_t len)
{
	return iova >= u->first && iova <= u->last && len - 1 <= u->last - iova;
}

/* The first multiple of LARGE_PAGE, plus skew, that is not below at. */
static iova_t skewed(iova_t at, uint64_t skew)
{
	iova_t to = ROUND_DOWN(at, LARGE_PAGE) + skew;

	return to >= at ? to : to + LARGE_PAGE;
}

static iova_t find_in(const struct table *t, const struct iova_range *u, size_t len, uint64_t skew)
{
	iova_t at = skewed(MAX(u->first, LARGE_PAGE), skew), end; /* not 0: it looks like nothing */

	while (inside(u, at, len)) {
		end = conflict(t, at, len);
		if (!end)
			return at;
		at = skewed(end, skew);
	}
	return IOVA_NONE;
}

/* The address itself where that can be; else the first place with room. */
static iova_t find(const struct table *t, uintptr_t vaddr, size_t len)
{
	iova_t at = IOVA_NONE;

	for (unsigned i = 0; vaddr && i < iommu->ranges_n; i++)
		if (inside(&iommu->usable[i], vaddr, len) && !conflict(t, vaddr, len))
			return vaddr;
	for (unsigned i = 0; at == IOVA_NONE && i < iommu->ranges_n; i++)
		at = find_in(t, &iommu->usable[i], len, vaddr % LARGE_PAGE);
	return at;
}

/* --- mapping --- */

void mem_map_region(const struct table *t, struct region *r, struct err *unmapped)
{
	size_t len = r->end - r->start;
	iova_t iova;

	if (!iommu || r->kind != MEM_DMA)
		return;
	if (!IS_ALIGNED(r->start | len, iommu->page)) {
		err_set(unmapped, -EINVAL, "the IOMMU maps multiples of %zu bytes only.",
			iommu->page);
		return;
	}
	iova = find(t, r->start, len);
	if (iova == IOVA_NONE)
		err_set(unmapped, -ENOSPC,
			"the IOMMU's address space has no room for %zu MiB more.", len >> 20);
	else if (iommu->map(iommu, (void *)r->start, len, iova, unmapped) == 0)
		atomic_store(&r->iova, iova);
}

void mem_unmap_region(struct region *r)
{
	iova_t iova = atomic_exchange(&r->iova, IOVA_NONE);

	if (iova != IOVA_NONE)
		iommu->unmap(iommu, iova, r->end - r->start);
}

/* Hints of before are void. */
static void changed(void)
{
	__atomic_add_fetch(&iommu_generation, 1, __ATOMIC_SEQ_CST);
}

int iommu_attach(struct iommu *m, struct err *e)
{
	const struct table *t = mem_table_lock();
	int rc = 0;

	if (iommu)
		rc = err_set(e, -EBUSY, "There is an I/O address space already.");
	else
		iommu = m;
	for (size_t i = 0; rc == 0 && t && i < t->n; i++) {
		struct err unmapped = { 0 };

		mem_map_region(t, t->region[i], &unmapped);
		if (unmapped.code)
			log_warn(
				"%zu MiB of memory are out of the devices' reach, so I/O on them is copied: %s",
				(t->region[i]->end - t->region[i]->start) >> 20, unmapped.text);
	}
	changed();
	mem_table_unlock();
	return rc;
}

void iommu_detach(struct iommu *m)
{
	const struct table *t = mem_table_lock();

	if (iommu == m) {
		for (size_t i = 0; t && i < t->n; i++)
			mem_unmap_region(t->region[i]);
		iommu = NULL;
		changed();
	}
	mem_table_unlock();
}

/* --- places without memory --- */

int iommu_reserve(size_t len, iova_t *out, struct err *e)
{
	struct reservation *r = calloc(1, sizeof(*r));
	const struct table *t = mem_table_lock();
	int rc = 0;

	if (!r)
		rc = err_set(e, -ENOMEM, "Out of memory.");
	else if (!iommu || (r->iova = find(t, 0, len)) == IOVA_NONE)
		rc = err_set(e, -ENOSPC, "The IOMMU's address space has no room for %zu KiB more.",
			     len >> 10);
	if (rc == 0) {
		r->len = len;
		list_add_tail(&reservations, &r->node);
		*out = r->iova;
	} else {
		free(r);
	}
	mem_table_unlock();
	return rc;
}

void iommu_release(iova_t iova)
{
	struct reservation *r, *next;

	mem_table_lock();
	list_for_each_safe (r, next, &reservations, node) {
		if (r->iova != iova)
			continue;
		list_del(&r->node);
		free(r);
	}
	mem_table_unlock();
}
