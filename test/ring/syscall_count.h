/*
 * Counts the system calls of one thread of another process, in short windows, by ptrace. The
 * thread runs at full speed between its system calls.
 */
#ifndef RING_SYSCALL_COUNT_H
#define RING_SYSCALL_COUNT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define SYSCALL_WINDOWS	  200
#define SYSCALL_WINDOW_NS 5000000u
#define SYSCALL_MAX	  512

struct syscall_count {
	int rc; /* 0, or -errno: could not attach */
	uint64_t total;
	uint64_t progress; /* over all windows */
	struct {
		uint32_t calls;
		uint64_t progress;
	} window[SYSCALL_WINDOWS];
	uint32_t by_number[SYSCALL_MAX];
};

/*
 * Watches @tid for all windows, about a second. @progress: a counter in memory shared with child
 * processes; how far it went is noted with each window. @out must be shared in the same way.
 */
int syscall_count(pid_t tid, const volatile uint64_t *progress, struct syscall_count *out);

/* Memory that parent and children share. */
void *syscall_count_shared(size_t size);

/* Prints which calls were seen, as one line of diagnostics. */
void syscall_count_show(const struct syscall_count *c);

#endif
