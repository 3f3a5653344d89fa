#include "pci/sysfs.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "util/compiler.h"

/* --- files --- */

char *sysfs_read(char *buf, size_t size, const char *path, ...)
{
	char name[PATH_MAX];
	va_list args;
	FILE *file;

	va_start(args, path);
	vsnprintf(name, sizeof(name), path, args);
	va_end(args);
	buf[0] = '\0';
	file = fopen(name, "re");
	if (!file)
		return buf;
	if (fgets(buf, (int)size, file))
		buf[strcspn(buf, "\n")] = '\0';
	fclose(file);
	for (size_t n = strlen(buf); n > 0 && buf[n - 1] == ' '; n--) /* NVMe pads its strings */
		buf[n - 1] = '\0';
	return buf;
}

char *sysfs_link(char *buf, size_t size, const char *path, ...)
{
	char name[PATH_MAX], target[PATH_MAX];
	const char *last;
	va_list args;
	ssize_t n;

	va_start(args, path);
	vsnprintf(name, sizeof(name), path, args);
	va_end(args);
	n = readlink(name, target, sizeof(target) - 1);
	target[MAX(n, 0)] = '\0';
	last = strrchr(target, '/');
	snprintf(buf, size, "%.*s", (int)size - 1, last ? last + 1 : target);
	return buf;
}

/* --- addresses --- */

bool pci_bdf_parse(const char *text, char bdf[PCI_BDF_MAX])
{
	unsigned domain, bus, device, function;
	int end = 0;

	if (sscanf(text, "%8x:%2x:%2x.%1x%n", &domain, &bus, &device, &function, &end) != 4 ||
	    text[end]) {
		domain = 0;
		end = 0;
		if (sscanf(text, "%2x:%2x.%1x%n", &bus, &device, &function, &end) != 3 || text[end])
			return false;
	}
	if (!isxdigit((unsigned char)text[0]) || domain > 0xfffff || device > 31 || function > 7)
		return false;
	snprintf(bdf, PCI_BDF_MAX, "%04x:%02x:%02x.%x", domain, bus & 0xff, device & 31,
		 function & 7);
	return true;
}

/* --- devices --- */

/* "8.0 GT/s PCIe", "Unknown" */
static struct pci_link read_link(const char *dir, const char *which)
{
	struct pci_link l = { 0 };
	char text[64];
	double speed;

	if (sscanf(sysfs_read(text, sizeof(text), "%s/%s_link_speed", dir, which), "%lf", &speed) ==
	    1)
		l.speed = (unsigned)(speed * 10 + 0.5);
	l.width = (unsigned)strtoul(sysfs_read(text, sizeof(text), "%s/%s_link_width", dir, which),
				    NULL, 10);
	if (l.width > 32) /* 255: not known */
		l.width = 0;
	return l;
}

static void read_device(const char *dir, const char *bdf, struct pci_device *d)
{
	char text[64];

	memset(d, 0, sizeof(*d));
	snprintf(d->bdf, sizeof(d->bdf), "%.*s", PCI_BDF_MAX - 1, bdf);
	d->class = (uint32_t)strtoul(sysfs_read(text, sizeof(text), "%s/class", dir), NULL, 16);
	d->vendor = (uint16_t)strtoul(sysfs_read(text, sizeof(text), "%s/vendor", dir), NULL, 16);
	d->device = (uint16_t)strtoul(sysfs_read(text, sizeof(text), "%s/device", dir), NULL, 16);
	sysfs_link(d->driver, sizeof(d->driver), "%s/driver", dir);
	sysfs_read(text, sizeof(text), "%s/numa_node", dir);
	d->numa_node = text[0] ? atoi(text) : -1;
	sysfs_link(text, sizeof(text), "%s/iommu_group", dir);
	d->iommu_group = text[0] ? atoi(text) : -1;
	d->now = read_link(dir, "current");
	d->most = read_link(dir, "max");
}

int pci_device_read(const char *sysfs, const char *bdf, struct pci_device *d, struct err *e)
{
	char dir[PATH_MAX];

	snprintf(dir, sizeof(dir), "%s/bus/pci/devices/%s", sysfs, bdf);
	if (access(dir, F_OK) < 0)
		return err_field(
			e, -ENODEV, "traddr", bdf, NULL,
			"There is no PCI device %s. `riffle list` shows those that there are.",
			bdf);
	read_device(dir, bdf, d);
	return 0;
}

static int by_bdf(const void *a, const void *b)
{
	const struct pci_device *x = a, *y = b;
	unsigned long dx = strtoul(x->bdf, NULL, 16), dy = strtoul(y->bdf, NULL, 16);

	if (dx != dy)
		return dx < dy ? -1 : 1;
	return strcmp(x->bdf, y->bdf);
}

static int add(struct pci_device **list, unsigned *n, const struct pci_device *d)
{
	struct pci_device *more = realloc(*list, (*n + 1) * sizeof(*more));

	if (!more)
		return -ENOMEM;
	more[(*n)++] = *d;
	*list = more;
	return 0;
}

int pci_enumerate(const char *sysfs, uint32_t class, struct pci_device **list, unsigned *n,
		  struct err *e)
{
	char path[PATH_MAX], bdf[PCI_BDF_MAX];
	const struct dirent *entry;
	int rc = 0;
	DIR *dir;

	*list = NULL;
	*n = 0;
	snprintf(path, sizeof(path), "%s/bus/pci/devices", sysfs);
	dir = opendir(path);
	if (!dir && errno == ENOENT)
		return 0; /* no PCI at all */
	if (!dir)
		return err_set(e, -errno, "'%.150s' cannot be read: %s.", path, err_words(errno));
	while (rc == 0 && (entry = readdir(dir))) {
		struct pci_device d;
		struct err gone;

		if (!pci_bdf_parse(entry->d_name, bdf) ||
		    pci_device_read(sysfs, entry->d_name, &d, &gone) ||
		    (class != PCI_CLASS_ANY && d.class != class))
			continue;
		rc = add(list, n, &d);
	}
	closedir(dir);
	if (rc) {
		free(*list);
		*list = NULL;
		return err_set(e, rc, "Out of memory.");
	}
	if (*n > 1)
		qsort(*list, *n, sizeof(**list), by_bdf);
	return 0;
}
