/*
 * Hostile and ordinary virtqueues against a real daemon.
 *
 * Theory of operation. ring_test.c starts a daemon with a set of disks (RING_DISK and the rest
 * below) and runs tables of cases against it, one TAP line each. While they run, a thread - the
 * bystander - reads and writes a disk of its own; whatever a case does, the bystander must keep
 * being served. After a case its guests are closed, and the daemon must be alive and hold as many
 * file descriptors and mappings as before.
 *
 * A case is a function that takes a struct ring_test and returns when it has seen enough.
 * REQUIRE() notes the first broken expectation and leaves; guests opened with ring_open() are
 * closed for it.
 *
 * A probe is a guest with one queue whose requests are made by hand, for all the cases that must
 * control every field. Its data buffer and status byte lie between guard bytes.
 */
#ifndef RING_RING_H
#define RING_RING_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "fake/daemon.h"
#include "fake/guest.h"
#include "fake/tap.h"

/* Controllers of every daemon that the cases run against; packed rings where it says nothing. */
#define RING_DISK     "disk"	 /* malloc, 64 MiB, 4 queues */
#define RING_FILE     "file"	 /* file, 64 MiB, 4 queues */
#define RING_NULL     "null"	 /* null, 1 GiB, 4 queues */
#define RING_SLOW     "slow"	 /* malloc behind a delay of RING_SLOW_MS, 4 queues */
#define RING_RO	      "ro"	 /* file, 1 MiB, read-only, filled with RING_RO_BYTE */
#define RING_OTHER    "other"	 /* malloc, split rings, the bystander's */
#define RING_NOSERIAL "noserial" /* split rings */
#define RING_SERIAL20 "serial20" /* serial RING_SERIAL */
#define RING_SERIAL40 "serial40" /* twice that, unless the daemon refused it */

#define RING_DISK_SECTORS 131072u
#define RING_RO_SECTORS	  2048u
#define RING_RO_BYTE	  0xa7
#define RING_SLOW_MS	  300
#define RING_SERIAL	  "0123456789abcdefghij"

struct bystander {
	pthread_t thread;
	char path[256];
	volatile bool stop, pause, paused;
	volatile uint64_t rounds; /* served so far */
	char why[256];		  /* what went wrong, once failed */
	volatile bool failed;
};

struct ring_env {
	struct daemon daemon;
	struct bystander bystander;
	const char *label; /* " (two reactors)" */
	char file[256];	   /* behind RING_FILE */
	bool long_run;
	bool sanitized;
	bool packed;		   /* packed rings are offered */
	bool serial40;		   /* the daemon accepted such a serial */
	int fds, guest_maps, maps; /* at rest */
	long rss_kib;
};

#define RING_MAX_GUESTS 16

struct ring_test {
	struct ring_env *env;
	struct guest *guest[RING_MAX_GUESTS];
	unsigned nguests;
	bool failed;
	char why[512];
	const char *skip; /* the reason, if the case could not run */
	bool packed;	  /* guests use packed rings */
};

struct ring_case {
	const char *name;
	void (*run)(struct ring_test *t);
	bool reactors; /* also with two reactors */
	bool packed;   /* also with packed rings */
};

/* The tables end with a case without a name. */
extern const struct ring_case ring_chain_cases[];
extern const struct ring_case ring_memory_cases[];
extern const struct ring_case ring_index_cases[];
extern const struct ring_case ring_call_cases[];
extern const struct ring_case ring_shape_cases[];
extern const struct ring_case ring_zero_cases[];
extern const struct ring_case ring_stop_cases[];
extern const struct ring_case ring_load_cases[];
extern const struct ring_case ring_log_cases[];

/* For packed rings alone. */
extern const struct ring_case ring_packed_cases[];
extern const struct ring_case ring_packed_setup_cases[];

/* With daemons of their own, for both formats. */
extern const struct ring_case ring_crash_cases[];
extern const struct ring_case ring_lies_cases[];

