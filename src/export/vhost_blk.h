/*
 * vhost_blk: bdevs as vhost-user-blk disks of virtual machines.
 *
 * A controller is one disk: a Unix socket, a bdev, and one control thread that listens, runs the
 * session of the one front-end that may be connected (virtio/vhost_session.h), and waits between.
 * Each virtqueue that the guest sets up is a poller of its own with its own bdev_queue, on a
 * reactor from the controller's cpumask: where the disk has the fewest rings, then where there is
 * the least to do. Rings can be moved while they run.
 *
 * Durability: a driver that negotiated neither FLUSH nor CONFIG_WCE, or has turned the write cache
 * off, gets every write with FUA; for the others a FLUSH reaches the medium.
 *
 * Control threads only.
 */
#ifndef EXPORT_VHOST_BLK_H
#define EXPORT_VHOST_BLK_H

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>

#include "util/err.h"
#include "util/param.h"

struct vhost_blk_args {
	char *ctrlr, *dev_name, *cpumask, *transport, *serial;
	bool readonly, packed_ring;
	uint64_t num_queues, poll_us;
};

#define VHOST_BLK_POLL_DAEMON (UINT64_MAX - 1) /* poll_us: as the daemon's */

extern const struct param vhost_blk_params[];

/* Where controllers put their sockets. Once, before the first is created. */
void vhost_blk_set_folder(const char *path);

/*
 * Make a controller from decoded args (which become the controller's, also on failure) and listen.
 * Errors: -EEXIST, -ENODEV (no such bdev), -EINVAL, the socket's, with sentences.
 */
int vhost_blk_create(struct vhost_blk_args *args, struct err *e);

/* Errors: -ENODEV; -EBUSY while a front-end is connected. */
int vhost_blk_delete(const char *name, struct err *e);

/* Disconnect all front-ends once their I/O in flight has ended, and delete all controllers. */
void vhost_blk_delete_all(void);

/*
 * Serve the controller's rings on these CPUs only (NULL or empty: on all that have a reactor),
 * those that run and those to come. Errors: -ENODEV, -EINVAL; -EBUSY: some rings could not be moved
 * yet.
 */
int vhost_blk_set_cpumask(const char *name, const char *cpumask, struct err *e);

/*
 * Once a second, move a busy ring away from a reactor that is busy for so many per cent of its time
 * (design.md, "Placement"). Errors: the kernel's, with a sentence.
 */
int vhost_blk_balance_start(unsigned percent, struct err *e);
void vhost_blk_balance_stop(void); /* harmless when it was not started */

/* What rings have done. */
struct vhost_blk_totals {
	uint64_t requests, batches, kicks, interrupts, moves;
	uint64_t busy_ticks; /* of CPU time: the turns in which they moved something */
};

struct vhost_blk_ring_info {
	unsigned index;
	const struct reactor *reactor;
	bool polled; /* else armed, or not started yet */
	unsigned size, inflight;
	uint64_t patience; /* ticks that it is polled in vain at present */
	uint64_t polled_turns;
	struct vhost_blk_totals totals;
};

/* A controller, as the outside may see it. */
struct vhost_blk_info {
	unsigned
		id; /* of the "thread" that it is for SPDK's clients; reactors have the first ids */
	uint64_t created; /* ticks */
	const struct vhost_blk_args *args;
	cpu_set_t cpus;
	const char *socket;
	bool connected;
	bool write_through; /* completed writes are durable without a FLUSH */
	unsigned session;   /* number of the present connection */
	unsigned rings_started, inflight;
	const struct vhost_blk_ring_info *rings; /* rings_started of them */
	struct vhost_blk_totals totals;		 /* with those of rings that have ended */
};

/* Call fn for each controller, in order of creation, until it returns non-zero; returns that. The
 * info is valid in the call. */
int vhost_blk_for_each(int (*fn)(const struct vhost_blk_info *info, void *arg), void *arg);

#endif
