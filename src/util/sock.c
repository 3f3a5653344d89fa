#include "util/sock.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#define BACKLOG 64

static int fill_address(const char *path, struct sockaddr_un *a, struct err *e)
{
	memset(a, 0, sizeof(*a));
	a->sun_family = AF_UNIX;
	if (strlen(path) >= sizeof(a->sun_path))
		return err_field(
			e, -ENAMETOOLONG, "socket", path, "at most 107 bytes",
			"The socket path '%.120s' has %zu bytes; the kernel takes 107. Use a shorter folder or name.",
			path, strlen(path));
	memcpy(a->sun_path, path, strlen(path));
	return 0;
}

/* A socket file may stay behind when its server is killed. */
static int clear_stale(const char *path, struct err *e)
{
	struct err ignored;
	struct stat st;
	int fd, rc;

	if (lstat(path, &st) < 0)
		return 0;
	if (!S_ISSOCK(st.st_mode))
		return err_field(e, -EEXIST, "socket", path, NULL,
				 "'%.150s' exists and is not a socket.", path);
	rc = sock_connect(path, 0, &fd, &ignored);
	if (rc == 0)
		close(fd);
	if (rc == 0 || rc == -EAGAIN) {
		return err_field(
			e, -EADDRINUSE, "socket", path, NULL,
			"Another process listens at '%.150s' already. Stop it, or choose another path.",
			path);
	}
	unlink(path);
	return 0;
}

int sock_listen(const char *path, int *out, struct err *e)
{
	struct sockaddr_un a;
	int rc = fill_address(path, &a, e), fd;

	if (rc == 0)
		rc = clear_stale(path, e);
	if (rc)
		return rc;
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return err_set(e, -errno, "Cannot make a socket: %s.", err_words(errno));
	if (bind(fd, (struct sockaddr *)&a, sizeof(a)) < 0 || listen(fd, BACKLOG) < 0) {
		rc = err_field(
			e, -errno, "socket", path, NULL,
			"Cannot listen at '%.150s': %s. Does the folder exist, and may this user write to it?",
			path, err_words(errno));
		close(fd);
		return rc;
	}
	*out = fd;
	return 0;
}

int sock_connect(const char *path, unsigned seconds, int *out, struct err *e)
{
	struct timeval deadline = { .tv_sec = seconds };
	struct sockaddr_un a;
	int rc = fill_address(path, &a, e), fd;

	if (rc)
		return rc;
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | (seconds ? 0 : SOCK_NONBLOCK), 0);
	if (fd < 0)
		return err_set(e, -errno, "Cannot make a socket: %s.", err_words(errno));
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &deadline, sizeof(deadline));
	if (connect(fd, (struct sockaddr *)&a, sizeof(a)) < 0) {
		rc = err_field(e, -errno, "socket", path, NULL, "Cannot connect to '%.150s': %s.",
			       path, err_words(errno));
		close(fd);
		return rc;
	}
	*out = fd;
	return 0;
}
