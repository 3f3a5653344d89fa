#include <errno.h>
#include <fcntl.h>
#include <linux/vfio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "mem/iommu.h"
#include "pci/internal.h"
#include "util/log.h"

#define CONTAINER "/dev/vfio/vfio"

struct container {
	struct iommu iommu;
	int fd;
	unsigned groups;
};

static struct container container;

/* --- memory --- */

int vfio_map_failed(size_t len, int code, struct err *e)
{
	struct rlimit limit;

	if (code == -ENOSPC)
		return err_set(
			e, -ENOMEM,
			"the kernel allows no more mappings for devices: raise dma_entry_limit of the module vfio_iommu_type1.");
	if (code == -ENOMEM && getrlimit(RLIMIT_MEMLOCK, &limit) == 0 &&
	    limit.rlim_cur != RLIM_INFINITY)
		return err_set(
			e, code,
			"%zu KiB more had to be locked in memory, and this process may lock %llu KiB in all: raise that with `ulimit -l unlimited`, or LimitMEMLOCK=infinity in the unit of systemd.",
			len >> 10, (unsigned long long)limit.rlim_cur >> 10);
	return err_set(e, code, "%zu KiB of memory could not be mapped for devices: %s.", len >> 10,
		       err_words(code));
}

static int map(struct iommu *m, void *vaddr, size_t len, iova_t iova, struct err *e)
{
	struct container *c = container_of(m, struct container, iommu);
	struct vfio_iommu_type1_dma_map map = {
		.argsz = sizeof(map),
		.flags = VFIO_DMA_MAP_FLAG_READ | VFIO_DMA_MAP_FLAG_WRITE,
		.vaddr = (uintptr_t)vaddr,
		.iova = iova,
		.size = len,
	};

	if (ioctl(c->fd, VFIO_IOMMU_MAP_DMA, &map) < 0)
		return vfio_map_failed(len, -errno, e);
	return 0;
}

static void unmap(struct iommu *m, iova_t iova, size_t len)
{
	struct container *c = container_of(m, struct container, iommu);
	struct vfio_iommu_type1_dma_unmap unmap = {
		.argsz = sizeof(unmap),
		.iova = iova,
		.size = len,
	};

	if (ioctl(c->fd, VFIO_IOMMU_UNMAP_DMA, &unmap) < 0)
		log_error("%zu KiB of memory stay mapped for devices at IOVA 0x%llx: %s.",
			  len >> 10, (unsigned long long)iova, err_words(errno));
}

/* --- the container --- */

static int open_container(const char *bdf, struct err *e)
{
	int fd = open(CONTAINER, O_RDWR | O_CLOEXEC);

	if (fd < 0)
		return vfio_open_failed(CONTAINER, bdf, -errno, e);
	if (ioctl(fd, VFIO_GET_API_VERSION) == VFIO_API_VERSION &&
	    ioctl(fd, VFIO_CHECK_EXTENSION, VFIO_TYPE1v2_IOMMU) > 0) {
		container.fd = fd;
		return 0;
	}
	close(fd);
	return err_set(
		e, -ENOTSUP,
		"This kernel's VFIO has no IOMMU of type 1, version 2: `modprobe vfio_iommu_type1`.");
}

static int describe(struct err *e)
{
	struct vfio_iommu_type1_info ask = { 0 };
	ssize_t size;
	void *info;

	size = vfio_ask(container.fd, VFIO_IOMMU_GET_INFO, &ask, sizeof(ask), &info);
	if (size < 0)
		return err_set(e, (int)size, "The IOMMU does not tell what it can: %s.",
			       err_words((int)size));
	vfio_iommu_describe(info, (size_t)size, (size_t)sysconf(_SC_PAGESIZE), &container.iommu);
	log_debug("The IOMMU has %u ranges, %u mappings and pages of %zu bytes.",
		  container.iommu.ranges_n, vfio_iommu_dma_avail(info, (size_t)size),
		  container.iommu.page);
	free(info);
	return 0;
}

/* The first group is in: its IOMMU becomes everybody's. */
static int begin(struct err *e)
{
	int rc = ioctl(container.fd, VFIO_SET_IOMMU, VFIO_TYPE1v2_IOMMU) < 0 ? -errno : 0;

	if (rc == -EPERM)
		return err_set(
			e, rc,
			"This machine's IOMMU does not remap interrupts, so VFIO takes it for unsafe: turn interrupt remapping on, or set allow_unsafe_interrupts of the module vfio_iommu_type1.");
	if (rc)
		return err_set(e, rc, "The IOMMU cannot be used: %s.", err_words(rc));
	rc = describe(e);
	if (rc)
		return rc;
	container.iommu.map = map;
	container.iommu.unmap = unmap;
	return iommu_attach(&container.iommu, e);
}

int vfio_container_join(int group_fd, const char *bdf, struct err *e)
{
	int rc = container.groups ? 0 : open_container(bdf, e);

	if (rc)
		return rc;
	if (ioctl(group_fd, VFIO_GROUP_SET_CONTAINER, &container.fd) < 0) {
		rc = err_set(e, -errno,
			     "The IOMMU group of %s does not go with those of the other disks: %s.",
			     bdf, err_words(errno));
		goto out_close;
	}
	rc = container.groups ? 0 : begin(e);
	if (rc)
		goto out_leave;
	container.groups++;
	return 0;

out_leave:
	ioctl(group_fd, VFIO_GROUP_UNSET_CONTAINER);
out_close:
	if (container.groups == 0)
		close(container.fd);
	return rc;
}

void vfio_container_leave(int group_fd)
{
	bool last = --container.groups == 0;

	if (last)
		iommu_detach(&container.iommu);
	ioctl(group_fd, VFIO_GROUP_UNSET_CONTAINER);
	if (last)
		close(container.fd);
}
