/*
 * ctrl: an NVMe controller, from bring-up to shutdown, and its admin queue.
 *
 *	nvme_ctrl_open()	reset, admin queue, Identify, number of queues, events, shadow
 *doorbells nvme_queue_open()	I/O queue pairs; each belongs to one thread from then on (qpair.h)
 *	nvme_admin(), ...	admin commands; they block, and any control thread may send them
 *	nvme_ctrl_poll()	who watches the controller calls it now and then: events, faults
 *	nvme_ctrl_disable()	the device does nothing any more and has forgotten its queues
 *	nvme_ctrl_enable()	brings it up again; nvme_queue_create() then for each queue that
 *lives nvme_ctrl_close()	queues are closed; normal shutdown, so that nothing cached is lost
 *
 * No reactor, no bdev, no JSON: hardware comes as struct nvme_hw. Control threads only. The lock
 * guards the admin queue; disable and enable are one thread's business (the watcher's), and admin
 * commands of others that meet them end with -ECANCELED or -EAGAIN.
 */
#ifndef NVME_CTRL_H
#define NVME_CTRL_H

#include <pthread.h>

#include "nvme/hw.h"
#include "nvme/qpair.h"
#include "util/list.h"

#define NVME_VECTORS_MAX 128
#define NVME_QUEUES_MAX	 128

struct nvme_options {
	unsigned queues;  /* I/O queue pairs wanted, at least 1 */
	unsigned entries; /* of each; the controller may have less */
	unsigned admin_timeout_ms;
	bool no_shadow_doorbells, no_cmb, no_sgl;
};

/* What a controller told us since the last poll. */
struct nvme_news {
	bool gone;  /* its registers read as all ones: it was pulled */
	bool fatal; /* CSTS.CFS, not ready any more (it lost power?), or a lie in its admin queue */
	bool namespaces; /* some were added, removed or changed */
	bool health;	 /* SMART has something to say */
	bool errors;	 /* so has the error log */
};

struct nvme_ctrl {
	struct nvme_hw *hw;
	struct nvme_options options;

	/* Constant between enable and disable. */
	uint64_t cap;
	uint32_t vs;
	uint32_t page; /* memory page in bytes (CC.MPS) */
	struct nvme_id_ctrl id;
	uint32_t max_transfer; /* bytes */
	unsigned entries;      /* of an I/O queue */
	unsigned queues;       /* I/O queue pairs that may be created */
	bool write_cache, sgl;

	/* Interrupts: vector i adds to irq_fd[i]. Vector 0 is the admin queue's, i that of queue i.
	 */
	unsigned vectors;
	int irq_fd[NVME_VECTORS_MAX];

	/* Shadow doorbells: two pages, NULL where the controller has none. */
	le32 *shadow, *event;

	/* Host memory buffer: NULL where the controller wants none. */
	void *hmb;
	size_t hmb_len, hmb_whole;

	/* Controller memory buffer: NULL where there is none for submission queues. */
	char *cmb;
	size_t cmb_len;
	iova_t cmb_iova;

	pthread_mutex_t lock; /* of what follows */
	struct nvme_qpair admin;
	bool live;
	struct list admin_reqs; /* all that are outstanding */
	struct nvme_news news;
	bool queue_used[NVME_QUEUES_MAX + 1]; /* by identifier */
};

/*
 * Bring a controller up. hw stays the caller's and outlives it. Errors, each with a sentence:
 * -ENODEV (gone), -ETIMEDOUT, -ENOTSUP (no NVM command set, impossible page sizes), -EIO, -ENOMEM.
 */
int nvme_ctrl_open(struct nvme_hw *hw, const struct nvme_options *o, struct nvme_ctrl **out,
		   struct err *e);
void nvme_ctrl_close(struct nvme_ctrl *c);

/*
 * On return the device has stopped: no DMA, no queues; admin commands have ended with -ECANCELED.
 * Where clearing CC.EN does not do, a function-level reset does. Errors: -ENODEV, -ETIMEDOUT (it
 * may still be doing DMA).
 */
int nvme_ctrl_disable(struct nvme_ctrl *c, struct err *e);
/* Errors: as nvme_ctrl_open(); -ENOTSUP also when it is another controller now. */
int nvme_ctrl_enable(struct nvme_ctrl *c, struct err *e);

/* The hardware has been taken away, by whoever closes hw after this: from now on everything is as
 * if the device had been pulled. Queues and the controller are still to be closed. */
void nvme_ctrl_let_go(struct nvme_ctrl *c);

