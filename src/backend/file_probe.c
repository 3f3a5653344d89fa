#include "backend/file.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <linux/falloc.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

#include "backend/file_lock.h"
#include "util/compiler.h"
#include "util/log.h"

#define LARGEST_BLOCK 65536

uint64_t file_size(int fd, bool is_device)
{
	struct stat st;
	uint64_t size;

	if (is_device)
		return ioctl(fd, BLKGETSIZE64, &size) == 0 ? size : 0;
	return fstat(fd, &st) == 0 ? (uint64_t)st.st_size : 0;
}

static int open_error(const char *path, bool readonly, int code, struct err *e)
{
	switch (code) {
	case -ENOENT:
		return err_field(
			e, code, "filename", path, NULL,
			"'%.150s' does not exist. Create it first (for example: truncate -s 10G FILE).",
			path);
	case -EACCES:
	case -EPERM:
	case -EROFS:
		return err_field(e, code, "filename", path, NULL,
				 "'%.150s' cannot be opened for %s: %s.%s", path,
				 readonly ? "reading" : "writing", err_words(code),
				 readonly ? "" : " For a read-only disk give readonly=true.");
	case -EBUSY:
		return err_field(
			e, code, "filename", path, NULL,
			"'%.150s' is mounted or held by another program. Unmount it first, or "
			"give readonly=true.",
			path);
	default:
		return err_field(e, code, "filename", path, NULL, "'%.150s' cannot be opened: %s.",
				 path, err_words(code));
	}
}

/* A device that a killed process held exclusively is free when its last I/O has ended. */
static int open_patiently(const char *path, int flags)
{
	const struct timespec pause = { .tv_nsec = 10000000 };
	int fd, tries = FILE_BUSY_MS / 10;

	while ((fd = open(path, flags)) < 0 && errno == EBUSY && tries-- > 0)
		nanosleep(&pause, NULL);
	return fd;
}

/* O_DIRECT where the file system has it. O_EXCL keeps us from writing to a device that is mounted.
 */
static int open_file(const char *path, bool readonly, struct file_facts *f)
{
	int flags = (readonly ? O_RDONLY : O_RDWR) | O_CLOEXEC | O_NOCTTY | O_NONBLOCK;
	struct stat st;

	if (!readonly && stat(path, &st) == 0 && S_ISBLK(st.st_mode) && !file_lock_held(&st))
		flags |= O_EXCL;

	f->direct = true;
	f->fd = open_patiently(path, flags | O_DIRECT);
	if (f->fd < 0 && errno == EINVAL) {
		f->direct = false;
		f->fd = open_patiently(path, flags);
	}
	return f->fd < 0 ? -errno : 0;
}

static int check_kind(const char *path, struct file_facts *f, struct err *e)
{
	struct stat st;

	if (fstat(f->fd, &st) < 0)
		return open_error(path, f->readonly, -errno, e);
	f->is_device = S_ISBLK(st.st_mode);
	if (!f->is_device && !S_ISREG(st.st_mode))
		return err_field(e, -EINVAL, "filename", path, "a regular file or a block device",
				 "'%.150s' is neither a regular file nor a block device.", path);
	return 0;
}

/* Direct reads of one unit succeed from the device's logical block size on. */
static bool probe_block_size(struct file_facts *f, char *buf)
{
	for (uint32_t size = 512; size <= LARGEST_BLOCK; size *= 2) {
		ssize_t n = pread(f->fd, buf, size, 0);

		if (n >= 0 || errno != EINVAL) {
			f->block_size = size;
			return true;
		}
	}
	return false;
}

/*
 * How memory must be aligned cannot be found by trying: short reads may succeed where long ones
 * fail. Linux 6.1 tells; older kernels want what the device wants, which is never more than its
 * block size.
 */
#ifdef STATX_DIOALIGN
static uint32_t told_buf_align(int fd)
{
	struct statx st = { 0 };

	if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &st) < 0 ||
	    !(st.stx_mask & STATX_DIOALIGN))
		return 0;
	return st.stx_dio_mem_align;
}
#else
static uint32_t told_buf_align(int fd)
{
	(void)fd;
	return 0;
}
#endif

static int probe_direct(const char *path, struct file_facts *f, struct err *e)
{
	char *buf;
	bool ok;

	f->block_size = 512;
	f->buf_align = 1;
	if (!f->direct) {
		log_warn("%s: the file system has no O_DIRECT, the page cache is used", path);
		return 0;
	}
	buf = aligned_alloc(LARGEST_BLOCK, LARGEST_BLOCK);
	if (!buf)
		return err_set(e, -ENOMEM, "Out of memory.");
	ok = probe_block_size(f, buf);
	free(buf);
	if (!ok)
		return err_field(e, -EIO, "filename", path, NULL,
				 "'%.150s' takes no direct I/O of 512 to 65536 bytes.", path);
	f->buf_align = told_buf_align(f->fd);
	if (!IS_POWER_OF_2(f->buf_align) || f->buf_align > 4096)
		f->buf_align = f->block_size;
	return 0;
}

