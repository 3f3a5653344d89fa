#include "cmd/nvme_kernel.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pci/sysfs.h"
#include "util/compiler.h"

#define NAME_MAX_BYTES 64
#define LINE_MAX_BYTES 4096

/* --- who uses a block device --- */

struct block {
	const char *root;
	char name[NAME_MAX_BYTES]; /* nvme0n1, or a partition: nvme0n1p2 */
	char dir[PATH_MAX];	   /* in sysfs */
	char number[32];	   /* "259:1" */
	json_t *users;
};

static void add_user(const struct block *b, const char *what, const char *whom)
{
	char text[LINE_MAX_BYTES + 64];

	snprintf(text, sizeof(text), "%s %s", what, whom);
	json_array_append_new(b->users, json_string(text));
}

/* Spaces and the like are written as \040 in procfs. */
static char *unescape(char *text)
{
	char *to = text;

	for (const char *from = text; *from; to++) {
		unsigned c;

		if (from[0] == '\\' && sscanf(from + 1, "%3o", &c) == 1) {
			*to = (char)c;
			from += 4;
		} else {
			*to = *from++;
		}
	}
	*to = '\0';
	return text;
}

static bool is_device(const struct block *b, const char *path)
{
	return strncmp(path, "/dev/", 5) == 0 && strcmp(path + 5, b->name) == 0;
}

/* One line: "36 35 98:0 /root /mount/point rw,... - ext4 /dev/root rw" (proc(5)). File systems over
 * many devices have a number of their own, and are known by their source. */
static void look_at_mount(const struct block *b, char *line)
{
	char *field[5], *rest = line, *source = strstr(line, " - ");

	for (int i = 0; i < 5; i++)
		field[i] = strsep(&rest, " ");
	if (!field[4])
		return;
	if (source) {
		source += 3;
		strsep(&source, " ");
		source = source ? strsep(&source, " ") : NULL;
	}
	if (strcmp(field[2], b->number) == 0 || (source && is_device(b, unescape(source))))
		add_user(b, "mounted on", unescape(field[4]));
}

static void look_at_swap(const struct block *b, char *line)
{
	char *rest = line, *path = strsep(&rest, " \t");

	if (is_device(b, unescape(path)))
		add_user(b, "swap on", path);
}

static void each_line(const struct block *b, const char *file,
		      void (*look)(const struct block *b, char *line))
{
	char path[PATH_MAX], line[LINE_MAX_BYTES];
	FILE *f;

	snprintf(path, sizeof(path), "%s/proc/%s", b->root, file);
	f = fopen(path, "re");
	while (f && fgets(line, sizeof(line), f)) {
		line[strcspn(line, "\n")] = '\0';
		look(b, line);
	}
	if (f)
		fclose(f);
}

/* Another block device on top: LVM and other mappings, MD. */
static void look_at_holder(const struct block *b, const char *holder)
{
	char name[256], uuid[256];

	sysfs_read(name, sizeof(name), "%s/sys/block/%s/dm/name", b->root, holder);
	sysfs_read(uuid, sizeof(uuid), "%s/sys/block/%s/dm/uuid", b->root, holder);
	if (strncmp(uuid, "LVM-", 4) == 0)
		add_user(b, "part of LVM volume", name);
	else if (name[0])
		add_user(b, "below device mapping", name);
	else if (strncmp(holder, "md", 2) == 0)
		add_user(b, "member of MD array", holder);
	else
		add_user(b, "held by", holder);
}

/* In the order of the numbers in the names. Returns the sum of what fn does. */
static int each_entry(const char *dir, int (*fn)(const char *name, void *arg), void *arg)
{
	struct dirent **entries = NULL;
	int all = scandir(dir, &entries, NULL, versionsort), n = 0;

	for (int i = 0; i < all; i++) {
		if (entries[i]->d_name[0] != '.')
			n += fn(entries[i]->d_name, arg);
		free(entries[i]);
	}
	free(entries);
	return n;
}

static int holder_found(const char *name, void *arg)
{
	look_at_holder(arg, name);
	return 1;
}

