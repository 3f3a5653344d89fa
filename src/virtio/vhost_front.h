/*
 * vhost_front: the front-end's half of a vhost-user connection, for an initiator: it owns the
 * memory and the rings, and hands them to a back-end (riffle, qemu-storage-daemon, SPDK) over its
 * socket.
 *
 * Blocking, straight-line, on control threads; every reply has a deadline. One region of memory,
 * whose guest physical addresses are our own virtual ones.
 */
#ifndef VIRTIO_VHOST_FRONT_H
#define VIRTIO_VHOST_FRONT_H

#include <stdbool.h>
#include <stdint.h>

#include "util/err.h"
#include "virtio/spec.h"

struct vhost_front {
	int fd;
	uint64_t features; /* negotiated */
	bool acks;	   /* REPLY_ACK: each setting is answered */
	unsigned queues;   /* what the back-end offers; 1 without MQ */
};

struct vhost_front_range {
	void *base;
	uint64_t size;
	int fd;
};

/*
 * Connect, and negotiate of `wanted` what is offered. Errors: the socket's; -EPROTO when the other
 * side does not speak vhost-user; -ETIMEDOUT. All with sentences.
 */
int vhost_front_open(const char *path, uint64_t wanted, struct vhost_front *f, struct err *e);
void vhost_front_close(struct vhost_front *f);

/* The device's configuration space; fields beyond what the back-end has are zero. */
int vhost_front_config(struct vhost_front *f, struct virtio_blk_config *config, struct err *e);

/* Share n ranges (at most 8) of our memory; replaces what was shared. */
int vhost_front_share(struct vhost_front *f, const struct vhost_front_range *ranges, unsigned n,
		      struct err *e);

/* Give a ring to the back-end and start it. The addresses lie in shared ranges. */
int vhost_front_ring_start(struct vhost_front *f, unsigned index, unsigned num, const void *desc,
			   const void *avail, const void *used, int kick_fd, int call_fd,
			   struct err *e);
/* The back-end has ended what was in flight and touches the ring no more. */
int vhost_front_ring_stop(struct vhost_front *f, unsigned index, struct err *e);

#endif
