/*
 * The vhost-user wire as a front-end speaks it: messages, file descriptors, deadlines.
 *
 * Nothing here knows what a guest or a disk is; `fake/guest.h` builds that on top. A test that
 * wants a message no front-end would send fills a struct vhost_msg by hand and calls vhost_send().
 * All functions return 0 or -errno; -ETIMEDOUT is a deadline that passed, -ECONNRESET a back-end
 * that closed the socket. The host is little-endian.
 */
#ifndef FAKE_VHOST_WIRE_H
#define FAKE_VHOST_WIRE_H

#include <stddef.h>
#include <stdint.h>

enum vhost_request {
	VHOST_GET_FEATURES = 1,
	VHOST_SET_FEATURES = 2,
	VHOST_SET_OWNER = 3,
	VHOST_SET_MEM_TABLE = 5,
	VHOST_SET_LOG_BASE = 6,
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
	VHOST_GET_CONFIG = 24,
	VHOST_SET_CONFIG = 25,
	VHOST_GET_INFLIGHT_FD = 31,
	VHOST_SET_INFLIGHT_FD = 32,
};

#define VHOST_FLAG_VERSION    0x1u
#define VHOST_FLAG_REPLY      0x4u
#define VHOST_FLAG_NEED_REPLY 0x8u
#define VHOST_NO_FD	      0x100u /* bit 8 of SET_VRING_KICK, CALL and ERR */

#define VHOST_PROTOCOL_MQ	 (1ull << 0)
#define VHOST_PROTOCOL_LOG_SHMFD (1ull << 1)
#define VHOST_PROTOCOL_REPLY_ACK (1ull << 3)
#define VHOST_PROTOCOL_CONFIG	 (1ull << 9)
#define VHOST_PROTOCOL_INFLIGHT	 (1ull << 12)

#define VHOST_MAX_REGIONS 8
#define VHOST_MAX_FDS	  8
#define VHOST_CONFIG_MAX  256
#define VHOST_HEADER_SIZE 12

struct vhost_region {
	uint64_t gpa;
	uint64_t size;
	uint64_t user_addr;
	uint64_t mmap_offset;
};

struct vhost_vring_state {
	uint32_t index;
	uint32_t num;
};

struct vhost_vring_addr {
	uint32_t index;
	uint32_t flags;
	uint64_t desc;
	uint64_t used;
	uint64_t avail;
	uint64_t log;
};

struct vhost_memtable {
	uint32_t nregions;
	uint32_t pad;
	struct vhost_region region[VHOST_MAX_REGIONS];
};

struct vhost_log {
	uint64_t size;
	uint64_t offset;
};

struct vhost_inflight {
	uint64_t mmap_size;
	uint64_t mmap_offset;
	uint16_t num_queues;
	uint16_t queue_size;
	uint32_t pad;
};

struct vhost_config {
	uint32_t offset;
	uint32_t size;
	uint32_t flags;
	uint8_t data[VHOST_CONFIG_MAX];
};

struct vhost_msg {
	uint32_t request;
	uint32_t flags; /* vhost_send() adds the version */
	uint32_t size;	/* of the payload alone */
	union {
		uint64_t u64;
		struct vhost_vring_state state;
		struct vhost_vring_addr addr;
		struct vhost_memtable memtable;
		struct vhost_config config;
		struct vhost_log log;
		struct vhost_inflight inflight;
		uint8_t raw[512];
	} u;
} __attribute__((packed));

_Static_assert(offsetof(struct vhost_msg, u) == VHOST_HEADER_SIZE, "header is 12 bytes");
_Static_assert(sizeof(struct vhost_vring_addr) == 40, "vring address is 40 bytes");
_Static_assert(sizeof(struct vhost_memtable) == 8 + 32 * VHOST_MAX_REGIONS, "memory table");

/* Monotonic time. */
uint64_t vhost_now_ns(void);

/* Milliseconds left until @deadline_ns, rounded up, at least 0: what poll() takes. */
int vhost_ms_left(uint64_t deadline_ns);

/* Connects to @path, trying again while nobody listens yet, until @timeout_ms have passed. */
int vhost_connect(const char *path, int timeout_ms, int *sock);

/* Sends one message with @nfds descriptors on its header. */
int vhost_send(int sock, struct vhost_msg *m, const int *fds, int nfds, int timeout_ms);

/* Receives exactly one message; descriptors that come with it are closed. */
int vhost_recv(int sock, struct vhost_msg *m, int timeout_ms);

/* Sends a request that has a reply of its own, and leaves that reply in @m. */
int vhost_call(int sock, struct vhost_msg *m, int timeout_ms);

/* The same; the first descriptor that comes with the reply is @fd, or -1. */
int vhost_call_fd(int sock, struct vhost_msg *m, int *fd, int timeout_ms);

/*
 * Sends a request that has no reply of its own. With @ack its success is asked for (REPLY_ACK
 * must have been negotiated): -EREMOTEIO if the back-end refused it.
 */
int vhost_command(int sock, struct vhost_msg *m, const int *fds, int nfds, int ack, int timeout_ms);

#endif
