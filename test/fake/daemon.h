/*
 * A riffle daemon for a test: started in a private directory, configured through `riffle rpc`,
 * watched through /proc, stopped with SIGTERM. It dies with the test program.
 */
#ifndef FAKE_DAEMON_H
#define FAKE_DAEMON_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct daemon {
	pid_t pid; /* 0: none */
	char exe[512];
	char dir[128];	  /* holds rpc.sock, vhost/, log */
	char reply[2048]; /* what the last daemon_rpc() printed */
};

/* argv[1], or $RIFFLE, or build/riffle. */
const char *daemon_exe(int argc, char **argv);

/* $RIFFLE_LONG is set to something other than 0. */
bool daemon_long_run(void);

/*
 * Starts `riffle serve -m @cpumask`; returns when its RPC socket accepts. @env: NULL, or
 * "NAME=value" strings that end with NULL, added to its environment. 0 or -errno.
 */
int daemon_start(struct daemon *d, const char *exe, const char *cpumask, char *const env[]);

/* `riffle rpc METHOD key=value...`, ended by NULL. 0, or the exit status, or -errno. */
int daemon_rpc(struct daemon *d, const char *method, ...) __attribute__((sentinel));

/*
 * SIGTERM, then its exit status; 128 + N: killed by signal N. Shows the log if that is not 0, and
 * removes the directory.
 */
int daemon_stop(struct daemon *d);

/* SIGKILL; its directory goes as well. */
void daemon_kill(struct daemon *d);

bool daemon_alive(struct daemon *d);

/* The path of controller @ctrlr's socket, or of another file below the directory. */
void daemon_socket(const struct daemon *d, const char *ctrlr, char *path, size_t size);
void daemon_path(const struct daemon *d, const char *name, char *path, size_t size);

/* What it holds, or -errno. */
int daemon_fds(const struct daemon *d);
int daemon_maps(const struct daemon *d, const char *name); /* that hold @name; "": all */
long daemon_rss_kib(const struct daemon *d);
long daemon_cpu_ms(const struct daemon *d);
long daemon_log_size(const struct daemon *d);

/* The thread of that name (as in /proc/PID/task/TID/comm), or 0. */
pid_t daemon_thread(const struct daemon *d, const char *name);

/* Was it built with AddressSanitizer or ThreadSanitizer? Its memory then means nothing. */
bool daemon_sanitized(const struct daemon *d);

/* Does its log hold @text? */
bool daemon_log_has(const struct daemon *d, const char *text);

/* Prints the last lines of its log as diagnostics. */
void daemon_show_log(const struct daemon *d);

#endif
