/*
 * Parameter tables: what a driver or a method takes, written once.
 *
 * A table is a const array that ends with a NULL name; each entry names one member of the owner's
 *args struct by offset. From it come the JSON and command-line decoding, the checks, the help texts
 *and the saved configuration.
 *
 *	struct null_args { char *name; uint64_t num_blocks; };
 *	static const struct param null_params[] = {
 *		PARAM_STRING(struct null_args, name, .required = true, .help = "name of the new
 *disk"), PARAM_UINT(struct null_args, num_blocks, .required = true, .min = 1, .help = "size in
 *blocks"), { 0 }
 *	};
 *
 * An args struct owns its strings; param_free() releases them. Control threads only.
 */
#ifndef UTIL_PARAM_H
#define UTIL_PARAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "util/err.h"
#include "util/uuid.h"

enum param_type {
	PARAM_TYPE_BOOL,    /* bool */
	PARAM_TYPE_UINT,    /* uint64_t, within [min, max]; max 0: no limit */
	PARAM_TYPE_INT,	    /* int64_t, no range */
	PARAM_TYPE_STRING,  /* char *, NULL when absent; longest .max bytes when .max is set */
	PARAM_TYPE_UUID,    /* struct uuid, null when absent */
	PARAM_TYPE_STRINGS, /* struct param_strings */
	PARAM_TYPE_RAW,	    /* void *: a JSON value that ctl hands over undecoded */
};

struct param_strings {
	char **v;
	size_t n;
};

struct param {
	const char *name;
	enum param_type type;
	size_t offset;
	bool required;
	bool positional;    /* its name may be left out in "driver:VALUE,key=value" */
	bool obsolete;	    /* accepted for the clients that send it and ignored; not saved */
	bool fixed;	    /* accepted at its default value only; not saved */
	const char *unless; /* not required when this one is given */
	const char *alias;  /* a second name that clients send */
	const char *top;    /* of a UINT: a word that stands for UINT64_MAX */
	uint64_t min, max, def;
	const char *help;
};

#define PARAM_(kind, args, member, ...)                                                      \
	{                                                                                    \
		.name = #member, .type = kind, .offset = offsetof(args, member), __VA_ARGS__ \
	}
#define PARAM_BOOL(args, member, ...)	 PARAM_(PARAM_TYPE_BOOL, args, member, __VA_ARGS__)
#define PARAM_UINT(args, member, ...)	 PARAM_(PARAM_TYPE_UINT, args, member, __VA_ARGS__)
#define PARAM_INT(args, member, ...)	 PARAM_(PARAM_TYPE_INT, args, member, __VA_ARGS__)
#define PARAM_STRING(args, member, ...)	 PARAM_(PARAM_TYPE_STRING, args, member, __VA_ARGS__)
#define PARAM_UUID(args, member, ...)	 PARAM_(PARAM_TYPE_UUID, args, member, __VA_ARGS__)
#define PARAM_STRINGS(args, member, ...) PARAM_(PARAM_TYPE_STRINGS, args, member, __VA_ARGS__)
#define PARAM_RAW(args, member, ...)	 PARAM_(PARAM_TYPE_RAW, args, member, __VA_ARGS__)

/* By name or alias; NULL when the table has no such entry. */
const struct param *param_find(const struct param *table, const char *name);

/* *args: zeroed memory of the args struct. */
void param_defaults(const struct param *table, void *args);
void param_free(const struct param *table, void *args);

/* Store one value, after its checks. Strings are copied. Errors: -EINVAL (not of this type),
 * -ERANGE (not in range), -ENOMEM. */
int param_set_uint(const struct param *p, void *args, uint64_t value, struct err *e);
int param_set_int(const struct param *p, void *args, int64_t value, struct err *e);
int param_set_bool(const struct param *p, void *args, bool value, struct err *e);
int param_set_string(const struct param *p, void *args, const char *value, struct err *e);
int param_add_string(const struct param *p, void *args, const char *value, struct err *e);

/* Store one value given as text: 42, 0x2a, 256M, true, a UUID, any string. */
int param_set_text(const struct param *p, void *args, const char *text, struct err *e);

/* -EINVAL with a sentence about the value's type, which the table expects otherwise. */
int param_wrong_type(const struct param *p, const char *given, struct err *e);

/* -EINVAL for a key that is not in the table; the sentence lists those that are. */
int param_unknown(const struct param *table, const char *key, struct err *e);

/* given: bit i is set when entry i was. -EINVAL names the first required entry that is missing. */
int param_check_required(const struct param *table, uint64_t given, struct err *e);

/* Decode "VALUE,key=value,key=value" into *args (defaults set by the caller). */
int param_parse_spec(const struct param *table, void *args, const char *spec, struct err *e);

/* One line per entry: name, type, default, help. */
void param_print_help(const struct param *table, FILE *out);

/* "a number", "true or false", ... */
const char *param_type_words(enum param_type type);

static inline void *param_at(const struct param *p, const void *args)
{
	return (char *)(uintptr_t)args + p->offset;
}

/* Parse "4096", "0x10", "256M" (K M G T P: powers of 1024; an optional iB or B follows). false: not
 * a number or too big. */
bool size_parse(const char *text, uint64_t *value);

#endif
