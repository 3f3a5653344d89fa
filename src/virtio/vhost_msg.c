#include "virtio/vhost_msg.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* What a peer may take for the rest of a message, and for taking our reply. */
#define MESSAGE_DEADLINE_MS 1000 /* shorter than a stop may take */
/* The kernel passes at most SCM_MAX_FD fds at once: room for all, so that none is lost and all can
 * be closed. */
#define SCM_FDS_MAX 253

struct request {
	const char *name;
	uint16_t min, max; /* payload bytes */
	uint8_t fds_min, fds_max;
	bool has_reply;
};

#define STATE sizeof(struct vhost_vring_state)
#define ADDR  sizeof(struct vhost_vring_addr)

static const struct request requests[VHOST_REQUEST_MAX] = {
	[VHOST_GET_FEATURES] = { "GET_FEATURES", 0, 0, 0, 0, true },
	[VHOST_SET_FEATURES] = { "SET_FEATURES", 8, 8, 0, 0, false },
	[VHOST_SET_OWNER] = { "SET_OWNER", 0, 0, 0, 0, false },
	[VHOST_RESET_OWNER] = { "RESET_OWNER", 0, 0, 0, 0, false },
	[VHOST_SET_MEM_TABLE] = { "SET_MEM_TABLE", 8, sizeof(struct vhost_mem_table), 0, 8, false },
	[VHOST_SET_LOG_BASE] = { "SET_LOG_BASE", sizeof(struct vhost_log), sizeof(struct vhost_log),
				 1, 1, true },
	[VHOST_SET_LOG_FD] = { "SET_LOG_FD", 0, 0, 1, 1, false },
	[VHOST_SET_VRING_NUM] = { "SET_VRING_NUM", STATE, STATE, 0, 0, false },
	[VHOST_SET_VRING_ADDR] = { "SET_VRING_ADDR", ADDR, ADDR, 0, 0, false },
	[VHOST_SET_VRING_BASE] = { "SET_VRING_BASE", STATE, STATE, 0, 0, false },
	[VHOST_GET_VRING_BASE] = { "GET_VRING_BASE", STATE, STATE, 0, 0, true },
	[VHOST_SET_VRING_KICK] = { "SET_VRING_KICK", 8, 8, 0, 1, false },
	[VHOST_SET_VRING_CALL] = { "SET_VRING_CALL", 8, 8, 0, 1, false },
	[VHOST_SET_VRING_ERR] = { "SET_VRING_ERR", 8, 8, 0, 1, false },
	[VHOST_GET_PROTOCOL_FEATURES] = { "GET_PROTOCOL_FEATURES", 0, 0, 0, 0, true },
	[VHOST_SET_PROTOCOL_FEATURES] = { "SET_PROTOCOL_FEATURES", 8, 8, 0, 0, false },
	[VHOST_GET_QUEUE_NUM] = { "GET_QUEUE_NUM", 0, 0, 0, 0, true },
	[VHOST_SET_VRING_ENABLE] = { "SET_VRING_ENABLE", STATE, STATE, 0, 0, false },
	[VHOST_SET_BACKEND_REQ_FD] = { "SET_BACKEND_REQ_FD", 0, 0, 1, 1, false },
	[VHOST_GET_CONFIG] = { "GET_CONFIG", VHOST_CONFIG_HEAD, sizeof(struct vhost_config), 0, 0,
			       true },
	[VHOST_SET_CONFIG] = { "SET_CONFIG", VHOST_CONFIG_HEAD, sizeof(struct vhost_config), 0, 0,
			       false },
	[VHOST_GET_INFLIGHT_FD] = { "GET_INFLIGHT_FD", VHOST_INFLIGHT_SHORT,
				    sizeof(struct vhost_inflight), 0, 0, true },
	[VHOST_SET_INFLIGHT_FD] = { "SET_INFLIGHT_FD", VHOST_INFLIGHT_SHORT,
				    sizeof(struct vhost_inflight), 1, 1, false },
	[VHOST_RESET_DEVICE] = { "RESET_DEVICE", 0, 0, 0, 0, false },
	[VHOST_GET_MAX_MEM_SLOTS] = { "GET_MAX_MEM_SLOTS", 0, 0, 0, 0, true },
	[VHOST_ADD_MEM_REG] = { "ADD_MEM_REG", 40, 40, 1, 1, false },
	[VHOST_REM_MEM_REG] = { "REM_MEM_REG", 40, 40, 0, 1, false },
};

static const struct request *find(uint32_t request)
{
	return request < VHOST_REQUEST_MAX && requests[request].name ? &requests[request] : NULL;
}

const char *vhost_request_name(uint32_t request)
{
	static __thread char unknown[32];
	const struct request *r = find(request);

	if (r)
		return r->name;
	snprintf(unknown, sizeof(unknown), "request %u", request);
	return unknown;
}

bool vhost_has_reply(uint32_t request)
{
	const struct request *r = find(request);

	return r && r->has_reply;
}

int vhost_hdr_check(const struct vhost_hdr *h, struct err *e)
{
	if ((h->flags & VHOST_VERSION_MASK) != VHOST_VERSION)
		return err_set(e, -EPROTO, "%s has version %u, not 1",
			       vhost_request_name(h->request), h->flags & VHOST_VERSION_MASK);
	if (h->flags & VHOST_F_REPLY)
		return err_set(e, -EPROTO, "%s is marked as a reply",
			       vhost_request_name(h->request));
	if (h->size > sizeof(union vhost_payload))
		return err_set(e, -EPROTO, "%s has %u bytes of payload, more than any message",
			       vhost_request_name(h->request), h->size);
	return 0;
}

