#include "cmd/nvme_admin.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <limits.h>
#include <linux/nvme_ioctl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "backend/nvme_pci.h"
#include "mem/mem.h"
#include "pci/sysfs.h"

struct nvme_looker {
	struct pci_device pci;
	int fd; /* the kernel's; -1: our own driver's */
	struct nvme_hw *hw;
	struct nvme_ctrl *ctrl;
};

/* --- the kernel's driver --- */

/* /dev/nvme0 of a device. -ENODEV: it has none. */
static int open_kernel(const char *bdf, struct err *e)
{
	char pattern[PATH_MAX], path[PATH_MAX];
	glob_t found;
	int fd;

	snprintf(pattern, sizeof(pattern), "/sys/bus/pci/devices/%s/nvme/nvme*", bdf);
	if (glob(pattern, 0, NULL, &found))
		return err_set(e, -ENODEV, "The kernel's driver has no controller at %s.", bdf);
	snprintf(path, sizeof(path), "/dev/%s", strrchr(found.gl_pathv[0], '/') + 1);
	globfree(&found);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return err_set(e, -errno, "%s cannot be opened: %s.%s", path, err_words(errno),
			       errno == EACCES ? " Run this as root." : "");
	return fd;
}

static int look_kernel(struct nvme_looker *l, const char *what, const struct nvme_sqe *sqe,
		       void *data, size_t len, struct err *e)
{
	uint64_t cdw10_11 = from_le64(sqe->a.slba);
	struct nvme_passthru_cmd c = { .opcode = sqe->opc,
				       .nsid = from_le32(sqe->nsid),
				       .addr = (uintptr_t)data,
				       .data_len = (uint32_t)len,
				       .cdw10 = (uint32_t)cdw10_11,
				       .cdw11 = (uint32_t)(cdw10_11 >> 32) };
	int rc = ioctl(l->fd, NVME_IOCTL_ADMIN_CMD, &c);

	if (rc < 0)
		return err_set(e, -errno, "%s: %s.", what, err_words(errno));
	if (rc > 0)
		return err_set(e, nvme_status_errno((uint16_t)rc), "%s: %s (status 0x%x).", what,
			       nvme_status_words((uint16_t)rc), (unsigned)rc);
	return 0;
}

/* --- our own --- */

static int open_own(struct nvme_looker *l, struct err *e)
{
	struct nvme_options o = { .queues = 1, .entries = NVME_ENTRIES_MIN };
	int request_fd, rc = mem_guard_sigbus();

	if (rc == 0)
		rc = nvme_pci_open(l->pci.bdf, false, &l->hw, &request_fd, e);
	if (rc == -EBUSY && strcmp(l->pci.driver, "vfio-pci") == 0)
		return err_set(
			e, rc,
			"%s is driven by another process. Ask that: riffle rpc bdev_nvme_get_controller_health_info.",
			l->pci.bdf);
	return rc ? rc : nvme_ctrl_open(l->hw, &o, &l->ctrl, e);
}

/* --- either --- */

int nvme_looker_open(const char *text, struct nvme_looker **out, struct err *e)
{
	struct nvme_looker *l = calloc(1, sizeof(*l));
	char bdf[PCI_BDF_MAX];
	int rc;

	if (!l)
		return err_set(e, -ENOMEM, "Out of memory.");
	l->fd = -1;
	if (!pci_bdf_parse(text, bdf))
		rc = err_set(
			e, -EINVAL,
			"'%.60s' is no PCI address like 0000:01:00.0. `riffle list` shows those of all NVMe devices.",
			text);
	else
		rc = pci_device_read("/sys", bdf, &l->pci, e);
	if (rc == 0 && strcmp(l->pci.driver, "nvme") == 0) {
		l->fd = open_kernel(bdf, e);
		rc = MIN(l->fd, 0);
	} else if (rc == 0) {
		rc = open_own(l, e);
	}
	if (rc) {
		nvme_looker_close(l);
		return rc;
	}
	*out = l;
	return 0;
}

void nvme_looker_close(struct nvme_looker *l)
{
	if (l->ctrl)
		nvme_ctrl_close(l->ctrl);
	if (l->hw)
		nvme_pci_close(l->hw);
	if (l->fd >= 0)
		close(l->fd);
	free(l);
}

const char *nvme_looker_bdf(const struct nvme_looker *l)
{
	return l->pci.bdf;
}

const char *nvme_looker_driver(const struct nvme_looker *l)
{
	return l->pci.driver;
}

int nvme_look(struct nvme_looker *l, const char *what, const struct nvme_sqe *sqe, void *data,
	      size_t len, struct err *e)
{
	if (l->ctrl)
		return nvme_admin(l->ctrl, what, sqe, data, len, NULL, e);
	return look_kernel(l, what, sqe, data, len, e);
}
