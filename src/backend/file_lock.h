/*
 * One writer per file: two daemons, or a daemon and a QEMU, that write one image destroy it.
 *
 * The lock is an open-file-description lock on the bytes that QEMU uses for its own (100 to 299),
 * so each refuses what the other holds. Several disks of this process on one file share it. Readers
 * take none. Control threads only: taking a lock that others hold lasts FILE_BUSY_MS.
 */
#ifndef BACKEND_FILE_LOCK_H
#define BACKEND_FILE_LOCK_H

#include <stdbool.h>

#include "util/err.h"

struct file_lock;
struct stat;

/* How long a file may be held by others before it is refused: a killed process may have I/O that
 * has not ended yet. */
#define FILE_BUSY_MS 2000

/* Does this process hold the file already? */
bool file_lock_held(const struct stat *st);

/*
 * fd: the writable file; path: for the sentence. *out is NULL where the file system knows no locks
 * (a warning says so). Errors: -EBUSY when another process holds the file; -ENOMEM.
 */
int file_lock_take(int fd, const char *path, struct file_lock **out, struct err *e);
void file_lock_drop(struct file_lock *lock); /* NULL is fine */

#endif
