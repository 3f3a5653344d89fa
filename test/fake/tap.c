#include "fake/tap.h"

#include <stdarg.h>
#include <stdio.h>

static unsigned tap_count, tap_failed;

void tap_result(bool ok, const char *name)
{
	tap_count++;
	if (!ok)
		tap_failed++;
	printf("%s %u - %s\n", ok ? "ok" : "not ok", tap_count, name);
	fflush(stdout);
}

void tap_skip(const char *name, const char *reason)
{
	printf("ok %u - %s # SKIP %s\n", ++tap_count, name, reason);
	fflush(stdout);
}

void tap_diag(const char *fmt, ...)
{
	va_list ap;

	printf("# ");
	va_start(ap, fmt);
	vprintf(fmt, ap);
	va_end(ap);
	printf("\n");
	fflush(stdout);
}

int tap_done(void)
{
	printf("1..%u\n", tap_count);
	if (tap_failed)
		tap_diag("%u of %u failed", tap_failed, tap_count);
	fflush(stdout);
	return tap_failed ? 1 : 0;
}
