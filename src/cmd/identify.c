/* riffle identify and riffle smart: what an NVMe device says of itself. What is printed for people
 * comes from what --json prints. */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/cmd.h"
#include "cmd/nvme_admin.h"
#include "ctl/nvme_json.h"

/* --- asking --- */

static int identify(struct nvme_looker *l, uint8_t cns, uint32_t nsid, void *page, struct err *e)
{
	struct nvme_sqe sqe = { .opc = NVME_IDENTIFY,
				.nsid = to_le32(nsid),
				.a.cdw10 = to_le32(cns) };

	return nvme_look(l, "Identify", &sqe, page, NVME_PAGE, e);
}

static int get_log(struct nvme_looker *l, uint8_t log, void *data, size_t len, struct err *e)
{
	struct nvme_sqe sqe = { .opc = NVME_GET_LOG,
				.nsid = to_le32(NVME_NSID_ALL),
				.a.cdw10 = to_le32((uint32_t)(len / 4 - 1) << 16 | log) };

	return nvme_look(l, "Get Log Page", &sqe, data, len, e);
}

static json_t *namespaces_of(struct nvme_looker *l, struct err *e)
{
	static le32 nsids[NVME_NSIDS_PER_LIST];
	static struct nvme_id_ns ns;
	json_t *list = json_array();

	if (identify(l, NVME_CNS_ACTIVE_NS, 0, nsids, e))
		return list;
	for (unsigned i = 0; i < NVME_NSIDS_PER_LIST && from_le32(nsids[i]); i++)
		if (identify(l, NVME_CNS_NS, from_le32(nsids[i]), &ns, e) == 0)
			json_array_append_new(list, nvme_json_id_ns(from_le32(nsids[i]), &ns));
	return list;
}

static json_t *slots_of(struct nvme_looker *l)
{
	struct nvme_firmware_log log;
	json_t *list = json_array();
	struct err e;
	char text[sizeof(log.frs[0]) + 1];

	if (get_log(l, NVME_LOG_FIRMWARE, &log, sizeof(log), &e))
		return list;
	for (unsigned i = 0; i < ARRAY_SIZE(log.frs); i++) {
		nvme_string(log.frs[i], sizeof(log.frs[i]), text);
		if (text[0])
			json_array_append_new(list, json_pack("{s:i, s:s, s:b}", "slot", i + 1,
							      "revision", text, "active",
							      (log.afi & 7u) == i + 1));
	}
	return list;
}

static int ask_identify(struct nvme_looker *l, json_t **out, struct err *e)
{
	static struct nvme_id_ctrl id;
	int rc = identify(l, NVME_CNS_CTRL, 0, &id, e);

	if (rc)
		return rc;
	*out = json_pack("{s:s, s:s}", "bdf", nvme_looker_bdf(l), "driver", nvme_looker_driver(l));
	json_object_update_new(*out, nvme_json_id_ctrl(&id));
	json_object_set_new(*out, "firmware_slots", slots_of(l));
	json_object_set_new(*out, "namespaces", namespaces_of(l, e));
	return 0;
}

static int ask_smart(struct nvme_looker *l, json_t **out, struct err *e)
{
	static struct nvme_id_ctrl id;
	struct nvme_smart_log log;
	int rc = identify(l, NVME_CNS_CTRL, 0, &id, e);

	if (rc == 0)
		rc = get_log(l, NVME_LOG_SMART, &log, sizeof(log), e);
	if (rc == 0)
		*out = nvme_json_health(&id, nvme_looker_bdf(l), &log);
	return rc;
}

/* --- printing --- */

static void print_words(const json_t *list)
{
	const json_t *one;
	size_t i;

	json_array_foreach(list, i, one) printf("%s%s", i ? ", " : "", json_string_value(one));
	putchar('\n');
}

static void print_value(const json_t *v)
{
	if (json_is_string(v))
		puts(json_string_value(v));
	else if (json_is_integer(v))
		printf("%lld\n", (long long)json_integer_value(v));
	else if (json_is_boolean(v))
		puts(json_is_true(v) ? "yes" : "no");
	else if (json_is_array(v))
		print_words(v);
	else
		puts("-");
}

