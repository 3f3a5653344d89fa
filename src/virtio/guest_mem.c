#include "virtio/guest_mem.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "mem/mem.h"
#include "util/bytes.h"

#define HUGETLBFS_MAGIC 0x958458f6

int guest_mem_create(unsigned rings, struct guest_mem **out)
{
	struct guest_mem *m = calloc(1, sizeof(*m));

	if (!m)
		return -ENOMEM;
	m->rings = rings;
	m->use = aligned_alloc(CACHE_LINE, rings * sizeof(*m->use));
	m->region = calloc(GUEST_REGIONS_MAX, sizeof(struct guest_region *));
	if (!m->use || !m->region) {
		guest_mem_destroy(m);
		return -ENOMEM;
	}
	for (unsigned i = 0; i < rings; i++)
		m->use[i] = (struct guest_mem_use){ .mem = m };
	list_init(&m->node);
	*out = m;
	return 0;
}

static void region_put(struct guest_region *r)
{
	if (--r->refs > 0)
		return;
	mem_unregister(r->map);
	munmap(r->map, r->map_len);
	free(r);
}

void guest_mem_destroy(struct guest_mem *m)
{
	if (!m)
		return;
	for (unsigned i = 0; i < m->n; i++)
		region_put(m->region[i]);
	free(m->region);
	free(m->use);
	free(m);
}

bool guest_mem_idle(const struct guest_mem *m)
{
	for (unsigned i = 0; i < m->rings; i++)
		if (load_acquire(&m->use[i].inflight))
			return false;
	return true;
}

/* --- checking, mapping --- */

static int bad_range(const struct guest_range *g, const char *why, struct err *e)
{
	return err_set(e, -EINVAL,
		       "memory region gpa 0x%" PRIx64 " size 0x%" PRIx64 " user 0x%" PRIx64
		       " offset 0x%" PRIx64 " %s",
		       g->gpa, g->size, g->user_addr, g->offset, why);
}

static int check_range(const struct guest_range *g, struct err *e)
{
	if (g->size == 0)
		return bad_range(g, "is empty", e);
	if (range_wraps(g->gpa, g->size) || range_wraps(g->user_addr, g->size) ||
	    range_wraps(g->offset, g->size))
		return bad_range(g, "wraps around", e);
	return 0;
}

static int check_overlap(const struct guest_mem *m, const struct guest_range *g, struct err *e)
{
	for (unsigned i = 0; i < m->n; i++) {
		const struct guest_region *r = m->region[i];

		if (ranges_overlap(r->gpa, r->size, g->gpa, g->size) ||
		    ranges_overlap(r->user_addr, r->size, g->user_addr, g->size))
			return bad_range(g, "overlaps another", e);
	}
	return 0;
}

/* The unit in which fd can be mapped; 0: fd cannot hold the range. */
static uint64_t page_size(int fd, const struct guest_range *g, struct err *e)
{
	struct stat st;
	struct statfs fs;

	if (fstat(fd, &st) < 0 || fstatfs(fd, &fs) < 0) {
		bad_range(g, "has an fd that cannot be examined", e);
		return 0;
	}
	if (!S_ISREG(st.st_mode) && !S_ISCHR(st.st_mode)) {
		bad_range(g, "has an fd that is not memory", e);
		return 0;
	}
	/* Beyond the end of the file an access would be a SIGBUS. */
	if (S_ISREG(st.st_mode) && g->offset + g->size > (uint64_t)st.st_size) {
		bad_range(g, "ends behind its file", e);
		return 0;
	}
	return fs.f_type == HUGETLBFS_MAGIC ? (uint64_t)fs.f_bsize
					    : (uint64_t)sysconf(_SC_PAGESIZE);
}

static int region_map(const struct guest_range *g, int fd, struct guest_region **out, struct err *e)
{
	uint64_t page = page_size(fd, g, e), start, len;
	struct guest_region *r;
	int rc;

	if (page == 0)
		return -EINVAL;
	r = calloc(1, sizeof(*r));
	if (!r)
		return err_set(e, -ENOMEM, "out of memory");
	start = ROUND_DOWN(g->offset, page);
	len = ROUND_UP(g->offset - start + g->size, page);
	r->map = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd,
		      (off_t)start);
	if (r->map == MAP_FAILED) {
		rc = err_set(e, -errno, "cannot map %" PRIu64 " MiB of guest memory: %s", len >> 20,
			     err_words(errno));
		goto out_free;
	}
	madvise(r->map, len, MADV_DONTDUMP); /* a core dump shall not hold the guest */
	rc = mem_register(r->map, len, MEM_DMA);
	if (rc) {
		err_set(e, rc, "cannot register guest memory: %s", err_words(rc));
		goto out_unmap;
	}
	r->map_len = len;
	r->gpa = g->gpa;
	r->size = g->size;
	r->user_addr = g->user_addr;
	r->host = (char *)r->map + (g->offset - start);
	r->refs = 1;
	*out = r;
	return 0;
