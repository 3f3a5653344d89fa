/* The features of a fake controller, and the host memory buffer, which is one of them. */
#include "fake/fake_nvme_internal.h"

#include <stdlib.h>

#define HMB_ENABLE  1u
#define HMB_MOST    4096u /* descriptors */
#define HMB_STAMP   0x484d422152494646ull
#define HMB_PERIOD  256 /* turns between two looks at it */
#define SELECT_MASK 7u
#define KNOWN_WORDS 256

enum { SELECT_CURRENT, SELECT_DEFAULT, SELECT_SAVED, SELECT_ABLE };

static bool is_known(const struct fake_nvme *f, uint8_t fid)
{
	switch (fid) {
	case WIRE_FEAT_ARBITRATION:
	case WIRE_FEAT_POWER:
	case WIRE_FEAT_TEMPERATURE:
	case WIRE_FEAT_ERROR_RECOVERY:
	case WIRE_FEAT_QUEUES:
	case WIRE_FEAT_COALESCING:
	case WIRE_FEAT_VECTOR:
	case WIRE_FEAT_ATOMICITY:
	case WIRE_FEAT_AER:
	case WIRE_FEAT_TIMESTAMP:
	case WIRE_FEAT_KATO:
		return true;
	case WIRE_FEAT_VWC:
		return f->c.vwc;
	case WIRE_FEAT_HMB:
		return f->c.hmpre != 0;
	}
	return false;
}

static uint32_t queues_granted(const struct fake_nvme *f)
{
	return (MAX(f->c.io_cqs, 1u) - 1) << 16 | (MAX(f->c.io_sqs, 1u) - 1);
}

static uint32_t default_of(const struct fake_nvme *f, uint8_t fid)
{
	switch (fid) {
	case WIRE_FEAT_VWC:
		return f->c.vwc;
	case WIRE_FEAT_QUEUES:
		return queues_granted(f);
	case WIRE_FEAT_TEMPERATURE:
		return 343; /* K */
	}
	return 0;
}

/* ---- host memory buffer: 5.27.1.10 ---- */

static void hmb_drop(struct fake_nvme *f)
{
	free(f->hmb);
	f->hmb = NULL;
	f->hmb_n = 0;
}

static bool hmb_stamp(struct fake_nvme *f)
{
	const uint64_t stamp = HMB_STAMP;
	bool ok = true;

	for (unsigned i = 0; i < f->hmb_n && ok; i++) {
		uint64_t end = f->hmb[i].addr + (uint64_t)f->hmb[i].pages * f->page;

		ok = dma_write(f, f->hmb[i].addr, &stamp, 8, "host memory buffer") &&
		     dma_write(f, end - 8, &stamp, 8, "host memory buffer");
	}
	return ok;
}

/* The controller uses it now and then, and notices when somebody else does. */
unsigned hmb_turn(struct fake_nvme *f)
{
	uint64_t stamp;

	if (!f->hmb_n || f->stats.turns % HMB_PERIOD || !is_running(f))
		return 0;
	for (unsigned i = 0; i < f->hmb_n; i++) {
		if (!dma_read(f, &stamp, f->hmb[i].addr, 8, "host memory buffer") ||
		    stamp == HMB_STAMP)
			continue;
		fault(f, "the host memory buffer was written by the host at 0x%llx",
		      (unsigned long long)f->hmb[i].addr);
		hmb_stamp(f);
	}
	return 0;
}

static uint16_t hmb_check(struct fake_nvme *f, uint32_t pages)
{
	uint64_t sum = 0;

	for (unsigned i = 0; i < f->hmb_n; i++) {
		if (!f->hmb[i].pages || !IS_ALIGNED(f->hmb[i].addr, f->page)) {
			fault(f, "host memory buffer: descriptor %u is 0x%llx, %u pages", i,
			      (unsigned long long)f->hmb[i].addr, f->hmb[i].pages);
			return WIRE_BAD_FIELD;
		}
		sum += f->hmb[i].pages;
	}
	if (sum != pages || pages * (f->page / 4096) < f->c.hmmin) {
		fault(f, "host memory buffer: %llu pages in the list, %u in HSIZE",
		      (unsigned long long)sum, pages);
		return WIRE_BAD_FIELD;
	}
	return hmb_stamp(f) ? WIRE_OK : WIRE_DATA_TRANSFER;
}

