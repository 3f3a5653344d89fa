/* Stands for vfio_iommufd.c where the kernel's headers do not know it yet. */
#include <errno.h>

#include "pci/internal.h"

bool vfio_cdev_exists(const char *bdf)
{
	(void)bdf;
	return false;
}

int vfio_cdev_open(const struct pci_device *pci, int *fd, struct err *e)
{
	(void)fd;
	return err_set(e, -ENOTSUP, "%s: Riffle was built without iommufd.", pci->bdf);
}

void vfio_cdev_put(void)
{
}
