#include "util/param.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

const struct param *param_find(const struct param *table, const char *name)
{
	for (const struct param *p = table; p->name; p++)
		if (strcmp(p->name, name) == 0 || (p->alias && strcmp(p->alias, name) == 0))
			return p;
	return NULL;
}

void param_defaults(const struct param *table, void *args)
{
	for (const struct param *p = table; p->name; p++) {
		void *at = param_at(p, args);

		if (p->type == PARAM_TYPE_UINT || p->type == PARAM_TYPE_INT)
			*(uint64_t *)at = p->def;
		else if (p->type == PARAM_TYPE_BOOL)
			*(bool *)at = p->def != 0;
	}
}

void param_free(const struct param *table, void *args)
{
	for (const struct param *p = table; p->name; p++) {
		void *at = param_at(p, args);

		if (p->type == PARAM_TYPE_STRING) {
			free(*(char **)at);
			*(char **)at = NULL;
		} else if (p->type == PARAM_TYPE_STRINGS) {
			struct param_strings *s = at;

			for (size_t i = 0; i < s->n; i++)
				free(s->v[i]);
			free(s->v);
			memset(s, 0, sizeof(*s));
		}
	}
}

const char *param_type_words(enum param_type type)
{
	switch (type) {
	case PARAM_TYPE_BOOL:
		return "true or false";
	case PARAM_TYPE_UINT:
		return "a whole number";
	case PARAM_TYPE_INT:
		return "a whole number, possibly negative";
	case PARAM_TYPE_STRING:
		return "a string";
	case PARAM_TYPE_UUID:
		return "a UUID";
	case PARAM_TYPE_STRINGS:
		return "a list of strings";
	case PARAM_TYPE_RAW:
		return "a JSON value";
	}
	return "";
}

static void range_words(const struct param *p, char *buf, size_t size)
{
	if (p->max)
		snprintf(buf, size, "%" PRIu64 " to %" PRIu64, p->min, p->max);
	else
		snprintf(buf, size, "%" PRIu64 " or more", p->min);
}

int param_wrong_type(const struct param *p, const char *given, struct err *e)
{
	char wanted[64];

	snprintf(wanted, sizeof(wanted), "%s%s%s", param_type_words(p->type), p->top ? " or " : "",
		 p->top ? p->top : "");
	return err_field(e, -EINVAL, p->name, given, wanted,
			 "Parameter '%.80s' must be %s, not %s.", p->name, wanted, given);
}

static int not_fixed(const struct param *p, int64_t value, struct err *e)
{
	char given[32], allowed[32];

	snprintf(given, sizeof(given), "%" PRId64, value);
	snprintf(allowed, sizeof(allowed), "%" PRId64, (int64_t)p->def);
	return err_field(e, -ERANGE, p->name, given, allowed,
			 "Parameter '%.80s' is supported only with the value %s.", p->name,
			 allowed);
}

int param_set_uint(const struct param *p, void *args, uint64_t value, struct err *e)
{
	char given[32], allowed[64];

	if (p->type == PARAM_TYPE_INT && value <= INT64_MAX)
		return param_set_int(p, args, (int64_t)value, e);
	snprintf(given, sizeof(given), "%" PRIu64, value);
	if (p->type != PARAM_TYPE_UINT)
		return param_wrong_type(p, given, e);
	if (p->fixed && value != p->def)
		return not_fixed(p, (int64_t)value, e);
	if (value < p->min || (p->max && value > p->max)) {
		/* What a client would read into 32 bits cannot be read, rather than is not wanted.
		 */
		int code = p->max && p->max <= UINT32_MAX && value > UINT32_MAX ? -EINVAL : -ERANGE;

		range_words(p, allowed, sizeof(allowed));
		return err_field(e, code, p->name, given, allowed,
				 "Parameter '%.80s' must be %s, not %s.", p->name, allowed, given);
	}
	*(uint64_t *)param_at(p, args) = value;
	return 0;
}

