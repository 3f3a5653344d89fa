/*
 * One sample, in a process of its own: nothing of one path - memory, threads, locks, queues - is
 * there when the next is measured, and what a sample leaves behind ends with its process.
 *
 * The process is the leader of a group of its own, so that Ctrl-C reaches the first process only,
 * which asks the sample to end (SIGTERM), and ends the whole group when it does not.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cmd/compare.h"
#include "util/log.h"

#define END_S  5  /* for a sample that was asked to end */
#define LATE_S 60 /* more than a sample's time: something hangs */

static sigset_t waited;

void compare_signals(void)
{
	sigemptyset(&waited);
	sigaddset(&waited, SIGINT);
	sigaddset(&waited, SIGTERM);
	sigaddset(&waited, SIGHUP);
	sigaddset(&waited, SIGCHLD);
	sigprocmask(SIG_BLOCK, &waited, NULL);
	signal(SIGPIPE, SIG_IGN); /* what is to be removed is removed, whoever still reads */
}

/* --- the sample's process --- */

static void on_end(int sig)
{
	(void)sig;
	perf_interrupted = true;
}

static void begin_process(pid_t parent, bool look)
{
	struct sigaction action = { .sa_handler = on_end };

	setpgid(0, 0);
	sigaction(SIGTERM, &action, NULL);
	signal(SIGINT, SIG_IGN);
	signal(SIGHUP, SIG_IGN);
	sigprocmask(SIG_UNBLOCK, &waited, NULL);
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	if (getppid() != parent)
		perf_interrupted = true;
	/* What a driver has to say it says once, when the path is looked at. */
	log_set_level(look ? LOG_WARN : LOG_ERROR);
}

static void run_process(const struct compare *c, const struct compare_path *p, uint32_t depth,
			struct compare_sample *s, pid_t parent)
{
	begin_process(parent, depth == 0);
	s->rc = compare_path_run(c, p, depth, s, &s->err);
	if (s->rc == 0 && perf_interrupted)
		s->rc = -EINTR;
	exit(EXIT_SUCCESS); /* not _exit(): a sanitizer looks for leaks */
}

/* --- the first process --- */

/* Its number, and so that of its group, is kept from reuse until it is reaped. */
static bool runs(pid_t pid)
{
	siginfo_t info = { 0 };

	return waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
	       info.si_pid == 0;
}

/* Its status, or -EINTR when it has been ended because the command is to end. */
static int wait_for(struct compare *c, pid_t pid, double seconds, int *status, struct err *e)
{
	struct timespec second = { .tv_sec = 1 };
	unsigned waited_s = 0, limit = (unsigned)seconds + LATE_S;
	bool late = false;

	while (runs(pid)) {
		int sig = sigtimedwait(&waited, NULL, &second);

		if (sig == SIGCHLD)
			continue;
		if (sig > 0) {
			/* The second Ctrl-C is for those whose I/O does not return. */
			kill(c->interrupted ? -pid : pid, c->interrupted ? SIGKILL : SIGTERM);
			c->interrupted = true;
			waited_s = 0;
			limit = END_S;
		} else if (errno == EAGAIN && ++waited_s > limit) {
			late = !c->interrupted;
			kill(-pid, SIGKILL);
		}
	}
	kill(-pid, SIGKILL); /* a daemon that was left */
	waitpid(pid, status, 0);
	if (c->interrupted)
		return err_set(e, -EINTR, "Interrupted.");
	return late ? err_set(e, -ETIMEDOUT,
			      "A sample has not ended in time: I/O does not return. See dmesg.")
		    : 0;
}

static int take(struct compare *c, const struct compare_path *p, pid_t pid, double seconds,
		const struct compare_sample *shared, struct compare_sample *s, struct err *e)
{
	int status = 0, rc = wait_for(c, pid, seconds, &status, e);

	if (rc)
		return rc;
	if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
		return err_set(e, -EPROTO, "The process that measured %.80s has failed (%s %d).",
			       p->name, WIFSIGNALED(status) ? "signal" : "status",
			       WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
	*s = *shared;
	if (s->rc)
		*e = s->err;
	return s->rc;
}

int compare_sample(struct compare *c, const struct compare_path *p, uint32_t depth,
		   const char *words, struct compare_sample *s, struct err *e)
{
	double seconds = (double)(c->o->warmup_ms + c->o->time_ms) / 1000;
	struct compare_sample *shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE,
					     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pid_t pid, parent = getpid();
	int rc;

	if (shared == MAP_FAILED)
		return err_set(e, -ENOMEM, "Out of memory.");
	if (words && isatty(STDERR_FILENO))
		fprintf(stderr, "\r%-78.78s", words);
	fflush(NULL);
	pid = fork();
	if (pid == 0)
		run_process(c, p, depth, shared, parent);
	if (pid < 0)
		rc = err_set(e, -errno, "No process for a sample: %s.", err_words(errno));
	else
		rc = take(c, p, pid, seconds, shared, s, e);
	if (words && isatty(STDERR_FILENO))
		fprintf(stderr, "\r%78s\r", "");
	munmap(shared, sizeof(*shared));
	return rc;
}
