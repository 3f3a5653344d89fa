/*
 * An NVMe device to look at, whoever drives it: through the kernel's driver where that has it,
 * through our own where it is bound to VFIO.
 */
#ifndef CMD_NVME_ADMIN_H
#define CMD_NVME_ADMIN_H

#include "nvme/ctrl.h"

struct nvme_looker;

/* bdf: as people write it. Errors, with a sentence: -EINVAL (no address), -ENODEV, -EBUSY (another
 * process drives it), those of nvme_ctrl_open(). */
int nvme_looker_open(const char *bdf, struct nvme_looker **out, struct err *e);
void nvme_looker_close(struct nvme_looker *l);

/* In sysfs's spelling. */
const char *nvme_looker_bdf(const struct nvme_looker *l);
/* "nvme", "vfio-pci" */
const char *nvme_looker_driver(const struct nvme_looker *l);

/* Run an admin command that reads len bytes. Errors: as nvme_admin(). */
int nvme_look(struct nvme_looker *l, const char *what, const struct nvme_sqe *sqe, void *data,
	      size_t len, struct err *e);

#endif
