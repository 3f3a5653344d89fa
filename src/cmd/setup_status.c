/* riffle setup status: the table is printed from what --json prints. */
#include <stdio.h>
#include <stdlib.h>

#include "cmd/device_users.h"
#include "cmd/hugepages.h"
#include "cmd/nvme_kernel.h"
#include "cmd/setup.h"

/* --- what there is --- */

static json_t *describe(const char *root, const json_t *openers, const struct pci_device *d)
{
	json_t *kernel = nvme_kernel_describe(root, d->bdf), *blocks = json_array(), *one;
	char vendor[8], device[8];
	size_t i;

	json_array_foreach(json_object_get(kernel, "namespaces"), i, one)
		json_array_append(blocks, json_object_get(one, "name"));
	json_decref(kernel);
	snprintf(vendor, sizeof(vendor), "%04x", d->vendor);
	snprintf(device, sizeof(device), "%04x", d->device);
	return json_pack("{s:s, s:s, s:s, s:i, s:i, s:s, s:o, s:o}", "bdf", d->bdf, "vendor",
			 vendor, "device", device, "numa_node", d->numa_node, "iommu_group",
			 d->iommu_group, "driver", d->driver, "block_devices", blocks, "used_by",
			 device_users(root, openers, d));
}

static int describe_all(const char *root, json_t **out, struct err *e)
{
	char sysfs[PATH_MAX];
	struct pci_device *list;
	json_t *openers, *devices;
	unsigned n;
	int rc;

	snprintf(sysfs, sizeof(sysfs), "%s/sys", root);
	rc = pci_enumerate(sysfs, PCI_CLASS_NVME, &list, &n, e);
	if (rc)
		return rc;
	openers = device_openers(root);
	devices = json_array();
	for (unsigned i = 0; i < n; i++)
		json_array_append_new(devices, describe(root, openers, &list[i]));
	json_decref(openers);
	free(list);
	*out = json_pack("{s:o, s:o}", "hugepages", hugepages_describe(root), "devices", devices);
	return 0;
}

/* --- the tables --- */

static void print_hugepages(const json_t *list)
{
	const json_t *one;
	size_t i;

	printf("%-6s %12s %10s %10s\n", "NODE", "HUGEPAGES", "FREE", "TOTAL");
	json_array_foreach(list, i, one)
	{
		json_int_t node = json_integer_value(json_object_get(one, "node"));
		char name[24] = "-";

		if (node >= 0)
			snprintf(name, sizeof(name), "%lld", (long long)node);
		printf("%-6s %10lldkB %10lld %10lld\n", name,
		       (long long)json_integer_value(json_object_get(one, "size_kb")),
		       (long long)json_integer_value(json_object_get(one, "free")),
		       (long long)json_integer_value(json_object_get(one, "total")));
	}
}

static const char *text_of(const json_t *device, const char *key)
{
	const char *text = json_string_value(json_object_get(device, key));

	return text && text[0] ? text : "-";
}

static void print_device(const json_t *device)
{
	const json_t *blocks = json_object_get(device, "block_devices"), *one;
	json_int_t node = json_integer_value(json_object_get(device, "numa_node"));
	char numa[24] = "-";
	size_t i;

	if (node >= 0)
		snprintf(numa, sizeof(numa), "%lld", (long long)node);
	printf("%-6s %-14s %-7s %-7s %-5s %-16s ", "NVMe", text_of(device, "bdf"),
	       text_of(device, "vendor"), text_of(device, "device"), numa,
	       text_of(device, "driver"));
	json_array_foreach(blocks, i, one)
	{
		printf("%s%s", i ? " " : "", json_string_value(one));
	}
	printf("%s\n", json_array_size(blocks) ? "" : "-");
}

static void print_devices(const json_t *list)
{
	const json_t *device, *user;
	size_t i, k;

	printf("\n%-6s %-14s %-7s %-7s %-5s %-16s %s\n", "TYPE", "BDF", "VENDOR", "DEVICE", "NUMA",
	       "DRIVER", "BLOCK DEVICES");
	json_array_foreach(list, i, device)
	{
		print_device(device);
	}
	json_array_foreach(list, i, device)
		json_array_foreach(json_object_get(device, "used_by"), k, user)
			printf("  %s: %s\n", text_of(device, "bdf"), json_string_value(user));
}

int setup_status(const char *root, bool json, struct err *e)
{
	json_t *all;
	int rc = describe_all(root, &all, e);

	if (rc)
		return rc;
	if (json) {
		json_dumpf(all, stdout, JSON_INDENT(2));
		putchar('\n');
	} else {
		print_hugepages(json_object_get(all, "hugepages"));
		print_devices(json_object_get(all, "devices"));
	}
	json_decref(all);
	return 0;
}
