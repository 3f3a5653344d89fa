#include "ctl/server.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <pthread.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "ctl/frame.h"
#include "ctl/rpc.h"
#include "util/list.h"
#include "util/log.h"
#include "util/sock.h"

#define REQUEST_MAX	((size_t)8 << 20)
#define READ_CHUNK	((size_t)64 << 10)
#define CONNECTIONS_MAX 1024
#define SEND_DEADLINE_S 30

struct conn {
	int fd;
	struct list node;
	char *buf;
	size_t len, room;
	struct frame frame;
};

static struct {
	char *path;
	int fd, lock_fd;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t gone; /* a connection has ended */
	struct list conns;
	unsigned conns_n;
	bool running, stopping;
} server = { .fd = -1, .lock = PTHREAD_MUTEX_INITIALIZER, .gone = PTHREAD_COND_INITIALIZER };

/* --- one connection --- */

static int send_all(int fd, const char *text, size_t len)
{
	while (len > 0) {
		ssize_t n = send(fd, text, len, MSG_NOSIGNAL);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return -EPIPE;
		text += n;
		len -= (size_t)n;
	}
	return 0;
}

/* Takes the response. */
static int send_response(struct conn *c, json_t *response)
{
	char *text;
	size_t len;
	int rc;

	if (!response)
		return 0;
	text = json_dumps(response, JSON_COMPACT);
	json_decref(response);
	if (!text)
		return -ENOMEM;
	len = strlen(text);
	text[len] = '\n'; /* takes the place of the end mark: the text goes out by length */
	rc = send_all(c->fd, text, len + 1);
	free(text);
	return rc;
}

static int handle_text(struct conn *c, const char *text, size_t len)
{
	json_error_t error;
	json_t *request = json_loadb(text, len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error),
	       *response;
	char detail[256];

	if (request) {
		response = rpc_handle(request);
		json_decref(request);
	} else {
		snprintf(detail, sizeof(detail), "Not valid JSON: %.150s (line %d, column %d).",
			 error.text, error.line, error.column);
		response = rpc_parse_error(detail);
	}
	return send_response(c, response);
}

/* Handle every whole text in the buffer. */
static int handle_buffer(struct conn *c)
{
	size_t start = 0;
	int rc = 0;

	while (rc == 0) {
		enum frame_result r = frame_scan(&c->frame, c->buf + start, c->len - start);

		if (r == FRAME_MORE)
			break;
		if (r == FRAME_BAD) {
			send_response(
				c,
				rpc_parse_error(
					"Requests are JSON objects or lists of them, at most 64 levels deep."));
			return -EPROTO;
		}
		rc = handle_text(c, c->buf + start, c->frame.at);
		start += c->frame.at;
		memset(&c->frame, 0, sizeof(c->frame));
	}
	memmove(c->buf, c->buf + start, c->len - start);
	c->len -= start;
	return rc;
}

static int make_room(struct conn *c)
{
	size_t room = c->room ? c->room * 2 : READ_CHUNK;
	char *buf;

	if (c->len <= REQUEST_MAX && c->room - c->len >= READ_CHUNK / 2)
		return 0;
	if (c->len > REQUEST_MAX) {
		send_response(c, rpc_parse_error("A request may have at most 8 MiB."));
		return -EMSGSIZE;
	}
	buf = realloc(c->buf, room);
	if (!buf)
		return -ENOMEM;
	c->buf = buf;
	c->room = room;
	return 0;
}

static void serve(struct conn *c)
{
	while (make_room(c) == 0) {
		ssize_t n = recv(c->fd, c->buf + c->len, c->room - c->len, 0);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			break;
		c->len += (size_t)n;
		if (handle_buffer(c))
			break;
	}
}

static void *conn_main(void *arg)
{
	struct conn *c = arg;

	serve(c);
	pthread_mutex_lock(&server.lock);
	list_del(&c->node);
	close(c->fd); /* under the lock, so that server_stop() never shuts down a number that is
			 another's by now */
	server.conns_n--;
	pthread_cond_broadcast(&server.gone);
	pthread_mutex_unlock(&server.lock);
	free(c->buf);
	free(c);
	return NULL;
}

