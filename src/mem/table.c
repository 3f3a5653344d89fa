#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "mem/internal.h"
#include "mem/mem.h"
#include "util/bytes.h"
#include "util/log.h"

uint64_t iommu_generation = 1; /* a zeroed hint is void */

static _Atomic(struct table *) current;
static _Atomic unsigned readers; /* between read_begin() and read_end() */
static pthread_mutex_t writers = PTHREAD_MUTEX_INITIALIZER;

static struct region *lookup(const struct table *t, uintptr_t at)
{
	size_t low = 0, high = t ? t->n : 0;

	while (low < high) {
		size_t mid = (low + high) / 2;

		if (at < t->region[mid]->start)
			high = mid;
		else if (at >= t->region[mid]->end)
			low = mid + 1;
		else
			return t->region[mid];
	}
	return NULL;
}

static struct table *table_alloc(size_t n)
{
	struct table *t = malloc(sizeof(*t) + n * sizeof(t->region[0]));

	if (t)
		t->n = n;
	return t;
}

/*
 * Publish t, and return what it replaces once nobody reads that: readers are the signal handler and
 * few others, all of them quick.
 */
static struct table *publish(struct table *t)
{
	struct table *old = atomic_exchange(&current, t);

	__atomic_add_fetch(&iommu_generation, 1, __ATOMIC_SEQ_CST);
	while (atomic_load(&readers) > 0)
		sched_yield();
	return old;
}

/* Under the lock. Where in old a range goes; -EEXIST: it overlaps another. */
static int find_place(const struct table *old, uintptr_t start, uintptr_t end, size_t *at)
{
	size_t n = old ? old->n : 0, i = 0;

	while (i < n && old->region[i]->start < start)
		i++;
	if ((i > 0 && old->region[i - 1]->end > start) || (i < n && old->region[i]->start < end))
		return -EEXIST;
	*at = i;
	return 0;
}

static struct table *with(const struct table *old, struct region *r, size_t at)
{
	size_t n = old ? old->n : 0;
	struct table *t = table_alloc(n + 1);

	for (size_t i = 0; t && i < n; i++)
		t->region[i + (i >= at)] = old->region[i];
	if (t)
		t->region[at] = r;
	return t;
}

static struct region *region_alloc(uintptr_t start, uintptr_t end, enum mem_kind kind)
{
	struct region *r = calloc(1, sizeof(*r));

	if (!r)
		return NULL;
	r->start = start;
	r->end = end;
	r->kind = kind;
	r->iova = IOVA_NONE;
	return r;
}

int mem_table_add(void *vaddr, size_t len, enum mem_kind kind, struct err *unmapped)
{
	uintptr_t start = (uintptr_t)vaddr, end = start + len,
		  page = (uintptr_t)sysconf(_SC_PAGESIZE);
	struct table *old, *t;
	struct region *r;
	size_t at;
	int rc;

	if (len == 0 || end < start || !IS_ALIGNED(start, page))
		return -EINVAL;
	r = region_alloc(start, end, kind);
	if (!r)
		return -ENOMEM;
	pthread_mutex_lock(&writers);
	old = atomic_load(&current);
	rc = find_place(old, start, end, &at);
	t = rc == 0 ? with(old, r, at) : NULL;
	if (t) {
		if (kind == MEM_DMA)
			mem_map_region(old, r, unmapped);
		free(publish(t));
	} else {
		free(r);
		rc = rc ? rc : -ENOMEM;
	}
	pthread_mutex_unlock(&writers);
	return rc;
}

int mem_register(void *vaddr, size_t len, enum mem_kind kind)
{
	struct err unmapped = { 0 };
	int rc = mem_table_add(vaddr, len, kind, &unmapped);

	if (rc == 0 && unmapped.code)
		log_warn(
			"%zu MiB of memory are out of the devices' reach, so I/O on them is copied: %s",
			len >> 20, unmapped.text);
	return rc;
}

void mem_unregister(void *vaddr)
{
	struct region *gone = NULL;
	struct table *old, *t;
	size_t n = 0;

	pthread_mutex_lock(&writers);
	old = atomic_load(&current);
	t = table_alloc(old->n);
	for (size_t i = 0; i < old->n; i++)
		if (old->region[i]->start == (uintptr_t)vaddr)
			gone = old->region[i];
		else if (t)
			t->region[n++] = old->region[i];
	if (gone)
		mem_unmap_region(gone);
	if (t) {
		t->n = n;
		free(publish(t));
		free(gone);
	} else if (gone) {
		/* No memory for a new snapshot: leave an empty range behind, which matches nothing.
		 */
		gone->end = gone->start;
	}
	pthread_mutex_unlock(&writers);
}

const struct table *mem_table_lock(void)
{
	pthread_mutex_lock(&writers);
	return atomic_load(&current);
}

void mem_table_unlock(void)
{
	pthread_mutex_unlock(&writers);
}

static const struct table *read_begin(void)
{
	atomic_fetch_add(&readers, 1);
	return atomic_load(&current);
}

static void read_end(void)
{
	atomic_fetch_sub(&readers, 1);
}

iova_t iommu_lookup(const void *p, size_t len, struct iommu_hint *h)
{
	uint64_t generation = __atomic_load_n(&iommu_generation, __ATOMIC_ACQUIRE);
	const struct region *r = lookup(read_begin(), (uintptr_t)p);
	iova_t iova = r ? atomic_load(&r->iova) : IOVA_NONE;

	if (iova != IOVA_NONE && range_fits((uintptr_t)p - r->start, len, r->end - r->start)) {
		*h = (struct iommu_hint){ .start = r->start,
					  .len = r->end - r->start,
					  .last_page = r->end - r->start - 4096,
					  .delta = iova - r->start,
					  .generation = generation };
		iova += (uintptr_t)p - r->start;
	} else {
		iova = IOVA_NONE;
	}
	read_end();
	return iova;
}

bool mem_lost(const void *vaddr)
{
	const struct region *r = lookup(read_begin(), (uintptr_t)vaddr);
	bool lost = r && r->lost;

	read_end();
	return lost;
}

/* What takes the place of memory whose backing is gone: zeroes, or what a bus answers for a device
 * that is not there. */
static bool replace(struct region *r)
{
	size_t len = r->end - r->start;
	void *p = mmap((void *)r->start, len, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);

	if (p == MAP_FAILED)
		return false;
	if (r->kind == MEM_BAR)
		memset(p, 0xff, len);
	r->lost = true;
	return true;
}

/* Async-signal-safe: atomics, mmap() and memset() only. */
static void on_sigbus(int sig, siginfo_t *info, void *context)
{
	struct region *r = lookup(read_begin(), (uintptr_t)info->si_addr);
	int saved = errno;

	(void)context;
	if (!r || !replace(r))
		signal(sig,
		       SIG_DFL); /* the access is tried again and ends the process as it should */
	read_end();
	errno = saved;
}

int mem_guard_sigbus(void)
{
	struct sigaction sa = { .sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO | SA_RESTART };

	return sigaction(SIGBUS, &sa, NULL) < 0 ? -errno : 0;
}