out_unmap:
	munmap(r->map, len);
out_free:
	free(r);
	return rc;
}

static void insert_sorted(struct guest_mem *m, struct guest_region *r)
{
	unsigned at = m->n;

	for (; at > 0 && m->region[at - 1]->gpa > r->gpa; at--)
		m->region[at] = m->region[at - 1];
	m->region[at] = r;
	m->n++;
}

static int map_into(struct guest_mem *m, const struct guest_range *g, int fd, struct err *e)
{
	struct guest_region *r = NULL;
	int rc;

	if (m->n == GUEST_REGIONS_MAX)
		return err_set(e, -ENOSPC, "more than %d memory regions", GUEST_REGIONS_MAX);
	rc = check_range(g, e);
	if (rc == 0)
		rc = check_overlap(m, g, e);
	if (rc == 0)
		rc = region_map(g, fd, &r, e);
	if (rc == 0)
		insert_sorted(m, r);
	return rc;
}

int guest_mem_map(const struct guest_range *ranges, const int *fds, unsigned n, unsigned rings,
		  struct guest_mem **out, struct err *e)
{
	struct guest_mem *m;
	int rc = guest_mem_create(rings, &m);

	if (rc)
		return err_set(e, rc, "out of memory");
	for (unsigned i = 0; rc == 0 && i < n; i++)
		rc = map_into(m, &ranges[i], fds[i], e);
	if (rc) {
		guest_mem_destroy(m);
		return rc;
	}
	*out = m;
	return 0;
}

static int copy_without(const struct guest_mem *m, const struct guest_region *left_out,
			struct guest_mem **out)
{
	struct guest_mem *copy;
	int rc = guest_mem_create(m->rings, &copy);

	if (rc)
		return rc;
	for (unsigned i = 0; i < m->n; i++) {
		if (m->region[i] == left_out)
			continue;
		m->region[i]->refs++;
		copy->region[copy->n++] = m->region[i];
	}
	*out = copy;
	return 0;
}

int guest_mem_add(const struct guest_mem *m, const struct guest_range *range, int fd,
		  struct guest_mem **out, struct err *e)
{
	struct guest_mem *copy;
	int rc = copy_without(m, NULL, &copy);

	if (rc)
		return err_set(e, rc, "out of memory");
	rc = map_into(copy, range, fd, e);
	if (rc) {
		guest_mem_destroy(copy);
		return rc;
	}
	*out = copy;
	return 0;
}

int guest_mem_remove(const struct guest_mem *m, const struct guest_range *g, struct guest_mem **out,
		     struct err *e)
{
	for (unsigned i = 0; i < m->n; i++) {
		const struct guest_region *r = m->region[i];

		if (r->gpa == g->gpa && r->size == g->size && r->user_addr == g->user_addr) {
			int rc = copy_without(m, r, out);

			return rc ? err_set(e, rc, "out of memory") : 0;
		}
	}
	bad_range(g, "is not in the table", e);
	return -ENOENT;
}

/* --- looking up --- */

const struct guest_region *guest_mem_find(const struct guest_mem *m, uint64_t gpa)
{
	unsigned low = 0, high = m->n;

	while (low < high) {
		unsigned mid = (low + high) / 2;
		const struct guest_region *r = m->region[mid];

		if (gpa < r->gpa)
			high = mid;
		else if (gpa - r->gpa >= r->size)
			low = mid + 1;
		else
			return r;
	}
	return NULL;
}

void *guest_mem_from_user(const struct guest_mem *m, uint64_t user_addr, uint64_t len)
{
	for (unsigned i = 0; i < m->n; i++) {
		const struct guest_region *r = m->region[i];

		if (user_addr >= r->user_addr && range_fits(user_addr - r->user_addr, len, r->size))
			return r->host + (user_addr - r->user_addr);
	}
	return NULL;
}

uint64_t guest_mem_to_gpa(const struct guest_mem *m, const void *host)
{
	for (unsigned i = 0; i < m->n; i++) {
		const struct guest_region *r = m->region[i];

		if ((const char *)host >= r->host &&
		    (uint64_t)((const char *)host - r->host) < r->size)
			return r->gpa + (uint64_t)((const char *)host - r->host);
	}
	return UINT64_MAX;
}
