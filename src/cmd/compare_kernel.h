/*
 * The kernel's own ways to a file or device, as good as they can be had: what riffle's are compared
 * with. Batches are submitted and reaped with one system call, buffers and the file are registered
 * where the interface knows that, and the clock is read once per turn, as riffle perf does.
 *
 * compare_kernel.c opens the file under perf's rules (locks, O_EXCL), runs one thread per worker
 * and adds up; compare_uring.c and compare_aio.c are engines: how a batch enters the kernel and
 * leaves it. A worker turns: stage what is free, one engine->turn(), and again.
 *
 * A job belongs to its worker's thread.
 */
#ifndef CMD_COMPARE_KERNEL_H
#define CMD_COMPARE_KERNEL_H

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>

#include "backend/file.h"
#include "cmd/perf.h"
#include "util/hist.h"

struct kernel_job;

struct kernel_engine {
	const char *what; /* for people */
	bool spins;	  /* looks for completions again and again, as riffle does */
	int (*open)(struct kernel_job *j, struct err *e);
	void (*close)(struct kernel_job *j); /* nothing in flight; also after a failed open */
	/* Put a request of the pattern's size into the next batch. */
	void (*stage)(struct kernel_job *j, uint32_t slot, bool read, uint64_t offset);
	/* Submit the batch; wait until so many have completed (at most those in flight; 0: only
	 * look). Read the clock, then kernel_job_done() for all that have. 0, or the kernel's
	 * -errno. */
	int (*turn)(struct kernel_job *j, unsigned wait);
};

struct kernel_job {
	/* hot */
	struct perf_pattern pattern;
	uint64_t now;	     /* ticks: of this turn's completions, and of what is submitted next */
	uint64_t *submitted; /* by slot */
	uint32_t *free;	     /* a stack of slots */
	uint32_t free_n, inflight;
	char *data;
	uint64_t done;
	struct hist latency;
	int error;

	/* cold */
	void *engine; /* the engine's own */
	int fd;
	uint32_t depth, batch;	   /* batch: completions that are worth waking up for */
	size_t data_len, write_at; /* of the buffers to write from, in data */
	bool unregistered;	   /* the engine could not register the buffers */
};

/* A request has completed. res: bytes, or -errno. */
static inline void kernel_job_done(struct kernel_job *j, uint32_t slot, int64_t res)
{
	hist_add(&j->latency, j->now - j->submitted[slot]);
	if (unlikely(res != (int64_t)j->pattern.io_size) && j->error == 0)
		j->error = res < 0 ? (int)res : -EIO;
	j->free[j->free_n++] = slot;
	j->inflight--;
	j->done++;
}

static inline char *kernel_job_buffer(const struct kernel_job *j, uint32_t slot, bool read)
{
	return j->data + (read ? 0 : j->write_at) + (size_t)slot * j->pattern.io_size;
}

extern const struct kernel_engine uring_engine, uring_spin_engine;
/* NULL where this program was built without libaio. */
extern const struct kernel_engine *const aio_engine;

/*
 * Open path for this job by the rules of perf: locked when it is written, sizes checked. *lock: to
 * be dropped after close(f->fd). Errors: with a sentence.
 */
struct file_lock;
int kernel_file_open(const struct perf_options *o, const char *path, struct file_facts *f,
		     struct file_lock **lock, struct err *e);

/* Can a job with this depth be opened? */
int kernel_probe(const struct kernel_engine *engine, const struct perf_options *o, int fd,
		 uint32_t depth, bool *unregistered, struct err *e);

/* Run the job on fd, of which span bytes are used; name is for the sentence when I/O fails. */
int kernel_run(const struct kernel_engine *engine, const struct perf_options *o, int fd,
	       uint64_t span, uint32_t depth, const char *name, struct perf_result *r,
	       struct err *e);

#endif
