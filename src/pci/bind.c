#include "pci/bind.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "util/compiler.h"

#define LOOK_MS	       5
#define APPEAR_MS_MOST 5000u /* for a driver to appear once the kernel has been asked */

/* What a device had. */
struct past {
	char driver[64], override[64]; /* "": none */
};

/* --- names --- */

bool pci_driver_is_user(const char *driver)
{
	return strncmp(driver, "vfio", 4) == 0 || strncmp(driver, "uio", 3) == 0 ||
	       strcmp(driver, "igb_uio") == 0;
}

bool pci_driver_name_ok(const char *driver)
{
	const char *c = driver;

	while (isalnum((unsigned char)*c) || *c == '-' || *c == '_')
		c++;
	return *c == '\0' && c > driver && c - driver < 64;
}

bool pci_driver_present(const char *sysfs, const char *driver)
{
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/bus/pci/drivers/%s", sysfs, driver);
	return access(path, F_OK) == 0;
}

/* --- the past --- */

static bool recall(const struct pci_place *p, const char *bdf, struct past *past)
{
	char line[160];

	memset(past, 0, sizeof(*past));
	sysfs_read(line, sizeof(line), "%s/%s", p->state, bdf);
	if (sscanf(line, "%63s %63s", past->driver, past->override) != 2 ||
	    !pci_driver_name_ok(past->driver)) {
		memset(past, 0, sizeof(*past));
		return false;
	}
	if (strcmp(past->driver, "-") == 0)
		past->driver[0] = '\0';
	if (strcmp(past->override, "-") == 0)
		past->override[0] = '\0';
	return true;
}

bool pci_remembers(const struct pci_place *p, const char *bdf, char driver[64])
{
	struct past past;
	bool known = recall(p, bdf, &past);

	if (driver)
		snprintf(driver, 64, "%s", past.driver);
	return known;
}

static int make_folders(const char *path)
{
	char part[PATH_MAX];

	for (const char *slash = path; slash; slash = strchr(slash + 1, '/')) {
		snprintf(part, sizeof(part), "%.*s", (int)(slash - path), path);
		if (part[0] && mkdir(part, 0755) < 0 && errno != EEXIST)
			return -errno;
	}
	return mkdir(path, 0755) < 0 && errno != EEXIST ? -errno : 0;
}

int pci_place_lock(const struct pci_place *p, int *fd, struct err *e)
{
	char path[PATH_MAX];
	int rc = make_folders(p->state), lock;

	snprintf(path, sizeof(path), "%s/.lock", p->state);
	lock = rc ? -1 : open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (lock < 0)
		return err_set(e, rc ? rc : -errno, "'%.150s' cannot be made: %s.", path,
			       err_words(rc ? rc : errno));
	if (flock(lock, LOCK_EX | LOCK_NB) == 0) {
		*fd = lock;
		return 0;
	}
	close(lock);
	return err_set(e, -EBUSY,
		       "Another riffle is changing drivers of devices. Try again when it is done.");
}

static int write_past(const struct pci_place *p, const char *bdf, const struct past *past)
{
	char path[PATH_MAX], fresh[PATH_MAX];
	int rc;
	FILE *file;

	rc = make_folders(p->state);
	if (rc)
		return rc;
	snprintf(path, sizeof(path), "%s/%s", p->state, bdf);
	snprintf(fresh, sizeof(fresh), "%s/.%s", p->state, bdf);
	file = fopen(fresh, "we");
	if (!file)
		return -errno;
	fprintf(file, "%s %s\n", past->driver[0] ? past->driver : "-",
		past->override[0] ? past->override : "-");
	if (fclose(file) == 0 && rename(fresh, path) == 0)
		return 0;
	rc = -errno;
	unlink(fresh);
	return rc;
}

static void forget(const struct pci_place *p, const char *bdf)
{
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/%s", p->state, bdf);
	unlink(path);
}

