/*
 * riffle perf: what its files share.
 *
 * perf.c is the command, perf_options.c its command line, perf_target.c opens the targets,
 * perf_run.c runs one worker thread per core, each with a reactor of its own and one perf_job per
 * target (perf_job.c; perf_verify.c for the job that checks data), row by row of the list of
 * depths; perf_report.c prints.
 *
 * The main thread owns options, targets and results. A job belongs to its worker while a row runs
 * and to the main thread between rows.
 */
#ifndef CMD_PERF_H
#define CMD_PERF_H

#include <pthread.h>
#include <sched.h>
#include <stdalign.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#include "bdev/bdev.h"
#include "cmd/perf_pattern.h"
#include "cmd/perf_stamp.h"
#include "util/hist.h"

#define PERF_DEPTH_MAX	     4096
#define PERF_SIZE_MAX	     (4u << 20)
#define PERF_DEPTHS_MAX	     16
#define PERF_TARGETS_MAX     16
#define PERF_PERCENTILES_MAX 32
#define PERF_VERIFY_MAX	     (1u << 20) /* largest random size of verify */
#define PERF_ROUNDS_MAX	     100	/* of compare */

struct perf_depths {
	unsigned n;
	uint32_t v[PERF_DEPTHS_MAX];
};

struct perf_options {
	const char *job;
	bool random, verify, size_given, json, histogram, all_percentiles;
	bool quiet; /* no progress on a terminal */
	bool sleep; /* for kernel I/O, instead of spinning */
	unsigned read_percent;
	uint64_t io_size, time_ms, warmup_ms, span, rate;
	struct perf_depths depths;
	double percentiles[PERF_PERCENTILES_MAX]; /* asked for with --percentiles */
	unsigned percentiles_n;
	bool pinned;
	cpu_set_t cpus;
	pid_t pid; /* a daemon whose CPU time is reported; 0: none */
	const char *target_specs[PERF_TARGETS_MAX];
	unsigned targets_n;
	uint64_t run_id; /* tells the stamps of this run from those of earlier ones */
};

struct perf_target {
	const char *spec;
	struct bdev *bdev;
	uint64_t span;	 /* bytes of it that are used */
	char flush[200]; /* what a FLUSH and a completed write mean here */
};

/* --- the job (perf_job.c) --- */

struct perf_job;
struct perf_verify;

struct perf_slot {
	struct perf_job *job;
	struct perf_slot *next;		       /* in the list of finished or of free slots */
	uint64_t submitted;		       /* ticks */
	struct iovec iov[2];		       /* by op: what is written is not what was read */
	alignas(CACHE_LINE) struct bdev_io io; /* last: the driver's room follows */
};

struct perf_job {
	/* hot */
	struct poller poller;
	struct perf_slot *free, *finished;
	struct task batch; /* flush: the end of a batch of completions */
	struct perf_pattern pattern;
	uint32_t inflight;
	bool stopping;
	int error;
	uint64_t done, bytes;
	uint64_t warm;			/* of done: before it was measured */
	uint64_t doorbells, interrupts; /* of the queue: before, then while it was measured */
	struct hist latency;

	/* cold */
	struct perf_verify *verify; /* NULL: another job */
	const struct perf_options *options;
	const struct perf_target *target;
	struct bdev_queue *q;
	uint64_t took; /* ticks that were measured */
	char *slots, *data;
	char *shared; /* perf_job_room() bytes to be data, or NULL: it makes its own */
	size_t stride, buffer_len, slots_n, data_len;
};

/* Bytes of buffers that a job needs, in whole pages. Any thread. */
size_t perf_job_room(const struct perf_options *o, const struct perf_target *t);

/* On the worker's thread, with j->shared set and the rest zeroed. index of workers: which part of
 * the target is its own. */
int perf_job_open(struct perf_job *j, const struct perf_options *o, const struct perf_target *t,
		  struct reactor *r, unsigned index, unsigned workers, struct err *e);
void perf_job_close(struct perf_job *j); /* also after a failed open */
void perf_job_start(struct perf_job *j, uint32_t depth);
void perf_job_measure(struct perf_job *j);	      /* the warm-up is over: count from here */
void perf_job_end(struct perf_job *j, uint64_t took); /* submit no more, count no more */
void perf_job_stop(struct perf_job *j);		      /* nothing is in flight */

/* --- verify (perf_verify.c) --- */

