#include "ctl/nvme_json.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static json_t *text_of(const char *in, size_t len)
{
	char text[64];

	nvme_string(in, len, text);
	return json_string(text);
}

static json_t *trid(const char *bdf)
{
	return json_pack("{s:s, s:s}", "trtype", "PCIe", "traddr", bdf ? bdf : "");
}

/* --- a controller --- */

static const char *state_words(enum nvme_state s)
{
	static const char *const words[] = { "enabled", "resetting", "failed", "deleting" };

	return words[s];
}

json_t *nvme_json_controller(const struct nvme_info *i)
{
	json_t *one =
		json_pack("{s:s, s:o, s:i, s:{s:s, s:s, s:s}, s:i}", "state", state_words(i->state),
			  "trid", trid(i->bdf), "cntlid", from_le16(i->ctrl->id.cntlid), "host",
			  "nqn", "", "addr", "", "svcid", "", "numa_id", -1);
	const struct nvme_mends *m = &i->mends;

	json_object_set_new(one, "mends",
			    json_pack("{s:I, s:I, s:I, s:I}", "aborts", (json_int_t)m->aborts,
				      "queue_rebuilds", (json_int_t)m->rebuilds, "resets",
				      (json_int_t)m->resets, "lost_interrupts",
				      (json_int_t)m->lost_interrupts));
	return json_pack("{s:s, s:[o]}", "name", i->name, "ctrlrs", one);
}

/* --- a namespace --- */

static json_t *ctrlr_data(const struct nvme_id_ctrl *id)
{
	uint16_t oacs = from_le16(id->oacs);
	char vendor[16];

	snprintf(vendor, sizeof(vendor), "0x%04x", from_le16(id->vid));
	return json_pack("{s:i, s:s, s:o, s:o, s:o, s:{s:i, s:i, s:i, s:i}, s:b, s:b}", "cntlid",
			 from_le16(id->cntlid), "vendor_id", vendor, "model_number",
			 text_of(id->mn, sizeof(id->mn)), "serial_number",
			 text_of(id->sn, sizeof(id->sn)), "firmware_revision",
			 text_of(id->fr, sizeof(id->fr)), "oacs", "security", oacs & 1, "format",
			 (oacs & NVME_OACS_FORMAT) != 0, "firmware",
			 (oacs & NVME_OACS_FIRMWARE) != 0, "ns_manage", (oacs & NVME_OACS_NS) != 0,
			 "multi_ctrlr", (id->cmic & 2) != 0, "ana_reporting", (id->cmic & 8) != 0);
}

static json_t *namespace_of(const struct bdev *b, const struct nvme_info *i)
{
	const struct nvme_ns *ns = nvme_bdev_ns(b);
	uint32_t vs = i->ctrl->vs;
	char version[32];

	snprintf(version, sizeof(version), "%u.%u", vs >> 16, vs >> 8 & 0xff);
	return json_pack("{s:s, s:o, s:o, s:{s:s}, s:{s:I, s:b}}", "pci_address",
			 i->bdf ? i->bdf : "", "trid", trid(i->bdf), "ctrlr_data",
			 ctrlr_data(&i->ctrl->id), "vs", "nvme_version", version, "ns_data", "id",
			 (json_int_t)ns->nsid, "can_share", 0);
}

struct bdev_view {
	const struct bdev *bdev;
	json_t *json;
};

static int view(const struct nvme_info *i, void *arg)
{
	struct bdev_view *v = arg;

	v->json = namespace_of(v->bdev, i);
	return 0;
}

json_t *nvme_json_bdev(const struct bdev *b)
{
	struct bdev_view v = { .bdev = b };

	nvme_bdev_look(b, view, &v);
	return json_pack("{s:[o], s:s}", "nvme", v.json, "mp_policy", "active_passive");
}

/* --- health --- */

/* 16 bytes, of which JSON's numbers take 8. */
static uint64_t count_of(const uint8_t bytes[16])
{
	uint64_t low, high;

	memcpy(&low, bytes, sizeof(low));
	memcpy(&high, bytes + 8, sizeof(high));
	return high || le64toh(low) > INT64_MAX ? INT64_MAX : le64toh(low);
}

static void put(json_t *o, const char *key, uint64_t value)
{
	json_object_set_new(o, key, json_integer((json_int_t)value));
}

static void put_counts(json_t *o, const struct nvme_smart_log *l)
{
	put(o, "data_units_read", count_of(l->data_units_read));
	put(o, "data_units_written", count_of(l->data_units_written));
	put(o, "host_read_commands", count_of(l->host_read_commands));
	put(o, "host_write_commands", count_of(l->host_write_commands));
	put(o, "controller_busy_time", count_of(l->controller_busy_time));
	put(o, "power_cycles", count_of(l->power_cycles));
	put(o, "power_on_hours", count_of(l->power_on_hours));
	put(o, "unsafe_shutdowns", count_of(l->unsafe_shutdowns));
	put(o, "media_errors", count_of(l->media_errors));
	put(o, "num_err_log_entries", count_of(l->error_log_entries));
	put(o, "warning_temperature_time_minutes", from_le32(l->warning_temp_time));
	put(o, "critical_composite_temperature_time_minutes", from_le32(l->critical_temp_time));
}

