#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/vfio.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "pci/bind.h"
#include "pci/internal.h"
#include "util/list.h"

struct group {
	struct list node;
	int id, fd;
	unsigned devices; /* that are open */
};

static struct list groups = LIST_INIT(groups);

/* --- why a file is not to be had --- */

static bool has_open(const char *proc, const char *pid, const char *path)
{
	char dir[PATH_MAX], target[PATH_MAX];
	const struct dirent *entry;
	bool found = false;
	ssize_t n;
	DIR *fds;

	snprintf(dir, sizeof(dir), "%s/%s/fd", proc, pid);
	fds = opendir(dir);
	while (fds && !found && (entry = readdir(fds))) {
		n = readlinkat(dirfd(fds), entry->d_name, target, sizeof(target) - 1);
		target[MAX(n, 0)] = '\0';
		found = !strcmp(target, path);
	}
	if (fds)
		closedir(fds);
	return found;
}

char *vfio_holder(const char *proc, const char *path, char *text, size_t size)
{
	const struct dirent *entry;
	char name[32];
	DIR *dir = opendir(proc);

	snprintf(text, size, "another process");
	while (dir && (entry = readdir(dir)))
		if (atoi(entry->d_name) > 0 && atoi(entry->d_name) != getpid() &&
		    has_open(proc, entry->d_name, path)) {
			sysfs_read(name, sizeof(name), "%s/%s/comm", proc, entry->d_name);
			snprintf(text, size, "process %.12s (%s)", entry->d_name, name);
			break;
		}
	if (dir)
		closedir(dir);
	return text;
}

int vfio_open_failed(const char *path, const char *bdf, int code, struct err *e)
{
	char holder[64];

	switch (-code) {
	case EBUSY:
		return err_set(e, code, "%s is in use by %s: %s is open there.", bdf,
			       vfio_holder("/proc", path, holder, sizeof(holder)), path);
	case EACCES:
	case EPERM:
		return err_set(
			e, code,
			"%s may not be opened, so %s cannot be driven: run as root, or give the file to this user (chown, or a udev rule).",
			path, bdf);
	case ENOENT:
	case ENODEV:
	case ENXIO:
		return err_set(e, -ENOTSUP,
			       "There is no %s: load the kernel's VFIO with `modprobe vfio-pci`.",
			       path);
	default:
		return err_set(e, code, "%s cannot be opened: %s.", path, err_words(code));
	}
}

/* --- groups that we have --- */

bool vfio_group_exists(int group)
{
	char path[64];

	snprintf(path, sizeof(path), "/dev/vfio/%d", group);
	return access(path, F_OK) == 0 && access("/dev/vfio/vfio", F_OK) == 0;
}

static struct group *find(int id)
{
	struct group *g;

	list_for_each (g, &groups, node)
		if (g->id == id)
			return g;
	return NULL;
}

int vfio_group_not_viable(const struct pci_device *pci, struct err *e)
{
	int rc = pci_group_check(SYSFS, pci, pci, 1, e);

	return rc ? rc
		  : err_set(e, -EBUSY, "IOMMU group %d of %s has a member that the kernel uses.",
			    pci->iommu_group, pci->bdf);
}

static int check_viable(const struct group *g, const struct pci_device *pci, struct err *e)
{
	struct vfio_group_status status = { .argsz = sizeof(status) };

	if (ioctl(g->fd, VFIO_GROUP_GET_STATUS, &status) < 0)
		return err_set(e, -errno, "IOMMU group %d does not tell its state: %s.", g->id,
			       err_words(errno));
	return status.flags & VFIO_GROUP_FLAGS_VIABLE ? 0 : vfio_group_not_viable(pci, e);
}

static int open_group(const struct pci_device *pci, struct group **out, struct err *e)
{
	struct group *g = calloc(1, sizeof(*g));
	char path[64];
	int rc;

	if (!g)
		return err_set(e, -ENOMEM, "Out of memory.");
	g->id = pci->iommu_group;
	snprintf(path, sizeof(path), "/dev/vfio/%d", g->id);
	g->fd = open(path, O_RDWR | O_CLOEXEC);
	if (g->fd < 0) {
		rc = vfio_open_failed(path, pci->bdf, -errno, e);
		goto out_free;
	}
	rc = check_viable(g, pci, e);
	if (rc == 0)
		rc = vfio_container_join(g->fd, pci->bdf, e);
	if (rc)
		goto out_close;
	list_add_tail(&groups, &g->node);
	*out = g;
	return 0;

out_close:
	close(g->fd);
out_free:
	free(g);
	return rc;
}

static void close_group(struct group *g)
{
	vfio_container_leave(g->fd);
	close(g->fd);
	list_del(&g->node);
	free(g);
}

int vfio_group_get_device(const struct pci_device *pci, int *fd, struct err *e)
{
	struct group *g = find(pci->iommu_group);
	int rc = 0, device;

	if (!g)
		rc = open_group(pci, &g, e);
	if (rc)
		return rc;
	device = ioctl(g->fd, VFIO_GROUP_GET_DEVICE_FD, pci->bdf);
	if (device < 0) {
		rc = err_set(e, -errno, "%s cannot be opened in its IOMMU group: %s.", pci->bdf,
			     err_words(errno));
		if (g->devices == 0)
			close_group(g);
		return rc;
	}
	g->devices++;
	*fd = device;
	return 0;
}

void vfio_group_put(int group)
{
	struct group *g = find(group);

	if (--g->devices == 0)
		close_group(g);
}
