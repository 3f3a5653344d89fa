/* The admin commands of a fake controller: queues, Abort, shadow doorbells, Format. */
#include "fake/fake_nvme_internal.h"

#define FORMAT_LBAF(cdw10) ((cdw10)&15)

void admin_reset(struct fake_nvme *f)
{
	f->shadow = f->eventidx = 0;
	f->changed_n = 0;
	f->changed_overflow = false;
	events_reset(f);
	features_reset(f);
}

/* ---- queues: 5.3 to 5.6 of Base 2.0 ---- */

static uint16_t check_queue(struct fake_nvme *f, const struct wire_sqe *sqe, bool taken,
			    unsigned most, uint32_t in_cmb, const char *what)
{
	unsigned qid = sqe->cdw10 & 0xffff, size = (sqe->cdw10 >> 16) + 1;

	if (qid == 0 || qid > most || taken) {
		fault(f, "Create I/O %s %u: there are %u, or there is this one", what, qid, most);
		return WIRE_QID_INVALID;
	}
	if (size < 2 || size > f->c.mqes + 1u) {
		fault(f, "Create I/O %s %u with %u entries, MQES is %u", what, qid, size,
		      f->c.mqes);
		return WIRE_QUEUE_SIZE;
	}
	if (!(sqe->cdw11 & 1)) {
		fault(f, "Create I/O %s %u: not contiguous", what, qid);
		return WIRE_BAD_FIELD;
	}
	if (!IS_ALIGNED(sqe->prp1, f->page)) {
		fault(f, "Create I/O %s %u at 0x%llx, which is not a page of %zu", what, qid,
		      (unsigned long long)sqe->prp1, f->page);
		return WIRE_PRP_OFFSET;
	}
	if (is_in_cmb(f, sqe->prp1) && !(f->c.cmb_for & in_cmb)) {
		fault(f, "Create I/O %s %u in the controller memory buffer, not for it", what, qid);
		return WIRE_CMB_BAD;
	}
	return WIRE_OK;
}

static uint16_t bad_entry_size(struct fake_nvme *f)
{
	fault(f, "CC 0x%08x: I/O queue entries are not of 2^6 and 2^4 bytes", f->cc);
	return WIRE_QUEUE_SIZE;
}

static uint16_t create_cq(struct fake_nvme *f, struct cmd *cmd, uint32_t *dw0)
{
	const struct wire_sqe *sqe = &cmd->sqe;
	unsigned qid = sqe->cdw10 & 0xffff, vector = sqe->cdw11 >> 16;
	bool taken = qid <= FAKE_NVME_QUEUES_MAX && f->cq[qid].exists;
	uint16_t status = check_queue(f, sqe, taken, f->c.io_cqs, WIRE_CMB_CQS, "CQ");

	(void)dw0;
	if (status)
		return status;
	if (WIRE_CC_IOCQES(f->cc) != 4)
		return bad_entry_size(f);
	if (vector >= MAX(f->c.vectors, 1u)) {
		fault(f, "CQ %u on vector %u of %u", qid, vector, f->c.vectors);
		return WIRE_VECTOR_INVALID;
	}
	cq_open(f, qid, (sqe->cdw10 >> 16) + 1, sqe->prp1, sqe->cdw11 & 2, vector);
	return WIRE_OK;
}

static uint16_t create_sq(struct fake_nvme *f, struct cmd *cmd, uint32_t *dw0)
{
	const struct wire_sqe *sqe = &cmd->sqe;
	unsigned qid = sqe->cdw10 & 0xffff, cqid = sqe->cdw11 >> 16;
	bool taken = qid <= FAKE_NVME_QUEUES_MAX && f->sq[qid].exists;
	uint16_t status = check_queue(f, sqe, taken, f->c.io_sqs, WIRE_CMB_SQS, "SQ");

	(void)dw0;
	if (status)
		return status;
	if (WIRE_CC_IOSQES(f->cc) != 6)
		return bad_entry_size(f);
	if (cqid == 0 || cqid > FAKE_NVME_QUEUES_MAX || !f->cq[cqid].exists) {
		fault(f, "SQ %u for CQ %u, which is not there", qid, cqid);
		return WIRE_CQ_INVALID;
	}
	sq_open(f, qid, (sqe->cdw10 >> 16) + 1, sqe->prp1, cqid);
	return WIRE_OK;
}

