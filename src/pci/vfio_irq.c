#include <errno.h>
#include <linux/pci_regs.h>
#include <linux/vfio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "pci/internal.h"
#include "pci/vfio.h"

static unsigned irq_count(const struct vfio_device *d, unsigned index)
{
	struct vfio_irq_info info = { .argsz = sizeof(info), .index = index };

	if (ioctl(d->fd, VFIO_DEVICE_GET_IRQ_INFO, &info) < 0 ||
	    !(info.flags & VFIO_IRQ_INFO_EVENTFD))
		return 0;
	return info.count;
}

/* n eventfds for the interrupts of one kind, from the first; n 0: all off. Returns -errno, or how
 * many there could have been when n are too many for the machine. */
static int set_irqs(struct vfio_device *d, unsigned index, const int *fds, unsigned n)
{
	size_t data = n * sizeof(fds[0]);
	struct vfio_irq_set *set = calloc(1, sizeof(*set) + data);
	int rc;

	if (!set)
		return -ENOMEM;
	set->argsz = (uint32_t)(sizeof(*set) + data);
	set->flags = VFIO_IRQ_SET_ACTION_TRIGGER |
		     (n ? VFIO_IRQ_SET_DATA_EVENTFD : VFIO_IRQ_SET_DATA_NONE);
	set->index = index;
	set->count = n;
	if (n)
		memcpy(set->data, fds, data);
	rc = ioctl(d->fd, VFIO_DEVICE_SET_IRQS, set);
	if (rc < 0)
		rc = -errno;
	free(set);
	return rc;
}

unsigned vfio_vectors(const struct vfio_device *d)
{
	return d->vectors;
}

int vfio_set_vectors(struct vfio_device *d, const int *fds, unsigned n, struct err *e)
{
	int rc = 0;

	if (n > d->vectors)
		return err_set(e, -EINVAL, "%s has %u interrupt vectors, not %u.", d->pci.bdf,
			       d->vectors, n);
	/* What is on cannot become more or fewer. */
	if (d->vectors_on && d->vectors_on != n) {
		rc = set_irqs(d, VFIO_PCI_MSIX_IRQ_INDEX, NULL, 0);
		if (rc == 0)
			d->vectors_on = 0;
	}
	if (rc == 0 && n)
		rc = set_irqs(d, VFIO_PCI_MSIX_IRQ_INDEX, fds, n);
	if (rc > 0)
		return err_set(e, -ENOSPC, "This machine has %d interrupt vectors for %s, not %u.",
			       rc, d->pci.bdf, n);
	if (rc)
		return err_set(e, rc, "The interrupts of %s cannot be set: %s.", d->pci.bdf,
			       err_words(rc));
	d->vectors_on = n;
	return 0;
}

volatile le32 *vfio_vector_control(struct vfio_device *d, unsigned i)
{
	uint64_t entry = d->msix.offset + (uint64_t)i * PCI_MSIX_ENTRY_SIZE;
	struct vfio_bar *b;

	if (!d->has_msix || i >= d->msix.vectors || vfio_bar_get(d, d->msix.bar, &b, NULL) ||
	    !vfio_area_find(b->area, b->areas, entry, PCI_MSIX_ENTRY_SIZE))
		return NULL;
	return (volatile le32 *)(void *)(b->base + entry + PCI_MSIX_ENTRY_VECTOR_CTRL);
}

int vfio_request_fd(const struct vfio_device *d)
{
	return d->request_fd;
}

void vfio_irq_open(struct vfio_device *d)
{
	d->vectors = irq_count(d, VFIO_PCI_MSIX_IRQ_INDEX);
	if (irq_count(d, VFIO_PCI_REQ_IRQ_INDEX) == 0)
		return;
	d->request_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (d->request_fd >= 0 && set_irqs(d, VFIO_PCI_REQ_IRQ_INDEX, &d->request_fd, 1) == 0)
		return;
	if (d->request_fd >= 0)
		close(d->request_fd);
	d->request_fd = -1;
}

void vfio_irq_close(struct vfio_device *d)
{
	if (d->vectors_on)
		set_irqs(d, VFIO_PCI_MSIX_IRQ_INDEX, NULL, 0);
	if (d->request_fd < 0)
		return;
	set_irqs(d, VFIO_PCI_REQ_IRQ_INDEX, NULL, 0);
	close(d->request_fd);
}