/* --- accepting --- */

static int start_conn(int fd)
{
	struct timeval deadline = { .tv_sec = SEND_DEADLINE_S };
	struct conn *c = calloc(1, sizeof(*c));
	pthread_t thread;
	int rc = c ? 0 : ENOMEM;

	if (rc)
		return -rc;
	c->fd = fd;
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &deadline, sizeof(deadline));
	pthread_mutex_lock(&server.lock);
	if (server.conns_n >= CONNECTIONS_MAX || server.stopping)
		rc = EAGAIN;
	if (rc == 0)
		rc = pthread_create(&thread, NULL, conn_main, c);
	if (rc == 0) {
		pthread_detach(thread);
		list_add_tail(&server.conns, &c->node);
		server.conns_n++;
	}
	pthread_mutex_unlock(&server.lock);
	if (rc)
		free(c);
	return -rc;
}

static void *accept_main(void *arg)
{
	(void)arg;
	for (;;) {
		int fd = accept4(server.fd, NULL, NULL, SOCK_CLOEXEC);

		if (fd < 0 && (errno == EINVAL || errno == EBADF))
			return NULL; /* server_stop() */
		if (fd < 0) {
			if (errno != EINTR && errno != ECONNABORTED)
				usleep(10000); /* out of fds: the client waits in the backlog */
			continue;
		}
		if (start_conn(fd) < 0) {
			log_warn("an RPC client was turned away: too many connections");
			close(fd);
		}
	}
}

/* The lock outlives a killed daemon's socket file, and two that start at the same moment. */
static int take_lock(const char *path, struct err *e)
{
	char name[256];
	int fd;

	snprintf(name, sizeof(name), "%s.lock", path);
	fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0)
		return err_field(
			e, -errno, "rpc_socket", path, NULL,
			"Cannot make '%.150s': %s. Does the folder exist, and may this user write to it?",
			name, err_words(errno));
	if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
		close(fd);
		return err_field(
			e, -EADDRINUSE, "rpc_socket", path, NULL,
			"Another riffle serves '%.150s' already. Stop it, or choose another RPC socket with -r.",
			path);
	}
	server.lock_fd = fd;
	return 0;
}

static void drop_lock(void)
{
	char name[256];

	snprintf(name, sizeof(name), "%s.lock", server.path);
	unlink(name);
	close(server.lock_fd);
}

int server_open(const char *path, struct err *e)
{
	int rc = take_lock(path, e);

	if (rc)
		return rc;
	list_init(&server.conns);
	server.path = strdup(path);
	rc = server.path ? sock_listen(path, &server.fd, e) : err_set(e, -ENOMEM, "Out of memory.");
	if (rc) {
		drop_lock();
		free(server.path);
	}
	return rc;
}

int server_start(struct err *e)
{
	int rc = pthread_create(&server.thread, NULL, accept_main, NULL);

	if (rc)
		return err_set(e, -rc, "Cannot start the RPC server: %s.", err_words(rc));
	server.running = true;
	pthread_setname_np(server.thread, "rpc");
	return 0;
}

void server_close(void)
{
	shutdown(server.fd, SHUT_RDWR);
	if (server.running)
		pthread_join(server.thread, NULL);
	close(server.fd);
	unlink(server.path);
	drop_lock();
}

/* A reply on its way still goes out, to a client that takes it within a second. */
void server_stop(void)
{
	struct timespec until;
	struct conn *c;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += 1;
	pthread_mutex_lock(&server.lock);
	server.stopping = true;
	list_for_each (c, &server.conns, node)
		shutdown(c->fd, SHUT_RD);
	while (server.conns_n > 0 &&
	       pthread_cond_timedwait(&server.gone, &server.lock, &until) == 0)
		;
	list_for_each (c, &server.conns, node)
		shutdown(c->fd, SHUT_RDWR);
	while (server.conns_n > 0)
		pthread_cond_wait(&server.gone, &server.lock);
	pthread_mutex_unlock(&server.lock);
	free(server.path);
}
