/*
 * Counts the system calls of one thread of another process, in short windows, by ptrace. The
 * thread runs at full speed between its system calls.
 *
 * Calls that go to sleep are counted apart: io_uring_enter that waits for a completion, epoll_wait
 * with a time to wait. A reactor makes one when nobody has given it work for a while, which on a
 * machine with too few CPUs is what it sees of a guest that is always busy.
 */
#ifndef RING_SYSCALL_COUNT_H
#define RING_SYSCALL_COUNT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define SYSCALL_WINDOWS	  200
#define SYSCALL_WINDOW_NS 5000000u
#define SYSCALL_MAX	  512

/* What the load tells the watcher, in memory shared with child processes. */
struct syscall_progress {
	volatile uint64_t done;	 /* requests */
	volatile uint64_t kicks; /* sent to the thread; it may have to collect them */
};

struct syscall_count {
	int rc;		/* 0, or -errno: could not attach */
	uint64_t total; /* calls that do not sleep */
	uint64_t sleeps;
	uint64_t progress; /* over all windows */
	struct {
		uint32_t calls; /* other than sleeps and collects */
		uint32_t sleeps;
		uint32_t collects; /* io_uring_enter that does not wait */
		uint64_t progress;
		uint64_t kicks;
	} window[SYSCALL_WINDOWS];
	uint32_t by_number[SYSCALL_MAX];
};

/* Watches @tid for all windows, about a second. @out must be shared with child processes. */
int syscall_count(pid_t tid, const struct syscall_progress *progress, struct syscall_count *out);

/* Memory that parent and children share. */
void *syscall_count_shared(size_t size);

/* Prints which calls were seen, as one line of diagnostics. */
void syscall_count_show(const struct syscall_count *c);

#endif
