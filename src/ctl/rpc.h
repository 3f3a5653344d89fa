/*
 * rpc: JSON-RPC 2.0 as SPDK speaks it, and more.
 *
 * A method is one entry of a table: name, parameters, function. Decoding, unknown keys, types,
 * ranges and defaults are the parameter table's business; the function gets checked args and
 * returns a result or an error whose sentence reaches the client as `error.data.hint`. `error.code`
 * and `error.message` are what SPDK's clients expect.
 *
 * rpc_handle() is a function from request to response; server.c owns the sockets. Methods run on
 * their connection's thread.
 */
#ifndef CTL_RPC_H
#define CTL_RPC_H

#include <jansson.h>
#include <stdbool.h>

#include "util/err.h"
#include "util/param.h"

#define RPC_PARSE_ERROR	     (-32700)
#define RPC_INVALID_REQUEST  (-32600)
#define RPC_METHOD_NOT_FOUND (-32601)
#define RPC_INVALID_PARAMS   (-32602)
#define RPC_INTERNAL_ERROR   (-32603)

/* How SPDK reports that parameters cannot be decoded; the methods differ. */
enum rpc_decode_error {
	RPC_DECODE_FAILED,  /* -32603 "spdk_json_decode_object failed" */
	RPC_DECODE_INVALID, /* -32602 "Invalid argument" */
	RPC_DECODE_REFUSED, /* -32602 "<method> method requires no parameters" */
};

struct rpc_method {
	const char *name;
	const char *help;
	const struct param *params;
	size_t args_size;
	/* *args: decoded; the function may keep it by setting it to NULL. *result: a new reference,
	 * NULL stands for true. */
	int (*fn)(const struct rpc_method *m, void **args, json_t **result, struct err *e);
	const void *context;
	enum rpc_decode_error decode_error;
	int error_code; /* 0: the -errno itself */
	bool relaxed;	/* unknown keys are skipped with a warning */
};

/* Every method, in a NULL-terminated list; built on the first call. */
const struct rpc_method *const *rpc_methods(void);
const struct rpc_method *rpc_find(const char *name);

/* Decode params and run; the one way in, for requests and configuration files alike. */
int rpc_call(const struct rpc_method *m, json_t *params, json_t **result, struct err *e,
	     bool *decoded);

/* One request or a batch. Returns the response, or NULL when there is none to give (notifications).
 */
json_t *rpc_handle(json_t *request);

/* The response to text that is not JSON; detail: a sentence. */
json_t *rpc_parse_error(const char *detail);

/* The method tables (methods_*.c). */
extern const struct rpc_method core_methods[], framework_methods[], thread_methods[],
	bdev_methods[], nvme_methods[], vhost_methods[], config_methods[];

#endif
