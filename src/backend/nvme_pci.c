#include "backend/nvme_pci.h"

#include <errno.h>
#include <stdlib.h>

#include "pci/vfio.h"

struct pci_hw {
	struct nvme_hw hw;
	struct vfio_device *device;
};

static struct vfio_device *device_of(struct nvme_hw *hw)
{
	return container_of(hw, struct pci_hw, hw)->device;
}

static int set_vectors(struct nvme_hw *hw, const int *fds, unsigned n, struct err *e)
{
	return vfio_set_vectors(device_of(hw), fds, n, e);
}

static volatile le32 *vector_control(struct nvme_hw *hw, unsigned i)
{
	return vfio_vector_control(device_of(hw), i);
}

static int map_bar(struct nvme_hw *hw, unsigned bar, volatile void **base, size_t *len,
		   struct err *e)
{
	return vfio_map_bar(device_of(hw), bar, base, len, e);
}

static int reset(struct nvme_hw *hw, struct err *e)
{
	return vfio_reset(device_of(hw), e);
}

int nvme_pci_open(const char *bdf, bool noiommu, struct nvme_hw **out, int *request_fd,
		  struct err *e)
{
	struct pci_hw *p = calloc(1, sizeof(*p));
	int rc;

	if (!p)
		return err_set(e, -ENOMEM, "Out of memory.");
	rc = vfio_open(bdf, noiommu, &p->device, e);
	if (rc) {
		free(p);
		return rc;
	}
	p->hw = (struct nvme_hw){ .vectors = vfio_vectors(p->device),
				  .set_vectors = set_vectors,
				  .vector_control = vector_control,
				  .map_bar = map_bar,
				  .reset = reset };
	rc = vfio_map_bar(p->device, 0, &p->hw.bar, &p->hw.bar_len, e);
	if (rc) {
		nvme_pci_close(&p->hw);
		return rc;
	}
	*request_fd = vfio_request_fd(p->device);
	*out = &p->hw;
	return 0;
}

void nvme_pci_close(struct nvme_hw *hw)
{
	vfio_close(device_of(hw));
	free(container_of(hw, struct pci_hw, hw));
}
