/*
 * Workers: one thread per core with a reactor of its own, which turns all jobs of that core. The
 * main thread tells them to run a row, waits, and adds up what they have measured. All of them wait
 * for each other before and after a row, so that what is measured is measured at the same time.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cmd/perf.h"
#include "mem/mem.h"
#include "util/ticks.h"

/* With --sleep: from this depth on, for so many completions at a time at most. */
#define ANSWER_NS  10000000
#define REST_DEPTH 16
#define REST_MOST  16u

_Atomic bool perf_interrupted;

struct worker_part {
	pthread_t thread;
	struct perf_run *run;
	unsigned index;
	int cpu; /* -1: anywhere */
	bool started;
	unsigned row; /* the last that it was told of */
	int rc;
	struct err err;
	struct reactor *reactor;
	struct perf_job *jobs; /* one per target */
	double turn_ns;
};

struct cpu_time {
	uint64_t self_ns, daemon_ns;
};

struct perf_run {
	const struct perf_options *o;
	const struct perf_target *targets;
	unsigned workers_n;
	struct worker_part *workers;
	void *shared; /* all jobs' buffers for targets that want them so; NULL: there is none */
	clockid_t daemon_clock;
	struct cpu_time begin, end; /* worker 0's, around what it measured */
	_Atomic bool abort;	    /* something failed: the row ends */

	/* Under the lock: the row that the main thread has asked for, and who still runs it. */
	pthread_mutex_t lock;
	pthread_cond_t changed;
	unsigned row, busy;
	uint32_t depth; /* 0: go home */
};

/* --- clocks --- */

