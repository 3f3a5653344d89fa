/*
 * device_users: who would lose an NVMe device if it changed its driver now: file systems, swap and
 * block devices on top of it, and the processes that have it open, through the kernel or through
 * VFIO and UIO. Reads sysfs, procfs and devfs below a folder ("" is this system's).
 */
#ifndef CMD_DEVICE_USERS_H
#define CMD_DEVICE_USERS_H

#include <jansson.h>

#include "pci/sysfs.h"

/* The processes that have NVMe, VFIO or UIO devices open, as they are now. */
json_t *device_openers(const char *root);

/* A list of texts: "nvme0n1 is mounted on /srv", "nvme0n1 is open in qemu (process 77)". */
json_t *device_users(const char *root, const json_t *openers, const struct pci_device *d);

/* They in one text: "A; B". Returns buf. */
char *device_users_text(const json_t *users, char *buf, size_t size);

#endif
