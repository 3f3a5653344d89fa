/* Unix stream sockets as control threads need them. */
#ifndef UTIL_SOCK_H
#define UTIL_SOCK_H

#include "util/err.h"

/*
 * Listen at path. A socket file that nobody listens at any more is replaced; one that is served is
 * left alone. Errors: -ENAMETOOLONG, -EADDRINUSE, the kernel's, with a sentence.
 */
int sock_listen(const char *path, int *fd, struct err *e);

/*
 * Connect to path within so many seconds; 0: at once or not at all. The deadline also holds for
 * what is sent later. Errors: -ENAMETOOLONG, -ENOENT, -ECONNREFUSED, -EAGAIN (it listens, but does
 * not accept), with a sentence.
 */
int sock_connect(const char *path, unsigned seconds, int *fd, struct err *e);

#endif
