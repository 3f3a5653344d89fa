/*
 * quiet_test [RIFFLE]: a loaded turn of a vhost queue on malloc or null makes no system call and
 * no allocation. TAP.
 *
 * A fake guest keeps 32 requests in flight with notifications suppressed both ways, while the
 * reactor's thread is watched (syscall_count.h). The machine may take the guest from its CPU
 * for long enough that the reactor rightly goes to sleep; so sleeps are told from other calls, and
 * the second is cut into short windows, some of which must be free of both. The same judgement
 * must fail when the guest takes interrupts.
 *
 * $ALLOC_COUNT_SO names the shared object made of fake/alloc_count.c.
 */
#define _GNU_SOURCE 1
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fake/alloc_count.h"
#include "fake/daemon.h"
#include "fake/guest.h"
#include "fake/tap.h"
#include "ring/syscall_count.h"

#define DEPTH	    32u
#define BLOCKS	    4096u /* of 4 KiB on each disk */
#define FULL_WINDOW 200u  /* requests in a window that counts */
#define ATTEMPTS    4

struct quiet {
	struct daemon daemon;
	pid_t tid;			   /* reactor/0 */
	struct alloc_table *allocs;	   /* NULL: not counted */
	struct syscall_progress *progress; /* shared with the tracer */
	struct syscall_count *count;	   /* likewise */
};

/* What the guest's ring is. */
struct how {
	const char *name;
	bool event_idx, packed;
};

static const struct how hows[] = {
	{ "flags", false, false },
	{ "EVENT_IDX", true, false },
	{ "packed ring, flags", false, true },
	{ "packed ring, EVENT_IDX", true, true },
};

struct load {
	pthread_t thread;
	struct guest *g;
	struct syscall_progress *progress;
	volatile bool stop;
	bool interrupts;
	unsigned failed;
};

static int load_submit(struct load *l, struct guest_req *r, uint64_t n)
{
	return guest_req_submit(l->g->queue[0], r, n % 3 ? BLK_IN : BLK_OUT,
				n * 2654435761u % BLOCKS * 8, 4096);
}

static struct guest_req *load_next(struct load *l)
{
	struct guest_req *r = guest_req_poll(l->g->queue[0]);

	if (!r && l->interrupts && guest_req_wait(l->g->queue[0], 1000, &r))
		r = NULL;
	return r;
}

/* Off the reactor's CPU, if there is another. */
static void leave_cpu0(void)
{
	size_t cpus = (size_t)sysconf(_SC_NPROCESSORS_ONLN);
	cpu_set_t set;
	size_t i;

	CPU_ZERO(&set);
	for (i = 1; i < cpus && i < CPU_SETSIZE; i++)
		CPU_SET(i, &set);
	if (cpus > 1)
		pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
}

static void *load_main(void *arg)
{
	struct load *l = arg;
	struct guest_queue *q = l->g->queue[0];
	struct guest_req req[DEPTH], *r;
	unsigned i, busy = 0, idle = 0;

	leave_cpu0();
	guest_queue_quiet(q, !l->interrupts);
	for (i = 0; i < DEPTH; i++)
		if (!guest_req_init(l->g, &req[i], 4096) && !load_submit(l, &req[i], i))
			busy++;
	guest_notify(q);
	while (busy) {
		r = load_next(l);
		if (!r) {
			if (++idle % 4096 == 0)
				sched_yield();
			continue;
		}
		l->failed += guest_req_status(l->g, r) != BLK_OK;
		l->progress->done++;
		if (l->stop || load_submit(l, r, l->progress->done))
			busy--;
		else
			guest_notify(q);
		l->progress->kicks = q->kicks;
	}
	return NULL;
}

/* What thread @tid has allocated, freed and mapped; 0: all threads. */
static uint64_t alloc_sum(const struct alloc_table *a, pid_t tid)
{
	const struct alloc_slot *s;
	uint64_t n = 0;

	for (s = a->slot; s < a->slot + ALLOC_COUNT_SLOTS; s++)
		if (!tid || s->tid == tid)
			n += __atomic_load_n(&s->allocs, __ATOMIC_RELAXED) +
			     __atomic_load_n(&s->frees, __ATOMIC_RELAXED) +
			     __atomic_load_n(&s->maps, __ATOMIC_RELAXED);
	return n;
}

