/* Methods that list bdevs and what they have done. The words are SPDK's. */
#include <errno.h>
#include <string.h>

#include "bdev/registry.h"
#include "ctl/args.h"
#include "ctl/nvme_json.h"
#include "ctl/rpc.h"
#include "util/ticks.h"

/* --- bdev_get_bdevs --- */

struct get_args {
	char *name;
	uint64_t timeout;
};

static const struct param get_params[] = { PARAM_STRING(struct get_args, name, .min = 1,
							.help = "only this one"),
					   PARAM_UINT(struct get_args, timeout, .obsolete = true),
					   { 0 } };

static json_t *io_types(const struct bdev *b)
{
	static const char *const never[] = { "nvme_admin",  "nvme_io",	     "nvme_io_md",
					     "zcopy",	    "get_zone_info", "zone_management",
					     "zone_append", "compare",	     "compare_and_write",
					     "abort",	    "seek_hole",     "seek_data",
					     "copy",	    "nvme_iov_md" };
	json_t *types =
		json_pack("{s:b, s:b, s:b, s:b, s:b, s:b}", "read", 1, "write",
			  bdev_can(b, BDEV_WRITE), "unmap", bdev_can(b, BDEV_DISCARD), "flush", 1,
			  "reset", 0, "write_zeroes", bdev_can(b, BDEV_WRITE_ZEROES));

	for (size_t i = 0; i < ARRAY_SIZE(never); i++)
		json_object_set_new(types, never[i], json_false());
	return types;
}

/* Parameters that say what the disk is made of; what every disk has is said elsewhere. */
static json_t *driver_specific(const struct bdev *b)
{
	json_t *args, *object;
	static const char *const common[] = {
		"name", "uuid", "num_blocks", "block_size", "physical_block_size", "size"
	};

	if (b->driver == &nvme_driver)
		return nvme_json_bdev(b);
	args = args_encode(b->driver->params, b->args);
	object = json_object();
	for (size_t i = 0; i < ARRAY_SIZE(common); i++)
		json_object_del(args, common[i]);
	if (json_object_size(args))
		json_object_set(object, b->driver->name, args);
	json_decref(args);
	return object;
}

static json_t *describe(const struct bdev *b)
{
	char uuid[UUID_TEXT];
	json_t *o;

	uuid_format(&b->uuid, uuid);
	o = json_pack(
		"{s:s, s:[s], s:s, s:I, s:I, s:s, s:i, s:{s:i, s:i, s:i, s:i}, s:b, s:b, s:o, s:o}",
		"name", b->name, "aliases", uuid, "product_name", b->driver->product_name,
		"block_size", (json_int_t)b->block_size, "num_blocks",
		(json_int_t)(b->size / b->block_size), "uuid", uuid, "numa_id", -1,
		"assigned_rate_limits", "rw_ios_per_sec", 0, "rw_mbytes_per_sec", 0,
		"r_mbytes_per_sec", 0, "w_mbytes_per_sec", 0, "claimed", b->users > 0, "zoned", 0,
		"supported_io_types", io_types(b), "driver_specific", driver_specific(b));
	if (b->users)
		json_object_set_new(o, "claim_type", json_string("exclusive_write"));
	if (b->page_cache)
		json_object_set_new(o, "page_cache", json_true());
	if (b->physical_block_size != b->block_size)
		json_object_set_new(o, "physical_block_size", json_integer(b->physical_block_size));
	return o;
}

struct listing {
	json_t *list;
	const char *const *names;
	size_t n; /* 0: all */
};

static bool names(const char *name, const struct bdev *b)
{
	struct uuid uuid;

	return strcmp(name, b->name) == 0 ||
	       (uuid_parse(name, &uuid) && memcmp(&uuid, &b->uuid, sizeof(uuid)) == 0);
}

static bool wanted(const struct listing *l, const struct bdev *b)
{
	for (size_t i = 0; i < l->n; i++)
		if (names(l->names[i], b))
			return true;
	return l->n == 0;
}

