/*
 * The daemon's log: one line per event on stderr, levels as systemd knows them when it reads our
 * stderr. Any control thread may log; reactors only at debug level or once per broken queue.
 */
#ifndef UTIL_LOG_H
#define UTIL_LOG_H

#include "util/compiler.h"

enum log_level { LOG_SILENT = -1, LOG_ERROR, LOG_WARN, LOG_NOTE, LOG_DEBUG };

void log_set_level(enum log_level level);
void log_line(enum log_level level, const char *fmt, ...) printf_like(2, 3);

#define log_error(...) log_line(LOG_ERROR, __VA_ARGS__)
#define log_warn(...)  log_line(LOG_WARN, __VA_ARGS__)
#define log_note(...)  log_line(LOG_NOTE, __VA_ARGS__)
#define log_debug(...) log_line(LOG_DEBUG, __VA_ARGS__)

#endif
