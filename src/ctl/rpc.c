#include "ctl/rpc.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ctl/args.h"
#include "ctl/drivers.h"

#define METHODS_MAX 256
#define BATCH_MAX   4096

/* --- the table --- */

static const struct rpc_method *table[METHODS_MAX + 1];
static struct rpc_method driver_methods[METHODS_MAX];

static void add_all(const struct rpc_method *list, unsigned *n)
{
	for (; list->name && *n < METHODS_MAX; list++)
		table[(*n)++] = list;
}

static void build(void)
{
	unsigned n = 0;

	add_all(core_methods, &n);
	add_all(framework_methods, &n);
	add_all(thread_methods, &n);
	add_all(config_methods, &n);
	add_all(bdev_methods, &n);
	drivers_make_methods(driver_methods, METHODS_MAX - 1);
	add_all(driver_methods, &n);
	add_all(nvme_methods, &n);
	add_all(vhost_methods, &n);
}

const struct rpc_method *const *rpc_methods(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, build);
	return table;
}

const struct rpc_method *rpc_find(const char *name)
{
	for (const struct rpc_method *const *m = rpc_methods(); *m; m++)
		if (strcmp((*m)->name, name) == 0)
			return *m;
	return NULL;
}

/* --- one call --- */

static const struct param no_params[] = { { 0 } };

int rpc_call(const struct rpc_method *m, json_t *params, json_t **result, struct err *e,
	     bool *decoded)
{
	const struct param *p = m->params ? m->params : no_params;
	void *args = calloc(1, m->args_size ? m->args_size : 1);
	int rc;

	*decoded = false;
	*result = NULL;
	if (!args)
		return err_set(e, -ENOMEM, "Out of memory.");
	rc = args_decode(p, params, m->relaxed, args, e);
	if (rc == 0) {
		*decoded = true;
		rc = m->fn(m, &args, result, e);
	} else if (rc == -ERANGE) {
		*decoded = true; /* it could be read; it is the method that does not want it */
		rc = -EINVAL;
	}
	if (args) {
		param_free(p, args);
		free(args);
	}
	if (rc) { /* half a result is none */
		json_decref(*result);
		*result = NULL;
	}
	return rc;
}

/* --- responses --- */

static json_t *respond(json_t *id, const char *key, json_t *value)
{
	json_t *r = json_pack("{s:s}", "jsonrpc", "2.0");

	json_object_set(r, "id", id ? id : json_null());
	json_object_set_new(r, key, value);
	return r;
}

/* A sentence may have been cut in the middle of a character, and a path need not be UTF-8: other
 * bytes become question marks then. */
static json_t *text(const char *s)
{
	json_t *v = json_string(s);
	char *ascii;

	if (v)
		return v;
	ascii = strdup(s);
	for (char *p = ascii; p && *p; p++)
		if ((unsigned char)*p >= 0x80)
			*p = '?';
	v = json_string(ascii ? ascii : "?");
	free(ascii);
	return v;
}

static json_t *error_object(int code, const char *message, const struct err *e)
{
	json_t *error = json_pack("{s:i}", "code", code), *data;

	json_object_set_new(error, "message", text(message));
	if (!e || !e->text[0])
		return error;
	data = json_object();
	if (e->field[0])
		json_object_set_new(data, "field", text(e->field));
	if (e->given[0])
		json_object_set_new(data, "given", text(e->given));
	if (e->allowed[0])
		json_object_set_new(data, "allowed", text(e->allowed));
	json_object_set_new(data, "hint", text(e->text));
	json_object_set_new(error, "data", data);
	return error;
}

static json_t *decode_error(const struct rpc_method *m, const struct err *e)
{
	char message[128];

	switch (m->decode_error) {
	case RPC_DECODE_REFUSED:
		snprintf(message, sizeof(message), "%s method requires no parameters", m->name);
		return error_object(RPC_INVALID_PARAMS, message, e);
	case RPC_DECODE_INVALID:
		return error_object(RPC_INVALID_PARAMS, err_words(EINVAL), e);
	case RPC_DECODE_FAILED:
		break;
	}
	return error_object(RPC_INTERNAL_ERROR, "spdk_json_decode_object failed", e);
}

json_t *rpc_parse_error(const char *detail)
{
	struct err e = { 0 };

	err_set(&e, -EINVAL, "%s", detail);
	return respond(NULL, "error", error_object(RPC_PARSE_ERROR, "Parse error", &e));
}

static json_t *invalid_request(json_t *id, const char *detail)
{
	struct err e = { 0 };

	err_set(&e, -EINVAL, "%s", detail);
	return respond(id, "error", error_object(RPC_INVALID_REQUEST, "Invalid request", &e));
}

static json_t *method_not_found(json_t *id, const char *name)
{
	struct err e = { 0 };

	err_field(&e, -ENOENT, "method", name, NULL,
		  "There is no method '%.80s'. rpc_get_methods lists them.", name);
	return respond(id, "error", error_object(RPC_METHOD_NOT_FOUND, "Method not found", &e));
}

/* --- requests --- */

static json_t *run(const struct rpc_method *m, json_t *id, json_t *params)
{
	struct err e = { 0 };
	json_t *result;
	bool decoded;
	int rc = rpc_call(m, params, &result, &e, &decoded);

	if (rc == 0)
		return respond(id, "result", result ? result : json_true());
	if (!decoded)
		return respond(id, "error", decode_error(m, &e));
	return respond(id, "error",
		       error_object(m->error_code ? m->error_code : rc, err_words(rc), &e));
}

static bool id_valid(const json_t *id)
{
	return !id || json_is_number(id) || json_is_string(id) || json_is_null(id);
}

static json_t *handle_one(json_t *request)
{
	json_t *id, *params, *response;
	const struct rpc_method *m;
	const char *name, *version;

	if (!json_is_object(request))
		return invalid_request(NULL,
				       "A request is an object with 'method', 'params' and 'id'.");
	id = json_object_get(request, "id");
	if (!id_valid(id))
		return invalid_request(NULL, "'id' must be a number, a string or null.");
	name = json_string_value(json_object_get(request, "method"));
	version = json_string_value(json_object_get(request, "jsonrpc"));
	if (!name)
		return invalid_request(id, "'method' is missing or is not a string.");
	if (json_object_get(request, "jsonrpc") && (!version || strcmp(version, "2.0") != 0))
		return invalid_request(id, "'jsonrpc' must be \"2.0\".");
	m = rpc_find(name);
	params = json_object_get(request, "params");
	response = m ? run(m, id, params) : method_not_found(id, name);
	if (!id) { /* a notification: done, and nobody wants to know */
		json_decref(response);
		return NULL;
	}
	return response;
}

static json_t *handle_batch(json_t *batch)
{
	json_t *responses = json_array(), *item;
	size_t i;

	json_array_foreach(batch, i, item)
	{
		json_t *r = handle_one(item);

		if (r)
			json_array_append_new(responses, r);
	}
	if (json_array_size(responses) == 0) {
		json_decref(responses);
		return NULL;
	}
	return responses;
}

json_t *rpc_handle(json_t *request)
{
	if (!json_is_array(request))
		return handle_one(request);
	if (json_array_size(request) == 0 || json_array_size(request) > BATCH_MAX)
		return invalid_request(NULL, "A batch has from 1 to 4096 requests.");
	return handle_batch(request);
}
