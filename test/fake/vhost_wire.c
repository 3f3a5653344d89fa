#include "fake/vhost_wire.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

uint64_t vhost_now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

int vhost_ms_left(uint64_t deadline_ns)
{
	uint64_t now = vhost_now_ns();

	if (now >= deadline_ns)
		return 0;
	return (int)((deadline_ns - now + 999999) / 1000000);
}

static uint64_t deadline_in(int timeout_ms)
{
	return vhost_now_ns() + (uint64_t)timeout_ms * 1000000u;
}

int vhost_connect(const char *path, int timeout_ms, int *sock)
{
	uint64_t deadline = deadline_in(timeout_ms);
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	int fd, rc;

	if (strlen(path) >= sizeof(sa.sun_path))
		return -ENAMETOOLONG;
	strcpy(sa.sun_path, path);
	for (;;) {
		fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
		if (fd < 0)
			return -errno;
		if (connect(fd, (struct sockaddr *)&sa, sizeof(sa)) == 0) {
			*sock = fd;
			return 0;
		}
		rc = -errno;
		close(fd);
		if ((rc != -ENOENT && rc != -ECONNREFUSED && rc != -EAGAIN) ||
		    !vhost_ms_left(deadline))
			return rc;
		usleep(2000);
	}
}

static int wait_for(int sock, short events, uint64_t deadline)
{
	struct pollfd p = { .fd = sock, .events = events };
	int n;

	do {
		n = poll(&p, 1, vhost_ms_left(deadline));
	} while (n < 0 && errno == EINTR);
	if (n < 0)
		return -errno;
	return n ? 0 : -ETIMEDOUT;
}

static ssize_t send_some(int sock, const void *p, size_t len, const int *fds, int nfds)
{
	union {
		char buf[CMSG_SPACE(sizeof(int) * VHOST_MAX_FDS)];
		struct cmsghdr align;
	} control;
	struct iovec iov = { .iov_base = (void *)(uintptr_t)p, .iov_len = len };
	struct msghdr h = { .msg_iov = &iov, .msg_iovlen = 1 };
	size_t bytes = sizeof(int) * (size_t)nfds;
	struct cmsghdr *c;

	if (nfds) {
		memset(&control, 0, sizeof(control));
		h.msg_control = control.buf;
		h.msg_controllen = CMSG_SPACE(bytes);
		c = CMSG_FIRSTHDR(&h);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(bytes);
		memcpy(CMSG_DATA(c), fds, bytes);
	}
	return sendmsg(sock, &h, MSG_NOSIGNAL | MSG_DONTWAIT);
}

int vhost_send(int sock, struct vhost_msg *m, const int *fds, int nfds, int timeout_ms)
{
	uint64_t deadline = deadline_in(timeout_ms);
	const uint8_t *p = (const uint8_t *)m;
	size_t left = VHOST_HEADER_SIZE + m->size;
	ssize_t n;
	int rc;

	if (nfds > VHOST_MAX_FDS || m->size > sizeof(m->u))
		return -EINVAL;
	m->flags |= VHOST_FLAG_VERSION;
	while (left) {
		rc = wait_for(sock, POLLOUT, deadline);
		if (rc)
			return rc;
		n = send_some(sock, p, left, fds, nfds);
		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			continue;
		if (n < 0)
			return errno == EPIPE ? -ECONNRESET : -errno;
		p += n;
		left -= (size_t)n;
		nfds = 0; /* they travelled with the first byte */
	}
	return 0;
}

/* Closes all but the first, if somebody wants that one. */
static void take_received(struct msghdr *h, int *want)
{
	struct cmsghdr *c;
	size_t i, n;
	int fd;

	for (c = CMSG_FIRSTHDR(h); c; c = CMSG_NXTHDR(h, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		for (i = 0; i < n; i++) {
			memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
			if (want && *want < 0)
				*want = fd;
			else
				close(fd);
		}
	}
}

static int recv_exactly(int sock, void *buf, size_t len, int *fd, uint64_t deadline)
{
	union {
		char buf[CMSG_SPACE(sizeof(int) * VHOST_MAX_FDS)];
		struct cmsghdr align;
	} control;
	struct iovec iov = { .iov_base = buf, .iov_len = len };
	struct msghdr h;
	ssize_t n;
	int rc;

	while (iov.iov_len) {
		rc = wait_for(sock, POLLIN, deadline);
		if (rc)
			return rc;
		h = (struct msghdr){ .msg_iov = &iov,
				     .msg_iovlen = 1,
				     .msg_control = control.buf,
				     .msg_controllen = sizeof(control.buf) };
		n = recvmsg(sock, &h, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			continue;
		if (n < 0)
			return -errno;
		if (n == 0)
			return -ECONNRESET;
		take_received(&h, fd);
		iov.iov_base = (uint8_t *)iov.iov_base + n;
		iov.iov_len -= (size_t)n;
	}
	return 0;
}

static int recv_msg(int sock, struct vhost_msg *m, int *fd, int timeout_ms)
{
	uint64_t deadline = deadline_in(timeout_ms);
	int rc;

	rc = recv_exactly(sock, m, VHOST_HEADER_SIZE, fd, deadline);
	if (rc)
		return rc;
	if (m->size > sizeof(m->u))
		return -EMSGSIZE;
	return recv_exactly(sock, (uint8_t *)m + VHOST_HEADER_SIZE, m->size, fd, deadline);
}

int vhost_recv(int sock, struct vhost_msg *m, int timeout_ms)
{
	return recv_msg(sock, m, NULL, timeout_ms);
}

static int recv_reply(int sock, uint32_t request, struct vhost_msg *m, int *fd, int timeout_ms)
{
	int rc = recv_msg(sock, m, fd, timeout_ms);

	if (rc)
		return rc;
	if (m->request != request || m->flags != (VHOST_FLAG_VERSION | VHOST_FLAG_REPLY))
		return -EPROTO;
	return 0;
}

int vhost_call(int sock, struct vhost_msg *m, int timeout_ms)
{
	uint32_t request = m->request;
	int rc = vhost_send(sock, m, NULL, 0, timeout_ms);

	return rc ? rc : recv_reply(sock, request, m, NULL, timeout_ms);
}

int vhost_call_fd(int sock, struct vhost_msg *m, int *fd, int timeout_ms)
{
	uint32_t request = m->request;
	int rc = vhost_send(sock, m, NULL, 0, timeout_ms);

	*fd = -1;
	return rc ? rc : recv_reply(sock, request, m, fd, timeout_ms);
}

int vhost_command(int sock, struct vhost_msg *m, const int *fds, int nfds, int ack, int timeout_ms)
{
	struct vhost_msg reply;
	int rc;

	if (ack)
		m->flags |= VHOST_FLAG_NEED_REPLY;
	rc = vhost_send(sock, m, fds, nfds, timeout_ms);
	if (rc || !ack)
		return rc;
	rc = recv_reply(sock, m->request, &reply, NULL, timeout_ms);
	if (rc)
		return rc;
	if (reply.size != sizeof(uint64_t))
		return -EPROTO;
	return reply.u.u64 ? -EREMOTEIO : 0;
}
