/* The log pages of a fake controller and its asynchronous events. */
#include "fake/fake_nvme_internal.h"

#include <string.h>

#define LOG_MAX	   4096
#define LOG_MOST   (64u << 10) /* bytes that one command may ask for */
#define ERRORS_MAX 64

struct log {
	size_t len;
	union {
		uint8_t bytes[LOG_MAX];
		uint32_t words[LOG_MAX / 4];
		uint64_t aligned;
	};
};

/* ---- errors ---- */

static unsigned errors_kept(const struct fake_nvme *f)
{
	return MIN(f->c.elpe + 1u, ERRORS_MAX);
}

void note_error(struct fake_nvme *f, const struct cmd *cmd)
{
	uint8_t *e = f->errlog[f->error_count % errors_kept(f)];
	uint16_t sqid = (uint16_t)cmd->sq->qid, status = (uint16_t)(cmd->status << 1);
	uint64_t lba = cmd->sqe.cdw10 | (uint64_t)cmd->sqe.cdw11 << 32;

	f->error_count++;
	memset(e, 0, sizeof(f->errlog[0]));
	memcpy(e, &f->error_count, 8);
	memcpy(e + 8, &sqid, 2);
	memcpy(e + 10, &cmd->sqe.cid, 2);
	memcpy(e + 12, &status, 2);
	memset(e + 14, 0xff, 2); /* no parameter is to blame */
	if (sqid)
		memcpy(e + 16, &lba, 8);
	memcpy(e + 24, &cmd->sqe.nsid, 4);
}

/* The newest comes first. */
static void fill_errors(const struct fake_nvme *f, struct log *l)
{
	unsigned kept = errors_kept(f);

	l->len = kept * sizeof(f->errlog[0]);
	for (unsigned i = 0; i < kept && i < f->error_count; i++)
		memcpy(l->bytes + i * sizeof(f->errlog[0]),
		       f->errlog[(f->error_count - 1 - i) % kept], sizeof(f->errlog[0]));
}

static void fill_smart(const struct fake_nvme *f, struct log *l)
{
	uint16_t kelvin = 310;
	uint64_t units;

	l->len = 512;
	memcpy(l->bytes + 1, &kelvin, 2);
	l->bytes[3] = 100; /* spare left, per cent */
	l->bytes[4] = 10;
	units = f->stats.bytes_read / 512000;
	memcpy(l->bytes + 32, &units, 8);
	units = f->stats.bytes_written / 512000;
	memcpy(l->bytes + 48, &units, 8);
	units = f->stats.io[WIRE_IO_READ];
	memcpy(l->bytes + 64, &units, 8);
	units = f->stats.io[WIRE_IO_WRITE];
	memcpy(l->bytes + 80, &units, 8);
	memcpy(l->bytes + 176, &f->error_count, 8);
}

static void fill_firmware(const struct fake_nvme *f, struct log *l)
{
	l->len = 512;
	l->bytes[0] = 1;
	memset(l->bytes + 8, ' ', 8);
	memcpy(l->bytes + 8, f->firmware, strlen(f->firmware));
}

static void fill_changed(const struct fake_nvme *f, struct log *l)
{
	l->len = CHANGED_MAX * sizeof(f->changed[0]);
	if (f->changed_overflow)
		l->words[0] = UINT32_MAX;
	else
		memcpy(l->words, f->changed, f->changed_n * sizeof(f->changed[0]));
}

/* ---- Get Log Page: 5.16 ---- */

static bool log_fill(struct fake_nvme *f, uint8_t lid, struct log *l)
{
	switch (lid) {
	case WIRE_LOG_ERROR:
		fill_errors(f, l);
		return true;
	case WIRE_LOG_SMART:
		fill_smart(f, l);
		return true;
	case WIRE_LOG_FIRMWARE:
		fill_firmware(f, l);
		return true;
	case WIRE_LOG_NS_CHANGED:
		fill_changed(f, l);
		return (f->c.oaes & WIRE_OAES_NS) != 0;
	}
	return false;
}