static int list_one(struct bdev *b, void *arg)
{
	struct listing *l = arg;

	if (wanted(l, b))
		json_array_append_new(l->list, describe(b));
	return 0;
}

static int is_named(struct bdev *b, void *name)
{
	return names(name, b);
}

/* Every name must be one. */
static int check_names(const struct listing *l, struct err *e)
{
	for (size_t i = 0; i < l->n; i++)
		if (!bdev_for_each(is_named, (void *)(uintptr_t)l->names[i]))
			return err_field(
				e, -ENODEV, "name", l->names[i], NULL,
				"There is no bdev named '%.80s'. bdev_get_bdevs lists them.",
				l->names[i]);
	return 0;
}

static int get_bdevs(const struct rpc_method *m, void **args, json_t **result, struct err *e)
{
	struct get_args *a = *args;
	struct listing l = { .names = (const char *const *)&a->name, .n = a->name != NULL };
	int rc = check_names(&l, e);

	(void)m;
	if (rc)
		return rc;
	*result = l.list = json_array();
	bdev_for_each(list_one, &l);
	return 0;
}

/* --- bdev_get_iostat --- */

struct iostat_args {
	struct param_strings names;
	char *name, *reset_mode;
	bool per_channel;
};

static const struct param iostat_params[] = {
	PARAM_STRINGS(struct iostat_args, names, .help = "only these"),
	PARAM_STRING(struct iostat_args, name, .help = "only this one"),
	PARAM_BOOL(struct iostat_args, per_channel,
		   .help = "one entry per open queue; needs one name"),
	PARAM_STRING(struct iostat_args, reset_mode, .help = "none: counters are never reset"),
	{ 0 }
};

static void put(json_t *o, const char *key, uint64_t value)
{
	json_object_set_new(o, key, json_integer((json_int_t)value));
}

static void put_latency(json_t *o, const char *what, const struct bdev_op_stats *s)
{
	char key[64];

	snprintf(key, sizeof(key), "%s_latency_ticks", what);
	put(o, key, s->ticks);
	snprintf(key, sizeof(key), "max_%s_latency_ticks", what);
	put(o, key, s->max_ticks);
	snprintf(key, sizeof(key), "min_%s_latency_ticks", what);
	put(o, key, s->ops ? s->min_ticks : 0);
}

static void put_stats(json_t *o, const struct bdev_stats *s)
{
	static const struct bdev_op_stats nothing;
	uint64_t errors = 0;

	put(o, "bytes_read", s->op[BDEV_READ].bytes);
	put(o, "num_read_ops", s->op[BDEV_READ].ops);
	put(o, "bytes_written", s->op[BDEV_WRITE].bytes);
	put(o, "num_write_ops", s->op[BDEV_WRITE].ops);
	put(o, "bytes_unmapped", s->op[BDEV_DISCARD].bytes);
	put(o, "num_unmap_ops", s->op[BDEV_DISCARD].ops);
	put(o, "bytes_copied", 0);
	put(o, "num_copy_ops", 0);
	put(o, "num_flush_ops", s->op[BDEV_FLUSH].ops);
	put(o, "num_write_zeroes_ops", s->op[BDEV_WRITE_ZEROES].ops);
	put_latency(o, "read", &s->op[BDEV_READ]);
	put_latency(o, "write", &s->op[BDEV_WRITE]);
	put_latency(o, "unmap", &s->op[BDEV_DISCARD]);
	put_latency(o, "copy", &nothing);
	for (int i = 0; i < BDEV_OPS; i++)
		errors += s->op[i].errors;
	json_object_set_new(o, "io_error", json_object());
	if (errors)
		put(json_object_get(o, "io_error"), "failed", errors);
}

static int stat_one(struct bdev *b, void *arg)
{
	struct listing *l = arg;
	struct bdev_stats s;
	json_t *o;

	if (!wanted(l, b))
		return 0;
	bdev_get_stats(b, &s);
	o = json_pack("{s:s}", "name", b->name);
	put_stats(o, &s);
	json_array_append_new(l->list, o);
	return 0;
}

