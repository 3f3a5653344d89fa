#include "reactor/worker.h"

#include <errno.h>

static void job_home(struct task *t)
{
	struct job *j = container_of(t, struct job, task);

	j->done(j);
}

static void send_home(struct job *jobs)
{
	while (jobs) {
		struct job *j = jobs;

		jobs = job_next(j); /* j is gone once it is posted */
		j->task.fn = job_home;
		reactor_post(j->home, &j->task);
	}
}

static void *worker_main(void *arg)
{
	struct worker *w = arg;

	while (!w->stop) {
		struct mpsc_node *n;

		while (sem_wait(&w->work) < 0)
			;
		n = mpsc_take(&w->jobs);
		if (!n)
			continue;
		w->run(w, container_of(n, struct job, node));
		send_home(container_of(n, struct job, node));
	}
	return NULL;
}

int worker_start(struct worker *w, const char *name)
{
	int rc;

	sem_init(&w->work, 0, 0);
	w->stop = false;
	rc = pthread_create(&w->thread, NULL, worker_main, w);
	if (rc) {
		sem_destroy(&w->work);
		return -rc;
	}
	pthread_setname_np(w->thread, name);
	return 0;
}

void worker_stop(struct worker *w)
{
	w->stop = true;
	sem_post(&w->work);
	pthread_join(w->thread, NULL);
	sem_destroy(&w->work);
}

static void door_flush(struct task *t)
{
	struct worker_door *d = container_of(t, struct worker_door, flush);

	sem_post(&d->worker->work);
}

void worker_door_init(struct worker_door *d, struct worker *w)
{
	*d = (struct worker_door){ .flush.fn = door_flush, .worker = w };
}

void worker_submit(struct worker_door *d, struct job *j)
{
	j->home = reactor_this();
	mpsc_push(&d->worker->jobs, &j->node);
	reactor_flush(&d->flush);
}
