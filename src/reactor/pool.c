/* The daemon's reactors: one pinned thread per CPU, and the ways in which other threads reach them.
 */
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "reactor/internal.h"
#include "util/cpumask.h"
#include "util/log.h"

#define STUCK_S 5

static struct reactor *pool[CPU_SETSIZE];
static int pool_n;

struct start {
	int cpu, index, rc;
	struct reactor *r;
	pthread_t thread;
	sem_t ready;
};

static void *reactor_main(void *arg)
{
	struct start *s = arg;
	struct reactor *r = NULL;
	cpu_set_t set;
	char name[16];

	CPU_ZERO(&set);
	CPU_SET(s->cpu, &set);
	snprintf(name, sizeof(name), "reactor/%d", s->cpu);
	pthread_setname_np(pthread_self(), name);
	s->rc = -pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
	if (s->rc == 0)
		s->rc = reactor_create(&r);
	if (s->rc == 0) {
		r->cpu = s->cpu;
		r->numa_node = cpu_numa_node(s->cpu);
		r->index = s->index;
		s->r = r;
	}
	sem_post(&s->ready); /* s is gone after this */
	if (!r)
		return NULL;
	reactor_run(r);
	return NULL; /* r stays for those who are just posting; reactors_stop() destroys it */
}

static int start_one(int cpu, struct err *e)
{
	struct start s = { .cpu = cpu, .index = pool_n };
	int rc;

	sem_init(&s.ready, 0, 0);
	rc = -pthread_create(&s.thread, NULL, reactor_main, &s);
	if (rc == 0) {
		while (sem_wait(&s.ready) < 0)
			;
		rc = s.rc;
		if (rc)
			pthread_join(s.thread, NULL);
	}
	sem_destroy(&s.ready);
	if (rc)
		return err_set(e, rc, "Cannot start a reactor on CPU %d: %s.", cpu, err_words(rc));
	s.r->thread = s.thread;
	pool[pool_n++] = s.r;
	return 0;
}

static int check_allowed(const cpu_set_t *set, struct err *e)
{
	char allowed_text[256], given[256];
	cpu_set_t allowed, both;

	if (sched_getaffinity(0, sizeof(allowed), &allowed) < 0)
		return err_set(e, -errno, "Cannot read the CPUs this process may use: %s.",
			       err_words(errno));
	CPU_AND(&both, &allowed, set);
	if (CPU_EQUAL(&both, set))
		return 0;
	cpumask_format_list(&allowed, allowed_text, sizeof(allowed_text));
	cpumask_format_list(set, given, sizeof(given));
	return err_field(e, -EINVAL, "cpumask", given, allowed_text,
			 "CPUs %s are not all available: this process may use %s.", given,
			 allowed_text);
}

int reactors_start(const cpu_set_t *set, struct err *e)
{
	int rc = check_allowed(set, e);

	for (int cpu = 0; rc == 0 && cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, set))
			rc = start_one(cpu, e);
	if (rc)
		reactors_stop();
	return rc;
}

void reactors_stop(void)
{
	while (pool_n > 0) {
		struct reactor *r = pool[pool_n - 1];

		atomic_store(&r->stop, true);
		reactor_kick(r);
		pthread_join(r->thread, NULL);
		reactor_destroy(r);
		pool_n--;
	}
}

int reactors_count(void)
{
	return pool_n;
}

struct reactor *reactors_at(int i)
{
	return pool[i];
}

void reactors_cpus(cpu_set_t *set)
{
	CPU_ZERO(set);
	for (int i = 0; i < pool_n; i++)
		CPU_SET(pool[i]->cpu, set);
}

/* --- calls --- */

struct call {
	struct task task;
	int (*fn)(void *arg);
	void *arg;
	int rc;
	sem_t done;
};

static void call_run(struct task *t)
{
	struct call *c = container_of(t, struct call, task);

	c->rc = c->fn ? c->fn(c->arg) : 0;
	sem_post(&c->done); /* c is gone after this */
}

/* The call lies on our stack, so we cannot leave before the reactor has answered; we can say that
 * it does not. */
static void call_wait(struct call *c, const struct reactor *r)
{
	for (unsigned waited = 0;;) {
		struct timespec until;

		clock_gettime(CLOCK_REALTIME, &until);
		until.tv_sec += STUCK_S;
		if (sem_timedwait(&c->done, &until) == 0)
			return;
		if (errno == EINTR)
			continue;
		waited += STUCK_S;
		log_error("reactor on CPU %d has not answered for %u s", r->cpu, waited);
	}
}

int reactor_call(struct reactor *r, int (*fn)(void *arg), void *arg)
{
	struct call c = { .task.fn = call_run, .fn = fn, .arg = arg };

	if (r == reactor_this())
		return fn(arg);
	sem_init(&c.done, 0, 0);
	reactor_post(r, &c.task);
	call_wait(&c, r);
	sem_destroy(&c.done);
	return c.rc;
}

void reactor_answer(void)
{
	reactor_run_posted(reactor_this());
}

void reactor_mutex_lock(pthread_mutex_t *m)
{
	struct reactor *own = reactor_this();

	if (!own) {
		pthread_mutex_lock(m);
		return;
	}
	while (pthread_mutex_trylock(m)) {
		if (reactor_run_posted(own) == 0)
			nanosleep(&(struct timespec){ .tv_nsec = 20000 }, NULL);
	}
}

static int nothing(void *arg)
{
	(void)arg;
	return 0;
}

void reactor_quiesce(void)
{
	/* A posted task runs at the start of a turn, so its answer means that the turn before has
	 * ended. */
	for (int i = 0; i < pool_n; i++)
		reactor_call(pool[i], nothing, NULL);
}
