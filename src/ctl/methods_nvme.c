/* Methods of NVMe controllers. The words are SPDK's. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ctl/args.h"
#include "ctl/base64.h"
#include "ctl/nvme_json.h"
#include "ctl/rpc.h"

/* --- attach, detach, reset --- */

static int attach(const struct rpc_method *m, void **args, json_t **result, struct err *e)
{
	struct nvme_attach_args *a = *args;
	char **names;
	unsigned n;
	int rc;

	(void)m;
	*args = NULL;
	rc = nvme_attach(a, &names, &n, e);
	if (rc)
		return rc;
	*result = json_array();
	for (unsigned i = 0; i < n; i++) {
		json_array_append_new(*result, json_string(names[i]));
		free(names[i]);
	}
	free(names);
	return 0;
}

struct named_args {
	char *name;
	char *trtype, *traddr, *adrfam, *trsvcid, *subnqn, *hostaddr, *hostsvcid;
	uint64_t cntlid;
};

static const struct param detach_params[] = {
	PARAM_STRING(struct named_args, name, .required = true, .min = 1,
		     .help = "the controller to detach"),
	PARAM_STRING(struct named_args, trtype, .obsolete = true),
	PARAM_STRING(struct named_args, traddr, .obsolete = true),
	PARAM_STRING(struct named_args, adrfam, .obsolete = true),
	PARAM_STRING(struct named_args, trsvcid, .obsolete = true),
	PARAM_STRING(struct named_args, subnqn, .obsolete = true),
	PARAM_STRING(struct named_args, hostaddr, .obsolete = true),
	PARAM_STRING(struct named_args, hostsvcid, .obsolete = true),
	{ 0 }
};

static int detach(const struct rpc_method *m, void **args, json_t **result, struct err *e)
{
	struct named_args *a = *args;

	(void)m;
	(void)result;
	return nvme_detach(a->name, e);
}

static const struct param reset_params[] = {
	PARAM_STRING(struct named_args, name, .required = true, .min = 1,
		     .help = "the controller to reset"),
	PARAM_UINT(struct named_args, cntlid, .obsolete = true),
	{ 0 }
};

static int reset(const struct rpc_method *m, void **args, json_t **result, struct err *e)
{
	struct named_args *a = *args;

	(void)m;
	(void)result;
	return nvme_reset(a->name, e);
}

/* --- looking --- */

static const struct param list_params[] = {
	PARAM_STRING(struct named_args, name, .min = 1, .help = "only this one"), { 0 }
};

static int add_controller(const struct nvme_info *i, void *list)
{
	json_array_append_new(list, nvme_json_controller(i));
	return 0;
}

static int get_controllers(const struct rpc_method *m, void **args, json_t **result, struct err *e)
{
	struct named_args *a = *args;

	(void)m;
	*result = json_array();
	return nvme_for_each(a->name, add_controller, *result, e);
}

static const struct param health_params[] = {
	PARAM_STRING(struct named_args, name, .required = true, .min = 1, .help = "the controller"),
	{ 0 }
};

static int read_health(const struct nvme_info *i, struct nvme_ctrl *c, void *result, struct err *e)
{
	struct nvme_smart_log log;
	int rc = nvme_get_log(c, NVME_LOG_SMART, NVME_NSID_ALL, &log, sizeof(log), e);

	if (rc == 0)
		*(json_t **)result = nvme_json_health(&c->id, i->bdf, &log);
	return rc;
}

static int get_health(const struct rpc_method *m, void **args, json_t **result, struct err *e)
{
	struct named_args *a = *args;

	(void)m;
	return nvme_with(a->name, read_health, result, e);
}

/* --- settings --- */

