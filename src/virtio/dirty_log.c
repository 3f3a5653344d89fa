#include "virtio/dirty_log.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "mem/mem.h"
#include "util/bytes.h"
#include "util/compiler.h"

#define LOG_PAGE 4096

int dirty_log_open(int fd, uint64_t size, uint64_t offset, struct dirty_log **out, struct err *e)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), start = ROUND_DOWN(offset, page);
	struct dirty_log *log;
	struct stat st;
	int rc;

	if (size == 0 || range_wraps(offset, size) || fstat(fd, &st) < 0 || st.st_size < 0 ||
	    offset + size > (uint64_t)st.st_size)
		return err_set(e, -EINVAL, "the dirty log's size and offset do not fit its file");
	log = calloc(1, sizeof(*log));
	if (!log)
		return err_set(e, -ENOMEM, "out of memory");
	log->map_len = ROUND_UP(offset - start + size, page);
	log->map = mmap(NULL, log->map_len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)start);
	if (log->map == MAP_FAILED) {
		rc = err_set(e, -errno, "cannot map the dirty log: %s", err_words(errno));
		goto out_free;
	}
	rc = mem_register(log->map, log->map_len, MEM_SHARED);
	if (rc) {
		err_set(e, rc, "cannot register the dirty log: %s", err_words(rc));
		goto out_unmap;
	}
	log->bits = (uint8_t *)log->map + (offset - start);
	log->size = size;
	*out = log;
	return 0;
out_unmap:
	munmap(log->map, log->map_len);
out_free:
	free(log);
	return rc;
}

void dirty_log_close(struct dirty_log *log)
{
	if (!log)
		return;
	mem_unregister(log->map);
	munmap(log->map, log->map_len);
	free(log);
}

void dirty_log_mark(struct dirty_log *log, uint64_t gpa, uint64_t len)
{
	uint64_t page = gpa / LOG_PAGE, last;

	if (len == 0 || range_wraps(gpa, len))
		return;
	for (last = (gpa + len - 1) / LOG_PAGE; page <= last && page / 8 < log->size; page++)
		__atomic_fetch_or(&log->bits[page / 8], (uint8_t)(1u << (page % 8)),
				  __ATOMIC_RELAXED);
}
