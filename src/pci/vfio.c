#include "pci/vfio.h"

#include <errno.h>
#include <linux/pci_regs.h>
#include <linux/vfio.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "mem/mem.h"
#include "pci/internal.h"

#define ANSWER_MAX (1 << 20) /* more than any kernel has to say */

/* Guards the devices that are open, and all of vfio_group.c, vfio_container.c, vfio_iommufd.c. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct list devices = LIST_INIT(devices);

ssize_t vfio_ask(int fd, unsigned long request, const void *ask, size_t size, void **got)
{
	uint32_t room = 4096, *answer;

	for (;;) {
		answer = calloc(1, room);
		if (!answer)
			return -ENOMEM;
		memcpy(answer, ask, size);
		answer[0] = room; /* argsz */
		if (ioctl(fd, request, answer) < 0) {
			int code = -errno;

			free(answer);
			return code;
		}
		*got = answer;
		if (answer[0] <= room || answer[0] > ANSWER_MAX)
			return room;
		room = answer[0];
		free(answer);
	}
}

/* --- which device, and by which way --- */

static const struct vfio_device *find(const char *bdf)
{
	const struct vfio_device *d;

	list_for_each (d, &devices, node)
		if (!strcmp(d->pci.bdf, bdf))
			return d;
	return NULL;
}

static int check_driver(const struct pci_device *p, struct err *e)
{
	if (!p->driver[0])
		return err_set(e, -ENODEV, "%s has no driver: `riffle bind %s` gives it to VFIO.",
			       p->bdf, p->bdf);
	if (!strstr(p->driver, "vfio"))
		return err_set(
			e, -EBUSY,
			"%s is in use by the kernel's driver %s: `riffle bind %s` gives it to VFIO.",
			p->bdf, p->driver, p->bdf);
	return 0;
}

static int check_iommu(const struct pci_device *p, bool noiommu, struct err *e)
{
	char name[32];

	if (p->iommu_group < 0)
		return err_set(
			e, -ENOTSUP,
			"%s has no IOMMU group: turn the IOMMU on, in the firmware's setup (VT-d, AMD-Vi) and on the kernel's command line (intel_iommu=on).",
			p->bdf);
	sysfs_read(name, sizeof(name), SYSFS "/kernel/iommu_groups/%d/name", p->iommu_group);
	if (strcmp(name, "vfio-noiommu") != 0)
		return 0;
	if (noiommu)
		return err_set(
			e, -ENOTSUP,
			"%s has no IOMMU. Devices without one need memory at fixed physical addresses, which Riffle cannot give them: turn the IOMMU on.",
			p->bdf);
	return err_set(
		e, -EPERM,
		"%s has no IOMMU to keep it to the memory that it is given: turn the IOMMU on.",
		p->bdf);
}

static int attach(struct vfio_device *d, bool noiommu, struct err *e)
{
	int rc = check_driver(&d->pci, e);

	if (rc == 0)
		rc = check_iommu(&d->pci, noiommu, e);
	if (rc)
		return rc;
	d->cdev = !vfio_group_exists(d->pci.iommu_group) && vfio_cdev_exists(d->pci.bdf);
	return d->cdev ? vfio_cdev_open(&d->pci, &d->fd, e)
		       : vfio_group_get_device(&d->pci, &d->fd, e);
}

static void detach(struct vfio_device *d)
{
	close(d->fd);
	if (d->cdev)
		vfio_cdev_put();
	else
		vfio_group_put(d->pci.iommu_group);
}

/* --- configuration space --- */

int vfio_config_read(struct vfio_device *d, unsigned offset, void *buf, size_t len)
{
	return pread(d->fd, buf, len, (off_t)(d->config + offset)) == (ssize_t)len ? 0 : -EIO;
}

int vfio_config_write(struct vfio_device *d, unsigned offset, const void *buf, size_t len)
{
	return pwrite(d->fd, buf, len, (off_t)(d->config + offset)) == (ssize_t)len ? 0 : -EIO;
}

/* Memory and DMA on, or DMA off. The pin interrupt is never wanted. */
static int set_bus_master(struct vfio_device *d, bool on)
{
	uint16_t command;
	le16 wire;
	int rc = vfio_config_read(d, PCI_COMMAND, &wire, sizeof(wire));

	if (rc)
		return rc;
	command = from_le16(wire) | PCI_COMMAND_MEMORY | PCI_COMMAND_INTX_DISABLE;
	command = on ? command | PCI_COMMAND_MASTER : command & (uint16_t)~PCI_COMMAND_MASTER;
	wire = to_le16(command);
	return vfio_config_write(d, PCI_COMMAND, &wire, sizeof(wire));
}

/* --- BARs --- */

