/*
 * vfio_parse: what VFIO and a device's configuration space tell, taken apart. Bytes in, answers
 * out; bytes that make no sense are as good as absent.
 */
#ifndef PCI_VFIO_PARSE_H
#define PCI_VFIO_PARSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "mem/iommu.h"

/*
 * A capability in the chain that begins at offset first of an ioctl's answer (linux/vfio.h, struct
 * vfio_info_cap_header). Its first head_len bytes are copied to head. Returns the offset of what
 * follows them; 0: there is no such capability.
 */
size_t vfio_cap_find(const void *info, size_t size, uint32_t first, unsigned id, void *head,
		     size_t head_len);

/*
 * The page size and the usable ranges of VFIO_IOMMU_GET_INFO's answer into *m. page is this
 * machine's. A kernel that tells no ranges is taken to have those of the smallest IOMMU in use:
 * 39 bits, without the window of message signalled interrupts.
 */
void vfio_iommu_describe(const void *info, size_t size, size_t page, struct iommu *m);

/* How many mappings may still be made; UINT32_MAX: the kernel does not tell. */
uint32_t vfio_iommu_dma_avail(const void *info, size_t size);

/* Append the whole pages of [first, last] to m's ranges, when they lie above all those. */
void vfio_iommu_add_range(struct iommu *m, uint64_t first, uint64_t last);

#define VFIO_AREAS_MAX 8

struct vfio_area {
	uint64_t offset, len;
};

/* The parts of a region that may be mapped, ascending, from VFIO_DEVICE_GET_REGION_INFO's answer.
 * Returns their number. */
unsigned vfio_region_areas(const void *info, size_t size, size_t page,
			   struct vfio_area areas[VFIO_AREAS_MAX]);

/* The area that holds all of [offset, offset + len); NULL: none. */
const struct vfio_area *vfio_area_find(const struct vfio_area *areas, unsigned n, uint64_t offset,
				       uint64_t len);

#define PCI_CONFIG_SIZE 256 /* without what PCI Express has added */

/* Where the MSI-X table is (PCIe 6.0, 7.7.2). */
struct pci_msix {
	unsigned vectors;
	unsigned bar;
	uint32_t offset;
};

/* false: the device has none. */
bool pci_msix_find(const uint8_t config[PCI_CONFIG_SIZE], struct pci_msix *m);

#endif
