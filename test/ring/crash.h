/*
 * What the cases with a kill -9 share: a daemon of their own, which is killed and followed by
 * another on the same files, and a guest with an in-flight region that goes from one to the next.
 *
 * The daemons have two disks: "slow" holds writes for a while and lets reads pass, so that requests
 * end in another order; "fast" is its file.
 */
#ifndef RING_CRASH_H
#define RING_CRASH_H

#include "ring/ring.h"

#define CRASH_LANES   24u /* requests of a guest */
#define CRASH_HOLD_MS 250 /* how long "slow" holds a write */

struct crash {
	struct ring_test *t;
	struct daemon d;
	struct guest *g;
	struct guest_queue *q;
	struct guest_req req[CRASH_LANES];
	char slow[256], fast[256]; /* files */
};

/* A daemon and a guest on @disk. crash_close() in any case. */
bool crash_open(struct crash *c, struct ring_test *t, const char *disk, unsigned size,
		bool event_idx);
void crash_close(struct crash *c);

/* The next daemon, after daemon_kill(). */
bool crash_start(struct crash *c);

/*
 * What QEMU says after a lost back-end: the split ring's used index; of a packed ring, which has
 * none in memory, what it knew last - here the beginning.
 */
uint32_t crash_known_base(const struct guest_queue *q);

/* Writes stay in flight while reads around them end: heads and places in the ring mix. */
bool crash_fill(struct crash *c);

#endif
