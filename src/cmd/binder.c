#include "cmd/binder.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cmd/cmd.h"
#include "cmd/device_users.h"

/* --- what became of a device --- */

static const char *or_none(const char *driver)
{
	return driver[0] ? driver : "no driver";
}

/* result: done, already, would, skipped, failed. */
static void printf_like(4, 5)
	tell(struct binder *b, const struct pci_device *d, const char *result, const char *fmt, ...)
{
	bool failed = strcmp(result, "failed") == 0;
	char text[ERR_TEXT_MAX], now[64];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	sysfs_link(now, sizeof(now), "%s/bus/pci/devices/%s/driver", b->sysfs, d->bdf);
	json_array_append_new(b->told, json_pack("{s:s, s:s, s:s, s:s, s:s}", "bdf", d->bdf,
						 "result", result, "driver_before", d->driver,
						 "driver", now, "text", text));
	if (failed) {
		b->status = EXIT_ERROR;
		fprintf(stderr, "riffle %s: %s\n", b->command, text);
	} else if (!b->json) {
		printf("%s\n", text);
		fflush(stdout); /* the next one may take its time */
	}
}

/* --- before --- */

static int check_permission(const struct binder *b, struct err *e)
{
	char path[PATH_MAX + 32];

	snprintf(path, sizeof(path), "%s/bus/pci/drivers_probe", b->sysfs);
	if (access(path, W_OK) == 0 || errno == ENOENT) /* no PCI bus: no device either */
		return 0;
	if (errno == EROFS)
		return err_set(e, -EROFS,
			       "'%.150s' cannot be written here: a container that changes drivers "
			       "needs it mounted writable, or do it on the host.",
			       b->sysfs);
	return err_set(e, -EPERM,
		       "Only root gives devices to other drivers: run as root. --dry-run says what "
		       "would be done.");
}

int binder_open(struct binder *b, struct err *e)
{
	int rc;

	snprintf(b->sysfs, sizeof(b->sysfs), "%s/sys", b->root);
	snprintf(b->state, sizeof(b->state), "%s/run/riffle/bind", b->root);
	b->place = (struct pci_place){ b->sysfs, b->state, b->timeout_s * 1000 };
	rc = b->dry_run ? 0 : check_permission(b, e);
	if (rc == 0 && !b->dry_run)
		rc = pci_place_lock(&b->place, &b->lock, e);
	if (rc)
		return rc;
	b->openers = device_openers(b->root);
	b->told = json_array();
	return 0;
}

int binder_close(struct binder *b)
{
	if (b->json && b->told) {
		json_dumpf(b->told, stdout, JSON_INDENT(2));
		putchar('\n');
	}
	json_decref(b->told);
	json_decref(b->openers);
	free(b->devices);
	if (b->lock >= 0)
		close(b->lock);
	return b->status;
}

/* --- which --- */

static int append(struct binder *b, const struct pci_device *d, struct err *e)
{
	struct pci_device *more;

	for (unsigned i = 0; i < b->n; i++)
		if (strcmp(b->devices[i].bdf, d->bdf) == 0)
			return 0;
	more = realloc(b->devices, (b->n + 1) * sizeof(*more));
	if (!more)
		return err_set(e, -ENOMEM, "Out of memory.");
	more[b->n++] = *d;
	b->devices = more;
	return 0;
}

int binder_add(struct binder *b, const char *text, struct err *e)
{
	char bdf[PCI_BDF_MAX];
	struct pci_device d;
	int rc;

	if (!pci_bdf_parse(text, bdf))
		return err_set(e, -EINVAL,
			       "'%.64s' is not the address of a PCI device: those look like "
			       "0000:01:00.0 or 01:00.0. `riffle list` shows them.",
			       text);
	rc = pci_device_read(b->sysfs, bdf, &d, e);
	return rc ? rc : append(b, &d, e);
}

int binder_add_all(struct binder *b, uint32_t class,
		   bool (*fits)(const struct binder *b, const struct pci_device *d), struct err *e)
{
	struct pci_device *all;
	unsigned n;
	int rc = pci_enumerate(b->sysfs, class, &all, &n, e);

	for (unsigned i = 0; rc == 0 && i < n; i++)
		if (!fits || fits(b, &all[i]))
			rc = append(b, &all[i], e);
	free(all);
	return rc;
}

/* --- checks: each says what it has against a device --- */

static bool is_new(struct binder *b, const struct pci_device *d)
{
	bool none = strcmp(b->driver, PCI_NO_DRIVER) == 0;

	if (strcmp(d->driver, none ? "" : b->driver) != 0)
		return true;
	tell(b, d, "already", "%s has %s already.", d->bdf, or_none(d->driver));
	return false;
}

