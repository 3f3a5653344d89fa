#define _GNU_SOURCE 1
#include "fake/daemon.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fake/tap.h"
#include "fake/vhost_wire.h"

#define START_MS 20000
#define STOP_MS	 20000
#define RPC_MS	 20000
#define MAX_ARGS 24

const char *daemon_exe(int argc, char **argv)
{
	const char *env = getenv("RIFFLE");

	if (argc > 1)
		return argv[1];
	return env ? env : "build/riffle";
}

bool daemon_long_run(void)
{
	const char *env = getenv("RIFFLE_LONG");

	return env && strcmp(env, "0") != 0;
}

void daemon_path(const struct daemon *d, const char *name, char *path, size_t size)
{
	snprintf(path, size, "%s/%s", d->dir, name);
}

void daemon_socket(const struct daemon *d, const char *ctrlr, char *path, size_t size)
{
	snprintf(path, size, "%s/vhost/%s", d->dir, ctrlr);
}

/* In the child: output to @file, then the program; never returns. */
static void exec_child(char *const argv[], const char *file, char *const env[])
{
	int fd = open(file, O_WRONLY | O_CREAT | O_TRUNC, 0600);
	int i;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (fd >= 0) {
		dup2(fd, 1);
		dup2(fd, 2);
	}
	for (i = 0; env && env[i]; i++)
		putenv(env[i]);
	execv(argv[0], argv);
	fprintf(stderr, "cannot run %s: %s\n", argv[0], strerror(errno));
	_exit(127);
}

static int wait_child(pid_t pid, int timeout_ms)
{
	uint64_t deadline = vhost_now_ns() + (uint64_t)timeout_ms * 1000000u;
	int status;

	while (waitpid(pid, &status, WNOHANG) == 0) {
		if (!vhost_ms_left(deadline)) {
			kill(pid, SIGKILL);
			waitpid(pid, &status, 0);
			return -ETIMEDOUT;
		}
		usleep(2000);
	}
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static int make_dir(struct daemon *d)
{
	const char *tmp = getenv("TMPDIR");
	char path[256];

	snprintf(d->dir, sizeof(d->dir), "%s/riffle-test-XXXXXX", tmp ? tmp : "/tmp");
	if (!mkdtemp(d->dir))
		return -errno;
	daemon_path(d, "vhost", path, sizeof(path));
	return mkdir(path, 0700) ? -errno : 0;
}

int daemon_start(struct daemon *d, const char *exe, const char *cpumask, char *const env[])
{
	char rpc[256], vhost[256], log[256];
	char *argv[] = { d->exe,       (char *)"serve",
			 (char *)"-m", (char *)(uintptr_t)cpumask,
			 (char *)"-r", rpc,
			 (char *)"-S", vhost,
			 NULL };
	uint64_t deadline = vhost_now_ns() + START_MS * 1000000ull;
	int rc, sock;

	memset(d, 0, sizeof(*d));
	snprintf(d->exe, sizeof(d->exe), "%s", exe);
	if (access(d->exe, X_OK))
		return -errno;
	rc = make_dir(d);
	if (rc)
		return rc;
	daemon_path(d, "rpc.sock", rpc, sizeof(rpc));
	daemon_path(d, "vhost", vhost, sizeof(vhost));
	daemon_path(d, "log", log, sizeof(log));
	d->pid = fork();
	if (d->pid < 0)
		return -errno;
	if (d->pid == 0)
		exec_child(argv, log, env);
	while (vhost_connect(rpc, 50, &sock)) {
		if (!daemon_alive(d) || !vhost_ms_left(deadline)) {
			daemon_stop(d);
			return -ESRCH;
		}
	}
	close(sock);
	return 0;
}

static void read_reply(struct daemon *d, const char *path)
{
	FILE *f = fopen(path, "r");
	size_t n = f ? fread(d->reply, 1, sizeof(d->reply) - 1, f) : 0;

	d->reply[n] = 0;
	if (f)
		fclose(f);
}

int daemon_rpc(struct daemon *d, const char *method, ...)
{
	char rpc[256], out[256];
	char *argv[MAX_ARGS] = { d->exe, (char *)"rpc", (char *)"-s", rpc,
				 (char *)(uintptr_t)method };
	unsigned n = 5;
	va_list ap;
	pid_t pid;
	int rc;

	daemon_path(d, "rpc.sock", rpc, sizeof(rpc));
	daemon_path(d, "rpc.out", out, sizeof(out));
	va_start(ap, method);
	while (n < MAX_ARGS - 1 && (argv[n] = va_arg(ap, char *)))
		n++;
	va_end(ap);
	argv[n] = NULL;
	pid = fork();
	if (pid < 0)
		return -errno;
	if (pid == 0)
		exec_child(argv, out, NULL);
	rc = wait_child(pid, RPC_MS);
	read_reply(d, out);
	return rc;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)st;
	(void)type;
	(void)ftw;
	remove(path);
	return 0;
}

