/*
 * What the files of this room share and nobody else sees.
 *
 * vfio.c (a device) -> vfio_group.c (its IOMMU group) -> vfio_container.c (the I/O address space of
 * all groups), or -> vfio_iommufd.c, which is the kernel's new way to both. All of it under one
 * lock, vfio.c's.
 */
#ifndef PCI_INTERNAL_H
#define PCI_INTERNAL_H

#include <sys/types.h>

#include "pci/sysfs.h"
#include "pci/vfio_parse.h"
#include "util/list.h"

#define SYSFS "/sys"

/* --- vfio_group.c --- */

/* Are there files for containers and this group, and so the old way to its devices? */
bool vfio_group_exists(int group);
/* Take the group, if we do not have it yet, into our container. *fd: of the device. Errors: those
 * of vfio_open(). */
int vfio_group_get_device(const struct pci_device *pci, int *fd, struct err *e);
/* A device's fd is closed. */
void vfio_group_put(int group);

/* The sentence for a group that has members with drivers of the kernel. Returns -EBUSY. */
int vfio_group_not_viable(const struct pci_device *pci, struct err *e);

/* Which other process has opened a file: "process 123 (qemu-system-x86)", or "another process" when
 * that is not to be seen in proc. Returns text. */
char *vfio_holder(const char *proc, const char *path, char *text, size_t size);

/* The sentence for a file of /dev that open() refused. Returns code, -errno. */
int vfio_open_failed(const char *path, const char *bdf, int code, struct err *e);

/* --- vfio_container.c --- */

/* The first group makes the container and attaches it to mem, the last one ends it. */
int vfio_container_join(int group_fd, const char *bdf, struct err *e);
void vfio_container_leave(int group_fd);

/* The sentence for memory that could not be mapped. code: -errno. */
int vfio_map_failed(size_t len, int code, struct err *e);

/* --- vfio_iommufd.c, or no_iommufd.c where the kernel's headers do not know it --- */

bool vfio_cdev_exists(const char *bdf);
int vfio_cdev_open(const struct pci_device *pci, int *fd, struct err *e);
/* A device's fd is closed. */
void vfio_cdev_put(void);

/* --- vfio.c --- */

/*
 * Ask for what has a variable length: an ioctl whose struct begins with argsz. ask: that struct,
 * filled, of size bytes. *got: the answer, the caller's to free. Returns its length; -errno.
 */
ssize_t vfio_ask(int fd, unsigned long request, const void *ask, size_t size, void **got);

struct vfio_bar {
	char *base; /* NULL: not mapped */
	size_t len; /* of the place for all of it, registered with mem */
	struct vfio_area area[VFIO_AREAS_MAX];
	unsigned areas;
};

struct vfio_device {
	struct list node;
	struct pci_device pci;
	bool cdev; /* by vfio_iommufd.c */
	int fd;
	int request_fd;	 /* -1: none */
	uint64_t config; /* where in fd the configuration space is */
	bool can_reset;
	bool has_msix;
	struct pci_msix msix;
	unsigned vectors;    /* as the kernel tells */
	unsigned vectors_on; /* as set */
	struct vfio_bar bar[6];
};

/* Map a BAR if it is not mapped yet. */
int vfio_bar_get(struct vfio_device *d, unsigned bar, struct vfio_bar **out, struct err *e);

/* --- vfio_irq.c --- */

/* Learn of the device's interrupts; have request_fd made. What there is not is left out. */
void vfio_irq_open(struct vfio_device *d);
void vfio_irq_close(struct vfio_device *d);

#endif
