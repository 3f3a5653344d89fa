#include "virtio/vhost_front.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "util/sock.h"
#include "virtio/vhost_msg.h"

#define CONNECT_S 5
/* GET_VRING_BASE waits for I/O in flight. */
#define REPLY_S 30

static int lost(struct err *e, uint32_t request)
{
	if (errno == EAGAIN)
		return err_set(e, -ETIMEDOUT, "The back-end has not answered %s within %d s.",
			       vhost_request_name(request), REPLY_S);
	return err_set(
		e, -EPROTO,
		"The back-end closed the connection at %s. Is it a vhost-user-blk socket, and is no one "
		"else connected to it?",
		vhost_request_name(request));
}

static int send_msg(struct vhost_front *f, uint32_t request, uint32_t flags, const void *payload,
		    uint32_t size, const int *fds, unsigned fds_n, struct err *e)
{
	struct vhost_hdr hdr = { request, VHOST_VERSION | flags, size };
	union {
		struct cmsghdr align;
		char space[CMSG_SPACE(VHOST_FDS_MAX * sizeof(int))];
	} control = { 0 };
	struct iovec iov[2] = { { &hdr, sizeof(hdr) }, { (void *)(uintptr_t)payload, size } };
	struct msghdr msg = { .msg_iov = iov, .msg_iovlen = 2 };

	if (fds_n) {
		msg.msg_control = &control;
		msg.msg_controllen = CMSG_SPACE(fds_n * sizeof(int));
		control.align.cmsg_level = SOL_SOCKET;
		control.align.cmsg_type = SCM_RIGHTS;
		control.align.cmsg_len = CMSG_LEN(fds_n * sizeof(int));
		memcpy(CMSG_DATA(&control.align), fds, fds_n * sizeof(int));
	}
	if (sendmsg(f->fd, &msg, MSG_NOSIGNAL) != (ssize_t)(sizeof(hdr) + size))
		return lost(e, request);
	return 0;
}

static int recv_all(struct vhost_front *f, void *buf, size_t len)
{
	for (size_t done = 0; done < len;) {
		ssize_t n = recv(f->fd, (char *)buf + done, len - done, 0);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0) {
			errno = n == 0 ? ECONNRESET : errno;
			return -1;
		}
		done += (size_t)n;
	}
	return 0;
}

/* The reply to request: exactly size bytes, or, where less is allowed, 0. */
static int recv_reply(struct vhost_front *f, uint32_t request, void *payload, uint32_t size,
		      struct err *e)
{
	struct vhost_hdr hdr;

	if (recv_all(f, &hdr, sizeof(hdr)))
		return lost(e, request);
	if (hdr.request != request || !(hdr.flags & VHOST_F_REPLY) ||
	    (hdr.size != size && hdr.size != 0))
		return err_set(e, -EPROTO, "The back-end's answer to %s is not one.",
			       vhost_request_name(request));
	if (hdr.size == 0 && size)
		return err_set(e, -ENOTSUP, "The back-end refused %s.",
			       vhost_request_name(request));
	return recv_all(f, payload, size) ? lost(e, request) : 0;
}

static int get_u64(struct vhost_front *f, uint32_t request, uint64_t *value, struct err *e)
{
	int rc = send_msg(f, request, 0, NULL, 0, NULL, 0, e);

	return rc ? rc : recv_reply(f, request, value, sizeof(*value), e);
}

/* A setting; with REPLY_ACK the back-end says whether it took it. */
static int set(struct vhost_front *f, uint32_t request, const void *payload, uint32_t size,
	       const int *fds, unsigned fds_n, struct err *e)
{
	int rc = send_msg(f, request, f->acks ? VHOST_F_NEED_REPLY : 0, payload, size, fds, fds_n,
			  e);
	uint64_t refused = 0;

	if (rc == 0 && f->acks)
		rc = recv_reply(f, request, &refused, sizeof(refused), e);
	if (rc == 0 && refused)
		rc = err_set(e, -EPROTO, "The back-end refused %s.", vhost_request_name(request));
	return rc;
}

static int set_u64(struct vhost_front *f, uint32_t request, uint64_t value, struct err *e)
{
	return set(f, request, &value, sizeof(value), NULL, 0, e);
}

/* --- opening --- */

static int negotiate_protocol(struct vhost_front *f, struct err *e)
{
	uint64_t want = FEATURE(VHOST_PROTOCOL_F_MQ) | FEATURE(VHOST_PROTOCOL_F_REPLY_ACK) |
			FEATURE(VHOST_PROTOCOL_F_CONFIG),
		 offered = 0, queues = 1;
	int rc = get_u64(f, VHOST_GET_PROTOCOL_FEATURES, &offered, e);

	if (rc == 0 && !(offered & FEATURE(VHOST_PROTOCOL_F_CONFIG)))
		rc = err_set(e, -EPROTO,
			     "The back-end has no configuration space: it is not a block device.");
	if (rc == 0)
		rc = set_u64(f, VHOST_SET_PROTOCOL_FEATURES, offered & want, e);
	if (rc == 0)
		f->acks = offered & FEATURE(VHOST_PROTOCOL_F_REPLY_ACK);
	if (rc == 0 && offered & FEATURE(VHOST_PROTOCOL_F_MQ))
		rc = get_u64(f, VHOST_GET_QUEUE_NUM, &queues, e);
	f->queues = (unsigned)MIN(queues, 256);
	return rc;
}