void ring_fail(struct ring_test *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#define REQUIRE(t, cond, ...)                      \
	do {                                       \
		if (!(cond)) {                     \
			ring_fail(t, __VA_ARGS__); \
			return;                    \
		}                                  \
	} while (0)

#define REQUIRE_TRUE(t, cond, ...)                 \
	do {                                       \
		if (!(cond)) {                     \
			ring_fail(t, __VA_ARGS__); \
			return false;              \
		}                                  \
	} while (0)

/* ---- environment (ring_env.c) ---- */

bool ring_env_start(struct ring_env *env, const char *exe, const char *cpumask);

/* Ends the daemon; @report: as two tests, its memory and its exit status. */
void ring_env_stop(struct ring_env *env, bool report);

/* What a case must leave behind: closes its guests, checks the daemon and the bystander. */
void ring_env_settle(struct ring_env *env, struct ring_test *t);

/* Runs the bystander no further until resumed. */
void ring_bystander_pause(struct ring_env *env, bool on);

/* ---- guests and probes (ring_probe.c) ---- */

/* A guest that the case need not close; p->path is @ctrlr's socket. */
struct guest *ring_open(struct ring_test *t, const char *ctrlr, struct guest_params p);

/* Keeps @g for closing. */
void ring_keep(struct ring_test *t, struct guest *g);

void ring_close(struct ring_test *t, struct guest *g);

enum answer {
	ANSWER_OK = 1,
	ANSWER_IOERR = 2,
	ANSWER_UNSUPP = 4,
	ANSWER_LEN0 = 8,    /* head returned with length 0, status untouched */
	ANSWER_BROKEN = 16, /* head not returned, error signalled: the queue has been given up */
	ANSWER_SILENT = 32, /* neither returned nor signalled */
	ANSWER_WRONG = 64,  /* something that is never right */
};

#define ANSWER_MALFORMED (ANSWER_LEN0 | ANSWER_BROKEN)
#define ANSWER_FAILED	 (ANSWER_MALFORMED | ANSWER_IOERR)

#define PROBE_DATA_SIZE 65536u
#define PROBE_SECTOR	64u /* where the good requests of a probe write */

struct probe {
	struct ring_test *t;
	struct guest *g;
	struct guest_queue *q;
	uint64_t header, data, status, table; /* gpa */
	struct virtq_used_elem used;	      /* the last one */
};

/* What a case waits for an answer to a hostile request: 1 s would do on a quiet machine. */
#define PROBE_ANSWER_MS 4000

bool probe_open(struct ring_test *t, const char *ctrlr, unsigned queue_size, struct probe *p);

/* The same on a queue that exists already. */
bool probe_on(struct ring_test *t, struct guest_queue *q, struct probe *p);

/* Writes header and guards, and the status byte that means "not written". */
void probe_header(struct probe *p, uint32_t type, uint64_t sector);

/* Makes @head available, kicks, and says what came back. */
enum answer probe_send(struct probe *p, unsigned head);

/* The same for what has been made available already. */
enum answer probe_wait(struct probe *p, unsigned head);

/* What the used element and the status byte say. */
enum answer probe_verdict(struct probe *p, unsigned head);

/* header, data, status in descriptors 0, 1, 2 (no descriptor for no data). */
void probe_plain(struct probe *p, uint32_t type, uint64_t sector, uint32_t len);
enum answer probe_request(struct probe *p, uint32_t type, uint64_t sector, uint32_t len);

/*
 * Sends @head, requires one of @allowed, nothing written outside the buffers, and that a good
 * request is served afterwards (after a restart of the queue if it was given up).
 */
bool probe_expect(struct probe *p, unsigned head, unsigned allowed, const char *what);

/* The second half of probe_expect(), for an answer that has come. */
bool probe_settle(struct probe *p, enum answer a, unsigned allowed, const char *what);

/* Writes random data, reads it back, compares. */
bool probe_good(struct probe *p, const char *what);

/* The bytes around data and status are intact. */
bool probe_guards(struct probe *p, const char *what);

const char *answer_name(enum answer a);

/* The daemon's CPU share over half a second, in percent, while nobody else is served. */
long ring_busy_percent(struct ring_test *t);

uint64_t ring_random(uint64_t *state);
void ring_random_fill(uint64_t *state, void *p, size_t len);

#endif
