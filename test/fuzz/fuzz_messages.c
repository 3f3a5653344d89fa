/*
 * libFuzzer target: a stream of vhost-user messages, as a front-end may send it: input bytes go
 * through a socket pair into a session whose device serves nothing. Records of the input: one byte
 * says how many memfds (0 to 9) come with the message, two how many bytes of the input it has.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "mem/mem.h"
#include "util/log.h"
#include "virtio/vhost_msg.h"
#include "virtio/vhost_session.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);

#define RINGS 2
#define FDS   9
#define MEM   (1u << 20)

static int memfds[FDS];

static int ring_start(void *device, struct virtq *vq, int kick_fd, struct err *e)
{
	struct virtq_chain c;

	(void)device;
	(void)kick_fd;
	(void)e;
	vq->reactor = reactor_this();
	for (int i = 0; i < 64 && virtq_pop(vq, &c) > 0; i++)
		virtq_push(vq, c.head, 0);
	virtq_flush(vq);
	return 0;
}

static void ring_nothing(void *device, struct virtq *vq)
{
	(void)device;
	(void)vq;
}

static void ring_abandon(void *device, struct virtq *vq, void *scratch)
{
	(void)device;
	virtq_abandon(vq, scratch);
}

static void config_get(void *device, uint32_t offset, void *data, uint32_t len)
{
	(void)device;
	memset(data, (int)offset, len);
}

static int config_set(void *device, uint32_t offset, const void *data, uint32_t len, struct err *e)
{
	(void)device;
	(void)offset;
	(void)data;
	return err_set(e, -1, "not these %u bytes", len);
}

static void features_set(void *device, uint64_t features)
{
	(void)device;
	(void)features;
}

static const struct vhost_device_ops ops = {
	.ring_start = ring_start,
	.ring_pause = ring_nothing,
	.ring_resume = ring_nothing,
	.ring_abandon = ring_abandon,
	.ring_stop = ring_nothing,
	.config_get = config_get,
	.config_set = config_set,
	.features_set = features_set,
};

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	struct reactor *r;

	(void)argc;
	(void)argv;
	log_set_level(LOG_SILENT);
	if (reactor_create(&r) || mem_guard_sigbus())
		abort();
	for (int i = 0; i < FDS; i++) {
		memfds[i] = memfd_create("fuzz", 0);
		if (memfds[i] < 0 || ftruncate(memfds[i], MEM) < 0)
			abort();
	}
	return 0;
}

static void send_record(int fd, const uint8_t *bytes, size_t len, unsigned fds)
{
	union {
		struct cmsghdr align;
		char space[CMSG_SPACE(FDS * sizeof(int))];
	} control = { 0 };
	struct iovec iov = { (void *)(uintptr_t)bytes, len };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };

	if (fds) {
		msg.msg_control = &control;
		msg.msg_controllen = CMSG_SPACE(fds * sizeof(int));
		control.align.cmsg_level = SOL_SOCKET;
		control.align.cmsg_type = SCM_RIGHTS;
		control.align.cmsg_len = CMSG_LEN(fds * sizeof(int));
		memcpy(CMSG_DATA(&control.align), memfds, fds * sizeof(int));
	}
	if (sendmsg(fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
		return;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const struct vhost_session_config c = {
		.name = "fuzz", .rings = RINGS, .features = 0xffff, .ops = &ops
	};
	struct vhost_session *s;
	int pair[2];

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) < 0)
		abort();
	while (size > 3) {
		unsigned fds = data[0] % (FDS + 1);
		size_t len = (size_t)(data[1] | data[2] << 8) % 512;

		data += 3;
		size -= 3;
		len = MIN(len, size);
		if (len)
			send_record(pair[1], data, len, fds);
		data += len;
		size -= len;
	}
	shutdown(pair[1], SHUT_WR);
	if (vhost_session_open(pair[0], &c, &s))
		abort();
	while (vhost_session_step(s) == 0)
		reactor_turn(reactor_this());
	vhost_session_close(s, size % 2);
	close(pair[1]);
	for (int i = 0; i < FDS;
	     i++) /* a session may not have shrunk them, but its rings have written */
		if (ftruncate(memfds[i], 0) < 0 || ftruncate(memfds[i], MEM) < 0)
			abort();
	return 0;
}