static void look(const struct pci_place *p, const struct pci_device *d, struct past *now)
{
	snprintf(now->driver, sizeof(now->driver), "%s", d->driver);
	sysfs_read(now->override, sizeof(now->override), "%s/bus/pci/devices/%s/driver_override",
		   p->sysfs, d->bdf);
	if (strcmp(now->override, "(null)") == 0)
		now->override[0] = '\0';
}

/* The first past counts, as long as the device has not been with a driver of the kernel since. */
static int remember(const struct pci_place *p, const struct pci_device *d, const struct past *now,
		    struct err *e)
{
	static const struct past none;
	bool kernels = d->driver[0] && !pci_driver_is_user(d->driver);
	int rc;

	if (!kernels && pci_remembers(p, d->bdf, NULL))
		return 0;
	rc = write_past(p, d->bdf, kernels ? now : &none);
	if (rc)
		err_set(e, rc,
			"The driver that %s has cannot be remembered below '%.120s': %s. "
			"Nothing was changed.",
			d->bdf, p->state, err_words(rc));
	return rc;
}

/* --- steps --- */

static char *driver_now(const struct pci_place *p, const char *bdf, char buf[64])
{
	return sysfs_link(buf, 64, "%s/bus/pci/devices/%s/driver", p->sysfs, bdf);
}

static int set_override(const struct pci_place *p, const char *bdf, const char *driver,
			struct err *e)
{
	char line[80];
	int rc;

	snprintf(line, sizeof(line), "%s\n", driver);
	rc = sysfs_write(p->patience_ms, line, "%s/bus/pci/devices/%s/driver_override", p->sysfs,
			 bdf);
	if (rc == -ETIMEDOUT)
		return err_set(e, rc,
			       "The kernel is busy with %s: its driver_override could not be "
			       "written. `dmesg` may say more.",
			       bdf);
	if (rc)
		return err_set(e, rc, "driver_override of %s cannot be written: %s.", bdf,
			       err_words(rc));
	return 0;
}

/* Is the driver the one wanted? "*": any of the kernel's; "": none. */
static bool fits(const char *driver, const char *wanted)
{
	if (strcmp(wanted, "*") == 0)
		return driver[0] && !pci_driver_is_user(driver);
	return strcmp(driver, wanted) == 0;
}

static bool becomes(const struct pci_place *p, const char *bdf, const char *wanted)
{
	unsigned patience = MIN(p->patience_ms, APPEAR_MS_MOST);
	char now[64];

	for (unsigned waited = 0; !fits(driver_now(p, bdf, now), wanted); waited += LOOK_MS) {
		if (waited >= patience)
			return false;
		usleep(LOOK_MS * 1000);
	}
	return true;
}

static int take(const struct pci_place *p, const char *bdf, struct err *e)
{
	char from[64];
	int rc;

	if (!driver_now(p, bdf, from)[0])
		return 0;
	rc = sysfs_write(p->patience_ms, bdf, "%s/bus/pci/drivers/%s/unbind", p->sysfs, from);
	if (rc == -ETIMEDOUT)
		return err_set(e, rc,
			       "%s has not let %s go within %u s: somebody uses it, or the device "
			       "does not answer. The kernel may yet finish; `dmesg` says more. "
			       "`riffle unbind %s` gives it back then.",
			       from, bdf, p->patience_ms / 1000, bdf);
	if (rc)
		return err_set(e, rc, "%s cannot be taken from %s: %s.", bdf, from, err_words(rc));
	if (!becomes(p, bdf, ""))
		return err_set(e, -EIO, "%s did not let %s go.", from, bdf);
	return 0;
}