struct option_args {
	char *action_on_timeout;
	uint64_t timeout_us, timeout_admin_us, io_queue_requests, io_queue_entries;
	uint64_t keep_alive_timeout_ms, arbitration_burst, low_priority_weight;
	uint64_t medium_priority_weight, high_priority_weight, nvme_adminq_poll_period_us;
	uint64_t nvme_ioq_poll_period_us, transport_retry_count, transport_ack_timeout;
	uint64_t reconnect_delay_sec, fast_io_fail_timeout_sec, transport_tos, rdma_srq_size;
	uint64_t rdma_max_cq_size, rdma_cm_event_timeout_ms, tcp_connect_timeout_ms;
	int64_t bdev_retry_count, ctrlr_loss_timeout_sec;
	bool delay_cmd_submit, disable_auto_failback, generate_uuids, nvme_error_stat, io_path_stat;
	bool allow_accel_sequence, rdma_umr_per_io, enable_flush;
	struct param_strings dhchap_digests, dhchap_dhgroups;
};

/* A day: more would not fit the arithmetic of ticks. */
#define TIMEOUT_MAX_US UINT64_C(86400000000)

#define IGNORED_UINT(name) PARAM_UINT(struct option_args, name, .obsolete = true)
#define IGNORED_INT(name)  PARAM_INT(struct option_args, name, .obsolete = true)
#define IGNORED_BOOL(name) PARAM_BOOL(struct option_args, name, .obsolete = true)

static const struct param option_params[] = {
	PARAM_UINT(struct option_args, timeout_us, .max = TIMEOUT_MAX_US,
		   .help = "how long an I/O may take before it is aborted (default: 30 s; 0: the "
			   "same)"),
	PARAM_UINT(struct option_args, timeout_admin_us, .max = TIMEOUT_MAX_US,
		   .help = "how long an admin command may take (default: 30 s)"),
	PARAM_UINT(struct option_args, io_queue_entries, .min = NVME_ENTRIES_MIN,
		   .max = NVME_ENTRIES_MAX,
		   .help = "entries of a queue pair, of controllers attached from now on "
			   "(default: 256)"),
	PARAM_STRING(struct option_args, action_on_timeout, .obsolete = true),
	IGNORED_UINT(io_queue_requests),
	IGNORED_UINT(keep_alive_timeout_ms),
	IGNORED_UINT(arbitration_burst),
	IGNORED_UINT(low_priority_weight),
	IGNORED_UINT(medium_priority_weight),
	IGNORED_UINT(high_priority_weight),
	IGNORED_UINT(nvme_adminq_poll_period_us),
	IGNORED_UINT(nvme_ioq_poll_period_us),
	IGNORED_UINT(transport_retry_count),
	IGNORED_UINT(transport_ack_timeout),
	IGNORED_UINT(reconnect_delay_sec),
	IGNORED_UINT(fast_io_fail_timeout_sec),
	IGNORED_UINT(transport_tos),
	IGNORED_UINT(rdma_srq_size),
	IGNORED_UINT(rdma_max_cq_size),
	IGNORED_UINT(rdma_cm_event_timeout_ms),
	IGNORED_UINT(tcp_connect_timeout_ms),
	IGNORED_INT(bdev_retry_count),
	IGNORED_INT(ctrlr_loss_timeout_sec),
	IGNORED_BOOL(delay_cmd_submit),
	IGNORED_BOOL(disable_auto_failback),
	IGNORED_BOOL(generate_uuids),
	IGNORED_BOOL(nvme_error_stat),
	IGNORED_BOOL(io_path_stat),
	IGNORED_BOOL(allow_accel_sequence),
	IGNORED_BOOL(rdma_umr_per_io),
	IGNORED_BOOL(enable_flush),
	PARAM_STRINGS(struct option_args, dhchap_digests, .obsolete = true),
	PARAM_STRINGS(struct option_args, dhchap_dhgroups, .obsolete = true),
	{ 0 }
};

static int set_options(const struct rpc_method *m, void **args, json_t **result, struct err *e)
{
	struct option_args *a = *args;
	struct nvme_settings s = nvme_settings_get();

	(void)m;
	(void)result;
	if (a->timeout_us)
		s.timeout_us = a->timeout_us;
	if (a->timeout_admin_us)
		s.timeout_admin_us = a->timeout_admin_us;
	if (a->io_queue_entries)
		s.io_queue_entries = a->io_queue_entries;
	return nvme_settings_set(&s, e);
}

