#include "ctl/config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/list.h"
#include "bdev/registry.h"
#include "ctl/args.h"
#include "ctl/drivers.h"
#include "ctl/rpc.h"
#include "export/list.h"
#include "util/log.h"

/* --- saving --- */

static void add_request(json_t *list, const char *method, const struct param *params,
			const void *args)
{
	json_array_append_new(list, json_pack("{s:s, s:o}", "method", method, "params",
					      args_encode(params, args)));
}

static int add_nvme(const struct nvme_info *i, void *list)
{
	add_request(list, "bdev_nvme_attach_controller", nvme_attach_params, i->args);
	return 0;
}

/* Those of NVMe come with their controllers. */
static int add_bdev(struct bdev *b, void *list)
{
	if (b->driver == &nvme_driver)
		return 0;
	add_request(list, driver_create_method(b->driver), b->driver->params, b->args);
	return 0;
}

static int add_controller(const struct vhost_blk_info *i, void *list)
{
	add_request(list, "vhost_create_blk_controller", vhost_blk_params, i->args);
	return 0;
}

static void save_bdevs(json_t *list)
{
	nvme_for_each(NULL, add_nvme, list, NULL);
	bdev_for_each(add_bdev, list);
}

static void save_controllers(json_t *list)
{
	vhost_blk_for_each(add_controller, list);
}

/* In the order in which they are to be made again. */
static const struct subsystem {
	const char *name, *depends_on;
	void (*save)(json_t *list);
} subsystems[] = {
	{ "bdev", NULL, save_bdevs },
	{ "vhost_blk", "bdev", save_controllers },
};

static const struct subsystem *find(const char *name)
{
	for (size_t i = 0; i < ARRAY_SIZE(subsystems); i++)
		if (strcmp(subsystems[i].name, name) == 0)
			return &subsystems[i];
	return NULL;
}

json_t *config_of(const char *name)
{
	const struct subsystem *s = find(name);
	json_t *list;

	if (!s)
		return NULL;
	list = json_array();
	s->save(list);
	return list;
}

json_t *config_save(void)
{
	json_t *all = json_array();

	for (size_t i = 0; i < ARRAY_SIZE(subsystems); i++)
		json_array_append_new(all, json_pack("{s:s, s:o}", "subsystem", subsystems[i].name,
						     "config", config_of(subsystems[i].name)));
	return json_pack("{s:o}", "subsystems", all);
}

json_t *config_subsystems(void)
{
	json_t *all = json_array();

	for (size_t i = 0; i < ARRAY_SIZE(subsystems); i++) {
		json_t *o = json_pack("{s:s, s:[]}", "subsystem", subsystems[i].name, "depends_on");

		if (subsystems[i].depends_on)
			json_array_append_new(json_object_get(o, "depends_on"),
					      json_string(subsystems[i].depends_on));
		json_array_append_new(all, o);
	}
	return all;
}

/* --- loading --- */

/* Methods that make something others may need must not be skipped; options of SPDK may. */
static bool makes_something(const char *method)
{
	return strstr(method, "_create") || strstr(method, "_attach") ||
	       strstr(method, "_construct") || strstr(method, "_add_") ||
	       strstr(method, "_register");
}

static int load_request(json_t *request, const char *place, struct err *e)
{
	const char *name = json_string_value(json_object_get(request, "method"));
	const struct rpc_method *m = name ? rpc_find(name) : NULL;
	struct err inner = { 0 };
	json_t *result = NULL;
	bool decoded;
	int rc;

	if (!name)
		return err_set(e, -EINVAL, "%s has no \"method\".", place);
	if (!m && makes_something(name))
		return err_set(e, -ENOSYS, "%s: there is no method '%.60s' here.", place, name);
	if (!m) {
		log_warn("%s: option '%s' is not known here and was skipped", place, name);
		return 0;
	}
	rc = rpc_call(m, json_object_get(request, "params"), &result, &inner, &decoded);
	json_decref(result);
	return rc ? err_set(e, rc, "%s (%s): %s", place, name, inner.text) : 0;
}

static int load_subsystem(json_t *s, size_t index, struct err *e)
{
	const char *name = json_string_value(json_object_get(s, "subsystem"));
	json_t *config = json_object_get(s, "config"), *request;
	char place[96];
	size_t i;
	int rc = 0;

	if (!name)
		return err_set(e, -EINVAL, "subsystems[%zu] has no \"subsystem\" with its name.",
			       index);
	if (!find(name)) {
		log_warn("subsystems[%zu]: '%s' is not known here and was skipped", index, name);
		return 0;
	}
	if (config && !json_is_null(config) && !json_is_array(config))
		return err_set(e, -EINVAL, "subsystems[%zu].config must be a list of requests.",
			       index);
	json_array_foreach(config, i, request)
	{
		snprintf(place, sizeof(place), "subsystems[%zu].config[%zu]", index, i);
		rc = load_request(request, place, e);
		if (rc)
			break;
	}
	return rc;
}

int config_load(json_t *config, struct err *e)
{
	json_t *list = json_object_get(config, "subsystems"), *s;
	size_t i;
	int rc = 0;

	if (!json_is_object(config))
		return err_set(e, -EINVAL, "A configuration is an object with \"subsystems\".");
	if (!json_is_array(list))
		return err_set(e, -EINVAL, "\"subsystems\" must be a list.");
	json_array_foreach(list, i, s)
	{
		rc = load_subsystem(s, i, e);
		if (rc)
			break;
	}
	return rc;
}

int config_load_file(const char *path, struct err *e)
{
	json_error_t error;
	json_t *config = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
	struct err inner = { 0 };
	int rc;

	if (!config && error.line < 0)
		return err_set(e, -ENOENT, "The configuration cannot be read: %.150s.", error.text);
	if (!config)
		return err_set(e, -EINVAL, "%.150s: line %d, column %d: %.120s.", path, error.line,
			       error.column, error.text);
	rc = config_load(config, &inner);
	json_decref(config);
	return rc ? err_set(e, rc, "%.150s: %s", path, inner.text) : 0;
}
