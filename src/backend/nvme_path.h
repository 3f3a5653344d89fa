/*
 * path: one reactor's queue pair of one controller, and the journey of requests through it.
 *
 * Its bdev_queues - of all namespaces of the controller that this reactor serves - share it.
 * Requests that find the queue full, or the path parked (its controller is being mended), wait in
 * line. What was outstanding when the device forgot its queues is sent again, once.
 *
 * A path belongs to its reactor; who mends the controller (nvme_watch.c) comes by reactor_call().
 * While requests are outstanding its poller polls; a poller whose patience ends lets the interrupt
 * through (it is masked otherwise, with one store), and with nothing outstanding it needs none.
 */
#ifndef BACKEND_NVME_PATH_H
#define BACKEND_NVME_PATH_H

#include "bdev/bdev.h"
#include "nvme/ctrl.h"

struct nvme_path {
	/* hot */
	struct nvme_qpair qp;
	bool closed;		 /* requests wait in line: others wait already, or it is parked */
	struct bdev_queue *last; /* whose request began the last turn: doorbells and interrupts are
				    its */
	struct task flush;
	struct poller poller;

	/* rare */
	bool parked, dead;
	struct bdev_io *waiting, **waiting_last;

	/* cold */
	volatile le32 *mask; /* Vector Control; NULL: always on, or no vector */
	int irq_fd;	     /* -1: no interrupt, polled for as long as anything is outstanding */
	struct watch irq;
	struct reactor *reactor;
	unsigned users;
	struct list node;
	unsigned untold; /* looks in a row that found completions of which no interrupt had told */
};

/* A bdev_queue's way to its path (its priv). */
struct nvme_door {
	struct nvme_path *path;
	uint64_t head[BDEV_WRITE + 1]; /* of the SQE of reads and writes */
	uint32_t nsid;
	uint8_t block_shift;
	bool flushes;	 /* the device has a volatile write cache */
	bool deallocate; /* Write Zeroes may */
};

/* A request's room. */
struct nvme_io {
	struct nvme_req req;
	struct bdev_io *next; /* in line */
	uint64_t sent;	      /* ticks, if NVME_IO_LATER */
};

/* In bdev_io.driver, which lies in a cache line that is touched anyway. */
#define NVME_IO_TRIES	0x00ff /* before this one */
#define NVME_IO_ABORTED 0x0100 /* an Abort was sent for it */
#define NVME_IO_LATER	0x0200 /* it was not sent when it was submitted: nvme_io.sent says when */

/* The driver's. */
void nvme_submit(struct bdev_io *io);
void nvme_submit_one(struct bdev_io *io);
bool nvme_path_reaches(struct bdev_queue *q, const struct iovec *iov, int n);

/* --- control threads --- */

/* Memory and queue are there; p joins its reactor. Errors: of watch_start(). */
int nvme_path_start(struct nvme_path *p);
/* Nothing is outstanding, and no bdev_queue uses it. */
void nvme_path_stop(struct nvme_path *p);

/* Requests wait from now on; those outstanding stay so. */
void nvme_path_park(struct nvme_path *p);
/* The device has forgotten the queue: what was outstanding goes to the head of the line, or fails
 * when it was there before. */
void nvme_path_take_back(struct nvme_path *p);
/* The queue is there again. */
void nvme_path_resume(struct nvme_path *p);
/* Everything fails, now and from now on. The device does no DMA any more. */
void nvme_path_fail(struct nvme_path *p);

/* q will be no more. */
void nvme_path_forget(struct nvme_path *p, struct bdev_queue *q);

/* What the watcher sees of a path. */
struct nvme_path_look {
	uint64_t now;			      /* ticks */
	uint64_t late_after, very_late_after; /* in: ticks that a request may take */
	unsigned outstanding, very_late;
	bool interrupt_lost; /* look after look, completions that nobody told of are found */
	uint16_t late[4];    /* command identifiers to abort, late_n of them */
	unsigned late_n;
	const char *fault;
};

/* Look at the path's outstanding requests on its reactor; those in late[] are marked aborted. */
void nvme_path_watch(struct nvme_path *p, struct nvme_path_look *look);

#endif