/* A kick costs at most one call to collect it, perhaps in the next window. */
static bool window_clean(const struct syscall_count *c, unsigned i)
{
	uint64_t kicks = c->window[i].kicks + (i ? c->window[i - 1].kicks : 0);

	return c->window[i].calls == 0 && c->window[i].collects <= kicks;
}

/*
 * Hardly a window that moved requests has a system call other than a sleep or for a kick, sleeps
 * are rare, and some windows have none at all.
 */
static bool is_quiet(const struct syscall_count *c, bool *judged)
{
	unsigned i, full = 0, clean = 0, silent = 0;

	for (i = 0; i < SYSCALL_WINDOWS; i++) {
		if (c->window[i].progress < FULL_WINDOW)
			continue;
		full++;
		clean += window_clean(c, i);
		silent += c->window[i].calls + c->window[i].sleeps + c->window[i].collects == 0;
	}
	tap_diag("of %u windows with requests, %u without a call but for sleep and kicks, %u "
		 "without any",
		 full, clean, silent);
	*judged = full >= 5;
	return *judged && clean * 10 >= full * 9 && silent >= 2 && c->sleeps * 20 <= c->progress;
}

static int load_start(struct quiet *s, struct load *l, const char *ctrlr, const struct how *how,
		      bool interrupts)
{
	struct guest_params p = { .indirect = true,
				  .event_idx = how->event_idx,
				  .packed = how->packed };
	char path[256];
	int rc;

	daemon_socket(&s->daemon, ctrlr, path, sizeof(path));
	p.path = path;
	*l = (struct load){ .progress = s->progress, .interrupts = interrupts };
	rc = guest_open(&p, &l->g);
	if (rc) {
		tap_diag("cannot open a guest on %s: %s", path, strerror(-rc));
		return rc;
	}
	pthread_create(&l->thread, NULL, load_main, l);
	usleep(100000);
	return 0;
}

static bool load_stop(struct load *l)
{
	l->stop = true;
	pthread_join(l->thread, NULL);
	guest_close(l->g);
	if (l->failed)
		tap_diag("%u requests failed", l->failed);
	return !l->failed;
}

/* Counts until it was quiet; 0, or why it could not count. */
static int watch(struct quiet *s, bool *quiet, bool *judged)
{
	int i, rc = 0;

	for (i = 0; i < ATTEMPTS && !*quiet && !rc; i++) {
		rc = syscall_count(s->tid, s->progress, s->count);
		if (!rc) {
			syscall_count_show(s->count);
			*quiet = is_quiet(s->count, judged);
		}
	}
	return rc;
}

static void test_quiet(struct quiet *s, const char *ctrlr, const struct how *how)
{
	bool quiet = false, judged = false, good;
	uint64_t before = 0, after = 0;
	char name[128];
	struct load l;
	int rc;

	snprintf(name, sizeof(name), "no system call in a loaded turn: %s, %s", ctrlr, how->name);
	rc = load_start(s, &l, ctrlr, how, false);
	if (rc) {
		tap_result(false, name);
		return;
	}
	if (s->allocs)
		before = alloc_sum(s->allocs, s->tid);
	rc = watch(s, &quiet, &judged);
	if (s->allocs)
		after = alloc_sum(s->allocs, s->tid);
	good = load_stop(&l);
	if (rc == -EPERM || rc == -ENOSYS)
		tap_skip(name, "ptrace is not permitted");
	else if (!judged && !rc)
		tap_skip(name, "this machine is too busy to tell");
	else
		tap_result(quiet && good, name);
	snprintf(name, sizeof(name), "no allocation in a loaded turn: %s, %s", ctrlr, how->name);
	if (!s->allocs)
		tap_skip(name, "ALLOC_COUNT_SO is not set");
	else
		tap_result(before == after, name);
	if (before != after)
		tap_diag("%llu allocations", (unsigned long long)(after - before));
}

