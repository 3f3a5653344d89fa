#include "cmd/compare_loop.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/loop.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "util/compiler.h"

#define TRIES 16 /* others take loop devices at the same time */

static int open_control(int *fd, struct err *e)
{
	*fd = open("/dev/loop-control", O_RDWR | O_CLOEXEC);
	if (*fd >= 0)
		return 0;
	if (errno == ENOENT || errno == ENODEV || errno == ENXIO)
		return err_set(e, -ENOENT,
			       "there are no loop devices here (no /dev/loop-control): load the "
			       "module loop.");
	return err_set(e, -errno, "loop devices are for root (/dev/loop-control: %s).",
		       err_words(errno));
}

static int try_attach(int control, const struct file_facts *f, struct loop *l)
{
	struct loop_config config = {
		.fd = (uint32_t)f->fd,
		.block_size = f->block_size,
		.info.lo_flags = LO_FLAGS_AUTOCLEAR | LO_FLAGS_DIRECT_IO |
				 (f->readonly ? LO_FLAGS_READ_ONLY : 0),
	};
	int number = ioctl(control, LOOP_CTL_GET_FREE), rc;

	if (number < 0)
		return -errno;
	snprintf(l->path, sizeof(l->path), "/dev/loop%d", number);
	l->fd = open(l->path, (f->readonly ? O_RDONLY : O_RDWR) | O_DIRECT | O_CLOEXEC);
	if (l->fd < 0)
		return -errno;
	if (ioctl(l->fd, LOOP_CONFIGURE, &config) == 0)
		return 0;
	rc = -errno;
	close(l->fd);
	return rc;
}

/* The kernel takes the page cache without a word where direct I/O does not suit it. */
static int check_direct(const struct loop *l, struct err *e)
{
	struct loop_info64 info = { 0 };

	if (ioctl(l->fd, LOOP_GET_STATUS64, &info) < 0)
		return err_set(e, -errno, "%s does not tell its state: %s.", l->path,
			       err_words(errno));
	if (!(info.lo_flags & LO_FLAGS_DIRECT_IO))
		return err_set(
			e, -EOPNOTSUPP,
			"a loop device on this file would go through the page cache: its file "
			"system has no direct I/O for it.");
	return 0;
}

/* 0: not known. */
static unsigned queue_number(const struct loop *l, const char *name)
{
	char path[96];
	unsigned n = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/sys/block/%s/queue/%s", l->path + 5, name);
	f = fopen(path, "re");
	if (!f)
		return 0;
	if (fscanf(f, "%u", &n) != 1)
		n = 0;
	fclose(f);
	return n;
}

int loop_attach(const struct file_facts *f, struct loop *l, struct err *e)
{
	int control, rc = open_control(&control, e);

	if (rc)
		return rc;
	rc = -EBUSY;
	for (int i = 0; i < TRIES && rc == -EBUSY; i++)
		rc = try_attach(control, f, l);
	close(control);
	if (rc)
		return err_set(e, rc, "no loop device can be attached: %s.", err_words(rc));
	rc = check_direct(l, e);
	if (rc) {
		close(l->fd);
		return rc;
	}
	l->requests = queue_number(l, "nr_requests");
	l->max_kib = queue_number(l, "max_sectors_kb");
	return 0;
}

void loop_detach(struct loop *l)
{
	close(l->fd);
}
