/* A controller: what vhost_blk_ctrl.c (life, control thread) and vhost_blk_device.c (what a session
 * asks of it) share. */
#ifndef EXPORT_VHOST_BLK_CTRL_H
#define EXPORT_VHOST_BLK_CTRL_H

#include <pthread.h>

#include "export/vhost_blk.h"
#include "export/vhost_blk_queue.h"
#include "virtio/vhost_session.h"

struct vhost_blk {
	struct list node;
	struct vhost_blk_args *args;
	char *socket;
	struct bdev *bdev;
	cpu_set_t cpus;
	struct reactor **reactors; /* of cpus */
	unsigned reactors_n, first_reactor;
	struct vhost_blk_disk disk;
	struct virtio_blk_config config;

	/* The control thread's. */
	pthread_t thread;
	int listen_fd, stop_fd;
	struct vhost_session *session;
	struct vhost_blk_queue **queue; /* by ring */
	uint64_t features;
	bool write_through;
	bool mode_known; /* config.writeback is what the driver believes */

	/* Under the registry's lock. */
	bool connected, deleting;
	unsigned sessions;
};

extern const struct vhost_device_ops vhost_blk_device_ops;

/* Fill disk and config from args and bdev. */
void vhost_blk_device_init(struct vhost_blk *v);
/* The feature bits to offer. */
uint64_t vhost_blk_device_features(const struct vhost_blk *v);

#endif
