/*
 * nvme_kernel: an NVMe device as the kernel's driver shows it, and who uses it. Reads sysfs and
 * procfs below a folder ("" is this system's), so that tests can make one.
 */
#ifndef CMD_NVME_KERNEL_H
#define CMD_NVME_KERNEL_H

#include <jansson.h>

/*
 * What is known of the device at a BDF: an object with controller (nvme0), model, serial, firmware
 * and namespaces, a list of objects with name (nvme0n1), size, block_size and used_by (a list of
 * sentences' ends: "mounted on /srv"). NULL when the kernel's driver is not bound to it.
 */
json_t *nvme_kernel_describe(const char *root, const char *bdf);

#endif