static int negotiate(struct vhost_front *f, uint64_t wanted, struct err *e)
{
	const uint64_t must = FEATURE(VIRTIO_F_VERSION_1) | FEATURE(VHOST_USER_F_PROTOCOL_FEATURES);
	uint64_t offered = 0;
	int rc = set(f, VHOST_SET_OWNER, NULL, 0, NULL, 0, e);

	if (rc == 0)
		rc = get_u64(f, VHOST_GET_FEATURES, &offered, e);
	if (rc == 0 && (offered & must) != must)
		rc = err_set(
			e, -EPROTO,
			"The back-end is too old: it offers no VERSION_1 or no protocol features.");
	if (rc == 0)
		rc = negotiate_protocol(f, e);
	f->features = offered & (wanted | must);
	return rc ? rc : set_u64(f, VHOST_SET_FEATURES, f->features, e);
}

int vhost_front_open(const char *path, uint64_t wanted, struct vhost_front *f, struct err *e)
{
	struct timeval deadline = { .tv_sec = REPLY_S };
	int rc;

	*f = (struct vhost_front){ .fd = -1 };
	rc = sock_connect(path, CONNECT_S, &f->fd, e);
	if (rc)
		return rc;
	setsockopt(f->fd, SOL_SOCKET, SO_RCVTIMEO, &deadline, sizeof(deadline));
	rc = negotiate(f, wanted, e);
	if (rc)
		vhost_front_close(f);
	return rc;
}

void vhost_front_close(struct vhost_front *f)
{
	if (f->fd >= 0)
		close(f->fd);
	f->fd = -1;
}

int vhost_front_config(struct vhost_front *f, struct virtio_blk_config *config, struct err *e)
{
	/* As far as write zeroes: qemu-storage-daemon refuses to tell more. */
	enum { LEN = offsetof(struct virtio_blk_config, max_secure_erase_sectors) };
	struct vhost_config g = { .size = LEN };
	int rc = send_msg(f, VHOST_GET_CONFIG, 0, &g, VHOST_CONFIG_HEAD + LEN, NULL, 0, e);

	if (rc == 0)
		rc = recv_reply(f, VHOST_GET_CONFIG, &g, VHOST_CONFIG_HEAD + LEN, e);
	if (rc)
		return rc;
	memset(config, 0, sizeof(*config));
	memcpy(config, g.data, LEN);
	return 0;
}

int vhost_front_share(struct vhost_front *f, const struct vhost_front_range *ranges, unsigned n,
		      struct err *e)
{
	struct vhost_mem_table table = { .n = n };
	int fds[VHOST_TABLE_REGIONS];

	for (unsigned i = 0; i < n; i++) {
		uint64_t base = (uintptr_t)ranges[i].base;

		table.region[i] = (struct vhost_region){ base, ranges[i].size, base, 0 };
		fds[i] = ranges[i].fd;
	}
	return set(f, VHOST_SET_MEM_TABLE, &table, (uint32_t)(8 + n * sizeof(table.region[0])), fds,
		   n, e);
}

static int set_state(struct vhost_front *f, uint32_t request, unsigned index, uint32_t num,
		     struct err *e)
{
	struct vhost_vring_state s = { index, num };

	return set(f, request, &s, sizeof(s), NULL, 0, e);
}

static int set_fd(struct vhost_front *f, uint32_t request, unsigned index, int fd, struct err *e)
{
	uint64_t v = index;

	return set(f, request, &v, sizeof(v), &fd, 1, e);
}

int vhost_front_ring_start(struct vhost_front *f, unsigned index, unsigned num, const void *desc,
			   const void *avail, const void *used, int kick_fd, int call_fd,
			   struct err *e)
{
	struct vhost_vring_addr a = { .index = index,
				      .desc = (uintptr_t)desc,
				      .used = (uintptr_t)used,
				      .avail = (uintptr_t)avail };
	static const uint64_t one = 1;
	int rc = set_state(f, VHOST_SET_VRING_NUM, index, num, e);

	if (rc == 0)
		rc = set_state(f, VHOST_SET_VRING_BASE, index, 0, e);
	if (rc == 0)
		rc = set(f, VHOST_SET_VRING_ADDR, &a, sizeof(a), NULL, 0, e);
	if (rc == 0)
		rc = set_fd(f, VHOST_SET_VRING_CALL, index, call_fd, e);
	if (rc == 0)
		rc = set_fd(f, VHOST_SET_VRING_KICK, index, kick_fd, e);
	if (rc == 0)
		rc = set_state(f, VHOST_SET_VRING_ENABLE, index, 1, e);
	/* The first kick is what starts a ring. */
	if (rc == 0 && write(kick_fd, &one, sizeof(one)) < 0)
		rc = err_set(e, -errno, "Cannot kick ring %u: %s.", index, err_words(errno));
	return rc;
}

int vhost_front_ring_stop(struct vhost_front *f, unsigned index, struct err *e)
{
	struct vhost_vring_state s = { index, 0 };
	int rc = send_msg(f, VHOST_GET_VRING_BASE, 0, &s, sizeof(s), NULL, 0, e);

	return rc ? rc : recv_reply(f, VHOST_GET_VRING_BASE, &s, sizeof(s), e);
}
