/*
 * The targets of riffle perf: "DRIVER:VALUE,KEY=VALUE", with filters on top behind '+', made by the
 * drivers of the daemon from their parameter tables.
 */
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "backend/list.h"
#include "bdev/registry.h"
#include "cmd/perf.h"
#include "ctl/drivers.h"
#include "pci/sysfs.h"

#define NAME_MAX_BYTES 32

/* --- one driver --- */

/* What the target need not say: its name, its base, 512-byte blocks; and what a job only reads is
 * opened for reading. */
static int set_defaults(const struct bdev_driver *d, void *args, const char *name, const char *base,
			bool reads_only, struct err *e)
{
	const struct param *block = param_find(d->params, "block_size"),
			   *readonly = param_find(d->params, "readonly");
	int rc = param_set_string(param_find(d->params, "name"), args, name, e);

	if (rc == 0 && base)
		rc = param_set_string(param_find(d->params, "base_bdev_name"), args, base, e);
	if (rc == 0 && readonly && reads_only)
		rc = param_set_bool(readonly, args, true, e);
	if (rc == 0 && block && block->required)
		rc = param_set_uint(block, args, 512, e);
	return rc;
}

/* A made-up disk has 1 GiB when the target does not say. */
static int set_default_size(const struct bdev_driver *d, void *args, struct err *e)
{
	const struct param *size = param_find(d->params, "size"),
			   *blocks = param_find(d->params, "num_blocks");

	if (!size || !blocks || *(uint64_t *)param_at(size, args) ||
	    *(uint64_t *)param_at(blocks, args))
		return 0;
	return param_set_uint(size, args, UINT64_C(1) << 30, e);
}

/* --- a namespace of an NVMe device: "nvme:BDF,nsid=N" --- */

struct nvme_target_args {
	char *traddr;
	uint64_t nsid, io_queue_entries;
};

static const struct param nvme_target_params[] = {
	PARAM_STRING(struct nvme_target_args, traddr, .required = true, .positional = true,
		     .min = 1, .help = "PCI address: 0000:01:00.0"),
	PARAM_UINT(struct nvme_target_args, nsid, .min = 1, .max = UINT32_MAX, .def = 1,
		   .help = "which namespace"),
	PARAM_UINT(struct nvme_target_args, io_queue_entries, .max = NVME_ENTRIES_MAX,
		   .help = "entries of a queue pair (default: 256)"),
	{ 0 }
};

/* The controller is named by its address, so that several targets share it. */
static int attach(const struct nvme_target_args *t, const char *bdf, unsigned workers,
		  struct err *e)
{
	struct nvme_attach_args *a = calloc(1, sizeof(*a));
	char **names;
	unsigned n;
	int rc;

	if (!a)
		return err_set(e, -ENOMEM, "Out of memory.");
	param_defaults(nvme_attach_params, a);
	a->name = strdup(bdf);
	a->traddr = strdup(bdf);
	a->trtype = strdup("PCIe");
	a->num_io_queues = workers + 1;
	a->io_queue_entries = t->io_queue_entries;
	rc = nvme_attach(a, &names, &n, e);
	if (rc)
		return rc == -EEXIST ? 0 : rc; /* by a target before */
	while (n > 0)
		free(names[--n]);
	free(names);
	return 0;
}

static int make_nvme(const struct perf_options *o, const char *parameters, char *name, size_t size,
		     struct err *e)
{
	struct nvme_target_args t = { 0 };
	char bdf[PCI_BDF_MAX];
	int rc;

	param_defaults(nvme_target_params, &t);
	rc = param_parse_spec(nvme_target_params, &t, parameters, e);
	if (rc == 0 && !pci_bdf_parse(t.traddr, bdf))
		rc = err_set(
			e, -EINVAL,
			"'%.60s' is no PCI address. `riffle list` shows those of all NVMe devices.",
			t.traddr);
	if (rc == 0)
		rc = attach(&t, bdf, perf_workers(o), e);
	if (rc == 0)
		snprintf(name, size, "%sn%" PRIu64, bdf, t.nsid);
	param_free(nvme_target_params, &t);
	return rc;
}