enum perf_fault_kind {
	FAULT_TORN,
	FAULT_LOST,
	FAULT_STALE,
	FAULT_MISPLACED,
	FAULT_CORRUPT,
	FAULT_KINDS
};

extern const char *const perf_fault_names[FAULT_KINDS];

#define PERF_FAULTS_MAX 16

/* Neighbouring blocks with the same fault. */
struct perf_fault {
	enum perf_fault_kind kind;
	bool once;    /* a second read found what was expected */
	bool foreign; /* the stamp that was found is of another run */
	uint64_t offset, blocks;
	uint32_t expected; /* generation; 0: this job has not written there */
	struct stamp_found found;
};

struct perf_faults {
	unsigned n;
	struct perf_fault v[PERF_FAULTS_MAX];
	uint64_t blocks[FAULT_KINDS]; /* all of them, also those not in v */
};

int perf_verify_open(struct perf_job *j, unsigned index, unsigned workers, struct err *e);
void perf_verify_close(struct perf_job *j);
void perf_verify_start(struct perf_job *j);
unsigned perf_verify_poll(struct poller *p);
bool perf_verify_failed(const struct perf_job *j);
void perf_verify_settle(struct perf_job *j); /* look at what has come back */
/* Read everything back: start, then turn until it is over. */
void perf_verify_readback(struct perf_job *j);
bool perf_verify_readback_over(const struct perf_job *j);
const struct perf_faults *perf_verify_faults(const struct perf_job *j);
/* One sentence about a fault. */
void perf_fault_words(const struct perf_fault *f, uint32_t block_size, char *buf, size_t size);

/* Largest request of this job, in bytes. */
uint32_t perf_verify_max(const struct perf_options *o, const struct bdev *b);

/* --- targets (perf_target.c) --- */

int perf_targets_open(const struct perf_options *o, struct perf_target *t, struct err *e);
/* Does the job suit a disk of this size? spec is for the sentence; span: what would be used. */
int perf_check_size(const struct perf_options *o, const char *spec, uint32_t block_size,
		    uint64_t size, uint64_t span, struct err *e);
void perf_targets_close(struct perf_target *t, unsigned n);

/* --- running (perf_run.c) --- */

/* One target at one depth, all workers together. */
struct perf_result {
	const struct perf_target *target;
	uint32_t depth; /* of each worker */
	unsigned workers;
	uint64_t done;
	double iops, bytes_per_s, seconds;
	uint64_t doorbells, interrupts; /* where the target's bdev.has_doorbells */
	double cpu_ns, daemon_cpu_ns;	/* per I/O of all targets together; negative: not known */
	double turn_ns; /* mean length of a turn that moved something: the resolution of latencies
			 */
	struct hist latency; /* ticks */
	struct perf_faults faults;
};

/* Pin the calling thread; -1: anywhere. Errors: -EINVAL with a sentence. */
int perf_pin(int cpu, struct err *e);
unsigned perf_workers(const struct perf_options *o);
/* The CPU of the worker behind the one on `cpu` (-1: of the first); -1: not pinned. */
int perf_next_cpu(const struct perf_options *o, int cpu);
uint64_t perf_clock_ns(clockid_t clock);

extern _Atomic bool perf_interrupted; /* Ctrl-C */

struct perf_run;

int perf_run_open(const struct perf_options *o, const struct perf_target *t, struct perf_run **out,
		  struct err *e);
/* r: one result per target. Returns 0, or an error with its sentence. */
int perf_run_row(struct perf_run *run, uint32_t depth, struct perf_result *r, struct err *e);
/* End the workers. */
void perf_run_stop(struct perf_run *run);
/* When the targets are closed: their threads may still be posting to our reactors until then. */
void perf_run_close(struct perf_run *run);

/* --- what a result says (perf_result.c) --- */

/* Ticks as microseconds. */
double perf_us(double ticks);
double perf_percentile_us(const struct hist *h, double percent);
double perf_mean_us(const struct hist *h);

/* Little's law: the mean number of requests in flight, by what was measured, and is that what was
 * asked for? */
double perf_in_flight(const struct perf_result *r);
bool perf_little_holds(const struct perf_result *r);

/* --- printing (perf_report.c) --- */

void perf_report_begin(const struct perf_options *o, const struct perf_target *t);
void perf_report_row(const struct perf_options *o, const struct perf_result *r, unsigned n);
void perf_report_end(const struct perf_options *o, const struct perf_result *r, unsigned n);

#endif
