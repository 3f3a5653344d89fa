#include "util/ticker.h"

#include <errno.h>
#include <time.h>

static void *ticker_main(void *arg)
{
	struct ticker *t = arg;
	struct timespec at;

	clock_gettime(CLOCK_MONOTONIC, &at);
	pthread_mutex_lock(&t->lock);
	while (!t->stopping) {
		at.tv_sec += t->seconds;
		while (!t->stopping &&
		       pthread_cond_timedwait(&t->changed, &t->lock, &at) != ETIMEDOUT)
			;
		if (t->stopping)
			break;
		pthread_mutex_unlock(&t->lock);
		t->fn();
		clock_gettime(CLOCK_MONOTONIC, &at); /* never two close together */
		pthread_mutex_lock(&t->lock);
	}
	pthread_mutex_unlock(&t->lock);
	return NULL;
}

int ticker_start(struct ticker *t, struct err *e)
{
	pthread_condattr_t attr;
	int rc;

	pthread_mutex_init(&t->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&t->changed, &attr);
	pthread_condattr_destroy(&attr);
	rc = pthread_create(&t->thread, NULL, ticker_main, t);
	if (rc)
		return err_set(e, -rc, "Cannot start the thread '%s': %s.", t->name, err_words(rc));
	pthread_setname_np(t->thread, t->name);
	t->running = true;
	return 0;
}

void ticker_stop(struct ticker *t)
{
	if (!t->running)
		return;
	pthread_mutex_lock(&t->lock);
	t->stopping = true;
	pthread_cond_signal(&t->changed);
	pthread_mutex_unlock(&t->lock);
	pthread_join(t->thread, NULL);
	t->running = false;
}