static uint16_t set_hmb(struct fake_nvme *f, const struct wire_sqe *sqe)
{
	uint64_t list = sqe->cdw13 | (uint64_t)sqe->cdw14 << 32;
	unsigned n = sqe->cdw15;
	uint16_t status;

	if (!(sqe->cdw11 & HMB_ENABLE)) {
		hmb_drop(f);
		return WIRE_OK;
	}
	if (f->hmb) {
		fault(f, "the host memory buffer was enabled twice");
		return WIRE_SEQUENCE;
	}
	if (n == 0 || n > HMB_MOST || !IS_ALIGNED(list, 16))
		return WIRE_BAD_FIELD;
	f->hmb = calloc(n, sizeof(*f->hmb));
	if (!f->hmb)
		return WIRE_INTERNAL;
	f->hmb_n = n;
	status = dma_read(f, f->hmb, list, n * sizeof(*f->hmb), "the host memory buffer's list")
			 ? hmb_check(f, sqe->cdw12)
			 : WIRE_DATA_TRANSFER;
	if (status)
		hmb_drop(f);
	return status;
}

/* ---- Set Features ---- */

static uint16_t set_queues(struct fake_nvme *f, const struct wire_sqe *sqe, uint32_t *dw0)
{
	if (f->stats.sqs || f->stats.cqs) {
		fault(f, "Number of Queues was set when there were I/O queues");
		return WIRE_SEQUENCE;
	}
	if ((sqe->cdw11 & 0xffff) == 0xffff || sqe->cdw11 >> 16 == 0xffff)
		return WIRE_BAD_FIELD;
	*dw0 = queues_granted(f);
	return WIRE_OK;
}

static uint16_t set_special(struct fake_nvme *f, struct cmd *cmd, uint32_t *dw0)
{
	switch (cmd->sqe.cdw10 & 0xff) {
	case WIRE_FEAT_QUEUES:
		return set_queues(f, &cmd->sqe, dw0);
	case WIRE_FEAT_HMB:
		return set_hmb(f, &cmd->sqe);
	case WIRE_FEAT_VWC:
		if (!(cmd->sqe.cdw11 & 1))
			cache_flush(f);
		return WIRE_OK;
	case WIRE_FEAT_TIMESTAMP:
		return data_get(f, cmd, &f->timestamp, sizeof(f->timestamp));
	}
	return WIRE_OK;
}

static uint16_t check(struct fake_nvme *f, const struct wire_sqe *sqe)
{
	if (!is_known(f, sqe->cdw10 & 0xff))
		return WIRE_BAD_FIELD | WIRE_DNR;
	if (sqe->nsid && sqe->nsid != UINT32_MAX)
		return WIRE_NOT_PER_NS | WIRE_DNR;
	return WIRE_OK;
}

uint16_t set_features(struct fake_nvme *f, struct cmd *cmd, uint32_t *dw0)
{
	uint16_t status = check(f, &cmd->sqe);

	if (!status && cmd->sqe.cdw10 >> 31)
		status = WIRE_NOT_SAVEABLE | WIRE_DNR;
	if (!status)
		status = set_special(f, cmd, dw0);
	if (!status)
		f->feature[cmd->sqe.cdw10 & 0xff] = cmd->sqe.cdw11;
	return status;
}

uint16_t get_features(struct fake_nvme *f, struct cmd *cmd, uint32_t *dw0)
{
	uint8_t fid = cmd->sqe.cdw10 & 0xff;
	uint16_t status = check(f, &cmd->sqe);

	if (status)
		return status;
	switch (cmd->sqe.cdw10 >> 8 & SELECT_MASK) {
	case SELECT_CURRENT:
		*dw0 = fid == WIRE_FEAT_QUEUES ? queues_granted(f) : f->feature[fid];
		break;
	case SELECT_DEFAULT:
		*dw0 = default_of(f, fid);
		break;
	case SELECT_ABLE:
		*dw0 = 4; /* changeable */
		break;
	default:
		return WIRE_BAD_FIELD | WIRE_DNR;
	}
	if (fid == WIRE_FEAT_TIMESTAMP)
		status = data_put(f, cmd, &f->timestamp, sizeof(f->timestamp));
	return status;
}

void features_reset(struct fake_nvme *f)
{
	hmb_drop(f);
	f->timestamp = 0;
	for (unsigned i = 0; i < KNOWN_WORDS; i++)
		f->feature[i] = default_of(f, (uint8_t)i);
}
