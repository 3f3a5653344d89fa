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
	unsigned id;	  /* as a thread, in SPDK's terms */
	uint64_t created; /* ticks */
	struct vhost_blk_disk disk;
	struct virtio_blk_config config;

	/*
	 * The session's lock: the control thread holds it while it works on a message, and whoever
	 * moves rings while it does that.
	 */
	pthread_mutex_t session_lock;

	/* The control thread's, under the session's lock. */
	pthread_t thread;
	int listen_fd, stop_fd;
	int resized_fd; /* the bdev has a new size */
	struct bdev_watcher watcher;
	struct vhost_session *session;
	struct vhost_blk_queue **queue; /* by ring */
	uint64_t features;
	bool write_through;
	bool mode_known; /* config.writeback is what the driver believes */

	/* Under the registry's lock; so is the array of queues, for those who read it. */
	cpu_set_t cpus;
	struct vhost_blk_totals gone; /* of rings that have ended */
	bool connected, deleting;
	unsigned sessions;
};

extern const struct vhost_device_ops vhost_blk_device_ops;

/* --- placement (vhost_blk_place.c) --- */

/* CPUs whose reactors may serve the disk, by its cpumask. Errors: -EINVAL with a sentence. */
int vhost_blk_choose_cpus(const struct vhost_blk *v, const char *cpumask, cpu_set_t *cpus,
			  struct err *e);
/* How busy a reactor was between two looks. */
struct load {
	uint64_t busy, total; /* ticks, at the last look */
	uint64_t passed;      /* since the one before */
	unsigned percent;     /* of that it was busy */
};

void load_look(struct load *l, const struct reactor *r);

/* So many more rings are on r. Under the registry's lock. */
void vhost_blk_seat(const struct reactor *r, int rings);
/* The reactor for one more ring of v. Under the registry's lock. */
struct reactor *vhost_blk_place(const struct vhost_blk *v);
void vhost_blk_totals_add(struct vhost_blk_totals *t, const struct vhost_blk_queue *q);
/* Errors: -EBUSY, when the control thread has had it for so long, with a sentence. */
int vhost_blk_session_lock(struct vhost_blk *v, unsigned ms, struct err *e);
/* Move ring i, if it runs, to `to`. It waits so long for the session and for the ring's I/O. Under
 * vhost_blk_changing. Errors: -EBUSY, with a sentence. */
int vhost_blk_move_ring(struct vhost_blk *v, unsigned i, struct reactor *to, unsigned ms,
			struct err *e);
/* The next ring, not tried yet, that is where it may not be, or where two more are than elsewhere:
 * the reactor that it should be on. NULL: there is none. As above. */
struct reactor *vhost_blk_misplaced(struct vhost_blk *v, const bool *tried, unsigned *ring);

/* All controllers, in order of creation; under the registry's lock. */
extern struct list vhost_blk_controllers;

/* Held by whoever creates, deletes or moves: none of them vanishes meanwhile. */
extern pthread_mutex_t vhost_blk_changing;

/* --- the device (vhost_blk_device.c) --- */

/* Fill disk and config from args and bdev. */
void vhost_blk_device_init(struct vhost_blk *v);
/* The bdev's size into the configuration space. */
void vhost_blk_device_resize(struct vhost_blk *v);
/* The feature bits to offer. */
uint64_t vhost_blk_device_features(const struct vhost_blk *v);

#endif
