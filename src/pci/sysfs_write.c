/* Writing to sysfs with a deadline: a driver may take as long as it likes to let a device go. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "pci/sysfs.h"

#define LOOK_MS 2

/* Only what a child of many threads may do. It may outlive us, so it holds nothing of ours open,
 * neither a lock nor the pipe that somebody reads to its end. */
static _Noreturn void write_and_leave(const char *path, const char *text)
{
	ssize_t n;
	int fd;

	if (close_range(0, ~0U, 0) < 0)
		_exit(errno);
	fd = open(path, O_WRONLY | O_TRUNC | O_CLOEXEC);
	if (fd < 0)
		_exit(errno);
	n = write(fd, text, strlen(text));
	_exit(n < 0 ? errno : 0);
}

static int reap(pid_t pid, int *status)
{
	pid_t got;

	do
		got = waitpid(pid, status, WNOHANG);
	while (got < 0 && errno == EINTR);
	return got < 0 ? -errno : got > 0;
}

static int await(pid_t pid, unsigned patience_ms)
{
	int status, rc;

	for (unsigned waited = 0; (rc = reap(pid, &status)) == 0; waited += LOOK_MS) {
		if (waited >= patience_ms) {
			kill(pid, SIGKILL); /* inside the kernel it does not hear it yet */
			return -ETIMEDOUT;
		}
		usleep(LOOK_MS * 1000);
	}
	if (rc < 0)
		return rc;
	return WIFEXITED(status) ? -WEXITSTATUS(status) : -EINTR;
}

int sysfs_write(unsigned patience_ms, const char *text, const char *path, ...)
{
	char name[PATH_MAX];
	va_list args;
	pid_t pid;

	va_start(args, path);
	vsnprintf(name, sizeof(name), path, args);
	va_end(args);
	pid = fork();
	if (pid < 0)
		return -errno;
	if (pid == 0)
		write_and_leave(name, text);
	return await(pid, patience_ms);
}