/* "model_number" -> "Model number:" */
static void print_label(const char *key, int indent)
{
	char label[64];

	snprintf(label, sizeof(label), "%.60s:", key);
	if (label[0] >= 'a' && label[0] <= 'z')
		label[0] = (char)(label[0] - ('a' - 'A'));
	for (char *c = label; *c; c++)
		if (*c == '_')
			*c = ' ';
	printf("%*s%-44s ", indent, "", label);
}

static bool has_objects(const json_t *v)
{
	return json_is_array(v) && json_is_object(json_array_get(v, 0));
}

/* "In use" marks a format by its own line. */
static void print_list(const char *key, const json_t *list, int indent)
{
	const json_t *one, *v;
	const char *name;
	size_t i;

	json_array_foreach(list, i, one)
	{
		printf("%*s%s %zu:", indent, "", key, i);
		json_object_foreach((json_t *)(uintptr_t)one, name, v)
		{
			if (has_objects(v))
				continue;
			if (json_is_boolean(v)) {
				if (json_is_true(v))
					printf(" %s", name);
				continue;
			}
			printf(" %s ", name);
			if (json_is_integer(v))
				printf("%lld", (long long)json_integer_value(v));
			else
				printf("%s", json_is_string(v) ? json_string_value(v) : "-");
		}
		putchar('\n');
	}
}

static void print_people(const json_t *o)
{
	const char *key;
	const json_t *v;

	json_object_foreach((json_t *)(uintptr_t)o, key, v)
	{
		if (has_objects(v)) {
			print_list(key, v, 2);
			continue;
		}
		print_label(key, 0);
		print_value(v);
	}
}

/* --- the commands --- */

static void usage(FILE *out, const char *name, const char *what)
{
	fprintf(out,
		"usage: riffle %s [--json] BDF\n\n"
		"%s `riffle list` shows the addresses (BDF).\n\n"
		"      --json  print JSON\n"
		"  -h, --help  say this\n",
		name, what);
}

static int run(const char *name, const char *bdf, bool json,
	       int (*ask)(struct nvme_looker *l, json_t **out, struct err *e))
{
	struct nvme_looker *l;
	struct err e = { 0 };
	json_t *o = NULL;
	int rc = nvme_looker_open(bdf, &l, &e);

	if (rc)
		return fail(name, &e);
	rc = ask(l, &o, &e);
	nvme_looker_close(l);
	if (rc)
		return fail(name, &e);
	if (json) {
		json_dumpf(o, stdout, JSON_INDENT(2));
		putchar('\n');
	} else {
		print_people(o);
	}
	json_decref(o);
	return EXIT_OK;
}

static int command(int argc, char **argv, const char *name, const char *what,
		   int (*ask)(struct nvme_looker *l, json_t **out, struct err *e))
{
	static const struct option longs[] = { { "json", no_argument, NULL, 'j' },
					       { "help", no_argument, NULL, 'h' },
					       { 0 } };
	bool json = false;
	int c;

	while ((c = getopt_long(argc, argv, "h", longs, NULL)) != -1) {
		if (c == 'h') {
			usage(stdout, name, what);
			return EXIT_OK;
		}
		if (c != 'j') {
			fprintf(stderr, "`riffle %s --help` lists the options.\n", name);
			return EXIT_USAGE;
		}
		json = true;
	}
	if (optind + 1 != argc) {
		fprintf(stderr, "riffle %s: give the address of one device. ", name);
		fprintf(stderr, "`riffle list` shows them.\n");
		return EXIT_USAGE;
	}
	return run(name, argv[optind], json, ask);
}

int cmd_identify(int argc, char **argv)
{
	return command(argc, argv, "identify",
		       "Say what an NVMe device and its namespaces are and can.", ask_identify);
}

int cmd_smart(int argc, char **argv)
{
	return command(argc, argv, "smart", "Say what an NVMe device says of its health.",
		       ask_smart);
}
