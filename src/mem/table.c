#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "mem/mem.h"
#include "util/compiler.h"

struct region {
	uintptr_t start, end;
	_Atomic bool lost;
};

/* Immutable once published, sorted by start. */
struct table {
	size_t n;
	struct region *region[];
};

static _Atomic(struct table *) current;
static _Atomic unsigned readers; /* between read_begin() and read_end() */
static pthread_mutex_t writers = PTHREAD_MUTEX_INITIALIZER;

static struct region *lookup(const struct table *t, uintptr_t at)
{
	size_t low = 0, high = t ? t->n : 0;

	while (low < high) {
		size_t mid = (low + high) / 2;

		if (at < t->region[mid]->start)
			high = mid;
		else if (at >= t->region[mid]->end)
			low = mid + 1;
		else
			return t->region[mid];
	}
	return NULL;
}

static struct table *table_alloc(size_t n)
{
	struct table *t = malloc(sizeof(*t) + n * sizeof(t->region[0]));

	if (t)
		t->n = n;
	return t;
}

/*
 * Publish t, and return what it replaces once nobody reads that: readers are the signal handler and
 * few others, all of them quick.
 */
static struct table *publish(struct table *t)
{
	struct table *old = atomic_exchange(&current, t);

	while (atomic_load(&readers) > 0)
		sched_yield();
	return old;
}

int mem_register(void *vaddr, size_t len)
{
	uintptr_t start = (uintptr_t)vaddr, end = start + len,
		  page = (uintptr_t)sysconf(_SC_PAGESIZE);
	struct table *old, *t = NULL;
	struct region *r;
	size_t at = 0, n;
	int rc = 0;

	if (len == 0 || end < start || !IS_ALIGNED(start, page))
		return -EINVAL;
	pthread_mutex_lock(&writers);
	old = atomic_load(&current);
	n = old ? old->n : 0;
	while (at < n && old->region[at]->start < start)
		at++;
	if ((at > 0 && old->region[at - 1]->end > start) ||
	    (at < n && old->region[at]->start < end))
		rc = -EEXIST;
	r = rc ? NULL : calloc(1, sizeof(*r));
	t = r ? table_alloc(n + 1) : NULL;
	if (!t) {
		free(r);
		rc = rc ? rc : -ENOMEM;
		goto out;
	}
	r->start = start;
	r->end = end;
	for (size_t i = 0; i < n; i++)
		t->region[i + (i >= at)] = old->region[i];
	t->region[at] = r;
	free(publish(t));
out:
	pthread_mutex_unlock(&writers);
	return rc;
}

void mem_unregister(void *vaddr)
{
	struct region *gone = NULL;
	struct table *old, *t;
	size_t n = 0;

	pthread_mutex_lock(&writers);
	old = atomic_load(&current);
	t = table_alloc(old->n);
	for (size_t i = 0; i < old->n; i++)
		if (old->region[i]->start == (uintptr_t)vaddr)
			gone = old->region[i];
		else if (t)
			t->region[n++] = old->region[i];
	if (t) {
		t->n = n;
		free(publish(t));
		free(gone);
	} else if (gone) {
		/* No memory for a new snapshot: leave an empty range behind, which matches nothing.
		 */
		gone->end = gone->start;
	}
	pthread_mutex_unlock(&writers);
}

static const struct table *read_begin(void)
{
	atomic_fetch_add(&readers, 1);
	return atomic_load(&current);
}

static void read_end(void)
{
	atomic_fetch_sub(&readers, 1);
}

bool mem_lost(const void *vaddr)
{
	const struct region *r = lookup(read_begin(), (uintptr_t)vaddr);
	bool lost = r && r->lost;

	read_end();
	return lost;
}

/* Async-signal-safe: atomics and mmap() only. */
static void on_sigbus(int sig, siginfo_t *info, void *context)
{
	struct region *r = lookup(read_begin(), (uintptr_t)info->si_addr);
	int saved = errno;

	(void)context;
	if (r && mmap((void *)r->start, r->end - r->start, PROT_READ | PROT_WRITE,
		      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != MAP_FAILED)
		r->lost = true;
	else
		signal(sig,
		       SIG_DFL); /* the access is tried again and ends the process as it should */
	read_end();
	errno = saved;
}

int mem_guard_sigbus(void)
{
	struct sigaction sa = { .sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO | SA_RESTART };

	return sigaction(SIGBUS, &sa, NULL) < 0 ? -errno : 0;
}
