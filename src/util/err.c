#include "util/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void printf_like(3, 0) set_text(struct err *e, int code, const char *fmt, va_list ap)
{
	memset(e, 0, sizeof(*e));
	e->code = code;
	vsnprintf(e->text, sizeof(e->text), fmt, ap);
}

int err_set(struct err *e, int code, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	if (e)
		set_text(e, code, fmt, ap);
	va_end(ap);
	return code;
}

int err_field(struct err *e, int code, const char *field, const char *given, const char *allowed,
	      const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	if (e)
		set_text(e, code, fmt, ap);
	va_end(ap);
	if (!e)
		return code;
	snprintf(e->field, sizeof(e->field), "%s", field);
	snprintf(e->given, sizeof(e->given), "%s", given ? given : "");
	snprintf(e->allowed, sizeof(e->allowed), "%s", allowed ? allowed : "");
	return code;
}

const char *err_words(int code)
{
	/* glibc keeps these strings for good; the buffer form of strerror_r is not needed. */
	const char *words = strerrordesc_np(abs(code));

	return words ? words : "Unknown error";
}
