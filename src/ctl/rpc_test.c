/* Framing, decoding and dispatch: everything of the RPC server but its sockets. */
#include "ctl/rpc.h"

#include <errno.h>

#include "ctl/args.h"
#include "ctl/config.h"
#include "ctl/frame.h"
#include "util/unit.h"

static void texts_are_framed_at_any_cut(void **state)
{
	const char *stream = " {\"a\": \"}]\\\"\"}\n\t[1,{\"b\":[]}]{}";
	static const size_t ends[] = { 14, 28, 30 };
	size_t len = strlen(stream);

	(void)state;
	for (size_t step = 1; step <= len; step++) {
		struct frame f = { 0 };
		size_t start = 0, seen = 0;

		for (size_t have = 0; have < len;) {
			have = MIN(have + step, len);
			while (frame_scan(&f, stream + start, have - start) == FRAME_WHOLE) {
				start += f.at;
				assert_int_equal(start, ends[seen++]);
				memset(&f, 0, sizeof(f));
			}
		}
		assert_int_equal(seen, 3);
	}
}

static enum frame_result scan(const char *text)
{
	struct frame f = { 0 };

	return frame_scan(&f, text, strlen(text));
}

static void streams_that_cannot_be_followed_are_seen(void **state)
{
	char deep[FRAME_DEPTH_MAX + 2];

	(void)state;
	assert_int_equal(scan("hello"), FRAME_BAD);
	assert_int_equal(scan("\xef\xbb\xbf{}"), FRAME_BAD);
	assert_int_equal(scan("}"), FRAME_BAD);
	assert_int_equal(scan("\"x\""), FRAME_BAD);
	assert_int_equal(scan("  \n"), FRAME_MORE);
	memset(deep, '[', sizeof(deep) - 1);
	deep[sizeof(deep) - 1] = '\0';
	assert_int_equal(scan(deep), FRAME_BAD);
	deep[FRAME_DEPTH_MAX] = '\0';
	assert_int_equal(scan(deep), FRAME_MORE);
}

/* The response to a request, or "" for none. The id is always 7. */
static char *ask(const char *request)
{
	json_t *r = json_loads(request, JSON_DECODE_ANY, NULL), *response;
	char *text;

	assert_non_null(r);
	response = rpc_handle(r);
	text = response ? json_dumps(response, JSON_COMPACT | JSON_SORT_KEYS) : strdup("");
	json_decref(r);
	json_decref(response);
	return text;
}

static void assert_code(const char *request, int code, const char *message)
{
	char *text = ask(request);
	json_t *r = json_loads(text, 0, NULL), *error = json_object_get(r, "error");

	if (!error)
		fail_msg("%s -> %s, not an error", request, text);
	assert_int_equal(json_integer_value(json_object_get(error, "code")), code);
	assert_string_equal(json_string_value(json_object_get(error, "message")), message);
	assert_non_null(json_string_value(json_object_get(json_object_get(error, "data"), "hint")));
	json_decref(r);
	free(text);
}

static void errors_are_those_of_spdk_with_a_hint(void **state)
{
	(void)state;
	assert_code("{\"id\":1,\"method\":\"no_such_method\"}", -32601, "Method not found");
	assert_code("{\"id\":1,\"method\":\"spdk_get_version\",\"params\":{\"x\":1}}", -32602,
		    "spdk_get_version method requires no parameters");
	assert_code(
		"{\"id\":1,\"method\":\"bdev_null_create\",\"params\":{\"name\":\"X\",\"num_blocks\":\"eight\","
		"\"block_size\":512}}",
		-32603, "spdk_json_decode_object failed");
	assert_code(
		"{\"id\":1,\"method\":\"bdev_null_create\",\"params\":{\"name\":\"X\",\"num_blocks\":8,\"block_size\":512,"
		"\"bogus\":1}}",
		-32603, "spdk_json_decode_object failed");
	assert_code("{\"id\":1,\"method\":\"bdev_malloc_create\",\"params\":{\"name\":\"X\"}}",
		    -32603, "spdk_json_decode_object failed");
	assert_code(
		"{\"id\":1,\"method\":\"bdev_malloc_create\",\"params\":{\"name\":\"X\",\"num_blocks\":8,\"block_size\":513}}",
		-22, "Invalid argument");
	assert_code("{\"id\":1,\"method\":\"bdev_get_bdevs\",\"params\":{\"name\":\"nope\"}}", -19,
		    "No such device");
	assert_code(
		"{\"id\":1,\"method\":\"bdev_aio_create\",\"params\":{\"name\":\"X\",\"filename\":\"/nonexistent\","
		"\"block_size\":512}}",
		-2, "No such file or directory");
	assert_code("[]", -32600, "Invalid request");
	assert_code("{\"id\":1,\"params\":{}}", -32600, "Invalid request");
	assert_code("{\"id\":{},\"method\":\"spdk_get_version\"}", -32600, "Invalid request");
	assert_code("{\"jsonrpc\":\"1.0\",\"id\":1,\"method\":\"spdk_get_version\"}", -32600,
		    "Invalid request");
}

