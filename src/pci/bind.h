/*
 * bind: which driver a PCI device has, and giving it another one. Control threads only.
 *
 * The kernel asks a device's driver_override who may have it. To give a device away is to write
 * the new driver's name there, take the device from its present driver, ask the new one to take it,
 * and look whether it did. Whatever fails on the way, the device goes back to the driver that it
 * had, and the sentence says so.
 *
 * What a device had before it was first given away is remembered in a file of its own, in a folder
 * that does not survive a boot, as driver_override does not either: "DRIVER OVERRIDE", "-" for
 * none. pci_unbind() gives that back and forgets it.
 *
 * A driver may keep the caller waiting for good. Each step has a deadline; one that passes ends the
 * work with -ETIMEDOUT, and nothing is taken back, because the kernel holds the device.
 */
#ifndef PCI_BIND_H
#define PCI_BIND_H

#include "pci/sysfs.h"

#define PCI_NO_DRIVER "none" /* as a driver: the device is taken from the one it has */

struct pci_place {
	const char *sysfs;    /* "/sys" */
	const char *state;    /* the folder of what is remembered: "/run/riffle/bind" */
	unsigned patience_ms; /* for each step of the kernel */
};

/*
 * Be the only one who changes drivers, until *fd is closed. Two at once would each take the other's
 * work for the kernel's. Errors: -EBUSY, the kernel's.
 */
int pci_place_lock(const struct pci_place *p, int *fd, struct err *e);

/*
 * Give a device to a driver; 0 also when it has it already. Errors, each with a sentence: -ENODEV
 * (no such device), -ENOENT (no such driver: is its module loaded?), -EIO (the driver did not take
 * it), -ETIMEDOUT, the kernel's.
 */
int pci_bind(const struct pci_place *p, const char *bdf, const char *driver, struct err *e);

/*
 * Give it back to the driver it had, or to whom the kernel chooses when none is remembered; 0 also
 * when a driver of the kernel has it already. Errors as above; what is remembered stays.
 */
int pci_unbind(const struct pci_place *p, const char *bdf, struct err *e);

/* Is it remembered? driver, which may be NULL, gets the name: "" for none. */
bool pci_remembers(const struct pci_place *p, const char *bdf, char driver[64]);

/* Is it one through which a process drives the device itself: vfio, uio? */
bool pci_driver_is_user(const char *driver);
/* Can there be a driver of that name? */
bool pci_driver_name_ok(const char *driver);
/* Is the driver there, that is, is its module loaded? */
bool pci_driver_present(const char *sysfs, const char *driver);

/*
 * Can VFIO drive a device, when those at the n BDFs of `with` are bound to it too? Errors: -ENOTSUP
 * (no IOMMU group), -EBUSY (other members of the group have other drivers; the sentence names
 * them).
 */
int pci_group_check(const char *sysfs, const struct pci_device *d, const struct pci_device *with,
		    unsigned n, struct err *e);

/* modprobe. Errors: -ENOENT with a sentence, the kernel's. */
int module_load(const char *name, struct err *e);

#endif