/* base: the bdev below; NULL when d is not a filter. */
static int make(const struct bdev_driver *d, const char *parameters, const char *name,
		const char *base, bool reads_only, struct err *e)
{
	void *args = calloc(1, d->args_size);
	int rc;

	if (!args)
		return err_set(e, -ENOMEM, "Out of memory.");
	param_defaults(d->params, args);
	rc = set_defaults(d, args, name, base, reads_only, e);
	if (rc == 0)
		rc = param_parse_spec(d->params, args, parameters, e);
	if (rc == 0)
		rc = set_default_size(d, args, e);
	if (rc) {
		param_free(d->params, args);
		free(args);
		return rc;
	}
	return bdev_create(d, args, NULL, e);
}

/* --- a chain of them --- */

static const struct bdev_driver *find(const char *word)
{
	static const char *const other_names[][2] = { { "file", "uring" }, { "vhost", "virtio" } };

	for (size_t i = 0; i < ARRAY_SIZE(other_names); i++)
		if (strcmp(word, other_names[i][0]) == 0)
			return driver_find(other_names[i][1]);
	return strcmp(word, nvme_driver.name) == 0 ? &nvme_driver : driver_find(word);
}

/* The driver that text begins with ("null:..."); *rest: what is behind the colon. */
static const struct bdev_driver *driver_at(const char *text, const char **rest)
{
	char word[NAME_MAX_BYTES];
	size_t n = strcspn(text, ":+");

	if (n >= sizeof(word))
		return NULL;
	memcpy(word, text, n);
	word[n] = '\0';
	*rest = text + n + (text[n] == ':');
	return find(word);
}

static bool is_filter(const struct bdev_driver *d)
{
	return param_find(d->params, "base_bdev_name") != NULL;
}

/* The next "+FILTER:" at or behind text: a path may well have a '+' of its own. NULL: none. */
static const char *next_filter(const char *text)
{
	for (const char *plus = strchr(text, '+'), *rest; plus; plus = strchr(plus + 1, '+')) {
		const struct bdev_driver *d = driver_at(plus + 1, &rest);

		if (d && is_filter(d) && rest[-1] == ':')
			return plus;
	}
	return NULL;
}

static int no_driver(const char *spec, struct err *e)
{
	return err_set(
		e, -EINVAL,
		"'%.80s' names no target: give null:, malloc:size=SIZE, file:PATH, vhost:SOCKET or nvme:BDF.",
		spec);
}

/* Make what `spec` describes; its top is called name. */
static int make_chain(const struct perf_options *o, const char *spec, unsigned index, char *name,
		      size_t size, struct err *e)
{
	bool reads_only = o->read_percent == 100 && !o->verify;
	char below[NAME_MAX_BYTES] = "", *parameters;
	int rc = 0;

	for (unsigned level = 0; spec && rc == 0; level++) {
		const char *rest, *end;
		const struct bdev_driver *d = driver_at(spec, &rest);

		if (!d)
			return no_driver(spec, e);
		if (is_filter(d) != (level > 0))
			return err_set(e, -EINVAL,
				       "'%.80s' needs a disk below: write for example "
				       "malloc:size=64M+%.80s.",
				       spec, spec);
		end = next_filter(rest);
		parameters = end ? strndup(rest, (size_t)(end - rest)) : strdup(rest);
		if (!parameters)
			return err_set(e, -ENOMEM, "Out of memory.");
		snprintf(name, size, "perf%u.%u", index, level);
		if (d == &nvme_driver)
			rc = make_nvme(o, parameters, name, size, e);
		else
			rc = make(d, parameters, name, level ? below : NULL, reads_only, e);
		free(parameters);
		snprintf(below, sizeof(below), "%s", name);
		spec = end ? end + 1 : NULL;
	}
	return rc;
}

