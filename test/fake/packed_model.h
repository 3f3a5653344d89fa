/*
 * A device for one packed queue in the test's own process, written from VIRTIO 1.3, 2.8 and from
 * nothing else: what the fake driver is tried against, so that its mistakes are not taken for
 * those of a daemon. It trusts the driver, and asserts what a driver must keep to.
 */
#ifndef FAKE_PACKED_MODEL_H
#define FAKE_PACKED_MODEL_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "fake/guest.h"

#define MODEL_HELD 8u /* chains that it completes in another order */

struct model_chain {
	unsigned id, slots; /* descriptors in the ring */
	uint32_t written;
};

struct packed_model {
	struct guest_queue *q; /* for addresses and eventfds */
	uint8_t *disk;
	uint64_t sectors;
	uint16_t avail, used, signalled;
	bool avail_wrap, used_wrap;
	bool event_idx;
	bool reorder;
	struct model_chain held[MODEL_HELD];
	unsigned nheld;
	uint64_t random;
	/* of the thread */
	pthread_t thread;
	_Atomic bool stop;
	const char *error; /* what the driver did wrong */
	uint64_t requests, lost_kicks, calls;
};

void model_init(struct packed_model *m, struct guest_queue *q, uint32_t base);

/* Takes one chain and does what it asks; false: there is none. */
bool model_take(struct packed_model *m, struct model_chain *c);

/* Gives it back. */
void model_give(struct packed_model *m, const struct model_chain *c);

/* An interrupt, if the driver wants one. */
void model_call(struct packed_model *m);

/* Where it stands, in the encoding of GET_VRING_BASE. */
uint32_t model_base(const struct packed_model *m);

/* A thread that serves until stopped; it sleeps only until kicked. */
void model_start(struct packed_model *m);
void model_stop(struct packed_model *m);

#endif