static int channels_of(struct bdev *b, void *arg)
{
	struct listing *l = arg;
	struct bdev_queue *q;

	if (!wanted(l, b))
		return 0;
	list_for_each (q, &b->queues, node) {
		json_t *o = json_pack("{s:i}", "thread_id", reactor_index(q->reactor) + 1);

		put_stats(o, &q->stats);
		json_array_append_new(l->list, o);
	}
	return 0;
}

static int get_channels(struct listing *l, json_t **result, struct err *e)
{
	struct bdev *b;
	int rc;

	if (l->n != 1)
		return err_field(e, -EINVAL, "per_channel", "true", NULL,
				 "per_channel needs exactly one name.");
	rc = bdev_get(l->names[0], &b, e);
	if (rc)
		return rc;
	l->list = json_array();
	bdev_for_each(channels_of, l);
	*result = json_pack("{s:I, s:I, s:s, s:o}", "tick_rate", (json_int_t)ticks_hz(), "ticks",
			    (json_int_t)ticks(), "name", b->name, "channels", l->list);
	bdev_put(b);
	return 0;
}

static int get_iostat(const struct rpc_method *m, void **args, json_t **result, struct err *e)
{
	struct iostat_args *a = *args;
	struct listing l = { .names = (const char *const *)a->names.v, .n = a->names.n };
	int rc;

	(void)m;
	if (a->reset_mode && strcmp(a->reset_mode, "none") != 0)
		return err_field(
			e, -EINVAL, "reset_mode", a->reset_mode, "none",
			"Counters are not reset here: take the difference of two readings.");
	if (a->name && l.n == 0) {
		l.names = (const char *const *)&a->name;
		l.n = 1;
	}
	if (a->per_channel)
		return get_channels(&l, result, e);
	rc = check_names(&l, e);
	if (rc)
		return rc;
	l.list = json_array();
	bdev_for_each(stat_one, &l);
	*result = json_pack("{s:I, s:I, s:o}", "tick_rate", (json_int_t)ticks_hz(), "ticks",
			    (json_int_t)ticks(), "bdevs", l.list);
	return 0;
}

/* --- bdev_null_resize --- */

struct resize_args {
	char *name;
	uint64_t new_size;
};

static const struct param resize_params[] = {
	PARAM_STRING(struct resize_args, name, .required = true, .min = 1, .help = "the disk"),
	PARAM_UINT(struct resize_args, new_size, .required = true, .min = 1,
		   .max = UINT64_C(1) << 42, .help = "in MiB"),
	{ 0 }
};

/* What is saved is what it is now. */
static void keep_size(struct bdev *b)
{
	const struct param *params = b->driver->params;

	registry_lock();
	*(uint64_t *)param_at(param_find(params, "num_blocks"), b->args) = b->size / b->block_size;
	*(uint64_t *)param_at(param_find(params, "size"), b->args) = 0;
	registry_unlock();
}

static int null_resize(const struct rpc_method *m, void **args, json_t **result, struct err *e)
{
	struct resize_args *a = *args;
	struct bdev *b;
	int rc = bdev_get(a->name, &b, e);

	(void)m;
	(void)result;
	if (rc)
		return rc;
	if (b->driver == &null_driver) {
		bdev_resize(b, a->new_size << 20);
		keep_size(b);
	} else {
		rc = err_field(e, -EINVAL, "name", a->name, NULL,
			       "'%.80s' is no null disk: its driver is %s.", a->name,
			       b->driver->name);
	}
	bdev_put(b);
	return rc;
}

const struct rpc_method bdev_methods[] = { { .name = "bdev_get_bdevs",
					     .help = "all bdevs, or one",
					     .params = get_params,
					     .args_size = sizeof(struct get_args),
					     .fn = get_bdevs },
					   { .name = "bdev_get_iostat",
					     .help = "what bdevs have done",
					     .params = iostat_params,
					     .args_size = sizeof(struct iostat_args),
					     .fn = get_iostat },
					   { .name = "bdev_null_resize",
					     .help = "change the size of a null disk",
					     .params = resize_params,
					     .args_size = sizeof(struct resize_args),
					     .fn = null_resize },
					   { 0 } };
