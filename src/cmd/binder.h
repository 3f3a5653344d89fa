/*
 * binder: gives NVMe devices to other drivers and back, for `riffle bind`, `unbind` and `setup`:
 * checks what it is asked, does it device by device, and tells what became of each.
 */
#ifndef CMD_BINDER_H
#define CMD_BINDER_H

#include <jansson.h>
#include <limits.h>

#include "pci/bind.h"

struct binder {
	/* Set by who uses it. */
	const char *command; /* "bind": who speaks */
	const char *root;    /* where /sys, /proc, /dev and /run are; "": the system's own */
	const char *driver;  /* to give devices to */
	unsigned timeout_s;
	bool dry_run;
	bool force;
	bool json; /* say nothing on stdout until binder_close() */
	bool pick; /* the devices were not named: those in use are left out */
	/* Its own. */
	char sysfs[PATH_MAX], state[PATH_MAX];
	struct pci_place place;
	struct pci_device *devices; /* those asked for */
	unsigned n;
	json_t *openers; /* device_openers() */
	json_t *told;	 /* one object per device */
	int lock;
	int status; /* EXIT_OK, or EXIT_ERROR when anything failed */
};

#define BINDER_INIT                                                           \
	{                                                                     \
		.driver = "vfio-pci", .root = "", .timeout_s = 20, .lock = -1 \
	}

/* May we, and are we the only one? Errors: -EPERM, -EROFS, -EBUSY, with a sentence. */
int binder_open(struct binder *b, struct err *e);
/* Prints the JSON, if wanted. Returns the exit status. */
int binder_close(struct binder *b);

/* Ask for a device, as people write its address. Errors: -EINVAL (no address), -ENODEV, -ENOMEM. */
int binder_add(struct binder *b, const char *bdf, struct err *e);
/* Ask for all NVMe devices, or for all devices, that fit. */
int binder_add_all(struct binder *b, uint32_t class,
		   bool (*fits)(const struct binder *b, const struct pci_device *d), struct err *e);

/* Give those asked for to the driver, or back to the kernel's. Their results go to status. */
void binder_bind(struct binder *b);
void binder_unbind(struct binder *b);

#endif
