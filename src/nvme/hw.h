/*
 * hw: what the NVMe driver needs of the hardware - registers, interrupts, a reset. backend/ makes
 * one from a device of the pci room; test/fake/ makes one in plain memory, with scripted faults.
 *
 * A register is read and written through bar. When the device has vanished reads give all ones and
 * writes go nowhere (mem/ turns the SIGBUS of such an access into that); nobody crashes.
 */
#ifndef NVME_HW_H
#define NVME_HW_H

#include <stddef.h>

#include "util/bytes.h"
#include "util/err.h"

struct nvme_hw {
	volatile void *bar; /* BAR 0: controller registers and doorbells */
	size_t bar_len;
	unsigned vectors; /* MSI-X vectors; 0: none, completions are only to be polled for */

	/*
	 * Vector i adds 1 to the eventfd fds[i]; -1: it does nothing. Replaces what was set before;
	 * n 0: no interrupts. Control thread. Errors: the kernel's, with a sentence.
	 */
	int (*set_vectors)(struct nvme_hw *hw, const int *fds, unsigned n, struct err *e);
	/*
	 * The Vector Control word of vector i in the MSI-X table (PCIe 6.0, 7.7.2: bit 0 masks it,
	 * and what came meanwhile is delivered when it is cleared). NULL: out of reach, the vector
	 * is always on.
	 */
	volatile le32 *(*vector_control)(struct nvme_hw *hw, unsigned i);
	/* Another BAR, where the controller memory buffer may be; stays mapped as long as hw.
	 * Control thread. Errors: -ENODEV, the kernel's. */
	int (*map_bar)(struct nvme_hw *hw, unsigned bar, volatile void **base, size_t *len,
		       struct err *e);
	/* Function-level reset: on return the device does no more DMA. Control thread. Errors: the
	 * kernel's; -EOPNOTSUPP. */
	int (*reset)(struct nvme_hw *hw, struct err *e);
};

#endif