/* A nameless file on fd's file system: in its folder, wherever links have led. -1: not to be had.
 */
static int open_beside(int fd)
{
	char self[64], real[PATH_MAX];
	struct stat ours, theirs;
	ssize_t n;
	int tmp;

	snprintf(self, sizeof(self), "/proc/self/fd/%d", fd);
	n = readlink(self, real, sizeof(real) - 1);
	if (n <= 0)
		return -1;
	real[n] = '\0';
	tmp = open(dirname(real), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	if (tmp >= 0 && fstat(fd, &ours) == 0 && fstat(tmp, &theirs) == 0 &&
	    ours.st_dev == theirs.st_dev)
		return tmp;
	if (tmp >= 0)
		close(tmp);
	return -1;
}

/* What fallocate() can do is tried on another file, so that the contents of the real one are never
 * put at risk. */
static void probe_fallocate(const char *path, struct file_facts *f)
{
	const int keep = FALLOC_FL_KEEP_SIZE;
	int fd = open_beside(f->fd);

	if (fd < 0) {
		log_note("%s: no DISCARD: it cannot be tried on a new file in its folder", path);
		return;
	}
	if (ftruncate(fd, 8192) == 0) {
		f->can_punch = fallocate(fd, FALLOC_FL_PUNCH_HOLE | keep, 0, 4096) == 0;
		f->can_zero_range = fallocate(fd, FALLOC_FL_ZERO_RANGE | keep, 0, 4096) == 0;
	}
	close(fd);
}

/* A number from /sys/dev/block/MAJOR:MINOR/queue/, 0 when there is none. A partition's queue is its
 * disk's. */
static unsigned long queue_limit(int fd, const char *name)
{
	static const char *const dirs[] = { "queue", "../queue" };
	unsigned long value = 0;
	struct stat st;

	if (fstat(fd, &st) < 0)
		return 0;
	for (size_t i = 0; i < ARRAY_SIZE(dirs); i++) {
		char path[128], text[32] = "";
		int f;

		snprintf(path, sizeof(path), "/sys/dev/block/%u:%u/%s/%s", major(st.st_rdev),
			 minor(st.st_rdev), dirs[i], name);
		f = open(path, O_RDONLY | O_CLOEXEC);
		if (f < 0)
			continue;
		if (read(f, text, sizeof(text) - 1) > 0)
			value = strtoul(text, NULL, 10);
		close(f);
		break;
	}
	return value;
}

static void probe_device(struct file_facts *f)
{
	unsigned physical = 0;
	int ro = 0;

	if (ioctl(f->fd, BLKROGET, &ro) == 0 && ro)
		f->readonly = true;
	if (ioctl(f->fd, BLKPBSZGET, &physical) == 0 && physical >= f->block_size)
		f->physical_block_size = physical;
	f->can_punch = queue_limit(f->fd, "discard_max_bytes") > 0;
	f->can_zero_range = true; /* the kernel writes zeroes itself where the device cannot */
}

/* Of a PCI device the node stands in its own folder, which an NVMe namespace or a partition lies
 * deeper in. */
static void find_numa_node(struct file_facts *f)
{
	static const char *const places[] = { "device", "device/device", "../device",
					      "../device/device" };
	struct stat st;
	dev_t dev;

	if (fstat(f->fd, &st) < 0)
		return;
	dev = f->is_device ? st.st_rdev : st.st_dev;
	for (size_t i = 0; i < ARRAY_SIZE(places) && !f->has_numa_node; i++) {
		char path[128];
		FILE *file;

		snprintf(path, sizeof(path), "/sys/dev/block/%u:%u/%s/numa_node", major(dev),
			 minor(dev), places[i]);
		file = fopen(path, "re");
		if (!file)
			continue;
		f->has_numa_node = fscanf(file, "%d", &f->numa_node) == 1 && f->numa_node >= 0;
		fclose(file);
	}
}

int file_open(const char *path, bool readonly, struct file_facts *f, struct err *e)
{
	int rc;

	memset(f, 0, sizeof(*f));
	f->readonly = readonly;
	rc = open_file(path, readonly, f);
	if (rc)
		return open_error(path, readonly, rc, e);
	rc = check_kind(path, f, e);
	if (rc == 0)
		rc = probe_direct(path, f, e);
	if (rc)
		goto out_close;
	f->size = file_size(f->fd, f->is_device);
	f->physical_block_size = f->block_size;
	find_numa_node(f);
	if (f->is_device)
		probe_device(f);
	else if (!readonly)
		probe_fallocate(path, f);
	return 0;
out_close:
	close(f->fd);
	return rc;
}
