/*
 * A loaded turn of an NVMe disk makes no system call and no allocation.
 *
 * The turns run in a child whose thread the kernel kills at its first system call (seccomp), but
 * for one: waking the controller's watcher, which looks at the requests every now and then and
 * waits until this thread has shown them. Allocations are counted by taking malloc's place.
 */
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/seccomp.h>
#include <malloc.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "nvme/rig.h"

#define DEPTH 32

/* --- counting allocations --- */

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t size);
void *__libc_memalign(size_t align, size_t size);
void __libc_free(void *p);

static __thread unsigned long heap_calls;

void *malloc(size_t size)
{
	heap_calls++;
	return __libc_malloc(size);
}

void *calloc(size_t n, size_t size)
{
	heap_calls++;
	return __libc_calloc(n, size);
}

void *realloc(void *p, size_t size)
{
	heap_calls++;
	return __libc_realloc(p, size);
}

void *aligned_alloc(size_t align, size_t size)
{
	heap_calls++;
	return __libc_memalign(align, size);
}

void free(void *p)
{
	heap_calls++;
	__libc_free(p);
}

/* --- forbidding system calls --- */

static int forbid_system_calls(void)
{
	struct sock_filter allow[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 4, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_futex, 0, 2),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, 1, 0),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { ARRAY_SIZE(allow), allow };

	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

/* What became of a child that runs fn and exits with its result. */
static int in_child(int (*fn)(void))
{
	int status = 0;
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (pid == 0)
		_exit(fn());
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return status;
}

/* --- the load --- */

enum { QUIET, CANNOT_FORBID, FAILED, ALLOCATED };

static bool batch(struct rig *r, unsigned seed)
{
	unsigned left = DEPTH;

	for (unsigned i = 0; i < DEPTH; i++) {
		unsigned at = (seed * 31 + i * 7) % 1024;

		rig_submit(r, i, (seed + i) % 3 ? BDEV_READ : BDEV_WRITE, at * UINT64_C(4096),
			   r->data + i * 4096, 4096, 0);
	}
	for (unsigned turns = 0; left && turns < 1000; turns++) {
		unsigned long calls;

		reactor_turn(r->reactor);
		calls = heap_calls;
		fake_nvme_turn(r->fake);
		heap_calls = calls; /* the device may */
		left = 0;
		for (unsigned i = 0; i < DEPTH; i++)
			left += !r->io[i].done;
	}
	for (unsigned i = 0; i < DEPTH; i++)
		if (!r->io[i].done || r->io[i].status)
			return false;
	return true;
}

static int load(void)
{
	static struct rig r;
	struct fake_nvme_config c = rig_config(&r);
	unsigned long before = heap_calls;

	mallopt(M_TOP_PAD, 64 << 20); /* the device's disk grows without asking the kernel */
	mallopt(M_MMAP_THRESHOLD, 64 << 20);
	rig_open(&r, &c);
	fake_nvme_stop(r.fake);
	if (heap_calls == before || !batch(&r, 0))
		return FAILED; /* or allocations are not seen */
	before = heap_calls;
	if (forbid_system_calls())
		return CANNOT_FORBID;
	for (unsigned i = 1; i <= 3000; i++)
		if (!batch(&r, i))
			return FAILED;
	return heap_calls == before ? QUIET : ALLOCATED;
}

static void a_loaded_turn_is_quiet(void **state)
{
	int status = in_child(load);

	(void)state;
	assert_false(WIFSIGNALED(status)); /* SIGSYS: a system call */
	assert_int_equal(WEXITSTATUS(status), QUIET);
}

static int one_call(void)
{
	if (forbid_system_calls())
		return CANNOT_FORBID;
	syscall(SYS_getppid);
	return QUIET;
}

static void a_system_call_would_be_seen(void **state)
{
	int status = in_child(one_call);

	(void)state;
	assert_true(WIFSIGNALED(status));
	assert_int_equal(WTERMSIG(status), SIGSYS);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_system_call_would_be_seen),
		cmocka_unit_test(a_loaded_turn_is_quiet),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
