#include "cmd/hugepages.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pci/sysfs.h"

#define PATIENCE_MS 120000 /* memory is moved to make room */

/* --- what there is --- */

static unsigned long read_number(const char *dir, const char *name)
{
	char text[32];

	return strtoul(sysfs_read(text, sizeof(text), "%s/%s", dir, name), NULL, 10);
}

/* dir has folders hugepages-2048kB. */
static void describe_sizes(json_t *list, const char *dir, int node)
{
	struct dirent **entries = NULL;
	int n = scandir(dir, &entries, NULL, versionsort);

	for (int i = 0; i < n; i++) {
		char one[PATH_MAX + 300];
		unsigned long kb;

		snprintf(one, sizeof(one), "%s/%s", dir, entries[i]->d_name);
		if (sscanf(entries[i]->d_name, "hugepages-%lukB", &kb) == 1)
			json_array_append_new(list,
					      json_pack("{s:i, s:I, s:I, s:I}", "node", node,
							"size_kb", (json_int_t)kb, "total",
							(json_int_t)read_number(one,
										"nr_hugepages"),
							"free",
							(json_int_t)read_number(one,
										"free_hugepages")));
		free(entries[i]);
	}
	free(entries);
}

json_t *hugepages_describe(const char *root)
{
	json_t *list = json_array();
	struct dirent **entries = NULL;
	char dir[PATH_MAX];
	int n, node;

	snprintf(dir, sizeof(dir), "%s/sys/devices/system/node", root);
	n = scandir(dir, &entries, NULL, versionsort);
	for (int i = 0; i < n; i++) {
		if (sscanf(entries[i]->d_name, "node%d", &node) == 1) {
			snprintf(dir, sizeof(dir), "%s/sys/devices/system/node/node%d/hugepages",
				 root, node);
			describe_sizes(list, dir, node);
		}
		free(entries[i]);
	}
	free(entries);
	if (json_array_size(list) == 0) {
		snprintf(dir, sizeof(dir), "%s/sys/kernel/mm/hugepages", root);
		describe_sizes(list, dir, HUGEPAGES_ALL_NODES);
	}
	return list;
}

unsigned long hugepages_default_kb(const char *root)
{
	char path[PATH_MAX], line[128];
	unsigned long kb = 0;
	FILE *file;

	snprintf(path, sizeof(path), "%s/proc/meminfo", root);
	file = fopen(path, "re");
	while (file && kb == 0 && fgets(line, sizeof(line), file))
		sscanf(line, "Hugepagesize: %lu kB", &kb);
	if (file)
		fclose(file);
	return kb;
}

/* --- reserving --- */

static int missing(unsigned long kb, int node, struct err *e)
{
	if (node < 0)
		return err_set(e, -ENOENT,
			       "This kernel has no hugepages of %lu kB. `riffle setup status` "
			       "lists the sizes.",
			       kb);
	return err_set(e, -ENOENT,
		       "NUMA node %d is not there, or has no hugepages of %lu kB. `riffle setup "
		       "status` lists them.",
		       node, kb);
}

int hugepages_reserve(const char *root, int node, unsigned long kb, unsigned long pages,
		      bool exactly, struct err *e)
{
	char dir[PATH_MAX], text[32];
	unsigned long have;
	int rc;

	if (node < 0)
		snprintf(dir, sizeof(dir), "%s/sys/kernel/mm/hugepages/hugepages-%lukB", root, kb);
	else
		snprintf(dir, sizeof(dir),
			 "%s/sys/devices/system/node/node%d/hugepages/hugepages-%lukB", root, node,
			 kb);
	if (!sysfs_read(text, sizeof(text), "%s/nr_hugepages", dir)[0])
		return missing(kb, node, e);
	have = strtoul(text, NULL, 10);
	if (have == pages || (have > pages && !exactly))
		return 0;
	snprintf(text, sizeof(text), "%lu\n", pages);
	rc = sysfs_write(PATIENCE_MS, text, "%s/nr_hugepages", dir);
	if (rc)
		return err_set(e, rc, "The number of hugepages cannot be changed: %s.",
			       err_words(rc));
	have = read_number(dir, "nr_hugepages");
	if (have < pages)
		return err_set(e, -ENOMEM,
			       "Of %lu hugepages of %lu kB the kernel found memory for %lu only. "
			       "Free memory, or reserve them when booting: hugepages=%lu.",
			       pages, kb, have, pages);
	return 0; /* pages in use may keep it from shrinking, which harms nobody */
}
