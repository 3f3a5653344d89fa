/*
 * riffle perf compare: the same job on the kernel's paths and on riffle's, side by side.
 *
 * A path is one way to a disk: a kernel interface on a file or device (compare_kernel.h), riffle's
 * own backend in a process, or a riffle daemon behind a vhost-user socket. compare_paths.c knows
 * them all and carries one out; compare_sample.c does that in a process of its own, once to see
 * whether it can be measured at all, and then once per round. The rounds are interleaved (A B C,
 * then C B A), so that a machine that changes its speed changes it for all; what is compared are
 * the samples of one round. compare_stats.c holds the arithmetic, compare_report.c prints the table
 * and the JSON, compare_html.c and compare_svg.c the report with its charts.
 *
 * One queue depth makes one block of rows. A row stands in a block only if its job was the block's:
 * same size, span, mix, depth and workers; compare_paths.c refuses a path that cannot keep so many
 * requests in flight.
 *
 * Everything belongs to the main thread of the first process; a sample's process has copies, and
 * hands its result back in shared memory.
 */
#ifndef CMD_COMPARE_H
#define CMD_COMPARE_H

#include "cmd/compare_stats.h"
#include "cmd/perf.h"
#include "util/err.h"

#define COMPARE_PATHS_MAX (PERF_TARGETS_MAX + 6)
#define COMPARE_NOTES_MAX 32
#define COMPARE_NAME_MAX  80

int cmd_perf_compare(int argc, char **argv);

/* --- paths --- */

enum compare_kind {
	COMPARE_URING,	/* io_uring on the file */
	COMPARE_SPIN,	/* the same, spinning */
	COMPARE_AIO,	/* libaio on the file */
	COMPARE_LOOP,	/* io_uring on a loop device on the file */
	COMPARE_FILE,	/* riffle's file backend */
	COMPARE_VHOST,	/* a riffle daemon that serves the file */
	COMPARE_TARGET, /* any target of perf */
	COMPARE_CHECK,	/* no path: only looks at the file */
};

/* What a look at a path has found. */
struct compare_facts {
	uint64_t size;
	uint32_t block_size;
	uint32_t depth_max; /* of each worker; 0: no limit of its own */
	char what[200];	    /* how it is done, for people */
	char flush[200];    /* what a FLUSH and a completed write mean here */
};

struct compare_path {
	enum compare_kind kind;
	char name[COMPARE_NAME_MAX];
	const char *spec; /* COMPARE_TARGET: as perf takes it */
	bool asked;	  /* by name: then it is an error when it cannot be measured */
	struct compare_facts facts;
};

/* --- results --- */

/* One path at one depth. */
struct compare_row {
	const struct compare_path *path;
	double iops[PERF_ROUNDS_MAX], ratio[PERF_ROUNDS_MAX]; /* by round; NAN: none */
	double cpu_ns[PERF_ROUNDS_MAX], in_flight[PERF_ROUNDS_MAX];
	struct compare_summary iops_sum, ratio_sum, cpu_sum, in_flight_sum;
	unsigned unlawful; /* samples for which Little's law does not hold */
	double turn_ns;	   /* the worst resolution of latencies */
	uint64_t done;
	struct hist latency; /* of all samples */
};

struct compare_block {
	uint32_t depth;
	unsigned rounds; /* begun */
	struct compare_row *rows;
};

struct compare {
	struct perf_options *o;
	const char *command; /* as it was given, for the report */
	const char *file;    /* NULL: there are only other targets */
	const char *html;
	unsigned rounds;
	bool sized; /* -s was given */
	struct compare_path paths[COMPARE_PATHS_MAX];
	unsigned paths_n;
	char notes[COMPARE_NOTES_MAX][ERR_TEXT_MAX];
	unsigned notes_n;
	char folder[96]; /* for the daemon's sockets; "": none yet */
	struct compare_block *blocks;
	unsigned blocks_n; /* begun */
	bool interrupted;
};

/* One more sentence for below the table. */
void compare_note(struct compare *c, const char *fmt, ...) printf_like(2, 3);

/* --- paths (compare_paths.c) --- */

/* The paths that the command line means, in their order. Errors: -EINVAL with a sentence. */
int compare_paths_choose(struct compare *c, const char *wanted, struct err *e);

/* Handed back by a sample's process. */
struct compare_sample {
	int rc;
	struct err err;
	struct compare_facts facts;
	struct perf_result result;
};

/* In a sample's process. depth 0: only look, as far as to open everything for the job. */
int compare_path_run(const struct compare *c, const struct compare_path *p, uint32_t depth,
		     struct compare_sample *s, struct err *e);

/* --- samples (compare_sample.c) --- */

/* Block the signals that end the command: compare_sample() waits for them. Once. */
void compare_signals(void);

/*
 * Run a path in a process of its own. words: for who watches a terminal, or NULL. Errors: -EINTR
 * (c->interrupted is set, there is no sample), -EPROTO (the process has ended badly), those of the
 * path, with a sentence.
 */
int compare_sample(struct compare *c, const struct compare_path *p, uint32_t depth,
		   const char *words, struct compare_sample *s, struct err *e);

/* --- reports --- */

void compare_report_begin(const struct compare *c);
void compare_report_block(const struct compare *c, const struct compare_block *b);
void compare_report_end(const struct compare *c);

/* How long all samples take at least. */
double compare_seconds(const struct compare *c);

/* The one sentence about what was done: job, size, span, workers. */
void compare_job_words(const struct compare *c, char *buf, size_t size);

struct compare_html;

/* Make sure that the report can be written, before anything is measured. Errors: the kernel's, with
 * a sentence; -EEXIST when something other than a file, or the target, is in its place. */
int compare_html_open(const struct compare *c, struct compare_html **out, struct err *e);
/* Write it and put it in its place. */
int compare_html_commit(struct compare_html *h, const struct compare *c, struct err *e);
void compare_html_close(struct compare_html *h); /* also without commit: then nothing is left */

#endif
