#include "cmd/device_users.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cmd/nvme_kernel.h"
#include "util/compiler.h"

/* --- processes --- */

/* udev opens what appears, and closes it at once. */
static bool is_passing(const char *comm)
{
	return strstr(comm, "udev") != NULL;
}

static bool is_device_node(const char *path)
{
	static const char *const kinds[] = { "/dev/nvme", "/dev/ng", "/dev/vfio/", "/dev/uio" };

	for (size_t i = 0; i < ARRAY_SIZE(kinds); i++)
		if (strncmp(path, kinds[i], strlen(kinds[i])) == 0)
			return true;
	return false;
}

static void add_opener(json_t *found, const char *root, const char *pid, const char *path)
{
	char comm[32], who[64];

	sysfs_read(comm, sizeof(comm), "%s/proc/%s/comm", root, pid);
	if (is_passing(comm))
		return;
	snprintf(who, sizeof(who), "%s (process %.12s)", comm, pid);
	json_array_append_new(found, json_pack("{s:s, s:s}", "path", path, "who", who));
}

static void look_at_fds(json_t *found, const char *root, const char *pid)
{
	char dir[PATH_MAX], path[256];
	const struct dirent *entry;
	DIR *fds;

	snprintf(dir, sizeof(dir), "%s/proc/%s/fd", root, pid);
	fds = opendir(dir);
	while (fds && (entry = readdir(fds))) {
		ssize_t n = readlinkat(dirfd(fds), entry->d_name, path, sizeof(path) - 1);

		path[MAX(n, 0)] = '\0';
		if (is_device_node(path))
			add_opener(found, root, pid, path);
	}
	if (fds)
		closedir(fds);
}

json_t *device_openers(const char *root)
{
	json_t *found = json_array();
	const struct dirent *entry;
	char path[PATH_MAX];
	DIR *proc;

	snprintf(path, sizeof(path), "%s/proc", root);
	proc = opendir(path);
	while (proc && (entry = readdir(proc)))
		if (isdigit((unsigned char)entry->d_name[0]) && atoi(entry->d_name) != getpid())
			look_at_fds(found, root, entry->d_name);
	if (proc)
		closedir(proc);
	return found;
}

/* --- one device --- */

struct users {
	const char *root;
	const json_t *openers;
	json_t *list;
};

static void add(json_t *list, const char *what, const char *how, const char *whom)
{
	json_t *text = json_sprintf("%s is %s%s", what, how, whom), *one;
	size_t i;

	json_array_foreach(list, i, one)
	{
		if (json_equal(one, text)) {
			json_decref(text);
			return;
		}
	}
	json_array_append_new(list, text);
}

/* The node itself, or a partition of it: nvme0n1p2. */
static bool is_node(const char *path, const char *name)
{
	size_t n = strlen(name);

	if (strncmp(path, "/dev/", 5) != 0 || strncmp(path + 5, name, n) != 0)
		return false;
	path += 5 + n;
	return *path == '\0' || (*path == 'p' && isdigit((unsigned char)path[1]));
}

static void add_openers(struct users *u, const char *name)
{
	const json_t *one;
	size_t i;

	json_array_foreach(u->openers, i, one)
	{
		if (is_node(json_string_value(json_object_get(one, "path")), name))
			add(u->list, name, "open in ",
			    json_string_value(json_object_get(one, "who")));
	}
}

/* What neither mountinfo nor holders tell - a ZFS pool, a mount of a container - holds the block
 * device exclusively all the same. */
static bool is_claimed(const struct users *u, const char *name)
{
	char path[PATH_MAX];
	bool claimed;
	int fd;

	snprintf(path, sizeof(path), "%s/dev/%s", u->root, name);
	fd = open(path, O_RDONLY | O_EXCL | O_NONBLOCK | O_CLOEXEC);
	claimed = fd < 0 && errno == EBUSY;
	if (fd >= 0)
		close(fd);
	return claimed;
}

static void add_namespace(struct users *u, const json_t *namespace)
{
	const char *name = json_string_value(json_object_get(namespace, "name"));
	size_t i, before = json_array_size(u->list);
	char generic[64] = "ng";
	const json_t *use;

	json_array_foreach(json_object_get(namespace, "used_by"), i, use)
		add(u->list, name, "", json_string_value(use));
	add_openers(u, name);
	snprintf(generic, sizeof(generic), "ng%s", name + strlen("nvme"));
	add_openers(u, generic);
	if (json_array_size(u->list) == before && is_claimed(u, name))
		add(u->list, name, "held exclusively", " (by a ZFS pool, or a mount elsewhere?)");
}

/* The nodes below a folder of the device: vfio-dev/vfio3 is /dev/vfio/devices/vfio3. */
static void add_nodes(struct users *u, const char *bdf, const char *folder, const char *prefix)
{
	char path[PATH_MAX], name[300];
	const struct dirent *entry;
	DIR *dir;

	snprintf(path, sizeof(path), "%s/sys/bus/pci/devices/%s/%s", u->root, bdf, folder);
	dir = opendir(path);
	while (dir && (entry = readdir(dir))) {
		snprintf(name, sizeof(name), "%s%s", prefix, entry->d_name);
		if (entry->d_name[0] != '.')
			add_openers(u, name);
	}
	if (dir)
		closedir(dir);
}

json_t *device_users(const char *root, const json_t *openers, const struct pci_device *d)
{
	struct users u = { .root = root, .openers = openers, .list = json_array() };
	json_t *kernel = nvme_kernel_describe(root, d->bdf), *one;
	char group[32];
	size_t i;

	json_array_foreach(json_object_get(kernel, "namespaces"), i, one)
	{
		add_namespace(&u, one);
	}
	json_decref(kernel);
	if (strncmp(d->driver, "vfio", 4) == 0 && d->iommu_group >= 0) {
		snprintf(group, sizeof(group), "vfio/%d", d->iommu_group);
		add_openers(&u, group);
	}
	add_nodes(&u, d->bdf, "vfio-dev", "vfio/devices/");
	add_nodes(&u, d->bdf, "uio", "");
	return u.list;
}

char *device_users_text(const json_t *users, char *buf, size_t size)
{
	size_t used = 0, i;
	const json_t *one;

	buf[0] = '\0';
	json_array_foreach(users, i, one)
	{
		if (used < size)
			used += (size_t)snprintf(buf + used, size - used, "%s%s", used ? "; " : "",
						 json_string_value(one));
	}
	return buf;
}