/* Read without RAE: what it holds has been heard, and the next event may come (5.2). */
static void log_was_read(struct fake_nvme *f, uint8_t lid)
{
	for (unsigned i = 0; i < EVENTS_MAX; i++)
		if (f->event[i].used && f->event[i].lid == lid)
			f->event[i].used = false;
	if (lid == WIRE_LOG_NS_CHANGED) {
		f->changed_n = 0;
		f->changed_overflow = false;
	}
}

uint16_t get_log(struct fake_nvme *f, struct cmd *cmd)
{
	const struct wire_sqe *sqe = &cmd->sqe;
	uint8_t lid = sqe->cdw10 & 0xff, page[LOG_MAX] = { 0 };
	uint64_t dwords = ((sqe->cdw11 & 0xffffull) << 16 | sqe->cdw10 >> 16) + 1;
	uint64_t offset = sqe->cdw12 | (uint64_t)sqe->cdw13 << 32;
	struct log l = { .len = 0, .bytes = { 0 } };
	uint16_t status;

	if (!log_fill(f, lid, &l))
		return WIRE_BAD_LOG | WIRE_DNR;
	if (offset > l.len || offset % 4 || dwords * 4 > sizeof(page)) {
		fault(f, "Get Log Page %u: %llu bytes at %llu", lid, (unsigned long long)dwords * 4,
		      (unsigned long long)offset);
		return WIRE_BAD_FIELD | WIRE_DNR;
	}
	memcpy(page, l.bytes + offset, MIN(dwords * 4, l.len - offset));
	status = data_put(f, cmd, page, dwords * 4);
	if (!status && !(sqe->cdw10 & 1u << 15))
		log_was_read(f, lid);
	return status;
}

/* ---- asynchronous events: 5.2 ---- */

static struct event *event_slot(struct fake_nvme *f, uint8_t type, uint8_t info, uint8_t lid)
{
	struct event *idle = NULL, *e;

	for (unsigned i = 0; i < EVENTS_MAX; i++) {
		e = &f->event[i];
		if (e->used && e->type == type && e->info == info && e->lid == lid)
			return e;
		if (!e->used)
			idle = e;
	}
	return idle;
}

/* It is told when there is an AER, and when the log of the one before has been read. */
void post_event(struct fake_nvme *f, uint8_t type, uint8_t info, uint8_t lid)
{
	struct event *e = event_slot(f, type, info, lid);

	if (!e)
		return;
	*e = (struct event){ .used = true,
			     .pending = true,
			     .masked = e->used && e->masked,
			     .type = type,
			     .info = info,
			     .lid = lid };
}

static struct cmd *first_aer(struct fake_nvme *f)
{
	struct cmd *cmd;

	list_for_each (cmd, &f->parked, link)
		if (cmd->state == CMD_AER)
			return cmd;
	return NULL;
}

/* All events of a type wait for the log of the last one. */
static bool is_masked(const struct fake_nvme *f, const struct event *e)
{
	for (unsigned i = 0; i < EVENTS_MAX; i++)
		if (f->event[i].used && f->event[i].masked && f->event[i].type == e->type)
			return true;
	return false;
}

unsigned events_turn(struct fake_nvme *f)
{
	struct event *e;
	struct cmd *aer;
	unsigned n = 0;

	for (unsigned i = 0; i < EVENTS_MAX && is_running(f); i++) {
		e = &f->event[i];
		if (!e->used || !e->pending || is_masked(f, e))
			continue;
		aer = first_aer(f);
		if (!aer)
			break;
		e->pending = false;
		e->masked = true;
		f->stats.events++;
		n++;
		cmd_end(f, aer, WIRE_OK,
			(uint32_t)(e->type | e->info << 8 | (uint32_t)e->lid << 16));
	}
	return n;
}

void events_reset(struct fake_nvme *f)
{
	memset(f->event, 0, sizeof(f->event));
}

void fake_nvme_event(struct fake_nvme *f, uint8_t type, uint8_t info, uint8_t lid)
{
	fake_lock(f);
	post_event(f, type, info, lid);
	fake_unlock(f);
}
