/* riffle list --config: the devices of this machine as requests that attach them. */
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include "cmd/list.h"
#include "pci/bind.h"

static json_t *request(unsigned i, const char *bdf)
{
	return json_pack("{s:s, s:{s:s, s:o, s:s}}", "method", "bdev_nvme_attach_controller",
			 "params", "trtype", "PCIe", "name", json_sprintf("Nvme%u", i), "traddr",
			 bdf);
}

int list_config(const char *root, bool subsystems, struct err *e)
{
	char sysfs[PATH_MAX];
	struct pci_device *list;
	json_t *requests = json_array(), *config;
	unsigned n, found = 0;
	int rc;

	snprintf(sysfs, sizeof(sysfs), "%s/sys", root);
	rc = pci_enumerate(sysfs, PCI_CLASS_NVME, &list, &n, e);
	for (unsigned i = 0; rc == 0 && i < n; i++)
		if (pci_driver_is_user(list[i].driver))
			json_array_append_new(requests, request(found++, list[i].bdf));
	config = json_pack("{s:s, s:o}", "subsystem", "bdev", "config", requests);
	if (subsystems)
		config = json_pack("{s:[o]}", "subsystems", config);
	if (rc == 0) {
		free(list);
		json_dumpf(config, stdout, JSON_INDENT(2));
		putchar('\n');
	}
	if (rc == 0 && found == 0)
		fprintf(stderr, "riffle list: no NVMe device is with vfio-pci: `riffle bind` gives "
				"devices to it.\n");
	json_decref(config);
	return rc;
}
