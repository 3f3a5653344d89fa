#include <errno.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "mem/internal.h"
#include "mem/mem.h"
#include "util/compiler.h"

#define HUGE_SIZE ((size_t)2 << 20)

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

/* Bytes that can be allocated without pushing the machine into swap; SIZE_MAX when the kernel does
 * not say. */
static size_t available(void)
{
	FILE *f = fopen("/proc/meminfo", "re");
	char line[128];
	size_t kib = SIZE_MAX / 1024;

	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "MemAvailable: %zu kB", &kib) == 1)
			break;
	if (f)
		fclose(f);
	return kib * 1024;
}

int mem_check_available(size_t len, struct err *e)
{
	size_t have = available();

	if (len <= have)
		return 0;
	return err_set(e, -ENOMEM,
		       "%zu MiB of memory are needed, but the machine has only %zu MiB available.",
		       len >> 20, have >> 20);
}

/* Rounded up to whole hugepages for anything large, so that length and kind of mapping follow from
 * len alone. */
static size_t mapped_len(size_t len)
{
	return ROUND_UP(len, len >= HUGE_SIZE ? HUGE_SIZE : (size_t)sysconf(_SC_PAGESIZE));
}

static void *map_huge(size_t len)
{
	void *p = mmap(NULL, len, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | MAP_POPULATE, -1, 0);

	return p == MAP_FAILED ? NULL : p;
}

/* Ordinary pages at a hugepage boundary, so that transparent hugepages can serve them. */
static void *map_ordinary(size_t len)
{
	size_t room = len >= HUGE_SIZE ? len + HUGE_SIZE : len;
	char *p = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0),
	     *start;

	if (p == MAP_FAILED)
		return NULL;
	if (room == len)
		return p;
	start = (char *)ROUND_UP((uintptr_t)p, HUGE_SIZE);
	if (start > p)
		munmap(p, (size_t)(start - p));
	munmap(start + len, room - len - (size_t)(start - p));
	madvise(start, len, MADV_HUGEPAGE);
	return start;
}

int mem_zalloc(size_t len, size_t align, void **out, struct err *e)
{
	size_t size = mapped_len(len);
	void *p = NULL;
	int rc;

	if (align > HUGE_SIZE || (align > (size_t)sysconf(_SC_PAGESIZE) && size < HUGE_SIZE))
		return err_set(e, -EINVAL, "Memory aligned to %zu bytes is not to be had.", align);
	if (size >= HUGE_SIZE)
		p = map_huge(size);
	if (!p) {
		rc = mem_check_available(size, e);
		if (rc)
			return rc;
		p = map_ordinary(size);
		if (p && madvise(p, size, MADV_POPULATE_WRITE) < 0 && errno != EINVAL) {
			munmap(p, size);
			p = NULL;
		}
	}
	if (!p)
		return err_set(e, -ENOMEM, "Out of memory for %zu MiB.", size >> 20);
	*out = p;
	return 0;
}

void mem_free(void *p, size_t len)
{
	if (p)
		munmap(p, mapped_len(len));
}

int mem_register_dma(void *p, size_t len, struct err *e)
{
	struct err unmapped = { 0 };
	int rc = mem_table_add(p, len, MEM_DMA, &unmapped);

	if (rc)
		return err_set(e, rc, "Memory cannot be registered: %s.", err_words(rc));
	if (unmapped.code == 0)
		return 0;
	mem_unregister(p);
	return err_set(e, unmapped.code, "Memory for devices is not to be had: %s", unmapped.text);
}

int dma_zalloc(size_t len, size_t align, void **out, struct err *e)
{
	void *p;
	int rc = mem_zalloc(len, align, &p, e);

	if (rc)
		return rc;
	rc = mem_register_dma(p, mapped_len(len), e);
	if (rc) {
		mem_free(p, len);
		return rc;
	}
	*out = p;
	return 0;
}

void dma_free(void *p, size_t len)
{
	if (!p)
		return;
	mem_unregister(p);
	mem_free(p, len);
}
