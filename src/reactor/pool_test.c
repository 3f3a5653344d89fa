/* Reactors with threads of their own, and the ways in from others. Made for TSan. */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include "reactor/reactor.h"
#include "reactor/worker.h"
#include "util/unit.h"

static int start(void **state)
{
	struct err e = { 0 };
	cpu_set_t set;

	(void)state;
	sched_getaffinity(0, sizeof(set), &set);
	for (int cpu = 0, kept = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, &set) && ++kept > 2)
			CPU_CLR(cpu, &set);
	return reactors_start(&set, &e);
}

static int stop(void **state)
{
	(void)state;
	reactors_stop();
	return 0;
}

static int answer(void *arg)
{
	return *(int *)arg + 1;
}

static void a_call_brings_its_answer(void **state)
{
	(void)state;
	for (int i = 0; i < 1000; i++) {
		struct reactor *r = reactors_at(i % reactors_count());

		assert_int_equal(reactor_call(r, answer, &i), i + 1);
	}
}

static void a_sleeping_reactor_wakes_for_a_call(void **state)
{
	(void)state;
	for (int i = 0; i < 20; i++) {
		usleep(2000); /* far beyond the idle budget */
		assert_int_equal(reactor_call(reactors_at(0), answer, &i), i + 1);
	}
}

struct ball {
	struct task task;
	int at, left;
	_Atomic bool done;
};

static void bounce(struct task *t)
{
	struct ball *b = container_of(t, struct ball, task);

	if (b->left-- == 0) {
		b->done = true;
		return;
	}
	b->at = (b->at + 1) % reactors_count();
	reactor_post(reactors_at(b->at), t);
}

static void tasks_travel_between_reactors(void **state)
{
	struct ball balls[4] = { 0 };

	(void)state;
	for (int i = 0; i < 4; i++) {
		balls[i] = (struct ball){ .task.fn = bounce,
					  .at = i % reactors_count(),
					  .left = 5000 };
		reactor_post(reactors_at(balls[i].at), &balls[i].task);
	}
	for (int i = 0; i < 4; i++)
		for (int wait = 0; !balls[i].done; wait++) {
			assert_true(wait < 20000);
			usleep(1000);
		}
}

/* Published, then seen by nobody: memory may go after the grace period. */
static _Atomic(int *) shared;

static unsigned reads_shared(struct poller *p)
{
	int *v = atomic_load_explicit(&shared, memory_order_acquire);

	(void)p;
	return v ? (unsigned)*v : 0;
}

static struct poller reader = { .fn = reads_shared, .patience.most = POLL_ALWAYS };

static int add_reader(void *arg)
{
	(void)arg;
	poller_add(&reader);
	return 0;
}

static int del_reader(void *arg)
{
	(void)arg;
	poller_del(&reader);
	return 0;
}

static void quiesce_is_a_grace_period(void **state)
{
	(void)state;
	reactor_call(reactors_at(0), add_reader, NULL);
	for (int i = 0; i < 200; i++) {
		int *fresh = malloc(sizeof(*fresh)), *old;

		*fresh = 1;
		old = atomic_exchange(&shared, fresh);
		reactor_quiesce();
		free(old);
	}
	reactor_call(reactors_at(0), del_reader, NULL);
	free(atomic_exchange(&shared, NULL));
}

struct sum {
	struct job job;
	struct worker_door *door;
	int value;
	_Atomic int *total;
};

static void work(struct worker *w, struct job *jobs)
{
	(void)w;
	for (struct job *j = jobs; j; j = job_next(j))
		j->rc = container_of(j, struct sum, job)->value * 2;
}

static void summed(struct job *j)
{
	*container_of(j, struct sum, job)->total += j->rc;
}

static int submit_sum(void *arg)
{
	struct sum *s = arg;

	s->job.done = summed;
	worker_submit(s->door, &s->job);
	return 0;
}

static void jobs_come_home(void **state)
{
	enum { N = 200 };
	struct worker w = { .run = work };
	struct worker_door doors[2];
	struct sum *sums = calloc(N, sizeof(*sums));
	_Atomic int total = 0;

	(void)state;
	assert_int_equal(worker_start(&w, "test"), 0);
	for (int i = 0; i < 2; i++)
		worker_door_init(&doors[i], &w);
	for (int i = 0; i < N; i++) {
		int at = i % MIN(2, reactors_count());

		sums[i] = (struct sum){ .door = &doors[at], .value = i, .total = &total };
		reactor_call(reactors_at(at), submit_sum, &sums[i]);
	}
	for (int wait = 0; total != N * (N - 1); wait++) {
		assert_true(wait < 10000);
		usleep(1000);
	}
	reactor_quiesce();
	worker_stop(&w);
	free(sums);
}

static void cpus_that_are_not_there_are_refused(void **state)
{
	struct err e = { 0 };
	cpu_set_t set;

	(void)state;
	CPU_ZERO(&set);
	CPU_SET(1023, &set);
	assert_int_equal(reactors_start(&set, &e), -EINVAL);
	assert_string_equal(e.field, "cpumask");
	assert_non_null(strstr(e.text, "1023"));
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, start, stop)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_call_brings_its_answer),
		TEST(a_sleeping_reactor_wakes_for_a_call),
		TEST(tasks_travel_between_reactors),
		TEST(quiesce_is_a_grace_period),
		TEST(jobs_come_home),
		cmocka_unit_test(cpus_that_are_not_there_are_refused),
	};

	return RUN_TESTS(tests);
}
