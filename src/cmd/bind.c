/* riffle bind, riffle unbind: NVMe devices to vfio-pci and back to the kernel. */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/binder.h"
#include "cmd/cmd.h"

#define TIMEOUT_S_MOST 3600

static void usage_bind(FILE *out)
{
	fprintf(out,
		"usage: riffle bind [OPTION]... BDF... | --all\n\n"
		"Give NVMe devices to vfio-pci, so that riffle can drive them. `riffle unbind` "
		"gives them back.\n\n"
		"      --all          all NVMe devices that nobody uses\n"
		"      --driver NAME  another driver than vfio-pci: uio_pci_generic, none\n"
		"      --force        also when in use, not NVMe, or not alone in the IOMMU "
		"group\n"
		"      --dry-run      check, and say what would be done\n"
		"      --json         print JSON\n"
		"      --timeout S    wait so long for the kernel (20)\n"
		"      --root PATH    /sys, /proc, /dev and /run are below PATH\n"
		"  -h, --help         say this\n");
}

static void usage_unbind(FILE *out)
{
	fprintf(out,
		"usage: riffle unbind [OPTION]... BDF... | --all\n\n"
		"Give devices back to the kernel's drivers that they had before `riffle bind`.\n\n"
		"      --all          all that riffle has bound\n"
		"      --force        also when a process has the device open\n"
		"      --dry-run      check, and say what would be done\n"
		"      --json         print JSON\n"
		"      --timeout S    wait so long for the kernel (20)\n"
		"      --root PATH    /sys, /proc, /dev and /run are below PATH\n"
		"  -h, --help         say this\n");
}

/* --- the command line --- */

enum { GO_ON = -1 }; /* otherwise an exit status */

static int set_driver(struct binder *b, const char *name)
{
	if (pci_driver_name_ok(name)) {
		b->driver = name;
		return GO_ON;
	}
	fprintf(stderr, "riffle bind: '%s' cannot be the name of a driver.\n", name);
	return EXIT_USAGE;
}

static int set_timeout(struct binder *b, const char *text)
{
	char *end;
	unsigned long s = strtoul(text, &end, 10);

	if (*end || end == text || s < 1 || s > TIMEOUT_S_MOST) {
		fprintf(stderr, "riffle %s: --timeout takes 1 to %d seconds, not '%s'.\n",
			b->command, TIMEOUT_S_MOST, text);
		return EXIT_USAGE;
	}
	b->timeout_s = (unsigned)s;
	return GO_ON;
}

static int set_option(struct binder *b, int c, void (*usage)(FILE *out))
{
	switch (c) {
	case 'a':
		b->pick = true;
		return GO_ON;
	case 'd':
		return set_driver(b, optarg);
	case 'f':
		b->force = true;
		return GO_ON;
	case 'n':
		b->dry_run = true;
		return GO_ON;
	case 'j':
		b->json = true;
		return GO_ON;
	case 't':
		return set_timeout(b, optarg);
	case 'R':
		b->root = optarg;
		return GO_ON;
	case 'h':
		usage(stdout);
		return EXIT_OK;
	default:
		fprintf(stderr, "`riffle %s --help` lists the options.\n", b->command);
		return EXIT_USAGE;
	}
}

static int check(const struct binder *b, int words)
{
	if (!b->pick && words == 0)
		fprintf(stderr,
			"riffle %s: which device? Name its address, as `riffle list` shows it, or "
			"--all.\n",
			b->command);
	else if (b->pick && words > 0)
		fprintf(stderr, "riffle %s: --all and addresses exclude each other.\n", b->command);
	else if (b->pick && b->force)
		fprintf(stderr, "riffle %s: --force wants the devices named.\n", b->command);
	else
		return GO_ON;
	return EXIT_USAGE;
}

static int parse(struct binder *b, int argc, char **argv, const struct option *longs,
		 void (*usage)(FILE *out))
{
	int c, status = GO_ON;

	while (status == GO_ON && (c = getopt_long(argc, argv, "h", longs, NULL)) != -1)
		status = set_option(b, c, usage);
	return status == GO_ON ? check(b, argc - optind) : status;
}

/* --- doing it --- */

/* A wrong address is told before anything is changed. */
static int add_named(struct binder *b, char **words, struct err *e)
{
	int rc = 0;

	for (; rc == 0 && *words; words++)
		rc = binder_add(b, *words, e);
	return rc;
}

static int run(struct binder *b, char **words, int (*add_all)(struct binder *b, struct err *e),
	       void (*act)(struct binder *b))
{
	struct err e = { 0 };
	int rc = binder_open(b, &e);

	if (rc == 0)
		rc = b->pick ? add_all(b, &e) : add_named(b, words, &e);
	if (rc == 0 && b->n == 0 && !b->json)
		printf("There is no such device: nothing to do.\n");
	if (rc == 0)
		act(b);
	else
		b->status = fail(b->command, &e);
	binder_close(b);
	return rc == -EINVAL ? EXIT_USAGE : b->status;
}

static int all_nvme(struct binder *b, struct err *e)
{
	return binder_add_all(b, PCI_CLASS_NVME, NULL, e);
}

int cmd_bind(int argc, char **argv)
{
	static const struct option longs[] = {
		{ "all", no_argument, NULL, 'a' },
		{ "driver", required_argument, NULL, 'd' },
		{ "force", no_argument, NULL, 'f' },
		{ "dry-run", no_argument, NULL, 'n' },
		{ "json", no_argument, NULL, 'j' },
		{ "timeout", required_argument, NULL, 't' },
		{ "root", required_argument, NULL, 'R' },
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	struct binder b = BINDER_INIT;
	int status;

	b.command = "bind";
	status = parse(&b, argc, argv, longs, usage_bind);
	return status == GO_ON ? run(&b, argv + optind, all_nvme, binder_bind) : status;
}

static bool is_remembered(const struct binder *b, const struct pci_device *d)
{
	return pci_remembers(&b->place, d->bdf, NULL);
}

static int all_remembered(struct binder *b, struct err *e)
{
	b->pick = false; /* one that is in use is a failure here */
	return binder_add_all(b, PCI_CLASS_ANY, is_remembered, e);
}

int cmd_unbind(int argc, char **argv)
{
	static const struct option longs[] = {
		{ "all", no_argument, NULL, 'a' },
		{ "force", no_argument, NULL, 'f' },
		{ "dry-run", no_argument, NULL, 'n' },
		{ "json", no_argument, NULL, 'j' },
		{ "timeout", required_argument, NULL, 't' },
		{ "root", required_argument, NULL, 'R' },
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	struct binder b = BINDER_INIT;
	int status;

	b.command = "unbind";
	status = parse(&b, argc, argv, longs, usage_unbind);
	return status == GO_ON ? run(&b, argv + optind, all_remembered, binder_unbind) : status;
}