/* --- does the job suit it? --- */

int perf_check_size(const struct perf_options *o, const char *spec, uint32_t block_size,
		    uint64_t size, uint64_t span, struct err *e)
{
	unsigned workers = perf_workers(o);
	uint64_t least = o->verify && !o->size_given ? block_size : o->io_size;

	if (o->io_size % block_size && !(o->verify && !o->size_given))
		return err_set(e, -EINVAL,
			       "%s has blocks of %u bytes: -o %" PRIu64
			       " is not a multiple of that.",
			       spec, block_size, o->io_size);
	if (o->span > size)
		return err_set(e, -EINVAL,
			       "%s has only %" PRIu64 " bytes, less than the span (-s) of %" PRIu64
			       ".",
			       spec, size, o->span);
	if (span < least)
		return err_set(e, -EINVAL,
			       "%s %s only %" PRIu64 " bytes, less than one request (-o).", spec,
			       o->span ? "would use" : "has", span);
	if (o->verify && span / block_size / workers * block_size < least)
		return err_set(
			e, -EINVAL,
			"%s: a span of %" PRIu64
			" bytes is too small for %u workers, each of which verifies its own part.",
			spec, span, workers);
	return 0;
}

static int check(const struct perf_options *o, const struct perf_target *t, struct err *e)
{
	if (t->bdev->readonly && (o->read_percent < 100 || o->verify))
		return err_set(e, -EROFS, "%s is read-only: '%s' cannot run on it.", t->spec,
			       o->job);
	return perf_check_size(o, t->spec, t->bdev->block_size, t->bdev->size, t->span, e);
}

/* What a completed write and a FLUSH are worth on this target. */
static void set_flush_words(struct perf_target *t)
{
	static const struct {
		const char *driver, *words;
	} table[] = {
		{ "null", "nothing is kept, FLUSH does nothing" },
		{ "malloc", "RAM: nothing outlives this process, FLUSH does nothing" },
		{ "uring", "a completed write may be in a volatile cache; FLUSH is fdatasync" },
		{ "aio", "a completed write may be in a volatile cache; FLUSH is fdatasync" },
		{ "nvme",
		  "a completed write may be in the drive's volatile cache, if it has one; FLUSH is NVMe's" },
		{ "virtio", "as the back-end behind the socket does it; FLUSH is passed on to it" },
	};
	const char *words = "as the driver does it", *rest;
	const struct bdev_driver *d = driver_at(t->spec, &rest);

	for (size_t i = 0; i < ARRAY_SIZE(table); i++)
		if (strcmp(d->name, table[i].driver) == 0)
			words = table[i].words;
	snprintf(t->flush, sizeof(t->flush), "%s%s", words,
		 t->bdev->page_cache ? "; no O_DIRECT, writes go to the kernel's page cache" : "");
}

/* --- all --- */

static int open_one(const struct perf_options *o, unsigned index, struct perf_target *t,
		    struct err *e)
{
	char name[NAME_MAX_BYTES];
	int rc;

	t->spec = o->target_specs[index];
	rc = make_chain(o, t->spec, index, name, sizeof(name), e);
	if (rc == 0)
		rc = bdev_get(name, &t->bdev, e);
	if (rc)
		return rc;
	t->span = o->span ? o->span : t->bdev->size;
	t->span = t->span / t->bdev->block_size * t->bdev->block_size;
	set_flush_words(t);
	return check(o, t, e);
}

int perf_targets_open(const struct perf_options *o, struct perf_target *t, struct err *e)
{
	int rc = 0;

	for (unsigned i = 0; i < o->targets_n && rc == 0; i++)
		rc = open_one(o, i, &t[i], e);
	return rc;
}

void perf_targets_close(struct perf_target *t, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		if (t[i].bdev)
			bdev_put(t[i].bdev);
	bdev_delete_all();
	nvme_detach_all();
}
