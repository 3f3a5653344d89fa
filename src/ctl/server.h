/*
 * The RPC server: a Unix socket, one thread that accepts and one per connection. A reply is one
 * write of compact JSON and a newline.
 */
#ifndef CTL_SERVER_H
#define CTL_SERVER_H

#include "util/err.h"

/*
 * Claim path (with a lock file beside it, so that there is one daemon per path) and listen; clients
 * wait until server_start(). Errors: -EADDRINUSE and others, with a sentence.
 */
int server_open(const char *path, struct err *e);
/* Begin to answer. Errors: -EAGAIN when no thread is to be had. */
int server_start(struct err *e);
/* Take no new clients and free the path for others; those that are connected may go on. */
void server_close(void);
/* Close all connections, once the request that each may be running has ended. After server_close().
 */
void server_stop(void);

#endif
