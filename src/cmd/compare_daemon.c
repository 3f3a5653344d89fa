#include "cmd/compare_daemon.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "util/compiler.h"

#define START_MS 15000
#define STOP_MS	 5000
#define DISK	 "disk"

int compare_daemon_cpu(const struct perf_options *o)
{
	cpu_set_t allowed;
	int first = -1;

	if (sched_getaffinity(0, sizeof(allowed), &allowed) < 0)
		return 0;
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
		if (!CPU_ISSET(cpu, &allowed))
			continue;
		if (!o->pinned || !CPU_ISSET(cpu, &o->cpus))
			return cpu;
		if (first < 0)
			first = cpu;
	}
	return first;
}

/* In the format of `riffle rpc save_config`. */
static int write_config(const char *path, const char *file, const struct perf_options *o,
			struct err *e)
{
	json_t *j =
		json_pack("{s:[{s:s,s:[{s:s,s:{s:s,s:s,s:b}}]},{s:s,s:[{s:s,s:{s:s,s:s,s:b}}]}]}",
			  "subsystems", "subsystem", "bdev", "config", "method",
			  "bdev_uring_create", "params", "name", DISK, "filename", file, "readonly",
			  o->read_percent == 100, "subsystem", "vhost_blk", "config", "method",
			  "vhost_create_blk_controller", "params", "ctrlr", DISK, "dev_name", DISK,
			  "readonly", o->read_percent == 100);
	int rc = j ? json_dump_file(j, path, 0) : -1;

	json_decref(j);
	return rc ? err_set(e, -EIO,
			    "The daemon's configuration cannot be written to %.100s, or the name of "
			    "the file is not UTF-8.",
			    path)
		  : 0;
}

/* In the child. It ends with its parent. */
static void become_daemon(const char *folder, const char *config, int cpu, int log)
{
	char rpc[128], cpus[16];
	sigset_t none;

	prctl(PR_SET_PDEATHSIG, SIGTERM);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	signal(SIGTERM, SIG_DFL);
	signal(SIGINT, SIG_DFL);
	dup2(log, STDERR_FILENO);
	snprintf(rpc, sizeof(rpc), "%s/rpc", folder);
	snprintf(cpus, sizeof(cpus), "[%d]", cpu);
	execl("/proc/self/exe", "riffle", "serve", "-m", cpus, "-r", rpc, "-S", folder, "-c",
	      config, (char *)NULL);
	_exit(127);
}

/* The last line of text, without what the log puts before it. */
static const char *last_line(char *text)
{
	char *end = text + strlen(text), *line;

	while (end > text && end[-1] == '\n')
		*--end = '\0';
	line = strrchr(text, '\n');
	return line ? line + 1 : text;
}

/* Until it says that it is ready, or has ended. */
static int wait_until_ready(const struct compare_daemon *d, struct err *e)
{
	struct pollfd p = { d->log, POLLIN, 0 };
	char text[4096] = "";
	size_t len = 0;

	while (!strstr(text, "ready:") && len < sizeof(text) - 1) {
		int rc = poll(&p, 1, START_MS);
		ssize_t n = 0;

		if (rc < 0 && errno == EINTR && !perf_interrupted)
			continue;
		if (rc < 0)
			return err_set(e, -EINTR, "Interrupted.");
		if (rc == 0)
			return err_set(e, -ETIMEDOUT, "Its daemon was not ready within %d s.",
				       START_MS / 1000);
		n = read(d->log, text + len, sizeof(text) - 1 - len);
		if (n <= 0)
			return err_set(e, -EIO, "Its daemon has ended: %.200s", last_line(text));
		len += (size_t)n;
		text[len] = '\0';
	}
	return 0;
}

int compare_daemon_start(struct compare_daemon *d, const char *folder, const char *file,
			 const struct perf_options *o, struct err *e)
{
	char config[128], *real;
	int log[2], rc;

	snprintf(config, sizeof(config), "%s/config", folder);
	snprintf(d->socket, sizeof(d->socket), "%s/" DISK, folder);
	real = realpath(file, NULL);
	rc = write_config(config, real ? real : file, o, e);
	free(real);
	if (rc)
		return rc;
	if (pipe2(log, O_CLOEXEC) < 0)
		return err_set(e, -errno, "No pipe: %s.", err_words(errno));
	d->pid = fork();
	if (d->pid == 0)
		become_daemon(folder, config, compare_daemon_cpu(o), log[1]);
	close(log[1]);
	d->log = log[0];
	if (d->pid < 0) {
		close(d->log);
		return err_set(e, -errno, "No process for the daemon: %s.", err_words(errno));
	}
	rc = wait_until_ready(d, e);
	if (rc)
		compare_daemon_stop(d);
	return rc;
}

void compare_daemon_stop(struct compare_daemon *d)
{
	const struct timespec pause = { .tv_nsec = 2000000 };
	int ms = 0;

	kill(d->pid, SIGTERM);
	while (waitpid(d->pid, NULL, WNOHANG) == 0) {
		nanosleep(&pause, NULL);
		ms += 2;
		if (ms == STOP_MS)
			kill(d->pid, SIGKILL);
	}
	close(d->log);
}