int param_set_int(const struct param *p, void *args, int64_t value, struct err *e)
{
	char given[32];

	if (p->type == PARAM_TYPE_INT) {
		if (p->fixed && value != (int64_t)p->def)
			return not_fixed(p, value, e);
		*(int64_t *)param_at(p, args) = value;
		return 0;
	}
	if (value >= 0)
		return param_set_uint(p, args, (uint64_t)value, e);
	snprintf(given, sizeof(given), "%" PRId64, value);
	return param_wrong_type(p, given, e);
}

int param_set_bool(const struct param *p, void *args, bool value, struct err *e)
{
	if (p->type != PARAM_TYPE_BOOL)
		return param_wrong_type(p, value ? "true" : "false", e);
	if (p->fixed && value != !!p->def)
		return not_fixed(p, value, e);
	*(bool *)param_at(p, args) = value;
	return 0;
}

int param_set_string(const struct param *p, void *args, const char *value, struct err *e)
{
	char *dup;

	if (p->type == PARAM_TYPE_UUID) {
		if (!uuid_parse(value, param_at(p, args)))
			return err_field(e, -EINVAL, p->name, value,
					 "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx",
					 "Parameter '%.80s' is not a UUID.", p->name);
		return 0;
	}
	if (p->top && strcmp(value, p->top) == 0) {
		*(uint64_t *)param_at(p, args) = UINT64_MAX;
		return 0;
	}
	if (p->type != PARAM_TYPE_STRING)
		return param_wrong_type(p, value, e);
	if (p->max && strlen(value) > p->max)
		return err_field(e, -ERANGE, p->name, value, NULL,
				 "Parameter '%.80s' may have at most %" PRIu64
				 " bytes, this one has %zu.",
				 p->name, p->max, strlen(value));
	if (strlen(value) < p->min)
		return err_field(e, -ERANGE, p->name, value, NULL,
				 "Parameter '%.80s' may not be empty.", p->name);
	dup = strdup(value);
	if (!dup)
		return err_set(e, -ENOMEM, "Out of memory.");
	free(*(char **)param_at(p, args));
	*(char **)param_at(p, args) = dup;
	return 0;
}

int param_add_string(const struct param *p, void *args, const char *value, struct err *e)
{
	struct param_strings *s = param_at(p, args);
	char **v = realloc(s->v, (s->n + 1) * sizeof(*v));

	if (v)
		s->v = v;
	if (!v || !(v[s->n] = strdup(value)))
		return err_set(e, -ENOMEM, "Out of memory.");
	s->n++;
	return 0;
}

bool size_parse(const char *text, uint64_t *value)
{
	static const char units[] = "KMGTP";
	const char *unit;
	uint64_t v;
	char *end;

	if (!isdigit((unsigned char)text[0]))
		return false;
	errno = 0;
	v = strtoull(text, &end, strncasecmp(text, "0x", 2) == 0 ? 16 : 10);
	if (errno)
		return false;
	unit = *end ? strchr(units, toupper((unsigned char)*end)) : NULL;
	if (unit) {
		unsigned shift = (unsigned)(unit - units + 1) * 10;

		if (v > UINT64_MAX >> shift)
			return false;
		v <<= shift;
		end++;
		if (strcmp(end, "iB") == 0)
			end += 2;
		else if (strcmp(end, "B") == 0)
			end += 1;
	}
	if (*end)
		return false;
	*value = v;
	return true;
}

static int set_bool_text(const struct param *p, void *args, const char *text, struct err *e)
{
	static const char *const yes[] = { "true", "yes", "on", "1" };
	static const char *const no[] = { "false", "no", "off", "0" };

	for (size_t i = 0; i < ARRAY_SIZE(yes); i++) {
		if (strcasecmp(text, yes[i]) == 0)
			return param_set_bool(p, args, true, e);
		if (strcasecmp(text, no[i]) == 0)
			return param_set_bool(p, args, false, e);
	}
	return param_wrong_type(p, text, e);
}

