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

static uint32_t stopped_at(pid_t tid)
{
	struct user_regs_struct regs;

	if (ptrace(PTRACE_GETREGS, tid, NULL, &regs) || regs.orig_rax >= SYSCALL_MAX)
		return SYSCALL_MAX - 1;
	return (uint32_t)regs.orig_rax;
}

/* Lets the thread run on; counts if it had stopped to enter a system call. */
static void handle_stop(pid_t tid, int status, bool *inside, struct syscall_count *c, unsigned w)
{
	int sig = WSTOPSIG(status);

	if (sig == SYSCALL_STOP) {
		*inside = !*inside;
		if (*inside) {
			c->window[w].calls++;
			c->total++;
			c->by_number[stopped_at(tid)]++;
		}
		sig = 0;
	} else if (status >> 16) {
		sig = 0; /* a stop of ptrace's own */
	}
	ptrace(PTRACE_SYSCALL, tid, NULL, (void *)(intptr_t)sig);
}

/* What the child does: the tracer must not be a thread that the load needs. */
static int watch(pid_t tid, const volatile uint64_t *progress, struct syscall_count *c)
{
	uint64_t start, now, before;
	bool inside = false;
	unsigned w, last = 0;
	int status;

	if (ptrace(PTRACE_SEIZE, tid, NULL, PTRACE_O_TRACESYSGOOD) ||
	    ptrace(PTRACE_INTERRUPT, tid, NULL, NULL))
		return -errno;
	if (waitpid(tid, &status, __WALL) != tid)
		return -errno;
	ptrace(PTRACE_SYSCALL, tid, NULL, NULL);
	usleep(20000); /* the stop just now disturbed it */
	start = vhost_now_ns();
	before = *progress;
	for (;;) {
		now = vhost_now_ns();
		w = (unsigned)((now - start) / SYSCALL_WINDOW_NS);
		if (w != last) {
			c->window[last].progress = *progress - before;
			c->progress += *progress - before;
			before = *progress;
			last = w;
		}
		if (w >= SYSCALL_WINDOWS)
			break;
		if (waitpid(tid, &status, __WALL | WNOHANG) == tid && WIFSTOPPED(status))
			handle_stop(tid, status, &inside, c, w);
		else
			usleep(100);
	}
	ptrace(PTRACE_INTERRUPT, tid, NULL, NULL);
	waitpid(tid, &status, __WALL);
	return ptrace(PTRACE_DETACH, tid, NULL, NULL) ? -errno : 0;
}

int syscall_count(pid_t tid, const volatile uint64_t *progress, struct syscall_count *out)
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
	tap_diag("%llu system calls in %llu requests:%s", (unsigned long long)c->total,
		 (unsigned long long)c->progress, n ? text : " none");
}
