#include "util/log.h"

#include <poll.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static _Atomic enum log_level log_level = LOG_NOTE;

void log_set_level(enum log_level level)
{
	log_level = level;
}

/* Under systemd the journal adds time and level itself; the "<N>" prefix tells it the level. */
static int prefix(char *buf, size_t size, enum log_level level)
{
	static const char *const names[] = { "error: ", "warning: ", "", "debug: " };
	static const int syslog_levels[] = { 3, 4, 5, 7 };
	struct timespec now;
	struct tm tm;
	size_t n;

	if (getenv("JOURNAL_STREAM"))
		return snprintf(buf, size, "<%d>", syslog_levels[level]);
	clock_gettime(CLOCK_REALTIME, &now);
	localtime_r(&now.tv_sec, &tm);
	n = strftime(buf, size, "%H:%M:%S", &tm);
	return (int)n + snprintf(buf + n, size - n, ".%03ld riffle: %s", now.tv_nsec / 1000000,
				 names[level]);
}

/*
 * One write per line: lines of several threads do not mix. A pipe that nobody empties must not stop
 * a reactor: what it does not take at once is lost, and counted.
 */
static void write_line(const char *line, size_t len)
{
	static _Atomic unsigned lost;
	struct pollfd p = { .fd = STDERR_FILENO, .events = POLLOUT };
	unsigned missed;
	char note[64];

	if (poll(&p, 1, 0) != 1 || !(p.revents & POLLOUT)) {
		lost++;
		return;
	}
	missed = atomic_exchange(&lost, 0);
	if (missed && write(STDERR_FILENO, note,
			    (size_t)snprintf(note, sizeof(note),
					     "(%u lines of the log were lost here)\n", missed)) < 0)
		return;
	if (write(STDERR_FILENO, line, len) < 0)
		lost++;
}

void log_line(enum log_level level, const char *fmt, ...)
{
	char line[1024];
	va_list ap;
	int n, m;

	if (level > log_level)
		return;
	n = prefix(line, sizeof(line), level);
	va_start(ap, fmt);
	m = vsnprintf(line + n, sizeof(line) - (size_t)n - 1, fmt, ap);
	va_end(ap);
	n = MIN(n + m, (int)sizeof(line) - 2);
	line[n++] = '\n';
	write_line(line, (size_t)n);
}