struct hotplug_args {
	bool enable;
	uint64_t period_us;
};

static const struct param hotplug_params[] = {
	PARAM_BOOL(struct hotplug_args, enable, .required = true,
		   .help = "attach devices that appear: false; removal is always noticed"),
	PARAM_UINT(struct hotplug_args, period_us, .obsolete = true),
	{ 0 }
};

static int set_hotplug(const struct rpc_method *m, void **args, json_t **result, struct err *e)
{
	struct hotplug_args *a = *args;

	(void)m;
	(void)result;
	if (!a->enable)
		return 0;
	return err_field(
		e, -ENOTSUP, "enable", "true", "false",
		"New devices are not attached by themselves; attach them with bdev_nvme_attach_controller. Removal is always noticed.");
}

/* --- passthrough --- */

struct send_args {
	char *name, *cmd_type, *data_direction, *cmdbuf, *data, *metadata;
	uint64_t timeout_ms, data_len, metadata_len;
};

static const struct param send_params[] = {
	PARAM_STRING(struct send_args, name, .required = true, .min = 1, .help = "the controller"),
	PARAM_STRING(struct send_args, cmd_type, .required = true, .help = "admin or io"),
	PARAM_STRING(struct send_args, data_direction, .required = true, .help = "c2h or h2c"),
	PARAM_STRING(struct send_args, cmdbuf, .required = true,
		     .help = "the command's 64 bytes in Base64; its identifier and data pointers "
			     "are not used"),
	PARAM_STRING(struct send_args, data, .help = "to the controller, in Base64"),
	PARAM_UINT(struct send_args, data_len, .max = NVME_TRANSFER_MAX,
		   .help = "bytes from the controller"),
	PARAM_STRING(struct send_args, metadata, .obsolete = true),
	PARAM_UINT(struct send_args, metadata_len, .fixed = true),
	PARAM_UINT(struct send_args, timeout_ms, .max = 3600000,
		   .help = "how long to wait (default: the controller's)"),
	{ 0 }
};

struct passthrough {
	struct nvme_sqe sqe;
	bool admin, to_device;
	void *data;
	size_t len;
	unsigned timeout_ms;
	struct nvme_cqe cqe;
};

static int check_words(const struct send_args *a, struct err *e)
{
	if (strcmp(a->cmd_type, "admin") != 0 && strcmp(a->cmd_type, "io") != 0)
		return err_field(e, -EINVAL, "cmd_type", a->cmd_type, "admin, io",
				 "cmd_type must be admin or io.");
	if (strcmp(a->data_direction, "c2h") != 0 && strcmp(a->data_direction, "h2c") != 0)
		return err_field(e, -EINVAL, "data_direction", a->data_direction, "c2h, h2c",
				 "data_direction must be c2h or h2c.");
	return 0;
}

static int decode_command(const struct send_args *a, struct passthrough *p, struct err *e)
{
	void *bytes = NULL;
	size_t len = 0;
	int rc = base64_decode(a->cmdbuf, &bytes, &len);

	if (rc == 0 && len == sizeof(p->sqe))
		memcpy(&p->sqe, bytes, len);
	else
		rc = err_field(e, -EINVAL, "cmdbuf", NULL, "64 bytes",
			       "cmdbuf must be the Base64 of a command's 64 bytes.");
	free(bytes);
	p->sqe.flags = 0;
	p->sqe.mptr = to_le64(0);
	p->sqe.prp1 = p->sqe.prp2 = to_le64(0);
	return rc;
}

