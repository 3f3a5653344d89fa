/* Between JSON objects and args structs, by parameter table (util/param.h). */
#ifndef CTL_ARGS_H
#define CTL_ARGS_H

#include <jansson.h>

#include "util/param.h"

/*
 * Decode object (NULL or JSON null: no parameters) into *args: defaults, then each key, then what
 * is missing. relaxed: unknown keys are skipped with a warning. Errors: -EINVAL with a sentence and
 * the field. *args is to be freed with param_free() either way.
 */
int args_decode(const struct param *table, json_t *object, bool relaxed, void *args, struct err *e);

/* The object that would be decoded into *args; what is absent or obsolete is left out. NULL: out of
 * memory. */
json_t *args_encode(const struct param *table, const void *args);

/* Decode `key=value` words and JSON objects from a command line into one object; -EINVAL with a
 * sentence. */
int args_from_words(const struct param *table, char *const *words, int n, json_t **out,
		    struct err *e);

#endif
