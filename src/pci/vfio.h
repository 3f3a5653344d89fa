/*
 * vfio: PCI devices that this process drives itself, through the kernel's VFIO.
 *
 * The device is bound to vfio-pci (`riffle bind`). All devices share one I/O address space, a VFIO
 * container, which is made with the first device and attached to mem (mem/iommu.h) until the last
 * one is closed. Control threads only, but for the memory of BARs.
 *
 * The life of a device: vfio_open() - group viable, container, device fd, bus master on;
 * vfio_map_bar(), vfio_set_vectors(); vfio_close() - no interrupts, bus master off, all unmapped.
 */
#ifndef PCI_VFIO_H
#define PCI_VFIO_H

#include <stddef.h>

#include "util/bytes.h"
#include "util/err.h"

struct vfio_device;

/*
 * bdf: as pci_bdf_parse() gives it. noiommu: take a device without IOMMU protection (the kernel
 * must allow it), only for who asks for it by name. Errors, each with a sentence that says what to
 * do: -ENODEV (no such device), -EBUSY (another process has it, or its IOMMU group has members with
 * other drivers, which are named), -EPERM/-EACCES, -ENOTSUP (no VFIO, no IOMMU), -ENOMEM.
 */
int vfio_open(const char *bdf, bool noiommu, struct vfio_device **out, struct err *e);
void vfio_close(struct vfio_device *d);

/*
 * Map a memory BAR; it stays mapped until vfio_close(). Reads of a device that has vanished give
 * all ones. Errors: -ENODEV (no such BAR, or none of memory), the kernel's.
 */
int vfio_map_bar(struct vfio_device *d, unsigned bar, volatile void **base, size_t *len,
		 struct err *e);

/* MSI-X vectors that there are. */
unsigned vfio_vectors(const struct vfio_device *d);
/* Vector i adds 1 to fds[i] (-1: to none); n 0: all off. Errors: the kernel's. */
int vfio_set_vectors(struct vfio_device *d, const int *fds, unsigned n, struct err *e);
/* The Vector Control word of vector i in the mapped MSI-X table (PCIe 6.0, 7.7.2); NULL: the kernel
 * does not let us reach it. */
volatile le32 *vfio_vector_control(struct vfio_device *d, unsigned i);

/* Function-level reset. DMA has ended on return; the configuration space is as after vfio_open().
 * Errors: -EOPNOTSUPP, the kernel's. */
int vfio_reset(struct vfio_device *d, struct err *e);

/* Configuration space. Errors: -EIO. */
int vfio_config_read(struct vfio_device *d, unsigned offset, void *buf, size_t len);
int vfio_config_write(struct vfio_device *d, unsigned offset, const void *buf, size_t len);

/* Readable when the kernel wants the device back (unbind, hot unplug): the owner should end its I/O
 * and close the device soon. -1: the kernel cannot say. */
int vfio_request_fd(const struct vfio_device *d);

#endif
