/*
 * iommufd: the kernel's new way to a device, a file for each (/dev/vfio/devices/vfio0) and one I/O
 * address space (IOAS) in /dev/iommu. It stands in for groups and container where those are not.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/iommufd.h>
#include <linux/vfio.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "mem/iommu.h"
#include "pci/bind.h"
#include "pci/internal.h"
#include "util/log.h"

#define IOMMUFD	   "/dev/iommu"
#define RANGES_MAX 64

struct space {
	struct iommu iommu;
	int fd;
	uint32_t ioas;
	unsigned devices;
};

static struct space space;

/* --- memory --- */

static int map(struct iommu *m, void *vaddr, size_t len, iova_t iova, struct err *e)
{
	struct space *s = container_of(m, struct space, iommu);
	struct iommu_ioas_map map = {
		.size = sizeof(map),
		.flags = IOMMU_IOAS_MAP_FIXED_IOVA | IOMMU_IOAS_MAP_WRITEABLE |
			 IOMMU_IOAS_MAP_READABLE,
		.ioas_id = s->ioas,
		.user_va = (uintptr_t)vaddr,
		.length = len,
		.iova = iova,
	};

	if (ioctl(s->fd, IOMMU_IOAS_MAP, &map) < 0)
		return vfio_map_failed(len, -errno, e);
	return 0;
}

static void unmap(struct iommu *m, iova_t iova, size_t len)
{
	struct space *s = container_of(m, struct space, iommu);
	struct iommu_ioas_unmap unmap = {
		.size = sizeof(unmap),
		.ioas_id = s->ioas,
		.iova = iova,
		.length = len,
	};

	if (ioctl(s->fd, IOMMU_IOAS_UNMAP, &unmap) < 0)
		log_error("%zu KiB of memory stay mapped for devices at IOVA 0x%llx: %s.",
			  len >> 10, (unsigned long long)iova, err_words(errno));
}

/* --- the I/O address space --- */

static int open_space(const char *bdf, struct err *e)
{
	struct iommu_ioas_alloc alloc = { .size = sizeof(alloc) };
	int rc = 0, fd = open(IOMMUFD, O_RDWR | O_CLOEXEC);

	if (fd < 0)
		return vfio_open_failed(IOMMUFD, bdf, -errno, e);
	if (ioctl(fd, IOMMU_IOAS_ALLOC, &alloc) < 0) {
		rc = err_set(e, -errno, "%s gives no I/O address space: %s.", IOMMUFD,
			     err_words(errno));
		close(fd);
		return rc;
	}
	space.fd = fd;
	space.ioas = alloc.out_ioas_id;
	return 0;
}

static void close_space(void)
{
	struct iommu_destroy destroy = { .size = sizeof(destroy), .id = space.ioas };

	ioctl(space.fd, IOMMU_DESTROY, &destroy);
	close(space.fd);
}

/* The first device is in: what its IOMMU can is known now. */
static int begin(struct err *e)
{
	struct iommu_iova_range range[RANGES_MAX] = { 0 };
	struct iommu_ioas_iova_ranges ask = {
		.size = sizeof(ask),
		.ioas_id = space.ioas,
		.num_iovas = RANGES_MAX,
		.allowed_iovas = (uintptr_t)range,
	};

	/* EMSGSIZE: there are more, which we do without. */
	if (ioctl(space.fd, IOMMU_IOAS_IOVA_RANGES, &ask) < 0 && errno != EMSGSIZE)
		return err_set(e, -errno, "The IOMMU does not tell what it can: %s.",
			       err_words(errno));
	space.iommu.page = (size_t)sysconf(_SC_PAGESIZE);
	space.iommu.ranges_n = 0;
	for (unsigned i = 0; i < MIN(ask.num_iovas, RANGES_MAX); i++)
		vfio_iommu_add_range(&space.iommu, range[i].start, range[i].last);
	space.iommu.map = map;
	space.iommu.unmap = unmap;
	return iommu_attach(&space.iommu, e);
}

/* --- devices --- */

/* The device's file. false: it has none. */
static bool find_path(const char *bdf, char *path, size_t size)
{
	const struct dirent *entry;
	char dir[PATH_MAX];
	bool found = false;
	DIR *list;

	snprintf(dir, sizeof(dir), SYSFS "/bus/pci/devices/%s/vfio-dev", bdf);
	list = opendir(dir);
	while (list && !found && (entry = readdir(list))) {
		found = strncmp(entry->d_name, "vfio", 4) == 0;
		snprintf(path, size, "/dev/vfio/devices/%.32s", entry->d_name);
	}
	if (list)
		closedir(list);
	return found && access(path, F_OK) == 0;
}

bool vfio_cdev_exists(const char *bdf)
{
	char path[64];

	return access(IOMMUFD, F_OK) == 0 && find_path(bdf, path, sizeof(path));
}

static int bind_failed(const struct pci_device *pci, const char *path, int code, struct err *e)
{
	int rc = pci_group_check(SYSFS, pci, pci, 1, e);

	if (rc)
		return rc;
	/* A device is bound once; who comes second is told that its request is wrong. */
	if (code == -EBUSY || code == -EINVAL)
		return vfio_open_failed(path, pci->bdf, -EBUSY, e);
	return err_set(e, code, "%s cannot be bound to the I/O address space: %s.", pci->bdf,
		       err_words(code));
}

static int join(const struct pci_device *pci, const char *path, int fd, struct err *e)
{
	struct vfio_device_bind_iommufd bind = { .argsz = sizeof(bind), .iommufd = space.fd };
	struct vfio_device_attach_iommufd_pt attach = { .argsz = sizeof(attach),
							.pt_id = space.ioas };

	if (ioctl(fd, VFIO_DEVICE_BIND_IOMMUFD, &bind) < 0)
		return bind_failed(pci, path, -errno, e);
	if (ioctl(fd, VFIO_DEVICE_ATTACH_IOMMUFD_PT, &attach) < 0)
		return err_set(e, -errno, "%s does not go with the other disks: %s.", pci->bdf,
			       err_words(errno));
	return space.devices ? 0 : begin(e);
}

int vfio_cdev_open(const struct pci_device *pci, int *fd, struct err *e)
{
	char path[64];
	int rc, device;

	find_path(pci->bdf, path, sizeof(path));
	device = open(path, O_RDWR | O_CLOEXEC);
	if (device < 0)
		return vfio_open_failed(path, pci->bdf, -errno, e);
	rc = space.devices ? 0 : open_space(pci->bdf, e);
	if (rc)
		goto out_close;
	rc = join(pci, path, device, e);
	if (rc)
		goto out_leave;
	space.devices++;
	*fd = device;
	return 0;

out_leave:
	close(device); /* before the address space that it is in */
	if (space.devices == 0)
		close_space();
	return rc;
out_close:
	close(device);
	return rc;
}

void vfio_cdev_put(void)
{
	if (--space.devices > 0)
		return;
	iommu_detach(&space.iommu);
	close_space();
}
