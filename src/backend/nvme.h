/*
 * nvme: NVMe controllers that this process drives, and a bdev for each of their namespaces.
 *
 * A controller is attached by name and address; its namespaces become bdevs NAMEnNSID. It is
 * watched by a thread of its own (nvme_watch.c), which hears of namespaces that come, go and
 * change, and mends what is stuck: abort, new queue, reset, and in the end failure. Every reactor
 * that does I/O to a controller has one queue pair of it, a path (nvme_path.h), which its
 * bdev_queues share.
 *
 * Control threads only.
 */
#ifndef BACKEND_NVME_H
#define BACKEND_NVME_H

#include <stdbool.h>
#include <stdint.h>

#include "bdev/bdev.h"
#include "nvme/ctrl.h"

extern const struct bdev_driver nvme_driver;

struct nvme_attach_args {
	char *name, *trtype, *traddr;
	uint64_t num_io_queues, io_queue_entries;
	bool noiommu;
	/* of transports that are not offered, and multipath: accepted where they ask for nothing */
	char *adrfam, *trsvcid, *subnqn, *hostnqn, *multipath;
	bool prchk_reftag, prchk_guard;
	int64_t ctrlr_loss_timeout_sec;
	uint64_t reconnect_delay_sec, fast_io_fail_timeout_sec, max_bdevs;
	bool allow_unrecognized_csi;
};

extern const struct param nvme_attach_params[];

/* Settings of all controllers, of those attached from now on where not said otherwise. */
struct nvme_settings {
	uint64_t timeout_us;	   /* of an I/O, until something is done about it (at once) */
	uint64_t timeout_admin_us; /* of an admin command */
	uint64_t io_queue_entries; /* of a queue pair */
};

struct nvme_settings nvme_settings_get(void);
int nvme_settings_set(const struct nvme_settings *s, struct err *e);

enum nvme_state { NVME_LIVE, NVME_RESETTING, NVME_FAILED, NVME_REMOVED };

/* What mended it, and how often. */
struct nvme_mends {
	uint64_t aborts, rebuilds, resets, lost_interrupts;
};

/* A controller, to who looks at it; valid during the call. */
struct nvme_info {
	const char *name;
	const char *bdf; /* NULL: no PCI device */
	const struct nvme_attach_args *args;
	enum nvme_state state;
	struct nvme_mends mends;
	const struct nvme_ctrl *ctrl;
};

/*
 * Attach a controller; args become its own, also on failure. names: of the bdevs that it has,
 * malloc'ed with what they point to. Errors: -EEXIST (the name, or the address under another name),
 * -EINVAL, -ENOTSUP, those of vfio_open() and nvme_ctrl_open(). A namespace that cannot be used is
 * logged and left out.
 */
int nvme_attach(struct nvme_attach_args *args, char ***names, unsigned *n, struct err *e);
/* The same for hardware of any kind, which hw_close is told to close in the end, on failure too. */
int nvme_attach_hw(struct nvme_attach_args *args, struct nvme_hw *hw,
		   void (*hw_close)(struct nvme_hw *hw), int request_fd, char ***names, unsigned *n,
		   struct err *e);
/* Errors: -ENODEV, -EBUSY (a bdev of it is in use). */
int nvme_detach(const char *name, struct err *e);
/* All of them; no bdev is in use. */
void nvme_detach_all(void);
/* Reset the controller; I/O waits meanwhile and is sent again. Errors: -ENODEV, those of
 * nvme_ctrl_enable(). */
int nvme_reset(const char *name, struct err *e);

/* Call fn for each controller, or the one named, in order of attachment until it returns non-zero;
 * returns that. No controller goes meanwhile. Errors: -ENODEV (name is none). */
int nvme_for_each(const char *name, int (*fn)(const struct nvme_info *i, void *arg), void *arg,
		  struct err *e);

/* Admin commands (nvme_identify() and others) to a controller by name: fn runs while it cannot go.
 * Errors: -ENODEV, fn's. */
int nvme_with(const char *name,
	      int (*fn)(const struct nvme_info *i, struct nvme_ctrl *c, void *arg, struct err *e),
	      void *arg, struct err *e);

/* Of a bdev of nvme_driver. */
const struct nvme_ns *nvme_bdev_ns(const struct bdev *b);
/* Calls fn once, for its controller. The bdev is held, or the registry locked. */
void nvme_bdev_look(const struct bdev *b, int (*fn)(const struct nvme_info *i, void *arg),
		    void *arg);

#endif