int param_set_text(const struct param *p, void *args, const char *text, struct err *e)
{
	uint64_t number;
	char *end;
	long long i;

	switch (p->type) {
	case PARAM_TYPE_BOOL:
		return set_bool_text(p, args, text, e);
	case PARAM_TYPE_UINT:
		if (!size_parse(text, &number))
			return param_set_string(p, args, text, e);
		return param_set_uint(p, args, number, e);
	case PARAM_TYPE_INT:
		errno = 0;
		i = strtoll(text, &end, 0);
		if (errno || end == text || *end)
			return param_wrong_type(p, text, e);
		return param_set_int(p, args, i, e);
	case PARAM_TYPE_STRINGS:
		return param_add_string(p, args, text, e);
	case PARAM_TYPE_STRING:
	case PARAM_TYPE_UUID:
		return param_set_string(p, args, text, e);
	case PARAM_TYPE_RAW:
		break;
	}
	return param_wrong_type(p, text, e);
}

int param_unknown(const struct param *table, const char *key, struct err *e)
{
	char allowed[ERR_TEXT_MAX] = "";
	size_t n = 0;

	for (const struct param *p = table; p->name && n < sizeof(allowed); p++)
		if (!p->obsolete && !p->fixed)
			n += (size_t)snprintf(allowed + n, sizeof(allowed) - n, "%s%s",
					      n ? ", " : "", p->name);
	return err_field(e, -EINVAL, key, NULL, n ? allowed : "no parameters",
			 "There is no parameter '%.60s' here. Known: %.200s.", key,
			 n ? allowed : "none");
}

int param_check_required(const struct param *table, uint64_t given, struct err *e)
{
	for (const struct param *p = table; p->name; p++) {
		const struct param *other = p->unless ? param_find(table, p->unless) : NULL;

		if (!p->required || given & 1ull << (p - table))
			continue;
		if (other && given & 1ull << (other - table))
			continue;
		return err_field(e, -EINVAL, p->name, NULL, param_type_words(p->type),
				 "Parameter '%.80s' (%s) is missing%s%s%s: %s.", p->name,
				 param_type_words(p->type), other ? " (or '" : "",
				 other ? other->name : "", other ? "')" : "", p->help);
	}
	return 0;
}

static const struct param *positional(const struct param *table)
{
	for (const struct param *p = table; p->name; p++)
		if (p->positional)
			return p;
	return NULL;
}

/* word: "key=value" or, for the first word, just a value. */
static int parse_word(const struct param *table, void *args, char *word, bool first, struct err *e)
{
	char *equals = strchr(word, '=');
	const struct param *p = NULL;

	if (equals) {
		*equals = '\0';
		p = param_find(table, word);
		if (p)
			return param_set_text(p, args, equals + 1, e);
		*equals = '=';
	}
	if (first)
		p = positional(table);
	if (p)
		return param_set_text(p, args, word, e);
	if (equals)
		*equals = '\0';
	return param_unknown(table, word, e);
}

int param_parse_spec(const struct param *table, void *args, const char *spec, struct err *e)
{
	char *copy = strdup(spec), *rest = copy, *word;
	int rc = copy ? 0 : err_set(e, -ENOMEM, "Out of memory.");

	for (bool first = true; rc == 0 && (word = strsep(&rest, ",")); first = false)
		if (*word)
			rc = parse_word(table, args, word, first, e);
	free(copy);
	return rc;
}

void param_print_help(const struct param *table, FILE *out)
{
	for (const struct param *p = table; p->name; p++) {
		if (p->obsolete || p->fixed)
			continue;
		fprintf(out, "  %-22s %s", p->name, p->help ? p->help : param_type_words(p->type));
		if (p->required)
			fprintf(out, "%s%s%s", p->unless ? " (required unless " : " (required",
				p->unless ? p->unless : "", p->unless ? " is given)" : ")");
		else if (p->type == PARAM_TYPE_UINT && p->def && (!p->max || p->def <= p->max))
			fprintf(out, " (default %" PRIu64 ")", p->def);
		fputc('\n', out);
	}
}
