/* riffle setup: all NVMe devices of the machine to vfio-pci and back, and hugepages. */
#include "cmd/setup.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/cmd.h"
#include "cmd/hugepages.h"

static void usage(FILE *out)
{
	fprintf(out,
		"usage: riffle setup [OPTION]... [config | reset | status | help]\n\n"
		"  config   give all NVMe devices that nobody uses to vfio-pci (the default)\n"
		"  reset    give them back to the kernel\n"
		"  status   hugepages, NVMe devices and their drivers\n\n"
		"      --dry-run    check, and say what would be done\n"
		"      --json       print JSON\n"
		"      --root PATH  /sys, /proc, /dev and /run are below PATH\n"
		"  -h, --help       say this\n\n"
		"The environment says which and how:\n"
		"  PCI_ALLOWED      addresses of the devices to touch; none: no device\n"
		"  PCI_BLOCKED      addresses of devices to leave alone\n"
		"  DRIVER_OVERRIDE  another driver than vfio-pci: uio_pci_generic, none\n"
		"  HUGEMEM          MB of hugepages to reserve\n"
		"  NRHUGE           hugepages to reserve; wins over HUGEMEM\n"
		"  HUGENODE         NUMA nodes to reserve them on: 0,1\n"
		"  HUGEPGSZ         their size in kB\n"
		"  CLEAR_HUGE       yes: free what is reserved first\n\n"
		"Riffle needs no hugepages: without HUGEMEM, NRHUGE and CLEAR_HUGE they stay as they "
		"are.\n");
}

struct setup {
	struct binder binder;
	struct setup_env env;
};

/* --- hugepages --- */

static int clear_size(const struct binder *b, const json_t *size, struct err *e)
{
	json_int_t node = json_integer_value(json_object_get(size, "node")),
		   kb = json_integer_value(json_object_get(size, "size_kb"));

	return hugepages_reserve(b->root, (int)node, (unsigned long)kb, 0, true, e);
}

static int clear_hugepages(const struct binder *b, struct err *e)
{
	json_t *sizes = hugepages_describe(b->root), *one;
	int rc = 0;
	size_t i;

	json_array_foreach(sizes, i, one)
	{
		if (rc == 0 && !b->dry_run)
			rc = clear_size(b, one, e);
	}
	json_decref(sizes);
	if (rc == 0 && !b->json)
		printf(b->dry_run ? "Would free the hugepages.\n"
				  : "The hugepages that nobody uses are free.\n");
	return rc;
}

static int reserve_hugepages(const struct binder *b, const struct setup_env *env, struct err *e)
{
	int rc = 0;

	for (unsigned i = 0; rc == 0 && i < env->n_want; i++) {
		if (!b->dry_run)
			rc = hugepages_reserve(b->root, env->want[i].node, env->size_kb,
					       env->want[i].pages, false, e);
		if (rc || b->json)
			continue;
		printf("%s %lu hugepages of %lu kB", b->dry_run ? "Would reserve" : "There are",
		       env->want[i].pages, env->size_kb);
		if (env->want[i].node >= 0)
			printf(" on NUMA node %d", env->want[i].node);
		printf(b->dry_run ? ".\n" : ", or more.\n");
	}
	return rc;
}

static void set_hugepages(struct binder *b, const struct setup_env *env, bool config)
{
	struct err e = { 0 };
	int rc = 0;

	if (env->clear || (!config && env->pages_given))
		rc = clear_hugepages(b, &e);
	if (rc == 0 && config)
		rc = reserve_hugepages(b, env, &e);
	if (rc)
		b->status = fail("setup", &e);
}

/* --- devices --- */

static bool is_wanted(const struct binder *b, const struct pci_device *d)
{
	return setup_env_wants(&container_of(b, const struct setup, binder)->env, d->bdf);
}

static bool is_there(const struct binder *b, const char *bdf)
{
	for (unsigned i = 0; i < b->n; i++)
		if (strcmp(b->devices[i].bdf, bdf) == 0)
			return true;
	return false;
}

/* A name in PCI_ALLOWED that nobody answers to is a mistake more often than not. */
static void warn_of_absent(const struct setup *s)
{
	for (int i = 0; i < s->env.n_allowed; i++)
		if (setup_env_wants(&s->env, s->env.allowed[i]) &&
		    !is_there(&s->binder, s->env.allowed[i]))
			fprintf(stderr,
				"riffle setup: PCI_ALLOWED names %s, and there is no NVMe device of "
				"that address.\n",
				s->env.allowed[i]);
}

static int find(struct setup *s, struct err *e)
{
	int rc = binder_open(&s->binder, e);

	if (rc == 0)
		rc = binder_add_all(&s->binder, PCI_CLASS_NVME, is_wanted, e);
	return rc;
}

static void change_all(struct setup *s, bool config)
{
	struct binder *b = &s->binder;

	warn_of_absent(s);
	if (b->n == 0 && !b->json)
		printf("There is no NVMe device to %s.\n", config ? "bind" : "give back");
	b->pick = config;
	(config ? binder_bind : binder_unbind)(b);
	set_hugepages(b, &s->env, config);
}

static int change(struct setup *s, bool config)
{
	struct err e = { 0 };
	int rc = setup_env_read(&s->env, &s->binder, &e);

	if (rc) {
		fail("setup", &e);
		return rc == -EINVAL ? EXIT_USAGE : EXIT_ERROR;
	}
	if (find(s, &e))
		s->binder.status = fail("setup", &e);
	else
		change_all(s, config);
	setup_env_free(&s->env);
	return binder_close(&s->binder);
}

static int status(const struct binder *b)
{
	struct err e = { 0 };

	return setup_status(b->root, b->json, &e) ? fail("setup", &e) : EXIT_OK;
}

static int act(struct setup *s, const char *verb)
{
	if (strcmp(verb, "config") == 0 || strcmp(verb, "reset") == 0)
		return change(s, verb[0] == 'c');
	if (strcmp(verb, "status") == 0)
		return status(&s->binder);
	if (strcmp(verb, "help") == 0) {
		usage(stdout);
		return EXIT_OK;
	}
	fprintf(stderr, "riffle setup: there is no '%s'; there are config, reset, status, help.\n",
		verb);
	return EXIT_USAGE;
}

int cmd_setup(int argc, char **argv)
{
	static const struct option longs[] = {
		{ "dry-run", no_argument, NULL, 'n' },
		{ "json", no_argument, NULL, 'j' },
		{ "root", required_argument, NULL, 'R' },
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	struct setup s = { .binder = BINDER_INIT };
	struct binder *b = &s.binder;
	int c;

	b->command = "setup";
	while ((c = getopt_long(argc, argv, "h", longs, NULL)) != -1) {
		switch (c) {
		case 'n':
			b->dry_run = true;
			break;
		case 'j':
			b->json = true;
			break;
		case 'R':
			b->root = optarg;
			break;
		case 'h':
			usage(stdout);
			return EXIT_OK;
		default:
			fprintf(stderr, "`riffle setup --help` lists the options.\n");
			return EXIT_USAGE;
		}
	}
	if (argc - optind > 1) {
		fprintf(stderr, "riffle setup: one verb at a time, not '%s' too.\n",
			argv[optind + 1]);
		return EXIT_USAGE;
	}
	return act(&s, optind < argc ? argv[optind] : "config");
}