static void find_users(struct block *b)
{
	char holders[PATH_MAX + 16];

	sysfs_read(b->number, sizeof(b->number), "%s/dev", b->dir);
	each_line(b, "self/mountinfo", look_at_mount);
	each_line(b, "swaps", look_at_swap);
	snprintf(holders, sizeof(holders), "%s/holders", b->dir);
	each_entry(holders, holder_found, b);
}

static int partition_found(const char *name, void *arg)
{
	const struct block *whole = arg;
	struct block part = { .root = whole->root, .users = whole->users };
	char text[16];

	if (strncmp(name, whole->name, strlen(whole->name)) != 0)
		return 0;
	sysfs_read(text, sizeof(text), "%s/%s/partition", whole->dir, name);
	if (!text[0])
		return 0;
	snprintf(part.name, sizeof(part.name), "%.*s", NAME_MAX_BYTES - 1, name);
	if (snprintf(part.dir, sizeof(part.dir), "%s/%s", whole->dir, name) >=
	    (int)sizeof(part.dir))
		return 0;
	find_users(&part);
	return 1;
}

/* --- the controller --- */

struct search {
	const char *root;
	char dir[PATH_MAX]; /* of the PCI device, then of its controller */
	char controller[NAME_MAX_BYTES];
	json_t *namespaces;
};

static void add_namespace(const struct search *s, const char *name)
{
	struct block b = { .root = s->root, .users = json_array() };
	char sectors[32], block_size[32];

	snprintf(b.name, sizeof(b.name), "%s", name);
	snprintf(b.dir, sizeof(b.dir), "%s/sys/block/%s", s->root, name);
	find_users(&b);
	each_entry(b.dir, partition_found, &b);
	sysfs_read(sectors, sizeof(sectors), "%s/size", b.dir);
	sysfs_read(block_size, sizeof(block_size), "%s/queue/logical_block_size", b.dir);
	json_array_append_new(s->namespaces,
			      json_pack("{s:s, s:I, s:i, s:o}", "name", name, "size",
					(json_int_t)strtoll(sectors, NULL, 10) * 512, "block_size",
					atoi(block_size), "used_by", b.users));
}

/* nvme0n1, or with the kernel's multipath nvme0c1n1: a path to nvme0n1. */
static int namespace_found(const char *entry, void *arg)
{
	unsigned subsystem, controller, nsid;
	char name[NAME_MAX_BYTES];
	int end = 0;

	if (sscanf(entry, "nvme%uc%un%u%n", &subsystem, &controller, &nsid, &end) != 3 ||
	    entry[end]) {
		end = 0;
		if (sscanf(entry, "nvme%un%u%n", &subsystem, &nsid, &end) != 2 || entry[end])
			return 0;
	}
	snprintf(name, sizeof(name), "nvme%un%u", subsystem, nsid);
	add_namespace(arg, name);
	return 1;
}

static int controller_found(const char *entry, void *arg)
{
	struct search *s = arg;

	snprintf(s->controller, sizeof(s->controller), "%.*s", NAME_MAX_BYTES - 1, entry);
	return 1;
}

json_t *nvme_kernel_describe(const char *root, const char *bdf)
{
	struct search s = { .root = root };
	char model[64], serial[32], firmware[32], dir[PATH_MAX + NAME_MAX_BYTES];

	snprintf(s.dir, sizeof(s.dir), "%s/sys/bus/pci/devices/%s/nvme", root, bdf);
	if (each_entry(s.dir, controller_found, &s) == 0)
		return NULL;
	s.namespaces = json_array();
	snprintf(dir, sizeof(dir), "%s/%s", s.dir, s.controller);
	each_entry(dir, namespace_found, &s);
	return json_pack("{s:s, s:s, s:s, s:s, s:o}", "controller", s.controller, "model",
			 sysfs_read(model, sizeof(model), "%s/model", dir), "serial",
			 sysfs_read(serial, sizeof(serial), "%s/serial", dir), "firmware",
			 sysfs_read(firmware, sizeof(firmware), "%s/firmware_rev", dir),
			 "namespaces", s.namespaces);
}
