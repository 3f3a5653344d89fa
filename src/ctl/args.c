#include "ctl/args.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "util/log.h"

static const char *type_words(const json_t *v)
{
	switch (json_typeof(v)) {
	case JSON_OBJECT:
		return "an object";
	case JSON_ARRAY:
		return "a list";
	case JSON_STRING:
		return "a string";
	case JSON_INTEGER:
		return "a number";
	case JSON_REAL:
		return "a number with a fraction";
	case JSON_TRUE:
	case JSON_FALSE:
		return "true or false";
	case JSON_NULL:
		return "null";
	}
	return "something else";
}

static int set_strings(const struct param *p, void *args, const json_t *v, struct err *e)
{
	json_t *item;
	size_t i;
	int rc = 0;

	json_array_foreach(v, i, item)
	{
		if (!json_is_string(item))
			return param_wrong_type(p, type_words(item), e);
		rc = param_add_string(p, args, json_string_value(item), e);
		if (rc)
			break;
	}
	return rc;
}

static int set(const struct param *p, void *args, json_t *v, struct err *e)
{
	if (p->type == PARAM_TYPE_RAW) {
		*(json_t **)param_at(p, args) = v;
		return 0;
	}
	/* SPDK's own decoder takes numbers in strings for nothing, and so do we: "eight" and "8"
	 * are both strings. */
	if (json_is_integer(v))
		return param_set_int(p, args, json_integer_value(v), e);
	if (json_is_boolean(v))
		return param_set_bool(p, args, json_is_true(v), e);
	if (json_is_string(v) && strlen(json_string_value(v)) != json_string_length(v))
		return param_wrong_type(p, "a string with a NUL byte", e);
	if (json_is_string(v) &&
	    (p->type == PARAM_TYPE_STRING || p->type == PARAM_TYPE_UUID || p->top))
		return param_set_string(p, args, json_string_value(v), e);
	if (json_is_array(v) && p->type == PARAM_TYPE_STRINGS)
		return set_strings(p, args, v, e);
	return param_wrong_type(p, type_words(v), e);
}

int args_decode(const struct param *table, json_t *object, bool relaxed, void *args, struct err *e)
{
	uint64_t given = 0;
	const char *key;
	json_t *value;
	int rc = 0;

	param_defaults(table, args);
	if (object && json_is_array(object) && json_array_size(object) == 0)
		object = NULL;
	if (object && !json_is_object(object) && !json_is_null(object))
		return err_field(e, -EINVAL, "params", type_words(object), "an object",
				 "Parameters are named: params must be an object, not %s.",
				 type_words(object));
	json_object_foreach(object, key, value)
	{
		const struct param *p = param_find(table, key);

		if (!p && relaxed) {
			log_warn("parameter '%s' is not known and was skipped", key);
			continue;
		}
		if (p && json_is_null(value))
			continue;
		rc = p ? set(p, args, value, e) : param_unknown(table, key, e);
		if (rc)
			return rc;
		given |= 1ull << (p - table);
	}
	return param_check_required(table, given, e);
}

static json_t *encode_strings(const struct param_strings *s)
{
	json_t *list = json_array();

	for (size_t i = 0; i < s->n; i++)
		json_array_append_new(list, json_string(s->v[i]));
	return list;
}

static json_t *encode(const struct param *p, const void *at)
{
	const char *text;
	char uuid[UUID_TEXT];

	switch (p->type) {
	case PARAM_TYPE_BOOL:
		return json_boolean(*(const bool *)at);
	case PARAM_TYPE_UINT:
		if (p->top && *(const uint64_t *)at == UINT64_MAX)
			return json_string(p->top);
		return json_integer(*(const json_int_t *)at);
	case PARAM_TYPE_INT:
		return json_integer(*(const json_int_t *)at);
	case PARAM_TYPE_STRING:
		text = *(char *const *)at;
		return text ? json_string(text) : NULL;
	case PARAM_TYPE_UUID:
		if (uuid_is_null(at))
			return NULL;
		uuid_format(at, uuid);
		return json_string(uuid);
	case PARAM_TYPE_STRINGS:
		return encode_strings(at);
	case PARAM_TYPE_RAW:
		return NULL;
	}
	return NULL;
}

json_t *args_encode(const struct param *table, const void *args)
{
	json_t *object = json_object();

	for (const struct param *p = table; object && p->name; p++) {
		json_t *v = p->obsolete || p->fixed ? NULL : encode(p, param_at(p, args));
		bool unset = p->type == PARAM_TYPE_UINT && !p->required &&
			     *(uint64_t *)param_at(p, args) == p->def;

		/* One of two parameters that stand for each other was given. */
		if (p->unless && p->type == PARAM_TYPE_UINT && *(uint64_t *)param_at(p, args) == 0)
			unset = true;
		if (v && !unset)
			json_object_set_new(object, p->name, v);
		else
			json_decref(v);
	}
	return object;
}

/* --- the command line --- */

/* The JSON type that the table expects; without a table entry what the text looks like. */
static json_t *value_from_text(const struct param *p, const char *text)
{
	json_t *v = NULL;
	uint64_t number;

	if (p && (p->type == PARAM_TYPE_STRING || p->type == PARAM_TYPE_UUID))
		return json_string(text);
	if (p && p->type == PARAM_TYPE_UINT && size_parse(text, &number) && number <= INT64_MAX)
		return json_integer((json_int_t)number);
	if (p && p->type == PARAM_TYPE_STRINGS && text[0] != '[')
		return json_pack("[s]", text);
	v = json_loads(text, JSON_DECODE_ANY, NULL);
	return v ? v : json_string(text);
}

static int add_word(const struct param *table, const char *word, json_t *object, struct err *e)
{
	const char *equals = strchr(word, '=');
	char *key;

	if (!equals || equals == word)
		return err_set(e, -EINVAL, "'%.80s' is neither key=value nor a JSON object.", word);
	key = strndup(word, (size_t)(equals - word));
	json_object_set_new(object, key,
			    value_from_text(table ? param_find(table, key) : NULL, equals + 1));
	free(key);
	return 0;
}

int args_from_words(const struct param *table, char *const *words, int n, json_t **out,
		    struct err *e)
{
	json_t *object = json_object(), *more;
	json_error_t error;
	int rc = 0;

	for (int i = 0; rc == 0 && i < n; i++) {
		if (words[i][0] != '{') {
			rc = add_word(table, words[i], object, e);
			continue;
		}
		more = json_loads(words[i], JSON_REJECT_DUPLICATES, &error);
		if (!more)
			rc = err_set(e, -EINVAL, "Not valid JSON at column %d: %s.", error.column,
				     error.text);
		else
			json_object_update(object, more);
		json_decref(more);
	}
	if (rc)
		json_decref(object);
	else
		*out = object;
	return rc;
}
