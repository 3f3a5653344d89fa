#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "mem/internal.h"
#include "mem/mem.h"
#include "util/compiler.h"
#include "util/list.h"

#define HUGE_SIZE ((size_t)2 << 20)

struct block {
	struct list node;
	struct dma_shared range;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct list blocks = LIST_INIT(blocks);

/* -1: not to be had */
static int make_fd(size_t len, unsigned flags)
{
	int fd = memfd_create("riffle", MFD_CLOEXEC | flags);

	if (fd >= 0 && ftruncate(fd, (off_t)len) == 0)
		return fd;
	if (fd >= 0)
		close(fd);
	return -1;
}

static void *map_fd(int fd, size_t len, bool populate)
{
	void *p = mmap(NULL, len, PROT_READ | PROT_WRITE,
		       MAP_SHARED | (populate ? MAP_POPULATE : 0), fd, 0);

	return p == MAP_FAILED ? NULL : p;
}

static int map_block(struct dma_shared *r, size_t len, unsigned flags, bool populate)
{
	r->len = len;
	r->fd = make_fd(len, flags);
	r->base = r->fd >= 0 ? map_fd(r->fd, len, populate) : NULL;
	if (r->base)
		return 0;
	if (r->fd >= 0)
		close(r->fd);
	return -ENOMEM;
}

/* On hugepages if there are enough, else on ordinary ones. */
static int map_any(struct dma_shared *r, size_t len, bool populate, struct err *e)
{
	int rc;

	if (len >= HUGE_SIZE && map_block(r, ROUND_UP(len, HUGE_SIZE), MFD_HUGETLB, populate) == 0)
		return 0;
	rc = mem_check_available(len, e);
	if (rc)
		return rc;
	rc = map_block(r, ROUND_UP(len, (size_t)sysconf(_SC_PAGESIZE)), 0, populate);
	return rc ? err_set(e, rc, "Out of memory for %zu MiB that can be shared.", len >> 20) : 0;
}

static void unmap(struct dma_shared *r)
{
	munmap(r->base, r->len);
	close(r->fd);
}

int dma_zalloc_shared(size_t len, bool populate, void **out, struct err *e)
{
	struct block *b = calloc(1, sizeof(*b));
	int rc;

	if (!b)
		return err_set(e, -ENOMEM, "Out of memory.");
	rc = map_any(&b->range, len, populate, e);
	if (rc)
		goto out_free;
	rc = mem_register_dma(b->range.base, b->range.len, e);
	if (rc)
		goto out_unmap;
	pthread_mutex_lock(&mutex);
	list_add_tail(&blocks, &b->node);
	pthread_mutex_unlock(&mutex);
	*out = b->range.base;
	return 0;
out_unmap:
	unmap(&b->range);
out_free:
	free(b);
	return rc;
}

void dma_free_shared(void *p)
{
	struct block *b, *next, *found = NULL;

	pthread_mutex_lock(&mutex);
	list_for_each_safe (b, next, &blocks, node) {
		if (b->range.base != p)
			continue;
		list_del(&b->node);
		found = b;
	}
	pthread_mutex_unlock(&mutex);
	if (!found)
		return;
	mem_unregister(found->range.base);
	unmap(&found->range);
	free(found);
}

unsigned dma_shared_list(struct dma_shared *ranges, unsigned max)
{
	struct block *b;
	unsigned n = 0;

	pthread_mutex_lock(&mutex);
	list_for_each (b, &blocks, node)
		if (n < max)
			ranges[n++] = b->range;
	pthread_mutex_unlock(&mutex);
	return n;
}
