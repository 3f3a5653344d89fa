/* The hardware of NVMe controllers on the PCI bus, by VFIO. */
#ifndef BACKEND_NVME_PCI_H
#define BACKEND_NVME_PCI_H

#include <stdbool.h>

#include "nvme/hw.h"

/*
 * A device bound to vfio-pci; bdf in sysfs's spelling. *request_fd: readable when the kernel wants
 * it back, -1: never. Errors: those of vfio_open() and vfio_map_bar().
 */
int nvme_pci_open(const char *bdf, bool noiommu, struct nvme_hw **hw, int *request_fd,
		  struct err *e);
void nvme_pci_close(struct nvme_hw *hw);

#endif
