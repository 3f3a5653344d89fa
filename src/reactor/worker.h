/*
 * worker: one thread for the blocking calls of a backend (fdatasync, fallocate, ioctl), which no
 * reactor may make.
 *
 * Jobs are embedded in requests; submitting allocates nothing, and the thread is woken at most once
 * per turn of each reactor, in its flush. The worker takes all waiting jobs at once, so that one
 * fdatasync can serve many.
 */
#ifndef REACTOR_WORKER_H
#define REACTOR_WORKER_H

#include <pthread.h>
#include <semaphore.h>

#include "reactor/reactor.h"
#include "util/mpsc.h"

struct job {
	struct mpsc_node node;
	struct reactor *home;
	void (*done)(struct job *j); /* on home's thread, after run */
	int rc;
	struct task task; /* worker.c's: the way home */
};

struct worker {
	void (*run)(struct worker *w,
		    struct job *jobs); /* a list by node.next, oldest first; sets each rc */
	struct mpsc jobs;
	sem_t work;
	pthread_t thread;
	_Atomic bool stop;
};

/* One per reactor that submits to a worker: its flush. */
struct worker_door {
	struct task flush;
	struct worker *worker;
};

/* Control thread. name: at most 15 bytes. Errors: -EAGAIN when no thread is to be had. */
int worker_start(struct worker *w, const char *name);
/* No job is waiting or will come. */
void worker_stop(struct worker *w);

void worker_door_init(struct worker_door *d, struct worker *w);
/* On j->home's thread; the caller has set done. */
void worker_submit(struct worker_door *d, struct job *j);

static inline struct job *job_next(const struct job *j)
{
	return j->node.next ? container_of(j->node.next, struct job, node) : NULL;
}

#endif
