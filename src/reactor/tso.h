/*
 * A machine of a few threads as x86 orders their memory (x86-TSO), for tests: small programs are
 * run in all orders that there are. A store waits in its thread's buffer for as long as it likes,
 * loads look there first, a fence waits until it is empty.
 *
 * Thread 0 sleeps, the others wake it. A wake-up is lost when nothing can happen any more and
 * thread 0 has not seen everything.
 */
#ifndef REACTOR_TSO_H
#define REACTOR_TSO_H

#include <stdbool.h>
#include <stdint.h>

#define TSO_VARS    8
#define TSO_STORES  8 /* a thread whose buffer is full waits */
#define TSO_THREADS 3
#define TSO_OPS	    64

enum tso_kind {
	STORE,
	ADD, /* atomic, but as late as a store: a release alone orders nothing behind it */
	LOAD,
	FENCE,
	IF, /* of what was loaded; it is forgotten then */
	GOTO,
	SEE,	/* one thing was taken; what was loaded must be value, or it is incomplete */
	TAKE,	/* all that are counted in var, at once */
	KICK,	/* an eventfd: a system call, which empties the buffer */
	FORGET, /* the kicks that came while it was awake */
	WAIT,	/* for a kick, and take it */
	END
};

struct tso_op {
	enum tso_kind kind;
	uint8_t var, value, to;
	bool (*test)(uint8_t loaded, const struct tso_op *op);
	uint8_t old; /* for test, as value is */
};

struct tso_program {
	struct tso_op ops[TSO_OPS];
	uint8_t n;
};

struct tso_machine {
	struct tso_program programs[TSO_THREADS];
	uint8_t memory[TSO_VARS]; /* at the start */
	unsigned threads, things; /* that will be there in the end */
};

struct tso_verdict {
	unsigned states;
	bool lost;
	bool wrong; /* something was seen that was incomplete or not there */
};

/* Appends op; returns its place. */
uint8_t tso_emit(struct tso_program *p, struct tso_op op);

struct tso;

struct tso *tso_create(void);
void tso_destroy(struct tso *x);
/* All that can happen. With `explain` the shortest way to what should not is printed. */
struct tso_verdict tso_explore(struct tso *x, const struct tso_machine *m, bool explain);

#endif