/* The tail padding of the in-flight description may be there or not, but not in part. */
static bool in_padding(const struct vhost_msg *m)
{
	bool inflight =
		m->hdr.request == VHOST_GET_INFLIGHT_FD || m->hdr.request == VHOST_SET_INFLIGHT_FD;

	return inflight && m->hdr.size > VHOST_INFLIGHT_SHORT &&
	       m->hdr.size < sizeof(struct vhost_inflight);
}

int vhost_msg_check(const struct vhost_msg *m, struct err *e)
{
	const struct request *r = find(m->hdr.request);

	if (!r)
		return err_set(e, -ENOTSUP, "%s is not offered",
			       vhost_request_name(m->hdr.request));
	if (m->hdr.size < r->min || m->hdr.size > r->max || in_padding(m))
		return err_set(e, -EPROTO, "%s has %u bytes of payload, not %u%s", r->name,
			       m->hdr.size, r->max, r->min < r->max ? " or less" : "");
	if (m->fds_lost || m->fds_n < r->fds_min || m->fds_n > r->fds_max)
		return err_set(e, -EPROTO, "%s came with %s%u file descriptors, not %u%s", r->name,
			       m->fds_lost ? "more than " : "", m->fds_n, r->fds_max,
			       r->fds_min < r->fds_max ? " or less" : "");
	return 0;
}

void vhost_msg_close_fds(struct vhost_msg *m)
{
	for (unsigned i = 0; i < m->fds_n; i++)
		if (m->fds[i] >= 0)
			close(m->fds[i]);
	m->fds_n = 0;
}

/* --- the socket --- */

static int64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static int wait_for(int fd, short events, int64_t deadline)
{
	struct pollfd p = { .fd = fd, .events = events };
	int64_t left = deadline - now_ms();

	if (left <= 0)
		return -ETIMEDOUT;
	return poll(&p, 1, (int)left) < 0 && errno != EINTR ? -errno : 0;
}

/* Keep up to VHOST_FDS_MAX of the fds that came; close the rest. */
static void take_fds(struct vhost_msg *m, struct msghdr *msg)
{
	for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
		size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);

		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		for (size_t i = 0; i < n; i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(c) + i * sizeof(fd), sizeof(fd));
			if (m->fds_n < VHOST_FDS_MAX) {
				m->fds[m->fds_n++] = fd;
			} else {
				close(fd);
				m->fds_lost = true;
			}
		}
	}
	if (msg->msg_flags & MSG_CTRUNC)
		m->fds_lost = true;
}

/* Some bytes of the message, with whatever fds come along. Returns their number, or -errno. */
static int recv_some(int fd, struct vhost_msg *m, void *buf, size_t len)
{
	union {
		struct cmsghdr align;
		char space[CMSG_SPACE(SCM_FDS_MAX * sizeof(int))];
	} control;
	struct iovec iov = { buf, len };
	struct msghdr msg = {
		.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof(control),
	};
	ssize_t n = recvmsg(fd, &msg, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);

	if (n < 0)
		return errno == EAGAIN || errno == EINTR ? -EAGAIN : -EPIPE;
	take_fds(m, &msg);
	return n == 0 ? -EPIPE : (int)n;
}

static int recv_whole(int fd, struct vhost_msg *m, void *buf, size_t len, int64_t deadline)
{
	for (size_t done = 0; done < len;) {
		int n = recv_some(fd, m, (char *)buf + done, len - done);

		if (n == -EAGAIN)
			n = wait_for(fd, POLLIN, deadline);
		if (n < 0)
			return n;
		done += (size_t)n;
	}
	return 0;
}

int vhost_recv(int fd, struct vhost_msg *m, struct err *e)
{
	int64_t deadline = now_ms() + MESSAGE_DEADLINE_MS;
	int rc;

	memset(m, 0, sizeof(*m));
	rc = recv_whole(fd, m, &m->hdr, sizeof(m->hdr), deadline);
	if (rc == 0)
		rc = vhost_hdr_check(&m->hdr, e);
	if (rc == 0)
		rc = recv_whole(fd, m, &m->p, m->hdr.size, deadline);
	if (rc == -ETIMEDOUT)
		err_set(e, rc, "the front-end began a message and did not finish it within %d s",
			MESSAGE_DEADLINE_MS / 1000);
	if (rc)
		vhost_msg_close_fds(m);
	return rc;
}

int vhost_reply(int fd, uint32_t request, const void *payload, uint32_t size, int with_fd)
{
	struct vhost_hdr hdr = { request, VHOST_VERSION | VHOST_F_REPLY, size };
	union {
		struct cmsghdr align;
		char space[CMSG_SPACE(sizeof(int))];
	} control = { 0 };
	struct iovec iov[2] = { { &hdr, sizeof(hdr) }, { (void *)(uintptr_t)payload, size } };
	struct msghdr msg = { .msg_iov = iov, .msg_iovlen = size ? 2 : 1 };
	int64_t deadline = now_ms() + MESSAGE_DEADLINE_MS;

	if (with_fd >= 0) {
		msg.msg_control = &control;
		msg.msg_controllen = sizeof(control);
		control.align.cmsg_level = SOL_SOCKET;
		control.align.cmsg_type = SCM_RIGHTS;
		control.align.cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(&control.align), &with_fd, sizeof(with_fd));
	}
	/* A few hundred bytes at most: they go out whole or, with the peer's buffer full, not at
	 * all. */
	for (;;) {
		ssize_t n = sendmsg(fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
		int rc;

		if (n == (ssize_t)(sizeof(hdr) + size))
			return 0;
		if (n >= 0 || (errno != EAGAIN && errno != EINTR))
			return -EPIPE;
		rc = wait_for(fd, POLLOUT, deadline);
		if (rc)
			return rc;
	}
}
