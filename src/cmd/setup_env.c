/* The environment variables of riffle setup. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/hugepages.h"
#include "cmd/setup.h"

#define PAGES_MOST 1000000000ul

/* "": not set */
static const char *value(const char *name)
{
	const char *text = getenv(name);

	return text ? text : "";
}

/* --- which devices --- */

static int read_addresses(const char *name, char (**list)[PCI_BDF_MAX], int *n, struct err *e)
{
	char *text = strdup(value(name)), *rest = text, *word;
	int rc = text ? 0 : -ENOMEM;

	*list = calloc(strlen(value(name)) / 2 + 1, sizeof(**list));
	if (!*list)
		rc = -ENOMEM;
	if (rc)
		err_set(e, rc, "Out of memory.");
	for (*n = 0; rc == 0 && (word = strsep(&rest, " \t\n,|"));) {
		if (!*word || strcmp(word, "none") == 0)
			continue;
		if (pci_bdf_parse(word, (*list)[*n]))
			++*n;
		else
			rc = err_set(e, -EINVAL,
				     "%s names '%.64s', which is not the address of a PCI device: "
				     "those look like 0000:01:00.0.",
				     name, word);
	}
	free(text);
	return rc;
}

static bool is_in(char (*list)[PCI_BDF_MAX], int n, const char *bdf)
{
	for (int i = 0; i < n; i++)
		if (strcmp(list[i], bdf) == 0)
			return true;
	return false;
}

bool setup_env_wants(const struct setup_env *env, const char *bdf)
{
	return (env->n_allowed < 0 || is_in(env->allowed, env->n_allowed, bdf)) &&
	       !is_in(env->blocked, env->n_blocked, bdf);
}

static int read_driver(struct binder *b, struct err *e)
{
	const char *name = value("DRIVER_OVERRIDE");

	if (!*name)
		return 0;
	if (!pci_driver_name_ok(name))
		return err_set(e, -EINVAL,
			       "DRIVER_OVERRIDE is '%.64s', which cannot be the name of a driver: "
			       "vfio-pci, uio_pci_generic or none. Load a module from a file with "
			       "insmod, and give the driver's name here.",
			       name);
	b->driver = name;
	return 0;
}

/* --- hugepages --- */

static int read_count(const char *name, unsigned long *n, struct err *e)
{
	char *end;

	*n = strtoul(value(name), &end, 10);
	if (*end || *n > PAGES_MOST || value(name)[0] == '-')
		return err_set(e, -EINVAL, "%s is '%.64s', which is not a number.", name,
			       value(name));
	return 0;
}

/* "1", or "nodes_hp[1]=512", which is what shells make of an array */
static bool read_node(const char *word, unsigned long pages, int *node, unsigned long *its_pages)
{
	int end = 0;

	*its_pages = pages;
	if (sscanf(word, "nodes_hp[%d]=%lu%n", node, its_pages, &end) == 2 && !word[end])
		return *node >= 0 && *its_pages <= PAGES_MOST;
	end = 0;
	return sscanf(word, "%d%n", node, &end) == 1 && !word[end] && *node >= 0;
}

static int read_nodes(struct setup_env *env, unsigned long pages, struct err *e)
{
	char *text = strdup(value("HUGENODE")), *rest = text, *word;
	int rc = 0;

	if (!text)
		return err_set(e, -ENOMEM, "Out of memory.");
	while (rc == 0 && (word = strsep(&rest, ", "))) {
		if (!*word)
			continue;
		if (env->n_want == SETUP_NODES_MAX ||
		    !read_node(word, pages, &env->want[env->n_want].node,
			       &env->want[env->n_want].pages))
			rc = err_set(e, -EINVAL,
				     "HUGENODE names '%.64s', which is not a NUMA node: 0, or "
				     "nodes_hp[0]=512 for that many pages.",
				     word);
		else
			env->n_want++;
	}
	free(text);
	if (rc == 0 && env->n_want == 0) {
		env->want[0].node = HUGEPAGES_ALL_NODES;
		env->want[0].pages = pages;
		env->n_want = 1;
	}
	return rc;
}

static int read_hugepages(struct setup_env *env, const char *root, struct err *e)
{
	unsigned long mb, pages;
	int rc = read_count("HUGEMEM", &mb, e);

	if (rc == 0)
		rc = read_count("NRHUGE", &pages, e);
	if (rc == 0)
		rc = read_count("HUGEPGSZ", &env->size_kb, e);
	if (rc)
		return rc;
	env->clear = strcmp(value("CLEAR_HUGE"), "yes") == 0;
	env->pages_given = *value("HUGEMEM") || *value("NRHUGE") || strchr(value("HUGENODE"), '[');
	if (!env->size_kb)
		env->size_kb = hugepages_default_kb(root);
	if (!env->pages_given)
		return 0;
	if (!env->size_kb)
		return err_set(e, -ENOENT, "This kernel has no hugepages (CONFIG_HUGETLBFS).");
	if (!*value("NRHUGE"))
		pages = (mb * 1024 + env->size_kb - 1) / env->size_kb;
	return read_nodes(env, pages, e);
}

int setup_env_read(struct setup_env *env, struct binder *b, struct err *e)
{
	int rc;

	memset(env, 0, sizeof(*env));
	rc = read_addresses("PCI_ALLOWED", &env->allowed, &env->n_allowed, e);
	if (rc == 0)
		rc = read_addresses("PCI_BLOCKED", &env->blocked, &env->n_blocked, e);
	if (rc == 0)
		rc = read_driver(b, e);
	if (rc == 0)
		rc = read_hugepages(env, b->root, e);
	if (rc == 0 && strspn(value("PCI_ALLOWED"), " ") == strlen(value("PCI_ALLOWED")))
		env->n_allowed = -1;
	if (rc)
		setup_env_free(env);
	return rc;
}

void setup_env_free(struct setup_env *env)
{
	free(env->allowed);
	free(env->blocked);
	env->allowed = env->blocked = NULL;
}