static uint16_t delete_sq(struct fake_nvme *f, struct cmd *cmd, uint32_t *dw0)
{
	unsigned qid = cmd->sqe.cdw10 & 0xffff;

	(void)dw0;
	if (qid == 0 || qid > FAKE_NVME_QUEUES_MAX || !f->sq[qid].exists) {
		fault(f, "Delete SQ %u, which is not there", qid);
		return WIRE_QID_INVALID;
	}
	sq_close(f, &f->sq[qid]);
	return WIRE_OK;
}

static uint16_t delete_cq(struct fake_nvme *f, struct cmd *cmd, uint32_t *dw0)
{
	unsigned qid = cmd->sqe.cdw10 & 0xffff;

	(void)dw0;
	if (qid == 0 || qid > FAKE_NVME_QUEUES_MAX || !f->cq[qid].exists) {
		fault(f, "Delete CQ %u, which is not there", qid);
		return WIRE_QID_INVALID;
	}
	for (unsigned i = 1; i <= FAKE_NVME_QUEUES_MAX; i++) {
		if (f->sq[i].exists && f->sq[i].cq == &f->cq[qid]) {
			fault(f, "Delete CQ %u, which SQ %u uses", qid, i);
			return WIRE_QUEUE_DELETION;
		}
	}
	cq_close(f, &f->cq[qid]);
	return WIRE_OK;
}

/* ---- the others ---- */

static bool too_many_aborts(struct fake_nvme *f, const struct cmd *abort)
{
	struct cmd *cmd;
	unsigned n = 0;

	list_for_each (cmd, &abort->sq->outstanding, sq_link)
		n += cmd->sqe.opc == WIRE_ADM_ABORT && cmd->state != CMD_ENDED;
	if (n > f->c.acl + 1u)
		fault(f, "%u Abort commands are more than ACL allows", n);
	return n > f->c.acl + 1u;
}

static uint16_t do_abort(struct fake_nvme *f, struct cmd *cmd, uint32_t *dw0)
{
	unsigned sqid = cmd->sqe.cdw10 & 0xffff;
	struct cmd *victim = NULL;

	if (sqid <= FAKE_NVME_QUEUES_MAX && f->sq[sqid].exists)
		victim = sq_find(&f->sq[sqid], (uint16_t)(cmd->sqe.cdw10 >> 16));
	*dw0 = 1;
	if (too_many_aborts(f, cmd))
		return WIRE_ABORT_LIMIT;
	if (!victim || victim == cmd || victim->deaf || victim->state == CMD_ENDED)
		return WIRE_OK;
	*dw0 = 0;
	cmd_end(f, victim, WIRE_ABORTED, 0);
	return WIRE_OK;
}

static uint16_t do_dbbuf(struct fake_nvme *f, struct cmd *cmd, uint32_t *dw0)
{
	const struct wire_sqe *sqe = &cmd->sqe;

	(void)dw0;
	if (!(f->c.oacs & WIRE_OACS_DBBUF))
		return WIRE_BAD_OPCODE | WIRE_DNR;
	if (!sqe->prp1 || !sqe->prp2 || !IS_ALIGNED(sqe->prp1 | sqe->prp2, f->page)) {
		fault(f, "shadow doorbells at 0x%llx and 0x%llx", (unsigned long long)sqe->prp1,
		      (unsigned long long)sqe->prp2);
		return WIRE_BAD_FIELD | WIRE_DNR;
	}
	shadow_set(f, sqe->prp1, sqe->prp2);
	return WIRE_OK;
}

static bool ns_is_meant(const struct ns *ns, uint32_t nsid)
{
	return ns->exists && (nsid == UINT32_MAX || ns->c.nsid == nsid);
}