static int offer(const struct pci_place *p, const char *bdf, const char *driver, struct err *e)
{
	bool any = strcmp(driver, "*") == 0;
	const char *name = any ? "The kernel" : driver;
	int rc;

	if (any)
		rc = sysfs_write(p->patience_ms, bdf, "%s/bus/pci/drivers_probe", p->sysfs);
	else
		rc = sysfs_write(p->patience_ms, bdf, "%s/bus/pci/drivers/%s/bind", p->sysfs,
				 driver);
	if (rc == -ETIMEDOUT)
		return err_set(e, rc,
			       "%s has been busy with taking %s for %u s, and may yet finish. "
			       "`dmesg` says more.",
			       name, bdf, p->patience_ms / 1000);
	if (rc)
		return err_set(e, rc, "%s did not take %s: %s. `dmesg` may say why.", name, bdf,
			       err_words(rc));
	if (becomes(p, bdf, driver))
		return 0;
	if (any)
		return err_set(e, -EIO, "No driver of the kernel took %s. Is its module loaded?",
			       bdf);
	return err_set(e, -EIO, "%s did not take %s. `dmesg` may say why.", name, bdf);
}

/* driver: as in fits(). */
static int give(const struct pci_place *p, const char *bdf, const char *override,
		const char *driver, struct err *e)
{
	char now[64];
	int rc = set_override(p, bdf, override, e);

	if (rc || fits(driver_now(p, bdf, now), driver))
		return rc;
	rc = take(p, bdf, e);
	if (rc || driver[0] == '\0')
		return rc;
	return offer(p, bdf, driver, e);
}

/* Adds to e, which says why, whether it worked. */
static bool give_back(const struct pci_place *p, const char *bdf, const struct past *past,
		      struct err *e)
{
	struct err why = *e, back = { 0 };

	if (give(p, bdf, past->override, past->driver, &back)) {
		err_set(e, why.code, "%s Then it could not be given back: %s", why.text, back.text);
		return false;
	}
	if (past->driver[0])
		err_set(e, why.code, "%s %s has it back.", why.text, past->driver);
	else
		err_set(e, why.code, "%s It has no driver, as before.", why.text);
	return true;
}

/* --- the way there and back --- */

int pci_bind(const struct pci_place *p, const char *bdf, const char *driver, struct err *e)
{
	const char *wanted = strcmp(driver, PCI_NO_DRIVER) == 0 ? "" : driver;
	struct pci_device d;
	struct past now, first;
	bool known;
	int rc = pci_device_read(p->sysfs, bdf, &d, e);

	if (rc)
		return rc;
	if (strcmp(d.driver, wanted) == 0)
		return 0;
	if (wanted[0] && !pci_driver_present(p->sysfs, wanted))
		return err_set(e, -ENOENT,
			       "The kernel has no PCI driver %s: its module is not loaded "
			       "(`modprobe %s`) or not built. Nothing was changed.",
			       wanted, wanted);
	look(p, &d, &now);
	known = recall(p, bdf, &first);
	rc = remember(p, &d, &now, e);
	if (rc)
		return rc;
	rc = give(p, bdf, driver, wanted, e);
	if (rc == 0 || rc == -ETIMEDOUT)
		return rc;
	if (give_back(p, bdf, &now, e) && !known)
		forget(p, bdf);
	else if (known)
		write_past(p, bdf, &first);
	return rc;
}

int pci_unbind(const struct pci_place *p, const char *bdf, struct err *e)
{
	struct pci_device d;
	struct past past;
	bool known = recall(p, bdf, &past);
	int rc = pci_device_read(p->sysfs, bdf, &d, e);

	if (rc)
		return rc;
	if (fits(d.driver, "*")) { /* somebody else has given it back */
		rc = known ? set_override(p, bdf, past.override, e) : 0;
	} else {
		if (past.driver[0] && !pci_driver_present(p->sysfs, past.driver))
			return err_set(e, -ENOENT,
				       "The kernel no longer has the driver %s, which had %s. "
				       "Load its module, or remove '%.120s/%s', and the kernel "
				       "chooses.",
				       past.driver, bdf, p->state, bdf);
		rc = give(p, bdf, past.override, past.driver[0] ? past.driver : "*", e);
	}
	if (rc == 0)
		forget(p, bdf);
	return rc;
}