static bool is_unused(struct binder *b, const struct pci_device *d)
{
	json_t *users = device_users(b->root, b->openers, d);
	bool used = json_array_size(users) > 0;
	char text[180];

	device_users_text(users, text, sizeof(text));
	json_decref(users);
	if (used && b->pick)
		tell(b, d, "skipped", "%s stays with %s: %s.", d->bdf, or_none(d->driver), text);
	else if (used)
		tell(b, d, "failed",
		     "%s is in use: %s. End that first; --force takes the device away all the "
		     "same, and what is not written is lost.",
		     d->bdf, text);
	return !used;
}

static bool is_free(struct binder *b, const struct pci_device *d)
{
	if (b->force)
		return true;
	if (d->class == PCI_CLASS_NVME)
		return is_unused(b, d);
	tell(b, d, "failed",
	     "%s is not an NVMe device (its class is 0x%06x), and who uses it is not known here. "
	     "--force binds it all the same.",
	     d->bdf, d->class);
	return false;
}

static bool stands_apart(struct binder *b, const struct pci_device *d)
{
	bool vfio = strncmp(b->driver, "vfio", 4) == 0;
	struct err e = { 0 };
	int rc = vfio ? pci_group_check(b->sysfs, d, b->devices, b->n, &e) : 0;

	if (rc == -EBUSY && b->force)
		fprintf(stderr, "riffle %s: warning: %s\n", b->command, e.text);
	else if (rc)
		tell(b, d, "failed", "%s", e.text);
	return rc == 0 || (rc == -EBUSY && b->force);
}

/* Those of one group are judged alike, so that it does not matter who has left before. */
static void keep_those(struct binder *b, bool (*fn)(struct binder *b, const struct pci_device *d))
{
	unsigned kept = 0;

	for (unsigned i = 0; i < b->n; i++) {
		const struct pci_device d = b->devices[i];

		if (fn(b, &d))
			b->devices[kept++] = d;
	}
	b->n = kept;
}

/* --- doing it --- */

/* Who looks at another root has another kernel's modules before him. */
static int need_driver(struct binder *b, const char *driver, struct err *e)
{
	if (!driver[0] || strcmp(driver, PCI_NO_DRIVER) == 0 ||
	    pci_driver_present(b->sysfs, driver))
		return 0;
	if (!b->dry_run && !b->root[0])
		return module_load(driver, e);
	if (!b->json)
		printf("Would load the module %s.\n", driver);
	return 0;
}

static void bind_one(struct binder *b, const struct pci_device *d)
{
	struct err e = { 0 };

	if (b->dry_run)
		tell(b, d, "would", "%s would be given to %s; %s has it now.", d->bdf, b->driver,
		     or_none(d->driver));
	else if (pci_bind(&b->place, d->bdf, b->driver, &e))
		tell(b, d, "failed", "%s", e.text);
	else
		tell(b, d, "done", "%s: %s has it now, and %s before.", d->bdf, b->driver,
		     or_none(d->driver));
}

void binder_bind(struct binder *b)
{
	struct err e = { 0 };

	keep_those(b, is_new);
	keep_those(b, is_free);
	keep_those(b, stands_apart);
	if (b->n > 0 && need_driver(b, b->driver, &e)) {
		b->status = fail(b->command, &e);
		return;
	}
	for (unsigned i = 0; i < b->n; i++)
		bind_one(b, &b->devices[i]);
}

static bool is_given_away(struct binder *b, const struct pci_device *d)
{
	if (!d->driver[0] || pci_driver_is_user(d->driver) ||
	    pci_remembers(&b->place, d->bdf, NULL))
		return true;
	tell(b, d, "already", "%s has %s already.", d->bdf, d->driver);
	return false;
}

static bool is_let_go(struct binder *b, const struct pci_device *d)
{
	return b->force || !pci_driver_is_user(d->driver) || is_unused(b, d);
}

static void unbind_one(struct binder *b, const struct pci_device *d)
{
	struct err e = { 0 };
	char past[64], now[64];
	int rc;

	pci_remembers(&b->place, d->bdf, past);
	if (!past[0] && d->class == PCI_CLASS_NVME)
		snprintf(past, sizeof(past), "nvme");
	rc = need_driver(b, past, &e);
	if (rc == 0 && b->dry_run) {
		tell(b, d, "would", "%s would be given to %s; %s has it now.", d->bdf,
		     past[0] ? past : "whom the kernel chooses", or_none(d->driver));
		return;
	}
	if (rc == 0)
		rc = pci_unbind(&b->place, d->bdf, &e);
	if (rc)
		tell(b, d, "failed", "%s", e.text);
	else
		tell(b, d, "done", "%s: %s has it back.", d->bdf,
		     sysfs_link(now, sizeof(now), "%s/bus/pci/devices/%s/driver", b->sysfs,
				d->bdf));
}

void binder_unbind(struct binder *b)
{
	keep_those(b, is_given_away);
	keep_those(b, is_let_go);
	for (unsigned i = 0; i < b->n; i++)
		unbind_one(b, &b->devices[i]);
}
