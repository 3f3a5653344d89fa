/* IOMMU groups: what VFIO asks of the devices that an IOMMU cannot tell apart. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pci/bind.h"

#define CLASS_BRIDGE 0x06

/* A device that is not given to VFIO keeps the whole group from it, unless its driver is one that
 * VFIO knows to leave memory alone. */
static bool keeps_group(const struct pci_device *d)
{
	return d->driver[0] && d->class >> 16 != CLASS_BRIDGE &&
	       strncmp(d->driver, "vfio", 4) != 0 && strcmp(d->driver, "pci-stub") != 0;
}

static bool is_among(const struct pci_device *d, const struct pci_device *list, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		if (strcmp(d->bdf, list[i].bdf) == 0)
			return true;
	return false;
}

/* "0000:01:00.1 (snd), 0000:01:00.2 (xhci_hcd)" */
static char *name_keepers(char *buf, size_t size, int group, const struct pci_device *all,
			  unsigned n_all, const struct pci_device *with, unsigned n)
{
	size_t used = 0;

	buf[0] = '\0';
	for (unsigned i = 0; i < n_all && used < size; i++)
		if (all[i].iommu_group == group && keeps_group(&all[i]) &&
		    !is_among(&all[i], with, n))
			used += (size_t)snprintf(buf + used, size - used, "%s%s (%s)",
						 used ? ", " : "", all[i].bdf, all[i].driver);
	return buf;
}

/* The kernel can be told to do without, which protects nobody from the device. */
static bool noiommu_allowed(const char *sysfs)
{
	char text[8];

	sysfs_read(text, sizeof(text), "%s/module/vfio/parameters/enable_unsafe_noiommu_mode",
		   sysfs);
	return text[0] == 'Y' || text[0] == '1';
}

int pci_group_check(const char *sysfs, const struct pci_device *d, const struct pci_device *with,
		    unsigned n, struct err *e)
{
	struct pci_device *all;
	unsigned n_all;
	char names[128];
	int rc;

	if (d->iommu_group < 0 && noiommu_allowed(sysfs))
		return 0;
	if (d->iommu_group < 0)
		return err_set(e, -ENOTSUP,
			       "%s is in no IOMMU group, and vfio-pci needs one. Turn VT-d or "
			       "AMD-Vi on in the firmware and boot with intel_iommu=on (Intel) or "
			       "without amd_iommu=off (AMD); a virtual machine needs a virtual "
			       "IOMMU. `--driver uio_pci_generic` needs none, and protects "
			       "nothing.",
			       d->bdf);
	rc = pci_enumerate(sysfs, PCI_CLASS_ANY, &all, &n_all, e);
	if (rc)
		return rc;
	name_keepers(names, sizeof(names), d->iommu_group, all, n_all, with, n);
	free(all);
	if (!names[0])
		return 0;
	return err_set(e, -EBUSY,
		       "%s is in IOMMU group %d with %s, and VFIO opens a group only when none of "
		       "it is with other drivers. Name them all to one `riffle bind`, or move the "
		       "device to another slot.",
		       d->bdf, d->iommu_group, names);
}
