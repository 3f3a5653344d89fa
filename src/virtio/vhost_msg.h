/*
 * vhost-user on the wire: the messages, as bytes (QEMU, docs/interop/vhost-user.rst). Machine byte
 * order, no padding on the wire but what is named.
 *
 * vhost_msg_check() is a pure function of bytes; vhost_recv() and vhost_send() are the only ones
 * that touch the socket.
 */
#ifndef VIRTIO_VHOST_MSG_H
#define VIRTIO_VHOST_MSG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "util/err.h"
#include "virtio/guest_mem.h"

enum vhost_request {
	VHOST_GET_FEATURES = 1,
	VHOST_SET_FEATURES = 2,
	VHOST_SET_OWNER = 3,
	VHOST_RESET_OWNER = 4,
	VHOST_SET_MEM_TABLE = 5,
	VHOST_SET_LOG_BASE = 6,
	VHOST_SET_LOG_FD = 7,
	VHOST_SET_VRING_NUM = 8,
	VHOST_SET_VRING_ADDR = 9,
	VHOST_SET_VRING_BASE = 10,
	VHOST_GET_VRING_BASE = 11,
	VHOST_SET_VRING_KICK = 12,
	VHOST_SET_VRING_CALL = 13,
	VHOST_SET_VRING_ERR = 14,
	VHOST_GET_PROTOCOL_FEATURES = 15,
	VHOST_SET_PROTOCOL_FEATURES = 16,
	VHOST_GET_QUEUE_NUM = 17,
	VHOST_SET_VRING_ENABLE = 18,
	VHOST_SET_BACKEND_REQ_FD = 21,
	VHOST_GET_CONFIG = 24,
	VHOST_SET_CONFIG = 25,
	VHOST_GET_INFLIGHT_FD = 31,
	VHOST_SET_INFLIGHT_FD = 32,
	VHOST_RESET_DEVICE = 34,
	VHOST_GET_MAX_MEM_SLOTS = 36,
	VHOST_ADD_MEM_REG = 37,
	VHOST_REM_MEM_REG = 38,
	VHOST_REQUEST_MAX,
};

#define VHOST_VERSION	   1u
#define VHOST_VERSION_MASK 3u
#define VHOST_F_REPLY	   4u
#define VHOST_F_NEED_REPLY 8u

#define VHOST_PROTOCOL_F_MQ	    0
#define VHOST_PROTOCOL_F_LOG_SHMFD  1
#define VHOST_PROTOCOL_F_REPLY_ACK  3
#define VHOST_BACKEND_CONFIG_CHANGE 2 /* a request of the back-end */

#define VHOST_PROTOCOL_F_BACKEND_REQ	     5
#define VHOST_PROTOCOL_F_CONFIG		     9
#define VHOST_PROTOCOL_F_INFLIGHT_SHMFD	     12
#define VHOST_PROTOCOL_F_RESET_DEVICE	     13
#define VHOST_PROTOCOL_F_CONFIGURE_MEM_SLOTS 15

#define VHOST_VRING_INDEX_MASK 0xffu
#define VHOST_VRING_NO_FD      0x100u
#define VHOST_VRING_F_LOG      1u

#define VHOST_TABLE_REGIONS 8 /* of SET_MEM_TABLE */
#define VHOST_CONFIG_MAX    256
#define VHOST_FDS_MAX	    8

struct vhost_hdr {
	uint32_t request, flags, size;
};

struct vhost_vring_state {
	uint32_t index, num;
};

struct vhost_vring_addr {
	uint32_t index, flags;
	uint64_t desc, used, avail, log;
};

struct vhost_region {
	uint64_t gpa, size, user_addr, offset;
};

struct vhost_mem_table {
	uint32_t n, padding;
	struct vhost_region region[VHOST_TABLE_REGIONS];
};

struct vhost_mem_reg {
	uint64_t padding;
	struct vhost_region region;
};

struct vhost_log {
	uint64_t size, offset;
};

#define VHOST_CONFIG_HEAD 12

struct vhost_config {
	uint32_t offset, size, flags;
	uint8_t data[VHOST_CONFIG_MAX];
};

#define VHOST_INFLIGHT_SHORT 20 /* without the tail padding, which some front-ends leave out */

struct vhost_inflight {
	uint64_t mmap_size, mmap_offset;
	uint16_t num_queues, queue_size;
	uint32_t padding;
};

union vhost_payload {
	uint64_t u64;
	struct vhost_vring_state state;
	struct vhost_vring_addr addr;
	struct vhost_mem_table mem;
	struct vhost_mem_reg mem_reg;
	struct vhost_log log;
	struct vhost_config config;
	struct vhost_inflight inflight;
};

struct vhost_msg {
	struct vhost_hdr hdr;
	union vhost_payload p;
	int fds[VHOST_FDS_MAX];
	unsigned fds_n;
	bool fds_lost; /* more came than may come: all were closed */
};

_Static_assert(sizeof(struct vhost_hdr) == 12, "vhost-user header");
_Static_assert(sizeof(struct vhost_vring_addr) == 40, "vhost-user vring address");
_Static_assert(sizeof(struct vhost_mem_table) == 8 + 8 * 32, "vhost-user memory table");
_Static_assert(sizeof(struct vhost_mem_reg) == 40, "vhost-user single memory region");
_Static_assert(offsetof(struct vhost_config, data) == VHOST_CONFIG_HEAD, "vhost-user config");
_Static_assert(sizeof(struct vhost_inflight) == 24, "vhost-user inflight");

/* "SET_MEM_TABLE", or "request 99" for one that is not known (in a buffer of the thread). */
const char *vhost_request_name(uint32_t request);

/* Does the request have a reply of its own, so that need_reply adds none? */
bool vhost_has_reply(uint32_t request);

/*
 * Is this a header that may be followed by its payload? Pure. -EPROTO with a sentence: the stream
 * cannot be trusted any more (version, reply bit, size over every legal one).
 */
int vhost_hdr_check(const struct vhost_hdr *h, struct err *e);

/* Do size and number of fds fit the request? Pure. -EPROTO, or -ENOTSUP for a request that is not
 * offered. */
int vhost_msg_check(const struct vhost_msg *m, struct err *e);

void vhost_msg_close_fds(struct vhost_msg *m);

/*
 * Receive one message, whole, from an fd that has become readable: what has begun must end within
 * seconds. Errors: -EPIPE (the peer is gone), -ETIMEDOUT, -EPROTO. On error *m holds no fds.
 */
int vhost_recv(int fd, struct vhost_msg *m, struct err *e);

/* Send a reply to request with size bytes of payload, and fd when it is not -1. Errors: -EPIPE,
 * -ETIMEDOUT. */
int vhost_reply(int fd, uint32_t request, const void *payload, uint32_t size, int with_fd);

#endif