/* The judgement above must be able to fail. */
static void test_loud(struct quiet *s)
{
	const char *name = "the count sees system calls when the guest takes interrupts";
	uint64_t before;
	bool judged;
	struct load l;
	int rc;

	if (load_start(s, &l, "null", &hows[0], true)) {
		tap_result(false, name);
		return;
	}
	rc = syscall_count(s->tid, s->progress, s->count);
	if (!rc)
		syscall_count_show(s->count);
	load_stop(&l);
	if (rc == -EPERM || rc == -ENOSYS)
		tap_skip(name, "ptrace is not permitted");
	else
		tap_result(!rc && s->count->total >= 5 &&
				   s->count->total * 200 > s->count->progress &&
				   !is_quiet(s->count, &judged),
			   name);
	name = "the count sees the allocations of the control plane";
	if (!s->allocs) {
		tap_skip(name, "ALLOC_COUNT_SO is not set");
		return;
	}
	before = alloc_sum(s->allocs, 0);
	daemon_rpc(&s->daemon, "bdev_get_bdevs", NULL);
	tap_result(alloc_sum(s->allocs, 0) > before, name);
}

static struct alloc_table *make_table(char *path, size_t size)
{
	const char *tmp = getenv("TMPDIR");
	void *p = NULL;
	int fd;

	snprintf(path, size, "%s/riffle-allocs-XXXXXX", tmp ? tmp : "/tmp");
	fd = mkstemp(path);
	if (fd < 0)
		return NULL;
	if (!ftruncate(fd, sizeof(struct alloc_table)))
		p = mmap(NULL, sizeof(struct alloc_table), PROT_READ | PROT_WRITE, MAP_SHARED, fd,
			 0);
	close(fd);
	return p == MAP_FAILED ? NULL : p;
}

static bool make_disks(struct daemon *d)
{
	return !daemon_rpc(d, "bdev_malloc_create", "name=m0", "num_blocks=65536", "block_size=512",
			   NULL) &&
	       !daemon_rpc(d, "bdev_null_create", "name=n0", "num_blocks=65536", "block_size=512",
			   NULL) &&
	       !daemon_rpc(d, "vhost_create_blk_controller", "ctrlr=malloc", "dev_name=m0",
			   "packed_ring=true", NULL) &&
	       !daemon_rpc(d, "vhost_create_blk_controller", "ctrlr=null", "dev_name=n0",
			   "packed_ring=true", NULL);
}

static bool quiet_start(struct quiet *s, const char *exe)
{
	const char *so = getenv("ALLOC_COUNT_SO");
	char path[256], preload[600], file[300];
	char *env[] = { preload, file, NULL };
	bool ok;

	if (so)
		s->allocs = make_table(path, sizeof(path));
	snprintf(preload, sizeof(preload), "LD_PRELOAD=%s", so ? so : "");
	snprintf(file, sizeof(file), ALLOC_COUNT_ENV "=%s", so ? path : "");
	ok = daemon_start(&s->daemon, exe, "0x1", s->allocs ? env : NULL) == 0;
	if (s->allocs)
		unlink(path);
	if (!ok)
		return false;
	if (!make_disks(&s->daemon)) {
		tap_diag("riffle rpc: %s", s->daemon.reply);
		return false;
	}
	s->tid = daemon_thread(&s->daemon, "reactor/0");
	if (!s->tid)
		tap_diag("the daemon has no thread reactor/0");
	return s->tid != 0;
}

int main(int argc, char **argv)
{
	static struct quiet s;
	unsigned i;
	bool ok;
	int rc;

	signal(SIGPIPE, SIG_IGN);
	s.progress = syscall_count_shared(sizeof(*s.progress));
	s.count = syscall_count_shared(sizeof(*s.count));
	if (!s.progress || !s.count) {
		perror("mmap");
		return 1;
	}
	snprintf(s.daemon.exe, sizeof(s.daemon.exe), "%s", daemon_exe(argc, argv));
	if (daemon_sanitized(&s.daemon)) {
		tap_skip("quiet turns", "built with a sanitizer");
		return tap_done();
	}
	ok = quiet_start(&s, daemon_exe(argc, argv));
	tap_result(ok, "the daemon starts and has a thread reactor/0");
	for (i = 0; ok && i < 2 * sizeof(hows) / sizeof(hows[0]); i++)
		test_quiet(&s, i & 1 ? "null" : "malloc", &hows[i / 2]);
	if (ok)
		test_loud(&s);
	if (s.daemon.pid) {
		rc = daemon_stop(&s.daemon);
		tap_result(rc == 0, "SIGTERM ends the daemon with status 0");
	}
	return tap_done();
}