/* Look at the status register and at what came to the admin queue. */
struct nvme_news nvme_ctrl_poll(struct nvme_ctrl *c);

/* --- I/O queues --- */

/*
 * Make *qp a queue pair and tell the controller. Its interrupts go to c->irq_fd[qp->id] when qp->id
 * < c->vectors. Errors: -EBUSY (all are in use), -ENOMEM, those of nvme_admin().
 */
int nvme_queue_open(struct nvme_ctrl *c, struct nvme_qpair *qp, struct err *e);
/* Nothing is outstanding. The controller is told when it is there. */
void nvme_queue_close(struct nvme_ctrl *c, struct nvme_qpair *qp);
/* Make the controller forget a queue, whatever is outstanding on it. Errors: of nvme_admin(). */
int nvme_queue_delete(struct nvme_ctrl *c, const struct nvme_qpair *qp, struct err *e);
/* Tell the controller of a queue that it has forgotten. */
int nvme_queue_create(struct nvme_ctrl *c, struct nvme_qpair *qp, struct err *e);

/* --- admin commands --- */

/*
 * Run sqe with len bytes of data (in the direction that its opcode says; any memory) and wait.
 * Returns 0 when the command has ended, with whatever status in *cqe. timeout_ms 0: the
 * controller's own. Errors: -ETIMEDOUT, -ECANCELED (a reset came), -EAGAIN (a reset is going on),
 * -ENODEV, -ENOMEM.
 */
int nvme_admin_raw(struct nvme_ctrl *c, const struct nvme_sqe *sqe, void *data, size_t len,
		   unsigned timeout_ms, struct nvme_cqe *cqe, struct err *e);
/* The same; a status other than success is -EIO (or what nvme_status_errno() makes of it) with its
 * words. what: "Identify". result may be NULL: DW0. */
int nvme_admin(struct nvme_ctrl *c, const char *what, const struct nvme_sqe *sqe, void *data,
	       size_t len, uint32_t *result, struct err *e);

/* The same as nvme_admin_raw() for an I/O command, on a queue of its own. Errors: also -EBUSY (no
 * queue is left). */
int nvme_io_raw(struct nvme_ctrl *c, const struct nvme_sqe *sqe, void *data, size_t len,
		bool to_device, unsigned timeout_ms, struct nvme_cqe *cqe, struct err *e);

int nvme_identify(struct nvme_ctrl *c, uint8_t cns, uint32_t nsid, void *data, struct err *e);
/* len: a multiple of 4. The event that points to this log may come again afterwards. */
int nvme_get_log(struct nvme_ctrl *c, uint8_t log, uint32_t nsid, void *data, size_t len,
		 struct err *e);
int nvme_set_feature(struct nvme_ctrl *c, uint8_t feature, uint32_t value, uint32_t *result,
		     struct err *e);
int nvme_get_feature(struct nvme_ctrl *c, uint8_t feature, uint32_t *result, struct err *e);
/* Ask that a command be aborted. Whether or not it is, its completion comes. */
int nvme_abort(struct nvme_ctrl *c, uint16_t sqid, uint16_t cid, struct err *e);

/* --- namespaces --- */

struct nvme_ns {
	uint32_t nsid;
	uint64_t blocks;
	unsigned block_shift; /* 9 to 16 */
	unsigned boundary;    /* blocks that commands should not cross (NOIOB); 0: none */
	bool readonly, zeroes_deallocate; /* Write Zeroes may deallocate (DEAC) */
	bool reads_zeroes;		  /* deallocated blocks read as zeroes */
	unsigned physical_shift;
	uint8_t nguid[16], eui64[8], uuid[16]; /* all zero: none */
};

/* Active namespaces in ascending order: *nsids is the caller's to free. */
int nvme_ns_list(struct nvme_ctrl *c, uint32_t **nsids, unsigned *n, struct err *e);
/* Errors: -ENODEV (inactive), -ENOTSUP (a format that cannot be used, with the reason). */
int nvme_ns_identify(struct nvme_ctrl *c, uint32_t nsid, struct nvme_ns *ns, struct err *e);

/* --- status.c --- */

/* "Invalid Field in Command": of a status without its phase bit. Never NULL. */
const char *nvme_status_words(uint16_t status);
/* 0 or -errno, as block devices say it. */
int nvme_status_errno(uint16_t status);

/* A string of Identify data (ASCII, padded, not terminated, may hold anything) as one that can be
 * printed: out has len + 1 bytes. */
void nvme_string(const char *in, size_t len, char *out);

#endif