uint64_t perf_clock_ns(clockid_t clock)
{
	struct timespec t = { 0 };

	clock_gettime(clock, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static struct cpu_time cpu_times(const struct perf_run *run)
{
	return (struct cpu_time){
		.self_ns = perf_clock_ns(CLOCK_PROCESS_CPUTIME_ID),
		.daemon_ns = run->o->pid ? perf_clock_ns(run->daemon_clock) : 0,
	};
}

/* --- a row, on the worker's thread --- */

static bool must_end(const struct worker_part *w)
{
	return perf_interrupted || w->run->abort;
}

static void look_for_failures(struct worker_part *w)
{
	for (unsigned i = 0; i < w->run->o->targets_n; i++)
		if (unlikely(w->jobs[i].error || perf_verify_failed(&w->jobs[i])))
			w->run->abort = true;
}

/*
 * With --sleep: kernel I/O at depth. Spinning finds completions a little earlier, one by one, and
 * takes CPU time from the kernel (or the hypervisor) that has to bring them.
 */
static unsigned worth_waiting_for(const struct worker_part *w)
{
	const struct perf_options *o = w->run->o;
	uint32_t inflight = 0;

	if (!o->sleep || o->rate || o->verify)
		return 0;
	for (unsigned i = 0; i < o->targets_n; i++) {
		if (!w->run->targets[i].bdev->kernel_io)
			return 0;
		inflight += w->jobs[i].inflight;
	}
	return inflight < REST_DEPTH ? 0 : MIN(inflight / 8, REST_MOST);
}

static bool turn(struct worker_part *w)
{
	unsigned wait;

	if (reactor_turn(w->reactor) > 0)
		return true;
	wait = worth_waiting_for(w);
	if (wait)
		reactor_rest(w->reactor, wait);
	return false;
}

/* Returns the turns in which something was done. */
static uint64_t turn_for(struct worker_part *w, uint64_t start, uint64_t length)
{
	uint64_t turns = 0;

	while (!must_end(w) && (int64_t)(reactor_now() - start) < (int64_t)length) {
		turns += turn(w);
		look_for_failures(w);
	}
	return turns;
}

static void drain(struct worker_part *w)
{
	for (unsigned i = 0; i < w->run->o->targets_n; i++)
		while (w->jobs[i].inflight > 0)
			reactor_turn(w->reactor);
}

static void read_back(struct worker_part *w)
{
	for (unsigned i = 0; i < w->run->o->targets_n; i++) {
		struct perf_job *j = &w->jobs[i];

		perf_verify_settle(j);
		perf_verify_readback(j);
		while (!perf_verify_readback_over(j))
			reactor_turn(w->reactor);
	}
}

static void run_row(struct worker_part *w, uint32_t depth)
{
	const struct perf_options *o = w->run->o;
	struct reactor_stats before, after;
	uint64_t start, turns;

	for (unsigned i = 0; i < o->targets_n; i++)
		perf_job_start(&w->jobs[i], depth);
	reactor_turn(w->reactor); /* sets the reactor's time */
	turn_for(w, ticks(), o->warmup_ms * ticks_hz() / 1000);
	for (unsigned i = 0; i < o->targets_n; i++)
		perf_job_measure(&w->jobs[i]);
	if (w->index == 0)
		w->run->begin = cpu_times(w->run);
	reactor_get_stats(w->reactor, &before);
	start = ticks();
	turns = turn_for(w, start, o->time_ms * ticks_hz() / 1000);
	start = ticks() - start;
	reactor_get_stats(w->reactor, &after);
	if (w->index == 0)
		w->run->end = cpu_times(w->run);
	for (unsigned i = 0; i < o->targets_n; i++)
		perf_job_end(&w->jobs[i], start);
	w->turn_ns =
		turns ? (double)ticks_to_ns(after.busy_ticks - before.busy_ticks) / (double)turns
		      : 0;
	drain(w);
	if (o->verify)
		read_back(w);
	for (unsigned i = 0; i < o->targets_n; i++)
		perf_job_stop(&w->jobs[i]);
}

/* --- the worker --- */

int perf_pin(int cpu, struct err *e)
{
	cpu_set_t set;
	int rc;

	if (cpu < 0)
		return 0;
	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	rc = pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
	if (rc)
		return err_set(e, -rc,
			       "CPU %d is not there, or this process may not use it: choose others "
			       "with -c.",
			       cpu);
	return 0;
}

unsigned perf_workers(const struct perf_options *o)
{
	return o->pinned ? (unsigned)CPU_COUNT(&o->cpus) : 1;
}

int perf_next_cpu(const struct perf_options *o, int cpu)
{
	if (!o->pinned)
		return -1;
	do
		cpu++;
	while (cpu < CPU_SETSIZE && !CPU_ISSET(cpu, &o->cpus));
	return cpu;
}

/* Drivers open and close the queues of one bdev one after the other. */
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;

static int worker_open(struct worker_part *w)
{
	struct perf_run *run = w->run;
	int rc = perf_pin(w->cpu, &w->err);

	if (rc)
		return rc;
	rc = reactor_create(&w->reactor);
	if (rc)
		return err_set(&w->err, rc, "Cannot start: %s.", err_words(rc));
	reactor_mutex_lock(&opening);
	for (unsigned i = 0; i < run->o->targets_n && rc == 0; i++)
		rc = perf_job_open(&w->jobs[i], run->o, &run->targets[i], w->reactor, w->index,
				   run->workers_n, &w->err);
	pthread_mutex_unlock(&opening);
	return rc;
}

static void worker_close(struct worker_part *w)
{
	reactor_mutex_lock(&opening);
	for (unsigned i = 0; i < w->run->o->targets_n; i++)
		perf_job_close(&w->jobs[i]);
	pthread_mutex_unlock(&opening);
}

/* Say that the row is done and wait for the next; returns its depth. */
/* Control threads may be waiting for this thread's reactor. Under the lock. */
static void wait_and_answer(struct worker_part *w)
{
	struct perf_run *run = w->run;
	struct timespec until;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_nsec += ANSWER_NS;
	until.tv_sec += until.tv_nsec / 1000000000;
	until.tv_nsec %= 1000000000;
	pthread_cond_timedwait(&run->changed, &run->lock, &until);
	pthread_mutex_unlock(&run->lock);
	if (w->reactor)
		reactor_answer();
	pthread_mutex_lock(&run->lock);
}

static uint32_t next_row(struct worker_part *w)
{
	struct perf_run *run = w->run;
	uint32_t depth;

	pthread_mutex_lock(&run->lock);
	if (--run->busy == 0)
		pthread_cond_broadcast(&run->changed);
	while (run->row == w->row)
		wait_and_answer(w);
	w->row = run->row;
	depth = run->depth;
	pthread_mutex_unlock(&run->lock);
	return depth;
}

static void *worker_main(void *arg)
{
	struct worker_part *w = arg;
	uint32_t depth;

	w->rc = worker_open(w);
	while ((depth = next_row(w)) > 0)
		run_row(w, depth);
	worker_close(w);
	return NULL;
}

/* --- the main thread --- */

static uint64_t all_done(const struct perf_run *run)
{
	uint64_t sum = 0;

	for (unsigned i = 0; i < run->workers_n; i++)
		for (unsigned t = 0; t < run->o->targets_n; t++)
			sum += READ_ONCE(run->workers[i].jobs[t].done);
	return sum;
}

static void progress(const struct perf_run *run, uint64_t second, uint64_t done)
{
	uint64_t total = (run->o->warmup_ms + run->o->time_ms + 999) / 1000;

	if (second > total)
		fprintf(stderr, "\r%3" PRIu64 " s, depth %" PRIu32 ": ending%30s", second,
			run->depth, "");
	else
		fprintf(stderr,
			"\r%3" PRIu64 " / %" PRIu64 " s, depth %" PRIu32 "%s %12" PRIu64 " IOPS ",
			second, total, run->depth,
			second * 1000 <= run->o->warmup_ms ? ", warm-up" : "", done);
	fflush(stderr);
}

/* Until all workers are done; with a line per second for those who watch. */
static void wait_for_workers(struct perf_run *run, bool show)
{
	struct timespec at;
	uint64_t before = all_done(run), second = 1;

	clock_gettime(CLOCK_MONOTONIC, &at);
	pthread_mutex_lock(&run->lock);
	while (run->busy > 0) {
		at.tv_sec++;
		while (run->busy > 0 &&
		       pthread_cond_timedwait(&run->changed, &run->lock, &at) != ETIMEDOUT)
			;
		if (show && run->busy > 0) {
			uint64_t now = all_done(run);

			progress(run, second++, now - before);
			before = now;
		}
	}
	pthread_mutex_unlock(&run->lock);
	if (show)
		fprintf(stderr, "\r%70s\r", "");
}

static void tell_workers(struct perf_run *run, uint32_t depth)
{
	pthread_mutex_lock(&run->lock);
	run->depth = depth;
	run->row++;
	run->busy = run->workers_n;
	pthread_cond_broadcast(&run->changed);
	pthread_mutex_unlock(&run->lock);
}

static void add_faults(struct perf_faults *to, const struct perf_faults *from)
{
	for (int k = 0; k < FAULT_KINDS; k++)
		to->blocks[k] += from->blocks[k];
	for (unsigned i = 0; i < from->n && to->n < PERF_FAULTS_MAX; i++)
		to->v[to->n++] = from->v[i];
}

static void add_job(struct perf_result *r, const struct perf_job *j)
{
	double seconds = (double)ticks_to_ns(j->took) / 1e9;

	hist_merge(&r->latency, &j->latency);
	r->done += j->done - j->warm;
	r->doorbells += j->doorbells;
	r->interrupts += j->interrupts;
	r->seconds = MAX(r->seconds, seconds);
	if (seconds > 0) {
		r->iops += (double)(j->done - j->warm) / seconds;
		r->bytes_per_s += (double)j->bytes / seconds;
	}
	if (j->verify)
		add_faults(&r->faults, perf_verify_faults(j));
}

/* Negative: not measured, or it has ended meanwhile. */
static double daemon_ns(const struct perf_run *run)
{
	if (!run->o->pid || run->end.daemon_ns < run->begin.daemon_ns)
		return -1;
	return (double)(run->end.daemon_ns - run->begin.daemon_ns);
}

/* Requests that were counted; at least 1, to divide by. */
static double measured(const struct perf_run *run)
{
	uint64_t sum = 0;

	for (unsigned i = 0; i < run->workers_n; i++)
		for (unsigned t = 0; t < run->o->targets_n; t++)
			sum += run->workers[i].jobs[t].done - run->workers[i].jobs[t].warm;
	return sum ? (double)sum : 1;
}

static int collect(const struct perf_run *run, struct perf_result *r, struct err *e)
{
	double ios = measured(run);

	for (unsigned t = 0; t < run->o->targets_n; t++) {
		memset(&r[t], 0, sizeof(r[t]));
		hist_reset(&r[t].latency);
		r[t].target = &run->targets[t];
		r[t].depth = run->depth;
		r[t].workers = run->workers_n;
		r[t].cpu_ns = (double)(run->end.self_ns - run->begin.self_ns) / ios;
		r[t].daemon_cpu_ns = daemon_ns(run) / ios;
		for (unsigned i = 0; i < run->workers_n; i++) {
			const struct worker_part *w = &run->workers[i];

			add_job(&r[t], &w->jobs[t]);
			r[t].turn_ns = MAX(r[t].turn_ns, w->turn_ns);
			if (w->jobs[t].error)
				return err_set(e, w->jobs[t].error, "I/O on %s failed: %s.",
					       run->targets[t].spec, err_words(w->jobs[t].error));
		}
	}
	return 0;
}

int perf_run_row(struct perf_run *run, uint32_t depth, struct perf_result *r, struct err *e)
{
	tell_workers(run, depth);
	wait_for_workers(run, !run->o->quiet && isatty(STDERR_FILENO));
	return collect(run, r, e);
}

/* Of one worker. */
static size_t shared_room(const struct perf_run *run)
{
	size_t room = 0;

	for (unsigned t = 0; t < run->o->targets_n; t++)
		if (run->targets[t].bdev->shared_buffers)
			room += perf_job_room(run->o, &run->targets[t]);
	return room;
}

/* One piece, before the first queue is opened: a driver shares what is there by then. */
static int alloc_shared(struct perf_run *run, struct err *e)
{
	size_t room = shared_room(run);

	return room ? dma_zalloc_shared(room * run->workers_n, false, &run->shared, e) : 0;
}

static void deal_shared(struct worker_part *w)
{
	const struct perf_run *run = w->run;
	char *next = run->shared;

	if (!next)
		return;
	next += w->index * shared_room(run);
	for (unsigned t = 0; t < run->o->targets_n; t++) {
		if (!run->targets[t].bdev->shared_buffers)
			continue;
		w->jobs[t].shared = next;
		next += perf_job_room(run->o, &run->targets[t]);
	}
}

static int start_workers(struct perf_run *run, struct err *e)
{
	const struct perf_options *o = run->o;
	int cpu = -1, rc = alloc_shared(run, e);

	if (rc)
		return rc;
	run->busy = run->workers_n;
	for (unsigned i = 0; i < run->workers_n; i++) {
		struct worker_part *w = &run->workers[i];

		cpu = perf_next_cpu(o, cpu);
		w->run = run;
		w->index = i;
		w->cpu = cpu;
		w->jobs = aligned_alloc(CACHE_LINE,
					ROUND_UP(o->targets_n * sizeof(*w->jobs), CACHE_LINE));
		if (!w->jobs)
			return err_set(e, -ENOMEM, "Out of memory.");
		memset(w->jobs, 0, o->targets_n * sizeof(*w->jobs));
		deal_shared(w);
		rc = pthread_create(&w->thread, NULL, worker_main, w);
		if (rc)
			return err_set(e, -rc, "Cannot start a thread: %s.", err_words(rc));
		w->started = true;
	}
	wait_for_workers(run, false);
	for (unsigned i = 0; i < run->workers_n; i++) {
		if (run->workers[i].rc) {
			*e = run->workers[i].err;
			return run->workers[i].rc;
		}
	}
	return 0;
}

/* Those that were started: fewer than were wanted when one could not be. */
void perf_run_stop(struct perf_run *run)
{
	if (!run->workers)
		return;
	tell_workers(run, 0);
	for (unsigned i = 0; i < run->workers_n; i++) {
		if (run->workers[i].started)
			pthread_join(run->workers[i].thread, NULL);
		free(run->workers[i].jobs);
	}
}

int perf_run_open(const struct perf_options *o, const struct perf_target *t, struct perf_run **out,
		  struct err *e)
{
	struct perf_run *run = calloc(1, sizeof(*run));
	pthread_condattr_t attr;
	int rc;

	if (!run)
		return err_set(e, -ENOMEM, "Out of memory.");
	run->o = o;
	run->targets = t;
	run->workers_n = perf_workers(o);
	run->workers = calloc(run->workers_n, sizeof(*run->workers));
	pthread_mutex_init(&run->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&run->changed, &attr);
	pthread_condattr_destroy(&attr);
	*out = run;
	if (!run->workers)
		rc = err_set(e, -ENOMEM, "Out of memory.");
	else if (o->pid && (rc = clock_getcpuclockid(o->pid, &run->daemon_clock)) != 0)
		rc = err_set(e, -rc, "There is no process %d to measure (--pid).", (int)o->pid);
	else
		rc = start_workers(run, e);
	if (rc) {
		perf_run_stop(run);
		perf_run_close(run);
		*out = NULL;
	}
	return rc;
}

void perf_run_close(struct perf_run *run)
{
	for (unsigned i = 0; run->workers && i < run->workers_n; i++)
		if (run->workers[i].reactor)
			reactor_destroy(run->workers[i].reactor);
	free(run->workers);
	dma_free_shared(run->shared);
	pthread_cond_destroy(&run->changed);
	pthread_mutex_destroy(&run->lock);
	free(run);
}
