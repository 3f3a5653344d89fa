/*
 * Configuration: the list of requests that made the present state, in SPDK's format:
 *
 *	{"subsystems": [{"subsystem": "bdev", "config": [{"method": "bdev_malloc_create", "params":
 *{...}}, ...]}, ...]}
 *
 * Saving walks the registries; loading calls the methods. Control threads.
 */
#ifndef CTL_CONFIG_H
#define CTL_CONFIG_H

#include <jansson.h>

#include "util/err.h"

/* The whole configuration, a new reference. */
json_t *config_save(void);
/* The requests of one subsystem; NULL: there is no such subsystem. */
json_t *config_of(const char *subsystem);
/* [{"subsystem": NAME, "depends_on": [...]}, ...] */
json_t *config_subsystems(void);

/*
 * Make what config describes. Subsystems and options of SPDK that riffle does not have are skipped
 * with a warning; the first request that fails ends it, and the error names its place. What was
 * made before stays.
 */
int config_load(json_t *config, struct err *e);
int config_load_file(const char *path, struct err *e);

#endif
