#define _GNU_SOURCE 1
#include "ring/syscall_count.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fake/tap.h"
#include "fake/vhost_wire.h"

#define SYSCALL_STOP (SIGTRAP | 0x80)

static const struct {
	unsigned number;
	const char *name;
} names[] = {
	{ SYS_read, "read" },
	{ SYS_write, "write" },
	{ SYS_poll, "poll" },
	{ SYS_ppoll, "ppoll" },
	{ SYS_futex, "futex" },
	{ SYS_epoll_wait, "epoll_wait" },
	{ SYS_epoll_pwait, "epoll_pwait" },
	{ SYS_epoll_ctl, "epoll_ctl" },
	{ SYS_io_uring_enter, "io_uring_enter" },
	{ SYS_clock_gettime, "clock_gettime" },
	{ SYS_clock_nanosleep, "clock_nanosleep" },
	{ SYS_sched_yield, "sched_yield" },
	{ SYS_nanosleep, "nanosleep" },
	{ SYS_mmap, "mmap" },
	{ SYS_munmap, "munmap" },
	{ SYS_madvise, "madvise" },
	{ SYS_pread64, "pread64" },
	{ SYS_pwrite64, "pwrite64" },
};

void *syscall_count_shared(size_t size)
{
	void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	return p == MAP_FAILED ? NULL : p;
}

static bool sleeps(const struct user_regs_struct *r)
{
	switch (r->orig_rax) {
	case SYS_io_uring_enter:
		return r->rdx != 0; /* min_complete */
	case SYS_epoll_wait:
	case SYS_epoll_pwait:
		return (int)r->r10 != 0; /* timeout */
	}
	return false;
}

/* The thread has stopped to enter a system call. */
static void count_call(pid_t tid, struct syscall_count *c, unsigned w)
{
	struct user_regs_struct regs;

	if (ptrace(PTRACE_GETREGS, tid, NULL, &regs) || regs.orig_rax >= SYSCALL_MAX)
		regs.orig_rax = SYSCALL_MAX - 1;
	if (sleeps(&regs)) {
		c->window[w].sleeps++;
		c->sleeps++;
		return;
	}
	if (regs.orig_rax == SYS_io_uring_enter)
		c->window[w].collects++;
	else
		c->window[w].calls++;
	c->total++;
	c->by_number[regs.orig_rax]++;
}

/* Lets the thread run on; counts if it had stopped to enter a system call. */
static void handle_stop(pid_t tid, int status, bool *inside, struct syscall_count *c, unsigned w)
{
	int sig = WSTOPSIG(status);

	if (sig == SYSCALL_STOP) {
		*inside = !*inside;
		if (*inside)
			count_call(tid, c, w);
		sig = 0;
	} else if (status >> 16) {
		sig = 0; /* a stop of ptrace's own */
	}
	ptrace(PTRACE_SYSCALL, tid, NULL, (void *)(intptr_t)sig);
}

/* Notes what the load has done since the last time. */
static void end_window(struct syscall_count *c, unsigned w, const struct syscall_progress *now,
		       struct syscall_progress *before)
{
	c->window[w].progress = now->done - before->done;
	c->window[w].kicks = now->kicks - before->kicks;
	c->progress += c->window[w].progress;
	before->done += c->window[w].progress;
	before->kicks += c->window[w].kicks;
}

static void watch_windows(pid_t tid, const struct syscall_progress *progress,
			  struct syscall_count *c)
{
	struct syscall_progress before = { .done = progress->done, .kicks = progress->kicks };
	uint64_t start = vhost_now_ns();
	bool inside = false;
	unsigned w, last = 0;
	int status;

	for (;;) {
		w = (unsigned)((vhost_now_ns() - start) / SYSCALL_WINDOW_NS);
		if (w != last)
			end_window(c, last, progress, &before);
		last = w;
		if (w >= SYSCALL_WINDOWS)
			return;
		if (waitpid(tid, &status, __WALL | WNOHANG) == tid && WIFSTOPPED(status))
			handle_stop(tid, status, &inside, c, w);
		else
			usleep(100);
	}
}

/* What the child does: the tracer must not be a thread that the load needs. */
static int watch(pid_t tid, const struct syscall_progress *progress, struct syscall_count *c)
{
	int status;

	if (ptrace(PTRACE_SEIZE, tid, NULL, PTRACE_O_TRACESYSGOOD) ||
	    ptrace(PTRACE_INTERRUPT, tid, NULL, NULL))
		return -errno;
	if (waitpid(tid, &status, __WALL) != tid)
		return -errno;
	ptrace(PTRACE_SYSCALL, tid, NULL, NULL);
	usleep(20000); /* the stop just now disturbed it */
	watch_windows(tid, progress, c);
	ptrace(PTRACE_INTERRUPT, tid, NULL, NULL);
	waitpid(tid, &status, __WALL);
	return ptrace(PTRACE_DETACH, tid, NULL, NULL) ? -errno : 0;
}

int syscall_count(pid_t tid, const struct syscall_progress *progress, struct syscall_count *out)
{
	pid_t child;
	int status;

	memset(out, 0, sizeof(*out));
	out->rc = -ECHILD;
	child = fork();
	if (child < 0)
		return -errno;
	if (child == 0) {
		out->rc = watch(tid, progress, out);
		_exit(0);
	}
	while (waitpid(child, &status, 0) < 0 && errno == EINTR)
		;
	return out->rc;
}

void syscall_count_show(const struct syscall_count *c)
{
	char text[512] = "";
	size_t n = 0;
	unsigned i, k;

	for (i = 0; i < SYSCALL_MAX && n < sizeof(text) - 40; i++) {
		if (!c->by_number[i])
			continue;
		for (k = 0; k < sizeof(names) / sizeof(names[0]) && names[k].number != i; k++)
			;
		if (k < sizeof(names) / sizeof(names[0]))
			n += (size_t)snprintf(text + n, sizeof(text) - n, " %s %u", names[k].name,
					      c->by_number[i]);
		else
			n += (size_t)snprintf(text + n, sizeof(text) - n, " number %u %u", i,
					      c->by_number[i]);
	}
	tap_diag("%llu requests, %llu sleeps, %llu other system calls:%s",
		 (unsigned long long)c->progress, (unsigned long long)c->sleeps,
		 (unsigned long long)c->total, n ? text : " none");
}