/* Everything reads 0 afterwards; the format remains, since others would change what tests know. */
static uint16_t do_format(struct fake_nvme *f, struct cmd *cmd, uint32_t *dw0)
{
	bool found = false;

	(void)dw0;
	if (!(f->c.oacs & WIRE_OACS_FORMAT))
		return WIRE_BAD_OPCODE | WIRE_DNR;
	for (unsigned i = 0; i < FAKE_NVME_NS_MAX; i++) {
		struct ns *ns = &f->ns[i];

		if (!ns_is_meant(ns, cmd->sqe.nsid))
			continue;
		if (FORMAT_LBAF(cmd->sqe.cdw10) != ns->c.lbaf)
			return WIRE_BAD_FORMAT | WIRE_DNR;
		store_fill(&ns->data, 0, ns->c.blocks * ns_stride(ns), 0, true);
		store_fill(&ns->meta, 0, ns->c.blocks * ns->c.ms, 0, true);
		found = true;
	}
	return found ? WIRE_OK : WIRE_BAD_NS | WIRE_DNR;
}

static uint16_t do_keep_alive(struct fake_nvme *f, struct cmd *cmd, uint32_t *dw0)
{
	(void)f;
	(void)cmd;
	(void)dw0;
	return WIRE_OK;
}

static uint16_t do_identify(struct fake_nvme *f, struct cmd *cmd, uint32_t *dw0)
{
	(void)dw0;
	return identify(f, cmd);
}

static uint16_t do_get_log(struct fake_nvme *f, struct cmd *cmd, uint32_t *dw0)
{
	(void)dw0;
	return get_log(f, cmd);
}

static void take_aer(struct fake_nvme *f, struct cmd *cmd)
{
	if (f->stats.aers > f->c.aerl) {
		fault(f, "%u Asynchronous Event Requests are more than AERL allows",
		      f->stats.aers + 1);
		cmd_end(f, cmd, WIRE_AER_LIMIT | WIRE_DNR, 0);
		return;
	}
	cmd_park(f, cmd, CMD_AER);
	f->stats.aers++;
}

static const struct {
	uint8_t opcode;
	uint16_t (*run)(struct fake_nvme *f, struct cmd *cmd, uint32_t *dw0);
} commands[] = {
	{ WIRE_ADM_DELETE_SQ, delete_sq },
	{ WIRE_ADM_CREATE_SQ, create_sq },
	{ WIRE_ADM_GET_LOG, do_get_log },
	{ WIRE_ADM_DELETE_CQ, delete_cq },
	{ WIRE_ADM_CREATE_CQ, create_cq },
	{ WIRE_ADM_IDENTIFY, do_identify },
	{ WIRE_ADM_ABORT, do_abort },
	{ WIRE_ADM_SET_FEATURES, set_features },
	{ WIRE_ADM_GET_FEATURES, get_features },
	{ WIRE_ADM_KEEP_ALIVE, do_keep_alive },
	{ WIRE_ADM_DBBUF, do_dbbuf },
	{ WIRE_ADM_FORMAT, do_format },
};

static uint16_t run(struct fake_nvme *f, struct cmd *cmd, uint32_t *dw0)
{
	if (cmd->sqe.flags) {
		fault(f, "admin command 0x%02x with FUSE or PSDT 0x%02x", cmd->sqe.opc,
		      cmd->sqe.flags);
		return WIRE_BAD_FIELD | WIRE_DNR;
	}
	for (size_t i = 0; i < ARRAY_SIZE(commands); i++)
		if (commands[i].opcode == cmd->sqe.opc)
			return commands[i].run(f, cmd, dw0);
	return WIRE_BAD_OPCODE | WIRE_DNR;
}

void admin_run(struct fake_nvme *f, struct cmd *cmd)
{
	uint32_t dw0 = 0;
	uint16_t status;

	if (cmd->sqe.opc == WIRE_ADM_AER) {
		take_aer(f, cmd);
		return;
	}
	status = run(f, cmd, &dw0);
	cmd_end(f, cmd, status, dw0);
}