json_t *nvme_json_health(const struct nvme_id_ctrl *id, const char *bdf,
			 const struct nvme_smart_log *l)
{
	int kelvins = l->composite_temperature[0] | l->composite_temperature[1] << 8;
	json_t *o = json_pack("{s:o, s:o, s:o, s:s, s:i, s:i, s:i, s:i, s:i}", "model_number",
			      text_of(id->mn, sizeof(id->mn)), "serial_number",
			      text_of(id->sn, sizeof(id->sn)), "firmware_revision",
			      text_of(id->fr, sizeof(id->fr)), "traddr", bdf ? bdf : "",
			      "critical_warning", l->critical_warning, "temperature_celsius",
			      kelvins - 273, "available_spare_percentage", l->available_spare,
			      "available_spare_threshold_percentage", l->available_spare_threshold,
			      "percentage_used", l->percentage_used);
	json_t *sensors = NULL;

	put_counts(o, l);
	for (size_t i = 0; i < ARRAY_SIZE(l->temp_sensor); i++) {
		uint16_t t = from_le16(l->temp_sensor[i]);

		if (t && !sensors)
			sensors = json_array();
		if (t)
			json_array_append_new(sensors, json_integer(t - 273));
	}
	if (sensors)
		json_object_set_new(o, "temperature_sensors_celsius", sensors);
	return o;
}

/* --- identify --- */

static json_t *flags_of(uint32_t bits, const char *const *words, unsigned n)
{
	json_t *list = json_array();

	for (unsigned i = 0; i < n; i++)
		if (bits & 1u << i)
			json_array_append_new(list, json_string(words[i]));
	return list;
}

json_t *nvme_json_id_ctrl(const struct nvme_id_ctrl *id)
{
	static const char *const admin[] = { "security",   "format",	     "firmware",
					     "namespaces", "self-test",	     "directives",
					     "nvme-mi",	   "virtualization", "doorbell buffers",
					     "lba status" };
	static const char *const io[] = { "compare",	   "write uncorrectable",
					  "deallocate",	   "write zeroes",
					  "save features", "reservations",
					  "timestamp",	   "verify",
					  "copy" };
	char vendor[16], version[32], nqn[sizeof(id->subnqn) + 1];
	uint32_t ver = from_le32(id->ver);

	snprintf(vendor, sizeof(vendor), "0x%04x", from_le16(id->vid));
	snprintf(version, sizeof(version), "%u.%u.%u", ver >> 16, ver >> 8 & 0xff, ver & 0xff);
	nvme_string(id->subnqn, sizeof(id->subnqn), nqn);
	return json_pack("{s:o, s:o, s:o, s:s, s:s, s:i, s:s, s:I, s:b, s:b, s:I, s:i, s:o, s:o}",
			 "model_number", text_of(id->mn, sizeof(id->mn)), "serial_number",
			 text_of(id->sn, sizeof(id->sn)), "firmware_revision",
			 text_of(id->fr, sizeof(id->fr)), "vendor_id", vendor, "nvme_version",
			 version, "controller_id", from_le16(id->cntlid), "subsystem_nqn", nqn,
			 "max_transfer_pages",
			 (json_int_t)(id->mdts ? 1ll << MIN(id->mdts, 31) : 0),
			 "volatile_write_cache", (id->vwc & NVME_VWC_PRESENT) != 0, "sgl",
			 (from_le32(id->sgls) & 3) != 0, "namespaces_max",
			 (json_int_t)from_le32(id->nn), "async_events", id->aerl + 1,
			 "admin_commands", flags_of(from_le16(id->oacs), admin, ARRAY_SIZE(admin)),
			 "io_commands", flags_of(from_le16(id->oncs), io, ARRAY_SIZE(io)));
}

static json_t *hex_of(const uint8_t *bytes, size_t len)
{
	char text[33];
	unsigned any = 0;

	for (size_t i = 0; i < len; i++) {
		snprintf(text + 2 * i, 3, "%02x", bytes[i]);
		any |= bytes[i];
	}
	return any ? json_string(text) : json_null();
}

static json_t *formats_of(const struct nvme_id_ns *id)
{
	json_t *list = json_array();

	for (unsigned i = 0; i <= MIN(id->nlbaf, 63u); i++) {
		const struct nvme_lbaf *f = &id->lbaf[i];

		json_array_append_new(list,
				      json_pack("{s:i, s:I, s:i, s:i, s:b}", "lbaf", i,
						"block_size",
						(json_int_t)(f->lbads < 32 ? 1ll << f->lbads : 0),
						"metadata_size", from_le16(f->ms), "performance",
						f->rp & 3, "in_use",
						NVME_FLBAS_INDEX(id->flbas) == i));
	}
	return list;
}

json_t *nvme_json_id_ns(uint32_t nsid, const struct nvme_id_ns *id)
{
	const struct nvme_lbaf *f = &id->lbaf[NVME_FLBAS_INDEX(id->flbas)];
	unsigned shift = MIN(f->lbads, 31);
	uint64_t blocks = from_le64(id->nsze);

	return json_pack("{s:I, s:I, s:I, s:I, s:I, s:i, s:i, s:b, s:i, s:o, s:o, s:o}", "nsid",
			 (json_int_t)nsid, "size", (json_int_t)(blocks << shift), "num_blocks",
			 (json_int_t)blocks, "used_blocks", (json_int_t)from_le64(id->nuse),
			 "block_size", (json_int_t)(1ll << shift), "metadata_size",
			 from_le16(f->ms), "optimal_io_boundary_blocks", from_le16(id->noiob),
			 "write_protected", (id->nsattr & NVME_NSATTR_PROTECTED) != 0,
			 "protection_type", id->dps & 7, "nguid", hex_of(id->nguid, 16), "eui64",
			 hex_of(id->eui64, 8), "formats", formats_of(id));
}
