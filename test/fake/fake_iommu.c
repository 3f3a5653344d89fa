#include "fake/fake_iommu.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "util/bytes.h"

struct mapping {
	iova_t iova;
	size_t len;
	uint8_t *mem;
};

struct fake_iommu {
	struct iommu hw;
	pthread_rwlock_t lock; /* devices read the table, map and unmap change it */
	struct mapping *map;   /* ascending */
	unsigned n, room;
	unsigned left; /* before map() fails */
	unsigned mistakes;
};

/* The first mapping that ends above iova; n when there is none. */
static unsigned find(const struct fake_iommu *m, iova_t iova)
{
	unsigned low = 0, high = m->n, mid;

	while (low < high) {
		mid = (low + high) / 2;
		if (m->map[mid].iova + (m->map[mid].len - 1) < iova)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

/* The memory at iova and how much of it lies together; NULL: not mapped. The lock is held. */
static uint8_t *reach(const struct fake_iommu *m, iova_t iova, size_t *run)
{
	unsigned i = find(m, iova);
	size_t at;

	if (i == m->n || m->map[i].iova > iova)
		return NULL;
	at = (size_t)(iova - m->map[i].iova);
	*run = m->map[i].len - at;
	return m->map[i].mem + at;
}

/* ---- for devices ---- */

static bool copy(struct fake_iommu *m, iova_t iova, uint8_t *p, size_t len, bool to_device)
{
	uint8_t *mem = p;
	size_t run;

	if (range_wraps(iova, len))
		return false;
	pthread_rwlock_rdlock(&m->lock);
	for (; len && (mem = reach(m, iova, &run)); iova += run, p += run, len -= run) {
		run = MIN(run, len);
		if (to_device)
			memcpy(p, mem, run);
		else
			memcpy(mem, p, run);
	}
	pthread_rwlock_unlock(&m->lock);
	return len == 0;
}

bool fake_iommu_read(struct fake_iommu *m, void *to, iova_t iova, size_t len)
{
	return copy(m, iova, to, len, true);
}

bool fake_iommu_write(struct fake_iommu *m, iova_t iova, const void *from, size_t len)
{
	return copy(m, iova, (uint8_t *)(uintptr_t)from, len, false);
}

bool fake_iommu_store64(struct fake_iommu *m, iova_t iova, uint64_t v)
{
	size_t run;
	void *mem;

	pthread_rwlock_rdlock(&m->lock);
	mem = reach(m, iova, &run);
	if (mem)
		store_release((uint64_t *)mem, v);
	pthread_rwlock_unlock(&m->lock);
	return mem != NULL;
}

bool fake_iommu_store32(struct fake_iommu *m, iova_t iova, uint32_t v)
{
	size_t run;
	void *mem;

	pthread_rwlock_rdlock(&m->lock);
	mem = reach(m, iova, &run);
	if (mem)
		store_release((uint32_t *)mem, v);
	pthread_rwlock_unlock(&m->lock);
	return mem != NULL;
}

bool fake_iommu_load32(struct fake_iommu *m, iova_t iova, uint32_t *out)
{
	size_t run;
	void *mem;

	pthread_rwlock_rdlock(&m->lock);
	mem = reach(m, iova, &run);
	if (mem)
		*out = load_acquire((uint32_t *)mem);
	pthread_rwlock_unlock(&m->lock);
	return mem != NULL;
}

/* ---- the seam ---- */

static bool is_usable(const struct iommu *hw, iova_t iova, size_t len)
{
	for (unsigned i = 0; i < hw->ranges_n; i++)
		if (iova >= hw->usable[i].first && iova <= hw->usable[i].last &&
		    len - 1 <= hw->usable[i].last - iova)
			return true;
	return false;
}

static int make_room(struct fake_iommu *m)
{
	unsigned room = m->room ? 2 * m->room : 64;
	struct mapping *more;

	if (m->n < m->room)
		return 0;
	more = realloc(m->map, room * sizeof(*more));
	if (!more)
		return -ENOMEM;
	m->map = more;
	m->room = room;
	return 0;
}

static int add(struct fake_iommu *m, void *vaddr, size_t len, iova_t iova, struct err *e)
{
	size_t page = m->hw.page;
	unsigned i;

	if (!len || !IS_ALIGNED(len | iova | (uintptr_t)vaddr, page) ||
	    !is_usable(&m->hw, iova, len)) {
		m->mistakes++;
		return err_set(e, -EINVAL, "0x%llx is no place for a mapping of %zu bytes",
			       (unsigned long long)iova, len);
	}
	i = find(m, iova);
	if (i < m->n && m->map[i].iova <= iova + (len - 1)) {
		m->mistakes++;
		return err_set(e, -EEXIST, "something is mapped at 0x%llx already",
			       (unsigned long long)m->map[i].iova);
	}
	if (m->left == 0 || make_room(m))
		return err_set(e, -ENOMEM, "the fake IOMMU maps no more");
	if (m->left != UINT_MAX)
		m->left--;
	memmove(&m->map[i + 1], &m->map[i], (m->n - i) * sizeof(*m->map));
	m->map[i] = (struct mapping){ .iova = iova, .len = len, .mem = vaddr };
	m->n++;
	return 0;
}

static int map(struct iommu *hw, void *vaddr, size_t len, iova_t iova, struct err *e)
{
	struct fake_iommu *m = container_of(hw, struct fake_iommu, hw);
	int rc;

	pthread_rwlock_wrlock(&m->lock);
	rc = add(m, vaddr, len, iova, e);
	pthread_rwlock_unlock(&m->lock);
	return rc;
}

static void unmap(struct iommu *hw, iova_t iova, size_t len)
{
	struct fake_iommu *m = container_of(hw, struct fake_iommu, hw);
	unsigned i;

	pthread_rwlock_wrlock(&m->lock);
	i = find(m, iova);
	if (i == m->n || m->map[i].iova != iova || m->map[i].len != len) {
		m->mistakes++;
	} else {
		m->n--;
		memmove(&m->map[i], &m->map[i + 1], (m->n - i) * sizeof(*m->map));
	}
	pthread_rwlock_unlock(&m->lock);
}

/* ---- for tests ---- */

struct fake_iommu *fake_iommu_create(iova_t first, iova_t last)
{
	struct fake_iommu *m = calloc(1, sizeof(*m));

	if (!m)
		return NULL;
	pthread_rwlock_init(&m->lock, NULL);
	m->left = UINT_MAX;
	m->hw = (struct iommu){ .map = map, .unmap = unmap, .page = 4096 };
	fake_iommu_add_range(m, first, last);
	return m;
}

void fake_iommu_destroy(struct fake_iommu *m)
{
	if (!m)
		return;
	pthread_rwlock_destroy(&m->lock);
	free(m->map);
	free(m);
}

struct iommu *fake_iommu_hw(struct fake_iommu *m)
{
	return &m->hw;
}

void fake_iommu_add_range(struct fake_iommu *m, iova_t first, iova_t last)
{
	assert(m->hw.ranges_n < IOVA_RANGES_MAX);
	m->hw.usable[m->hw.ranges_n++] = (struct iova_range){ .first = first, .last = last };
}

void fake_iommu_fail_after(struct fake_iommu *m, unsigned n)
{
	pthread_rwlock_wrlock(&m->lock);
	m->left = n;
	pthread_rwlock_unlock(&m->lock);
}

unsigned fake_iommu_mappings(struct fake_iommu *m)
{
	unsigned n;

	pthread_rwlock_rdlock(&m->lock);
	n = m->n;
	pthread_rwlock_unlock(&m->lock);
	return n;
}

unsigned fake_iommu_mistakes(struct fake_iommu *m)
{
	unsigned n;

	pthread_rwlock_rdlock(&m->lock);
	n = m->mistakes;
	pthread_rwlock_unlock(&m->lock);
	return n;
}
