#include "backend/file_lock.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "util/list.h"
#include "util/log.h"

#define FIRST_BYTE 100
#define BYTES	   200

struct file_lock {
	struct list node;
	dev_t dev;
	ino_t ino;
	int fd; /* shares its description with the disk's, see acquire() */
	unsigned refs;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct list locks = LIST_INIT(locks);

static struct file_lock *find(const struct stat *st)
{
	struct file_lock *l;

	list_for_each (l, &locks, node)
		if (l->dev == st->st_dev && l->ino == st->st_ino)
			return l;
	return NULL;
}

bool file_lock_held(const struct stat *st)
{
	bool held;

	pthread_mutex_lock(&mutex);
	held = find(st) != NULL;
	pthread_mutex_unlock(&mutex);
	return held;
}

/*
 * The lock belongs to the open file description that the I/O goes through, so that after a SIGKILL
 * it lives on until the kernel has ended the last write: no successor writes before that.
 */
static int acquire(int fd, const char *path, int *lock_fd, struct err *e)
{
	struct flock range = {
		.l_type = F_WRLCK,
		.l_whence = SEEK_SET,
		.l_start = FIRST_BYTE,
		.l_len = BYTES,
	};

	if (fcntl(fd, F_OFD_SETLK, &range) < 0) {
		if (errno != EAGAIN && errno != EACCES)
			return -errno;
		return err_field(
			e, -EBUSY, "filename", path, NULL,
			"'%.150s' is in use: another process (riffle, QEMU) has it open for "
			"writing. Two writers would destroy it.",
			path);
	}
	*lock_fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	return *lock_fd < 0 ? -errno : 0;
}

/* Under the mutex. */
static int take_new(int fd, const char *path, const struct stat *st, struct file_lock **out,
		    struct err *e)
{
	struct file_lock *l = calloc(1, sizeof(*l));
	int rc;

	if (!l)
		return err_set(e, -ENOMEM, "Out of memory.");
	*l = (struct file_lock){ .dev = st->st_dev, .ino = st->st_ino, .refs = 1 };
	rc = acquire(fd, path, &l->fd, e);
	if (rc) {
		free(l);
		if (rc == -EBUSY)
			return rc;
		log_warn("%s: cannot be locked against other writers: %s", path, err_words(rc));
		*out = NULL;
		return 0;
	}
	list_add_tail(&locks, &l->node);
	*out = l;
	return 0;
}

static int take(int fd, const char *path, const struct stat *st, struct file_lock **out,
		struct err *e)
{
	struct file_lock *l;
	int rc = 0;

	pthread_mutex_lock(&mutex);
	l = find(st);
	if (l) {
		l->refs++;
		*out = l;
	} else {
		rc = take_new(fd, path, st, out, e);
	}
	pthread_mutex_unlock(&mutex);
	return rc;
}

/* A process that was killed a moment ago holds its files until its last I/O has ended. Others need
 * not wait for that with us. */
int file_lock_take(int fd, const char *path, struct file_lock **out, struct err *e)
{
	const struct timespec pause = { .tv_nsec = 10000000 };
	struct stat st;
	int rc;

	if (fstat(fd, &st) < 0)
		return err_set(e, -errno, "'%.150s' cannot be examined: %s.", path,
			       err_words(errno));
	for (unsigned tries = FILE_BUSY_MS / 10;; tries--) {
		rc = take(fd, path, &st, out, e);
		if (rc != -EBUSY || tries == 0)
			return rc;
		nanosleep(&pause, NULL);
	}
}

void file_lock_drop(struct file_lock *l)
{
	if (!l)
		return;
	pthread_mutex_lock(&mutex);
	if (--l->refs == 0) {
		list_del(&l->node);
		/* older kernels close registered files with a delay: nobody shall wait for that */
		fcntl(l->fd, F_OFD_SETLK, &(struct flock){ .l_type = F_UNLCK });
		close(l->fd);
		free(l);
	}
	pthread_mutex_unlock(&mutex);
}
