/*
 * sysfs: what the kernel tells of PCI devices. Control threads only; nothing here opens a device.
 *
 * Every function takes the folder where sysfs is, so that tests can make one.
 */
#ifndef PCI_SYSFS_H
#define PCI_SYSFS_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "util/err.h"

#define PCI_CLASS_NVME \
	0x010802 /* NVM Express 2.0, PCIe transport 3.2: mass storage, NVM, I/O controller */
#define PCI_CLASS_ANY UINT32_MAX
#define PCI_BDF_MAX   16 /* "10000:e1:00.0": domains may have 5 digits (VMD) */

/* A link's speed in tenths of GT/s and its width; 0: the kernel does not tell. */
struct pci_link {
	unsigned speed, width;
};

struct pci_device {
	char bdf[PCI_BDF_MAX];
	uint32_t class;
	uint16_t vendor, device;
	char driver[64]; /* "": none is bound */
	int numa_node;	 /* -1: not known */
	int iommu_group; /* -1: there is no IOMMU */
	struct pci_link now, most;
};

/*
 * A BDF as people write it - 0000:01:00.0, 01:00.0, 10000:e1:00.0, in either case - in sysfs's
 * spelling. false: it is none.
 */
bool pci_bdf_parse(const char *text, char bdf[PCI_BDF_MAX]);

/* By BDF in sysfs's spelling. Errors: -ENODEV, with a sentence. */
int pci_device_read(const char *sysfs, const char *bdf, struct pci_device *d, struct err *e);

/*
 * All devices of a class, or of PCI_CLASS_ANY, in the order of their BDFs. *list is the caller's to
 * free. Errors: -ENOMEM; the kernel's when sysfs cannot be read.
 */
int pci_enumerate(const char *sysfs, uint32_t class, struct pci_device **list, unsigned *n,
		  struct err *e);

/* The first line of a file; "" when there is none. path is a format. Returns buf. */
char *sysfs_read(char *buf, size_t size, const char *path, ...)
	__attribute__((format(printf, 3, 4)));
/* The last part of what a link points to; "" when there is none. */
char *sysfs_link(char *buf, size_t size, const char *path, ...)
	__attribute__((format(printf, 3, 4)));

/*
 * Write text to an existing file; path is a format. Errors: the kernel's; -ETIMEDOUT when it has
 * not returned in time: the kernel is still at it, and other writes about the same device will wait
 * too.
 */
int sysfs_write(unsigned patience_ms, const char *text, const char *path, ...)
	__attribute__((format(printf, 3, 4)));

#endif
