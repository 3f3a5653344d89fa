/* What the files of nvme share: nvme.c (attach, detach), nvme_ns.c (namespaces) and nvme_watch.c
 * (the thread that watches a controller). */
#ifndef BACKEND_NVME_DEVICE_H
#define BACKEND_NVME_DEVICE_H

#include "backend/nvme.h"
#include "backend/nvme_path.h"

/*
 * An attached controller. lock guards paths, state and who talks to the device about queues: a
 * mending holds it from beginning to end. bdevs is the watcher's, or the attacher's and detacher's
 * while it does not run.
 */
struct nvme_device {
	struct list node; /* of all */
	struct nvme_attach_args *args;
	struct nvme_hw *hw;
	void (*hw_close)(struct nvme_hw *hw);
	int request_fd; /* readable when the kernel wants the device back; -1: never */
	struct nvme_ctrl *ctrl;
	uint64_t io_timeout_us;
	unsigned users; /* nvme_for_each(), nvme_with(); guarded by the list's lock */

	pthread_mutex_t lock;
	struct list paths;
	_Atomic enum nvme_state state;
	struct nvme_mends mends;

	struct list bdevs;
	unsigned rescans; /* how often the watcher still tries to look at all namespaces */
	bool missed;	  /* the last look failed at one of them */
	pthread_t thread;
	int wake_fd; /* stop, or reset_wanted */
	_Atomic bool watched;
	bool leaving; /* being detached: nobody finds it any more; guarded by the list's lock */
	_Atomic bool stop;

	/* Somebody wants a reset and waits for what becomes of it. Under lock. */
	bool reset_wanted;
	pthread_cond_t reset_over;
	int reset_rc;
	struct err reset_err;
};

struct nvme_bdev {
	struct bdev bdev;
	struct nvme_device *dev;
	struct nvme_ns ns;
	struct list node; /* dev->bdevs */
	char name[280];
};

/* nvme_ns.c: make the bdevs of namespaces that have come, close those that have gone. */
int nvme_rescan(struct nvme_device *dev, struct err *e);
/* Delete bdevs that have gone and that nobody holds any more. true: there was one. */
bool nvme_bury(struct nvme_device *dev);
/* All of them have gone. */
void nvme_forsake(struct nvme_device *dev);
/* One of its bdevs that somebody holds; NULL: nobody does. */
const char *nvme_held(struct nvme_device *dev);
/* Errors: -EBUSY (somebody holds one; others may have been deleted). */
int nvme_delete_bdevs(struct nvme_device *dev, struct err *e);
/* What nvme_attach() returns. Errors: -ENOMEM. */
int nvme_bdev_names(struct nvme_device *dev, char ***names, unsigned *n, struct err *e);
/* Whose namespace b is. */
struct nvme_device *nvme_bdev_device(const struct bdev *b);

/* nvme_watch.c */
int nvme_watch_start(struct nvme_device *dev, struct err *e);
void nvme_watch_stop(struct nvme_device *dev);
/* Ask the watcher for a reset and wait for it. */
int nvme_watch_reset(struct nvme_device *dev, struct err *e);

#endif
