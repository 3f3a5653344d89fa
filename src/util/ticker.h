/*
 * ticker: a control thread that calls a function every so many seconds, the first time after as
 * many.
 */
#ifndef UTIL_TICKER_H
#define UTIL_TICKER_H

#include <pthread.h>
#include <stdbool.h>

#include "util/err.h"

struct ticker {
	void (*fn)(void);
	unsigned seconds;
	const char *name; /* of the thread, at most 15 bytes */

	/* ticker.c's */
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool running, stopping;
};

/* Control thread. fn, seconds and name are set, the rest is zero. Errors: the kernel's, with a
 * sentence. */
int ticker_start(struct ticker *t, struct err *e);
/* Waits for a call that is under way. Harmless when it was not started. */
void ticker_stop(struct ticker *t);

#endif
