/* A riffle daemon of our own that serves one file for one sample: a child process with its sockets
 * in a private folder. */
#ifndef CMD_COMPARE_DAEMON_H
#define CMD_COMPARE_DAEMON_H

#include <stdbool.h>
#include <sys/types.h>

#include "cmd/perf.h"
#include "util/err.h"

struct compare_daemon {
	pid_t pid;
	int log; /* what it says */
	char socket[128];
};

/* The CPU of its reactor: one that no worker has, if there is one. */
int compare_daemon_cpu(const struct perf_options *o);

/* Start it and wait until it serves. Errors: with a sentence, its own where it had one. */
int compare_daemon_start(struct compare_daemon *d, const char *folder, const char *file,
			 const struct perf_options *o, struct err *e);
void compare_daemon_stop(struct compare_daemon *d);

#endif