static int decode_data(const struct send_args *a, struct passthrough *p, struct err *e)
{
	p->to_device = strcmp(a->data_direction, "h2c") == 0;
	p->len = a->data_len;
	if (!p->to_device) {
		p->data = p->len ? calloc(1, p->len) : NULL;
		return p->len && !p->data ? err_set(e, -ENOMEM, "Out of memory.") : 0;
	}
	p->len = 0;
	if (a->data && base64_decode(a->data, &p->data, &p->len))
		return err_field(e, -EINVAL, "data", NULL, NULL, "data is not Base64.");
	if (p->len > NVME_TRANSFER_MAX)
		return err_field(e, -EINVAL, "data", NULL, "2 MiB", "data has more than 2 MiB.");
	return 0;
}

static int run(const struct nvme_info *i, struct nvme_ctrl *c, void *arg, struct err *e)
{
	struct passthrough *p = arg;

	(void)i;
	if (p->admin)
		return nvme_admin_raw(c, &p->sqe, p->data, p->len, p->timeout_ms, &p->cqe, e);
	return nvme_io_raw(c, &p->sqe, p->data, p->len, p->to_device, p->timeout_ms, &p->cqe, e);
}

static json_t *reply_of(const struct passthrough *p)
{
	char *cpl = base64_encode(&p->cqe, sizeof(p->cqe), 1), *data;
	json_t *reply = json_pack("{s:s}", "cpl", cpl ? cpl : "");

	free(cpl);
	if (p->len && !p->to_device) {
		data = base64_encode(p->data, p->len, 1);
		json_object_set_new(reply, "data", json_string(data ? data : ""));
		free(data);
	}
	return reply;
}

static int send_cmd(const struct rpc_method *m, void **args, json_t **result, struct err *e)
{
	struct send_args *a = *args;
	struct passthrough p = { .timeout_ms = (unsigned)a->timeout_ms };
	int rc = check_words(a, e);

	(void)m;
	if (rc == 0)
		rc = decode_command(a, &p, e);
	if (rc == 0)
		rc = decode_data(a, &p, e);
	if (rc == 0) {
		p.admin = strcmp(a->cmd_type, "admin") == 0;
		rc = nvme_with(a->name, run, &p, e);
	}
	if (rc == 0)
		*result = reply_of(&p);
	free(p.data);
	return rc;
}

const struct rpc_method nvme_methods[] = {
	{ .name = "bdev_nvme_attach_controller",
	  .help = "drive an NVMe device; its namespaces become disks",
	  .params = nvme_attach_params,
	  .args_size = sizeof(struct nvme_attach_args),
	  .fn = attach },
	{ .name = "bdev_nvme_detach_controller",
	  .help = "shut an NVMe device down and let it go",
	  .params = detach_params,
	  .args_size = sizeof(struct named_args),
	  .fn = detach },
	{ .name = "bdev_nvme_reset_controller",
	  .help = "reset an NVMe device; its I/O waits meanwhile",
	  .params = reset_params,
	  .args_size = sizeof(struct named_args),
	  .fn = reset },
	{ .name = "bdev_nvme_get_controllers",
	  .help = "all attached NVMe devices, or one",
	  .params = list_params,
	  .args_size = sizeof(struct named_args),
	  .fn = get_controllers },
	{ .name = "bdev_nvme_get_controller_health_info",
	  .help = "what an NVMe device says of its health (SMART)",
	  .params = health_params,
	  .args_size = sizeof(struct named_args),
	  .fn = get_health },
	{ .name = "bdev_nvme_set_options",
	  .help = "timeouts and queues of NVMe devices",
	  .params = option_params,
	  .args_size = sizeof(struct option_args),
	  .fn = set_options },
	{ .name = "bdev_nvme_set_hotplug",
	  .help = "whether devices that appear are attached",
	  .params = hotplug_params,
	  .args_size = sizeof(struct hotplug_args),
	  .fn = set_hotplug },
	{ .name = "bdev_nvme_send_cmd",
	  .help = "send any command to an NVMe device",
	  .params = send_params,
	  .args_size = sizeof(struct send_args),
	  .fn = send_cmd },
	{ 0 }
};
