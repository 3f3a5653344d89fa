/* riffle list: the NVMe devices of this machine. The table is printed from what --json prints. */
#include <errno.h>
#include <getopt.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/cmd.h"
#include "cmd/list.h"
#include "cmd/nvme_kernel.h"
#include "pci/sysfs.h"

static void usage(FILE *out)
{
	fprintf(out,
		"usage: riffle list [--json | --config]\n\n"
		"List the NVMe devices of this machine, their drivers and who uses them.\n\n"
		"      --json                  print JSON\n"
		"      --config                print the configuration that attaches those bound "
		"to vfio-pci\n"
		"      --json-with-subsystems  the same as a file for `riffle serve -c`\n"
		"      --root PATH             read /sys and /proc below PATH\n"
		"  -h, --help                  say this\n");
}

/* --- what there is --- */

static json_t *describe_link(const struct pci_link *l)
{
	if (!l->speed || !l->width)
		return json_null();
	return json_pack("{s:f, s:i}", "gt_per_s", l->speed / 10.0, "width", l->width);
}

static json_t *describe(const char *root, const struct pci_device *d)
{
	json_t *kernel = nvme_kernel_describe(root, d->bdf),
	       *one = json_pack("{s:s, s:s, s:i, s:i, s:o, s:o}", "bdf", d->bdf, "driver",
				d->driver, "numa_node", d->numa_node, "iommu_group", d->iommu_group,
				"link", describe_link(&d->now), "link_possible",
				describe_link(&d->most));
	char ids[16];

	snprintf(ids, sizeof(ids), "%04x:%04x", d->vendor, d->device);
	json_object_set_new(one, "pci_ids", json_string(ids));
	if (kernel)
		json_object_update(one, kernel);
	json_decref(kernel);
	return one;
}

static int find_all(const char *root, json_t **out, struct err *e)
{
	char sysfs[PATH_MAX];
	struct pci_device *list;
	unsigned n;
	int rc;

	snprintf(sysfs, sizeof(sysfs), "%s/sys", root);
	rc = pci_enumerate(sysfs, PCI_CLASS_NVME, &list, &n, e);
	if (rc)
		return rc;
	*out = json_array();
	for (unsigned i = 0; i < n; i++)
		json_array_append_new(*out, describe(root, &list[i]));
	free(list);
	return 0;
}

/* --- the table --- */

static const char *text_or_dash(const json_t *device, const char *key)
{
	const char *text = json_string_value(json_object_get(device, key));

	return text && text[0] ? text : "-";
}

static const char *number_or_dash(const json_t *device, const char *key, char *buf, size_t size)
{
	json_int_t n = json_integer_value(json_object_get(device, key));

	snprintf(buf, size, n < 0 ? "-" : "%lld", (long long)n);
	return buf;
}

/* Drives are sold by powers of 1000. */
static const char *size_words(const json_t *device, char *buf, size_t size)
{
	const json_t *namespaces = json_object_get(device, "namespaces"), *one;
	static const char *const units[] = { "B", "kB", "MB", "GB", "TB", "PB" };
	double bytes = 0;
	size_t i, unit = 0;

	json_array_foreach(namespaces, i, one) bytes +=
		(double)json_integer_value(json_object_get(one, "size"));
	for (; bytes >= 1000 && unit + 1 < ARRAY_SIZE(units); unit++)
		bytes /= 1000;
	if (namespaces)
		snprintf(buf, size, bytes < 10 ? "%.1f %s" : "%.0f %s", bytes, units[unit]);
	else
		snprintf(buf, size, "-");
	return buf;
}

/* "8x4 of 16x4": GT/s and lanes, now and possible. */
static const char *link_words(const json_t *device, char *buf, size_t size)
{
	const json_t *now = json_object_get(device, "link"),
		     *most = json_object_get(device, "link_possible");

	if (!json_is_object(now) || !json_is_object(most))
		snprintf(buf, size, "-");
	else if (json_equal(now, most))
		snprintf(buf, size, "%gx%lld", json_real_value(json_object_get(now, "gt_per_s")),
			 (long long)json_integer_value(json_object_get(now, "width")));
	else
		snprintf(buf, size, "%gx%lld of %gx%lld",
			 json_real_value(json_object_get(now, "gt_per_s")),
			 (long long)json_integer_value(json_object_get(now, "width")),
			 json_real_value(json_object_get(most, "gt_per_s")),
			 (long long)json_integer_value(json_object_get(most, "width")));
	return buf;
}

static void print_users(const json_t *device)
{
	const json_t *namespaces = json_object_get(device, "namespaces"), *one, *user;
	size_t i, k;

	json_array_foreach(namespaces, i, one)
		json_array_foreach(json_object_get(one, "used_by"), k, user)
			printf("  %s: %s is in use: %s\n", text_or_dash(device, "bdf"),
			       text_or_dash(one, "name"), json_string_value(user));
}

static void print_table(const json_t *list)
{
	char numa[16], group[16], size[32], link[64];
	const json_t *device;
	size_t i;

	if (json_array_size(list) == 0) {
		printf("There is no NVMe device on the PCI bus of this machine.\n");
		return;
	}
	printf("%-14s %-12s %-5s %-5s %-14s %10s  %-20s %s\n", "BDF", "DRIVER", "NUMA", "IOMMU",
	       "LINK GT/s", "SIZE", "SERIAL", "MODEL");
	json_array_foreach(list, i, device)
		printf("%-14s %-12s %-5s %-5s %-14s %10s  %-20s %s\n", text_or_dash(device, "bdf"),
		       text_or_dash(device, "driver"),
		       number_or_dash(device, "numa_node", numa, sizeof(numa)),
		       number_or_dash(device, "iommu_group", group, sizeof(group)),
		       link_words(device, link, sizeof(link)),
		       size_words(device, size, sizeof(size)), text_or_dash(device, "serial"),
		       text_or_dash(device, "model"));
	json_array_foreach(list, i, device) print_users(device);
}

static int print_list(const char *root, bool as_json, struct err *e)
{
	json_t *list;
	int rc = find_all(root, &list, e);

	if (rc)
		return rc;
	if (as_json) {
		json_dumpf(list, stdout, JSON_INDENT(2));
		putchar('\n');
	} else {
		print_table(list);
	}
	json_decref(list);
	return 0;
}

int cmd_list(int argc, char **argv)
{
	static const struct option longs[] = {
		{ "json", no_argument, NULL, 'j' },
		{ "config", no_argument, NULL, 'c' },
		{ "json-with-subsystems", no_argument, NULL, 's' },
		{ "root", required_argument, NULL, 'R' },
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	bool json = false, config = false, subsystems = false;
	const char *root = "";
	struct err e = { 0 };
	int c, rc;

	while ((c = getopt_long(argc, argv, "h", longs, NULL)) != -1) {
		switch (c) {
		case 'j':
			json = true;
			break;
		case 'c':
			config = true;
			break;
		case 's':
			subsystems = true;
			break;
		case 'R':
			root = optarg;
			break;
		case 'h':
			usage(stdout);
			return EXIT_OK;
		default:
			fprintf(stderr, "`riffle list --help` lists the options.\n");
			return EXIT_USAGE;
		}
	}
	if (optind < argc) {
		fprintf(stderr,
			"riffle list: '%s' is not an option. `riffle list --help` lists them.\n",
			argv[optind]);
		return EXIT_USAGE;
	}
	if (config || subsystems)
		rc = list_config(root, subsystems, &e);
	else
		rc = print_list(root, json, &e);
	return rc ? fail("list", &e) : EXIT_OK;
}
