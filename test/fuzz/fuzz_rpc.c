/* libFuzzer target: what an RPC client may send: framing, JSON, dispatch and parameter tables. Only
 * methods that touch no file run. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "bdev/registry.h"
#include "ctl/frame.h"
#include "ctl/rpc.h"
#include "util/log.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	(void)argc;
	(void)argv;
	log_set_level(LOG_SILENT);
	return 0;
}

static bool harmless(const char *text, size_t len)
{
	static const char *const no[] = { "aio",	  "uring",	 "kill", "malloc",
					  "vhost_create", "load_config", "\\u" };

	for (size_t i = 0; i < ARRAY_SIZE(no); i++)
		if (memmem(text, len, no[i], strlen(no[i])))
			return false;
	return true;
}

static void answer(const char *text, size_t len)
{
	json_t *request = json_loadb(text, len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL),
	       *response;
	char *out;

	if (!request)
		return;
	response = rpc_handle(request);
	out = response ? json_dumps(response, JSON_COMPACT) : NULL;
	if (response && !out)
		abort(); /* every response can be written */
	free(out);
	json_decref(response);
	json_decref(request);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const char *text = (const char *)data;
	struct frame f = { 0 };

	if (!harmless(text, size))
		return 0;
	while (frame_scan(&f, text, size) == FRAME_WHOLE) {
		answer(text, f.at);
		text += f.at;
		size -= f.at;
		memset(&f, 0, sizeof(f));
	}
	bdev_delete_all();
	return 0;
}
