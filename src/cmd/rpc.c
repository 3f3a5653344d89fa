#include <errno.h>
#include <getopt.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "cmd/cmd.h"
#include "ctl/args.h"
#include "ctl/frame.h"
#include "ctl/rpc.h"
#include "util/sock.h"

#define DEADLINE_S 60

struct options {
	const char *socket;
	unsigned deadline_s;
	bool help, list;
};

static void usage(FILE *out)
{
	fprintf(out,
		"usage: riffle rpc [-s SOCKET] [-t SECONDS] METHOD [KEY=VALUE | JSON-OBJECT]...\n"
		"       riffle rpc --list\n"
		"       riffle rpc METHOD --help\n\n"
		"Send a request to a daemon and print the result as JSON.\n\n"
		"  -s, --socket PATH   the daemon's RPC socket (also -r; default: %s)\n"
		"  -t, --timeout SECS  give up after this long (default: %d)\n"
		"  -l, --list          list the methods\n"
		"  -h, --help          say this, or what a method takes\n\n"
		"Sizes may be written as 64M or 10G. Exit status: 0, 1 when the request failed, 2 for a wrong command line.\n",
		default_rpc_socket(), DEADLINE_S);
}

static void list_methods(void)
{
	for (const struct rpc_method *const *m = rpc_methods(); *m; m++)
		printf("  %-30s %s\n", (*m)->name, (*m)->help);
}

static int describe_method(const char *name)
{
	const struct rpc_method *m = rpc_find(name);

	if (!m) {
		fprintf(stderr,
			"riffle rpc: there is no method '%s'. `riffle rpc --list` lists them.\n",
			name);
		return EXIT_USAGE;
	}
	printf("%s: %s\n", m->name, m->help);
	if (m->params)
		param_print_help(m->params, stdout);
	return EXIT_OK;
}

static int parse(int argc, char **argv, struct options *o)
{
	static const struct option longs[] = {
		{ "socket", required_argument, NULL, 's' },
		{ "timeout", required_argument, NULL, 't' },
		{ "list", no_argument, NULL, 'l' },
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	uint64_t seconds;
	int c;

	while ((c = getopt_long(argc, argv, "s:r:t:lh", longs, NULL)) != -1) {
		switch (c) {
		case 's':
		case 'r':
			o->socket = optarg;
			break;
		case 't':
			if (!size_parse(optarg, &seconds) || seconds == 0 || seconds > 1000000) {
				fprintf(stderr,
					"riffle rpc: -t must be from 1 to 1000000 seconds, not '%s'.\n",
					optarg);
				return EXIT_USAGE;
			}
			o->deadline_s = (unsigned)seconds;
			break;
		case 'l':
			o->list = true;
			break;
		case 'h':
			o->help = true;
			break;
		default:
			fprintf(stderr, "`riffle rpc --help` says how it is used.\n");
			return EXIT_USAGE;
		}
	}
	if (!o->list && !o->help && optind == argc) {
		usage(stderr);
		return EXIT_USAGE;
	}
	return -1;
}

/* --- one request --- */

static int send_request(int fd, json_t *request, struct err *e)
{
	char *text = json_dumps(request, JSON_COMPACT);
	ssize_t n = text ? send(fd, text, strlen(text), MSG_NOSIGNAL) : -1;
	int rc = text && n == (ssize_t)strlen(text)
			 ? 0
			 : err_set(e, -EPIPE, "The daemon closed the connection.");

	free(text);
	return rc;
}

static int receive_response(int fd, json_t **out, struct err *e)
{
	struct frame frame = { 0 };
	size_t len = 0, room = 0;
	char *buf = NULL;
	int rc = 0;

	for (;;) {
		ssize_t n;

		if (room - len < 4096) {
			room = room ? room * 2 : 65536;
			buf = realloc(buf, room);
			if (!buf)
				return err_set(e, -ENOMEM, "Out of memory.");
		}
		n = recv(fd, buf + len, room - len, 0);
		if (n < 0 && errno == EAGAIN)
			rc = err_set(e, -ETIMEDOUT,
				     "The daemon has not answered in time. -t gives it longer.");
		else if (n <= 0)
			rc = err_set(e, -EPIPE,
				     "The daemon closed the connection without an answer.");
		if (rc)
			break;
		len += (size_t)n;
		if (frame_scan(&frame, buf, len) == FRAME_WHOLE)
			break;
	}
	if (rc == 0) {
		*out = json_loadb(buf, len, JSON_DISABLE_EOF_CHECK | JSON_ALLOW_NUL, NULL);
		if (!*out)
			rc = err_set(e, -EPROTO, "The daemon's answer is not JSON.");
	}
	free(buf);
	return rc;
}

static int exchange(const struct options *o, json_t *request, json_t **response, struct err *e)
{
	struct timeval deadline = { .tv_sec = o->deadline_s };
	int fd, rc = sock_connect(o->socket, o->deadline_s, &fd, e);

	if (rc) {
		size_t n = strlen(e->text);

		snprintf(e->text + n, sizeof(e->text) - n,
			 " Is `riffle serve` running? -s names its socket.");
		return rc;
	}
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &deadline, sizeof(deadline));
	rc = send_request(fd, request, e);
	if (rc == 0)
		rc = receive_response(fd, response, e);
	close(fd);
	return rc;
}

static int print_error(const char *method, json_t *error)
{
	const char *message = json_string_value(json_object_get(error, "message"));
	const char *hint =
		json_string_value(json_object_get(json_object_get(error, "data"), "hint"));

	fprintf(stderr, "riffle rpc: %s: %s (%s, %lld)\n", method, hint ? hint : "failed",
		message ? message : "?",
		(long long)json_integer_value(json_object_get(error, "code")));
	return EXIT_ERROR;
}

static int print_response(const char *method, json_t *response)
{
	json_t *result = json_object_get(response, "result"),
	       *error = json_object_get(response, "error");

	if (error)
		return print_error(method, error);
	json_dumpf(result, stdout, JSON_INDENT(2) | JSON_ENCODE_ANY);
	putchar('\n');
	return EXIT_OK;
}

int cmd_rpc(int argc, char **argv)
{
	struct options o = { .socket = default_rpc_socket(), .deadline_s = DEADLINE_S };
	json_t *request, *params, *response = NULL;
	const struct rpc_method *m;
	struct err e = { 0 };
	int rc = parse(argc, argv, &o);

	if (rc >= 0)
		return rc;
	if (o.list) {
		list_methods();
		return EXIT_OK;
	}
	if (o.help && optind < argc)
		return describe_method(argv[optind]);
	if (o.help) {
		usage(stdout);
		return EXIT_OK;
	}
	m = rpc_find(argv[optind]);
	rc = args_from_words(m ? m->params : NULL, argv + optind + 1, argc - optind - 1, &params,
			     &e);
	if (rc)
		return fail("rpc", &e) + (EXIT_USAGE - EXIT_ERROR);
	request = json_pack("{s:s, s:i, s:s}", "jsonrpc", "2.0", "id", 1, "method", argv[optind]);
	if (json_object_size(params))
		json_object_set(request, "params", params);
	json_decref(params);
	rc = exchange(&o, request, &response, &e);
	json_decref(request);
	if (rc)
		return fail("rpc", &e);
	rc = print_response(argv[optind], response);
	json_decref(response);
	return rc;
}
