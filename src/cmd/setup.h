/*
 * setup: `riffle setup` with the verbs and environment variables that people know from SPDK's
 * script, so that what calls that one can call this one.
 */
#ifndef CMD_SETUP_H
#define CMD_SETUP_H

#include <stdbool.h>

#include "cmd/binder.h"

#define SETUP_NODES_MAX 64

/* What the environment asks for. */
struct setup_env {
	char (*allowed)[PCI_BDF_MAX]; /* PCI_ALLOWED; n_allowed < 0: all */
	char (*blocked)[PCI_BDF_MAX]; /* PCI_BLOCKED */
	int n_allowed, n_blocked;
	bool clear; /* CLEAR_HUGE=yes */
	bool pages_given;
	unsigned long size_kb; /* HUGEPGSZ, or the kernel's default */
	struct {
		int node;
		unsigned long pages;
	} want[SETUP_NODES_MAX]; /* HUGEMEM, NRHUGE, HUGENODE */
	unsigned n_want;
};

/* Errors: -EINVAL with a sentence, -ENOMEM. Sets b->driver too (DRIVER_OVERRIDE). */
int setup_env_read(struct setup_env *env, struct binder *b, struct err *e);
void setup_env_free(struct setup_env *env);
/* May the device be touched? */
bool setup_env_wants(const struct setup_env *env, const char *bdf);

/* riffle setup status */
int setup_status(const char *root, bool json, struct err *e);

#endif
