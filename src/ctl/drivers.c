#include "ctl/drivers.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/list.h"
#include "bdev/registry.h"
#include "filter/list.h"

const struct bdev_driver *const drivers[] = { BACKEND_LIST, FILTER_LIST, NULL };

struct delete_args {
	char *name;
};

static const struct param delete_params[] = { PARAM_STRING(struct delete_args, name,
							   .required = true, .min = 1,
							   .help = "the disk to delete"),
					      { 0 } };

const struct bdev_driver *driver_find(const char *name)
{
	for (const struct bdev_driver *const *d = drivers; *d; d++)
		if (strcmp((*d)->name, name) == 0)
			return *d;
	return NULL;
}

static int driver_create(const struct rpc_method *m, void **args, json_t **result, struct err *e)
{
	const struct bdev_driver *d = m->context;
	char *name = NULL;
	int rc = bdev_create(d, *args, &name, e);

	*args = NULL;
	if (rc == 0)
		*result = d->lists_names ? json_pack("[s]", name) : json_string(name);
	free(name);
	return rc;
}

static int driver_delete(const struct rpc_method *m, void **args, json_t **result, struct err *e)
{
	struct delete_args *a = *args;

	(void)result;
	return bdev_delete(m->context, a->name, e);
}

/* Once per driver and process. */
static const char *method_name(const struct bdev_driver *d, const char *verb)
{
	char *name;

	return asprintf(&name, "bdev_%s_%s", d->name, verb) < 0 ? NULL : name;
}

const char *driver_create_method(const struct bdev_driver *d)
{
	for (const struct rpc_method *const *m = rpc_methods(); *m; m++)
		if ((*m)->fn == driver_create && (*m)->context == d)
			return (*m)->name;
	return NULL;
}

void drivers_make_methods(struct rpc_method *out, unsigned max)
{
	unsigned n = 0;

	for (const struct bdev_driver *const *d = drivers; *d && n + 2 < max; d++) {
		out[n++] = (struct rpc_method){
			.name = (*d)->create_method ? (*d)->create_method
						    : method_name(*d, "create"),
			.help = (*d)->help,
			.params = (*d)->params,
			.args_size = (*d)->args_size,
			.fn = driver_create,
			.context = *d,
		};
		out[n++] = (struct rpc_method){
			.name = (*d)->delete_method ? (*d)->delete_method
						    : method_name(*d, "delete"),
			.help = "delete such a disk",
			.params = delete_params,
			.args_size = sizeof(struct delete_args),
			.fn = driver_delete,
			.context = *d,
		};
	}
	out[n].name = NULL;
}