static void no_params_come_in_four_shapes(void **state)
{
	static const char *const requests[] = {
		"{\"id\":7,\"method\":\"framework_wait_init\"}",
		"{\"id\":7,\"method\":\"framework_wait_init\",\"params\":null}",
		"{\"id\":7,\"method\":\"framework_wait_init\",\"params\":{}}",
		"{\"id\":7,\"method\":\"framework_wait_init\",\"params\":[]}",
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(requests); i++) {
		char *text = ask(requests[i]);

		assert_string_equal(text, "{\"id\":7,\"jsonrpc\":\"2.0\",\"result\":true}");
		free(text);
	}
}

static void batches_and_notifications(void **state)
{
	char *text = ask("{\"method\":\"framework_wait_init\"}");

	(void)state;
	assert_string_equal(text, "");
	free(text);
	text = ask(
		"[{\"id\":7,\"method\":\"framework_wait_init\"},{\"method\":\"framework_wait_init\"}]");
	assert_string_equal(text, "[{\"id\":7,\"jsonrpc\":\"2.0\",\"result\":true}]");
	free(text);
}

static void a_disk_is_made_and_the_configuration_makes_it_again(void **state)
{
	char *text = ask(
		"{\"id\":7,\"method\":\"bdev_null_create\",\"params\":{\"name\":\"N \\\"\\u0001\\uD83D\\uDE00\","
		"\"num_blocks\":8,\"block_size\":4096}}");
	json_t *saved, *again;
	struct err e = { 0 };

	(void)state;
	assert_non_null(strstr(text, "\"result\":"));
	free(text);
	saved = config_save();
	text = ask(
		"{\"id\":7,\"method\":\"bdev_null_delete\",\"params\":{\"name\":\"N \\\"\\u0001\\uD83D\\uDE00\"}}");
	assert_non_null(strstr(text, "\"result\":true"));
	free(text);
	assert_int_equal(config_load(saved, &e), 0);
	again = config_save();
	assert_true(json_equal(saved, again));
	assert_int_equal(config_load(saved, &e), -EEXIST);
	assert_non_null(strstr(e.text, "subsystems[0].config[0] (bdev_null_create)"));
	json_decref(saved);
	json_decref(again);
}

static void words_become_json(void **state)
{
	const struct rpc_method *m = rpc_find("bdev_malloc_create");
	static char name[] = "name=7", size[] = "size=64M", block[] = "{\"block_size\": 512}",
		    odd[] = "name";
	char *const words[] = { name, size, block }, *const bad[] = { odd };
	struct err e = { 0 };
	char *text;
	json_t *o;

	(void)state;
	assert_int_equal(args_from_words(m->params, words, 3, &o, &e), 0);
	text = json_dumps(o, JSON_COMPACT | JSON_SORT_KEYS);
	assert_string_equal(text, "{\"block_size\":512,\"name\":\"7\",\"size\":67108864}");
	free(text);
	json_decref(o);
	assert_int_equal(args_from_words(m->params, bad, 1, &o, &e), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(texts_are_framed_at_any_cut),
		cmocka_unit_test(streams_that_cannot_be_followed_are_seen),
		cmocka_unit_test(errors_are_those_of_spdk_with_a_hint),
		cmocka_unit_test(no_params_come_in_four_shapes),
		cmocka_unit_test(batches_and_notifications),
		cmocka_unit_test(a_disk_is_made_and_the_configuration_makes_it_again),
		cmocka_unit_test(words_become_json),
	};

	return RUN_TESTS(tests);
}