int daemon_stop(struct daemon *d)
{
	int rc;

	if (!d->pid)
		return -ESRCH;
	kill(d->pid, SIGTERM);
	rc = wait_child(d->pid, STOP_MS);
	d->pid = 0;
	if (rc)
		daemon_show_log(d);
	nftw(d->dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
	return rc;
}

void daemon_kill(struct daemon *d)
{
	if (!d->pid)
		return;
	kill(d->pid, SIGKILL);
	waitpid(d->pid, NULL, 0);
	d->pid = 0;
	nftw(d->dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

bool daemon_alive(struct daemon *d)
{
	siginfo_t info = { 0 };

	/* Leaves the body for daemon_stop(), which wants its exit status. */
	return waitid(P_PID, (id_t)d->pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
	       info.si_pid == 0;
}

static FILE *open_proc(const struct daemon *d, const char *name)
{
	char path[512];

	snprintf(path, sizeof(path), "/proc/%d/%s", (int)d->pid, name);
	return fopen(path, "r");
}

int daemon_fds(const struct daemon *d)
{
	char path[64];
	struct dirent *e;
	int n = 0;
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%d/fd", (int)d->pid);
	dir = opendir(path);
	if (!dir)
		return -errno;
	while ((e = readdir(dir)))
		n += e->d_name[0] != '.';
	closedir(dir);
	return n;
}

int daemon_maps(const struct daemon *d, const char *name)
{
	FILE *f = open_proc(d, "maps");
	char line[1024];
	int n = 0;

	if (!f)
		return -errno;
	while (fgets(line, sizeof(line), f))
		n += strstr(line, name) != NULL;
	fclose(f);
	return n;
}

long daemon_rss_kib(const struct daemon *d)
{
	FILE *f = open_proc(d, "status");
	char line[256];
	long kib = -ENOENT;

	if (!f)
		return -errno;
	while (fgets(line, sizeof(line), f))
		if (!strncmp(line, "VmRSS:", 6))
			kib = strtol(line + 6, NULL, 10);
	fclose(f);
	return kib;
}

long daemon_cpu_ms(const struct daemon *d)
{
	FILE *f = open_proc(d, "stat");
	char line[1024], *p = NULL;
	long user = 0, sys = 0;

	if (!f)
		return -errno;
	if (fgets(line, sizeof(line), f))
		p = strrchr(line, ')');
	fclose(f);
	if (!p ||
	    sscanf(p, ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %ld %ld", &user, &sys) != 2)
		return -EPROTO;
	return (user + sys) * 1000 / sysconf(_SC_CLK_TCK);
}

long daemon_log_size(const struct daemon *d)
{
	char path[256];
	struct stat st;

	daemon_path(d, "log", path, sizeof(path));
	return stat(path, &st) ? -errno : (long)st.st_size;
}

static bool thread_is(const struct daemon *d, const char *tid, const char *name)
{
	char path[320], line[64] = "";
	FILE *f;

	snprintf(path, sizeof(path), "task/%s/comm", tid);
	f = open_proc(d, path);
	if (!f)
		return false;
	if (fgets(line, sizeof(line), f))
		line[strcspn(line, "\n")] = 0;
	fclose(f);
	return !strcmp(line, name);
}

pid_t daemon_thread(const struct daemon *d, const char *name)
{
	char path[64];
	struct dirent *e;
	pid_t tid = 0;
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%d/task", (int)d->pid);
	dir = opendir(path);
	if (!dir)
		return 0;
	while (!tid && (e = readdir(dir)))
		if (e->d_name[0] != '.' && thread_is(d, e->d_name, name))
			tid = (pid_t)strtol(e->d_name, NULL, 10);
	closedir(dir);
	return tid;
}

bool daemon_sanitized(const struct daemon *d)
{
	static const char *const marks[] = { "__asan_init", "__tsan_init" };
	FILE *f = fopen(d->exe, "r");
	char buf[65536];
	bool found = false;
	size_t n, keep = 0;

	while (f && !found && (n = fread(buf + keep, 1, sizeof(buf) - keep, f)) > 0) {
		n += keep;
		found = memmem(buf, n, marks[0], strlen(marks[0])) ||
			memmem(buf, n, marks[1], strlen(marks[1]));
		keep = n < 16 ? n : 16;
		memmove(buf, buf + n - keep, keep);
	}
	if (f)
		fclose(f);
	return found;
}

bool daemon_log_has(const struct daemon *d, const char *text)
{
	char path[256], line[1024];
	bool found = false;
	FILE *f;

	daemon_path(d, "log", path, sizeof(path));
	f = fopen(path, "r");
	while (f && !found && fgets(line, sizeof(line), f))
		found = strstr(line, text) != NULL;
	if (f)
		fclose(f);
	return found;
}

void daemon_show_log(const struct daemon *d)
{
	char path[256], line[512];
	FILE *f;

	daemon_path(d, "log", path, sizeof(path));
	f = fopen(path, "r");
	if (!f)
		return;
	if (fseek(f, -4000, SEEK_END) == 0 && fgets(line, sizeof(line), f))
		tap_diag("(log, its end)");
	while (fgets(line, sizeof(line), f)) {
		line[strcspn(line, "\n")] = 0;
		tap_diag("log: %s", line);
	}
	fclose(f);
}