static int reserve_bar(struct vfio_bar *b, uint64_t size, size_t page)
{
	void *base;

	if (size > SIZE_MAX / 2)
		return -EFBIG;
	b->len = ROUND_UP((size_t)size, page);
	base = mmap(NULL, b->len, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (base == MAP_FAILED)
		return -errno;
	b->base = base;
	return 0;
}

/* Its areas lie in one place of the BAR's size; what the kernel keeps for itself is a hole. */
static int map_areas(struct vfio_device *d, struct vfio_bar *b, const struct vfio_region_info *r,
		     size_t page)
{
	int rc = reserve_bar(b, r->size, page);

	for (unsigned i = 0; rc == 0 && i < b->areas; i++)
		if (mmap(b->base + b->area[i].offset, b->area[i].len, PROT_READ | PROT_WRITE,
			 MAP_SHARED | MAP_FIXED, d->fd,
			 (off_t)(r->offset + b->area[i].offset)) == MAP_FAILED)
			rc = -errno;
	if (rc == 0)
		rc = mem_register(b->base, b->len, MEM_BAR);
	if (rc && b->base) {
		munmap(b->base, b->len);
		b->base = NULL;
	}
	return rc;
}

int vfio_bar_get(struct vfio_device *d, unsigned bar, struct vfio_bar **out, struct err *e)
{
	struct vfio_region_info ask = { .index = VFIO_PCI_BAR0_REGION_INDEX + bar }, r;
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	struct vfio_bar *b;
	ssize_t size;
	void *info;
	int rc;

	if (bar >= ARRAY_SIZE(d->bar))
		return err_set(e, -ENODEV, "%s: there is no BAR %u.", d->pci.bdf, bar);
	*out = b = &d->bar[bar];
	if (b->base)
		return 0;
	size = vfio_ask(d->fd, VFIO_DEVICE_GET_REGION_INFO, &ask, sizeof(ask), &info);
	if (size < 0)
		return err_set(e, (int)size, "%s: BAR %u is not described: %s.", d->pci.bdf, bar,
			       err_words((int)size));
	memcpy(&r, info, sizeof(r));
	b->areas = vfio_region_areas(info, (size_t)size, page, b->area);
	free(info);
	if (b->areas == 0)
		return err_set(e, -ENODEV, "%s: BAR %u is no memory that can be mapped.",
			       d->pci.bdf, bar);
	rc = map_areas(d, b, &r, page);
	return rc ? err_set(e, rc, "%s: BAR %u cannot be mapped: %s.", d->pci.bdf, bar,
			    err_words(rc))
		  : 0;
}

int vfio_map_bar(struct vfio_device *d, unsigned bar, volatile void **base, size_t *len,
		 struct err *e)
{
	struct vfio_bar *b;
	int rc = vfio_bar_get(d, bar, &b, e);

	if (rc)
		return rc;
	if (b->area[0].offset > 0)
		return err_set(e, -ENODEV, "%s: the kernel keeps the beginning of BAR %u.",
			       d->pci.bdf, bar);
	*base = b->base;
	*len = b->area[0].len;
	return 0;
}

static void unmap_bars(struct vfio_device *d)
{
	for (unsigned i = 0; i < ARRAY_SIZE(d->bar); i++) {
		if (!d->bar[i].base)
			continue;
		mem_unregister(d->bar[i].base);
		munmap(d->bar[i].base, d->bar[i].len);
	}
}

/* --- a device --- */

static int find_config(struct vfio_device *d)
{
	struct vfio_region_info r = { .argsz = sizeof(r), .index = VFIO_PCI_CONFIG_REGION_INDEX };

	if (ioctl(d->fd, VFIO_DEVICE_GET_REGION_INFO, &r) < 0)
		return -errno;
	d->config = r.offset;
	return r.size >= PCI_CONFIG_SIZE ? 0 : -EIO;
}

static int learn(struct vfio_device *d, struct err *e)
{
	struct vfio_device_info info = { .argsz = sizeof(info) };
	uint8_t config[PCI_CONFIG_SIZE];
	int rc = 0;

	if (ioctl(d->fd, VFIO_DEVICE_GET_INFO, &info) < 0)
		rc = -errno;
	else if (!(info.flags & VFIO_DEVICE_FLAGS_PCI))
		rc = -ENODEV;
	if (rc == 0)
		rc = find_config(d);
	if (rc == 0)
		rc = vfio_config_read(d, 0, config, sizeof(config));
	if (rc == 0)
		rc = set_bus_master(d, true);
	if (rc)
		return err_set(e, rc, "%s does not answer as a PCI device should: %s.", d->pci.bdf,
			       err_words(rc));
	d->can_reset = info.flags & VFIO_DEVICE_FLAGS_RESET;
	d->has_msix = pci_msix_find(config, &d->msix);
	vfio_irq_open(d);
	return 0;
}

static int open_locked(const char *bdf, bool noiommu, struct vfio_device *d, struct err *e)
{
	int rc;

	if (find(bdf))
		return err_set(e, -EBUSY, "%s is open in this process already.", bdf);
	rc = pci_device_read(SYSFS, bdf, &d->pci, e);
	if (rc == 0)
		rc = attach(d, noiommu, e);
	if (rc)
		return rc;
	rc = learn(d, e);
	if (rc)
		detach(d);
	else
		list_add_tail(&devices, &d->node);
	return rc;
}

int vfio_open(const char *bdf, bool noiommu, struct vfio_device **out, struct err *e)
{
	struct vfio_device *d = calloc(1, sizeof(*d));
	int rc;

	if (!d)
		return err_set(e, -ENOMEM, "Out of memory.");
	d->request_fd = -1;
	pthread_mutex_lock(&lock);
	rc = open_locked(bdf, noiommu, d, e);
	pthread_mutex_unlock(&lock);
	if (rc)
		free(d);
	else
		*out = d;
	return rc;
}

void vfio_close(struct vfio_device *d)
{
	set_bus_master(d, false); /* it may have vanished, and is silent then */
	vfio_irq_close(d);
	unmap_bars(d);
	pthread_mutex_lock(&lock);
	list_del(&d->node);
	detach(d);
	pthread_mutex_unlock(&lock);
	free(d);
}

int vfio_reset(struct vfio_device *d, struct err *e)
{
	int rc = 0;

	if (!d->can_reset)
		return err_set(e, -EOPNOTSUPP, "%s cannot be reset.", d->pci.bdf);
	if (ioctl(d->fd, VFIO_DEVICE_RESET) < 0)
		rc = -errno;
	if (rc == 0)
		rc = set_bus_master(d, true);
	return rc ? err_set(e, rc, "The reset of %s has failed: %s.", d->pci.bdf, err_words(rc))
		  : 0;
}
