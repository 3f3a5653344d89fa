/* The queues of a fake controller: doorbells, shadow doorbells, fetching. */
#include "fake/fake_nvme_internal.h"

#include <stdlib.h>
#include <string.h>

/* Where the doorbell of a queue lies in an area like that of the BAR. */
static uint64_t slot(const struct fake_nvme *f, uint64_t base, unsigned qid, bool head)
{
	return base + (2 * qid + head) * (4ull << f->c.dstrd);
}

/* The admin queue never does; neither do queues whose slots are not in the page. */
static bool uses_shadow(const struct fake_nvme *f, unsigned qid, bool head)
{
	return f->shadow && qid && slot(f, 0, qid, head) + 4 <= f->page;
}

static void sq_clear(struct sq *sq, unsigned qid)
{
	*sq = (struct sq){ .qid = qid };
	list_init(&sq->outstanding);
}

static void cq_clear(struct cq *cq, unsigned qid)
{
	*cq = (struct cq){ .qid = qid };
	list_init(&cq->ended);
}

void queues_init(struct fake_nvme *f)
{
	list_init(&f->parked);
	for (unsigned i = 0; i <= FAKE_NVME_QUEUES_MAX; i++) {
		sq_clear(&f->sq[i], i);
		cq_clear(&f->cq[i], i);
	}
}

/* ---- commands ---- */

static struct cmd *cmd_alloc(struct fake_nvme *f, struct sq *sq, const struct wire_sqe *sqe)
{
	struct cmd *cmd = calloc(1, sizeof(*cmd));

	if (!cmd)
		abort();
	cmd->sq = sq;
	cmd->sqe = *sqe;
	cmd->action = -1;
	list_init(&cmd->link);
	list_add_tail(&sq->outstanding, &cmd->sq_link);
	if (sq->qid)
		f->stats.outstanding++;
	f->stats.most_outstanding = MAX(f->stats.most_outstanding, f->stats.outstanding);
	return cmd;
}

/* The host has its CQE, or never will: the CID may come again. */
static void cmd_forget(struct fake_nvme *f, struct cmd *cmd)
{
	list_del(&cmd->sq_link);
	if (cmd->sq->qid && !cmd->adrift)
		f->stats.outstanding--;
	cmd->adrift = true;
}

/* Off whatever list it waits in. */
static void cmd_detach(struct fake_nvme *f, struct cmd *cmd)
{
	list_del(&cmd->link);
	if (cmd->state == CMD_AER)
		f->stats.aers--;
}

void cmd_free(struct fake_nvme *f, struct cmd *cmd)
{
	cmd_forget(f, cmd);
	cmd_detach(f, cmd);
	free(cmd);
}

void cmd_park(struct fake_nvme *f, struct cmd *cmd, enum cmd_state state)
{
	cmd_detach(f, cmd);
	cmd->state = state;
	list_add_tail(&f->parked, &cmd->link);
}

void cmd_end(struct fake_nvme *f, struct cmd *cmd, uint16_t status, uint32_t dw0)
{
	cmd_detach(f, cmd);
	cmd->state = CMD_ENDED;
	cmd->status = status;
	cmd->dw0 = dw0;
	if (status) {
		f->stats.errors++;
		note_error(f, cmd);
	}
	list_add_tail(&cmd->sq->cq->ended, &cmd->link);
}

void cmd_run(struct fake_nvme *f, struct cmd *cmd)
{
	if (cmd->sq->qid == 0)
		admin_run(f, cmd);
	else
		io_run(f, cmd);
}

struct cmd *sq_find(struct sq *sq, uint16_t cid)
{
	struct cmd *cmd;

	list_for_each (cmd, &sq->outstanding, sq_link)
		if (cmd->sqe.cid == cid)
			return cmd;
	return NULL;
}

/* ---- made and unmade ---- */

void cq_open(struct fake_nvme *f, unsigned qid, unsigned size, uint64_t base, bool ien,
	     unsigned vector)
{
	struct cq *cq = &f->cq[qid];

	cq_clear(cq, qid);
	cq->exists = true;
	cq->size = size;
	cq->base = base;
	cq->ien = ien;
	cq->vector = vector;
	cq->phase = 1;
	if (qid)
		f->stats.cqs++;
}

void sq_open(struct fake_nvme *f, unsigned qid, unsigned size, uint64_t base, unsigned cqid)
{
	struct sq *sq = &f->sq[qid];

	sq_clear(sq, qid);
	sq->exists = true;
	sq->size = size;
	sq->base = base;
	sq->cq = &f->cq[cqid];
	if (qid)
		f->stats.sqs++;
}

void sq_close(struct fake_nvme *f, struct sq *sq)
{
	struct cmd *cmd, *next;

	list_for_each_safe (cmd, next, &sq->outstanding, sq_link) {
		if (cmd->state == CMD_DROPPED) {
			cmd_free(f, cmd);
			continue;
		}
		if (cmd->state != CMD_ENDED)
			cmd_end(f, cmd, WIRE_SQ_DELETED, 0);
		cmd_forget(f, cmd);
	}
	sq->exists = false;
	if (sq->qid)
		f->stats.sqs--;
}

void cq_close(struct fake_nvme *f, struct cq *cq)
{
	struct cmd *cmd, *next;

	list_for_each_safe (cmd, next, &cq->ended, link)
		cmd_free(f, cmd);
	cq->exists = false;
	if (cq->qid)
		f->stats.cqs--;
}

void queues_vanish(struct fake_nvme *f)
{
	struct cmd *cmd, *next;

	list_for_each_safe (cmd, next, &f->parked, link)
		cmd_free(f, cmd);
	for (unsigned i = 0; i <= FAKE_NVME_QUEUES_MAX; i++) {
		if (f->cq[i].exists)
			cq_close(f, &f->cq[i]);
		if (f->sq[i].exists)
			sq_close(f, &f->sq[i]);
	}
	f->shadow = f->eventidx = 0;
}

/* ---- doorbells ---- */

static uint32_t *doorbell(struct fake_nvme *f, unsigned qid, bool head)
{
	return (uint32_t *)(void *)(f->bar + WIRE_DOORBELLS + slot(f, 0, qid, head));
}

unsigned last_qid(const struct fake_nvme *f)
{
	return MAX(f->c.io_sqs, f->c.io_cqs);
}

void doorbells_rest(struct fake_nvme *f)
{
	for (unsigned i = 0; i <= last_qid(f); i++) {
		store_release(doorbell(f, i, false), DOORBELL_RESTS);
		store_release(doorbell(f, i, true), DOORBELL_RESTS);
	}
}

/* Was it written? An exchange, so that a write between the look and the rest is not lost. */
static bool doorbell_take(struct fake_nvme *f, unsigned qid, bool head, uint32_t *out)
{
	uint32_t *p = doorbell(f, qid, head);

	if (READ_ONCE(*p) == DOORBELL_RESTS)
		return false;
	*out = __atomic_exchange_n(p, DOORBELL_RESTS, __ATOMIC_ACQ_REL);
	return true;
}

static bool doorbell_is_good(struct fake_nvme *f, unsigned qid, bool head, uint32_t v)
{
	bool exists = head ? f->cq[qid].exists : f->sq[qid].exists;
	unsigned size = head ? f->cq[qid].size : f->sq[qid].size;

	if (!exists) {
		fault(f, "the doorbell of %s %u was written, which is not there",
		      head ? "CQ" : "SQ", qid);
		post_event(f, WIRE_EVENT_ERROR, 0, WIRE_LOG_ERROR);
		return false;
	}
	if (v >= size) {
		fault(f, "the doorbell of %s %u with %u entries was written with 0x%x",
		      head ? "CQ" : "SQ", qid, size, v);
		post_event(f, WIRE_EVENT_ERROR, 1, WIRE_LOG_ERROR);
		return false;
	}
	return true;
}

static void cq_set_head(struct fake_nvme *f, struct cq *cq, uint32_t v)
{
	unsigned freed, used;

	if (v >= cq->size) {
		fault(f, "the head of CQ %u with %u entries is 0x%x", cq->qid, cq->size, v);
		return;
	}
	freed = (v + cq->size - cq->head) % cq->size;
	used = (cq->tail + cq->size - cq->head) % cq->size;
	if (freed > used)
		fault(f, "the head of CQ %u went from %u to %u, past the tail %u", cq->qid,
		      cq->head, v, cq->tail);
	else
		cq->head = v;
}

static void sq_set_tail(struct fake_nvme *f, struct sq *sq, uint32_t v)
{
	if (v >= sq->size)
		fault(f, "the tail of SQ %u with %u entries is 0x%x", sq->qid, sq->size, v);
	else
		sq->tail = v;
}

static void count_doorbell(struct fake_nvme *f, unsigned qid, bool head)
{
	if (qid == 0)
		f->stats.admin_doorbells++;
	else if (head)
		f->stats.cq_doorbells++;
	else
		f->stats.sq_doorbells++;
}

static void tail_rung(struct fake_nvme *f, struct sq *sq, uint32_t v)
{
	if (uses_shadow(f, sq->qid, false)) {
		sq->awake = true;
		sq->idle = 0;
	} else {
		sq_set_tail(f, sq, v);
	}
}

static void look_at_shadow_head(struct fake_nvme *f, struct cq *cq)
{
	uint32_t v;

	if (dma_load32(f, slot(f, f->shadow, cq->qid, true), &v, "shadow CQ head"))
		cq_set_head(f, cq, v);
}

static void head_rung(struct fake_nvme *f, struct cq *cq, uint32_t v)
{
	if (uses_shadow(f, cq->qid, true))
		look_at_shadow_head(f, cq);
	else
		cq_set_head(f, cq, v);
	cq->full = false;
}

unsigned doorbells_turn(struct fake_nvme *f)
{
	unsigned n = 0;
	uint32_t v;

	if (!is_running(f))
		return 0;
	for (unsigned i = 0; i <= last_qid(f); i++) {
		for (unsigned head = 0; head < 2; head++) {
			if (!doorbell_take(f, i, head, &v))
				continue;
			n++;
			count_doorbell(f, i, head);
			if (!doorbell_is_good(f, i, head, v))
				continue;
			if (head)
				head_rung(f, &f->cq[i], v);
			else
				tail_rung(f, &f->sq[i], v);
		}
	}
	return n;
}

/* ---- shadow doorbells ---- */

void shadow_set(struct fake_nvme *f, uint64_t shadow, uint64_t eventidx)
{
	f->shadow = shadow;
	f->eventidx = eventidx;
	for (unsigned i = 1; i <= FAKE_NVME_QUEUES_MAX; i++) {
		if (f->sq[i].exists && uses_shadow(f, i, false))
			f->sq[i].awake = true;
		f->cq[i].full = false;
	}
}

static bool look_at_shadow(struct fake_nvme *f, struct sq *sq)
{
	uint32_t v;

	if (dma_load32(f, slot(f, f->shadow, sq->qid, false), &v, "shadow SQ tail"))
		sq_set_tail(f, sq, v);
	return sq->head != sq->tail;
}

/* Awake: looks. Idle for long: says from where on it wants a kick, looks once more, sleeps. */
static void watch_shadow(struct fake_nvme *f, struct sq *sq)
{
	if (!sq->awake)
		return;
	if (look_at_shadow(f, sq)) {
		sq->idle = 0;
		return;
	}
	if (++sq->idle <= f->c.dbbuf_patience)
		return;
	dma_store32(f, slot(f, f->eventidx, sq->qid, false), sq->tail, "EventIdx");
	full_barrier(); /* the host stores the tail, then loads EventIdx */
	sq->awake = look_at_shadow(f, sq);
	sq->idle = 0;
}

static bool next_is_free(const struct cq *cq)
{
	return (cq->tail + 1) % cq->size != cq->head;
}

/* When a CQ is full, its head too is only looked at when it has been asked to be told. */
bool cq_has_room(struct fake_nvme *f, struct cq *cq)
{
	if (next_is_free(cq) || cq->full || !uses_shadow(f, cq->qid, true))
		return next_is_free(cq);
	dma_store32(f, slot(f, f->eventidx, cq->qid, true), cq->head, "EventIdx");
	full_barrier(); /* the host stores the head, then loads EventIdx */
	look_at_shadow_head(f, cq);
	cq->full = !next_is_free(cq);
	return !cq->full;
}

/* ---- fetching ---- */

static void note_seen(struct fake_nvme *f, const struct sq *sq, const struct wire_sqe *sqe)
{
	struct fake_nvme_seen *s = &f->seen[f->seen_n % FAKE_NVME_SEEN];

	*s = (struct fake_nvme_seen){ .number = ++f->seen_n,
				      .qid = (uint16_t)sq->qid,
				      .cid = sqe->cid,
				      .opcode = sqe->opc,
				      .psdt = sqe->flags >> 6,
				      .nsid = sqe->nsid,
				      .slba = sqe->cdw10 | (uint64_t)sqe->cdw11 << 32,
				      .blocks = (sqe->cdw12 & 0xffff) + 1,
				      .fua = sqe->cdw12 & WIRE_FUA,
				      .dptr = { sqe->prp1, sqe->prp2 },
				      .mptr = sqe->mptr };
	memcpy(s->cdw, sqe, sizeof(s->cdw));
	if (sq->qid)
		f->stats.io[sqe->opc]++;
	else
		f->stats.admin[sqe->opc]++;
}

static void fetch(struct fake_nvme *f, struct sq *sq)
{
	struct wire_sqe sqe;
	struct cmd *cmd;
	bool taken;

	if (!dma_read(f, &sqe, sq->base + sq->head * sizeof(sqe), sizeof(sqe), "an SQE")) {
		become_fatal(f);
		return;
	}
	sq->head = (sq->head + 1) % sq->size;
	note_seen(f, sq, &sqe);
	taken = sq_find(sq, sqe.cid) != NULL;
	cmd = cmd_alloc(f, sq, &sqe);
	if (taken) {
		fault(f, "CID %u of SQ %u is outstanding already", sqe.cid, sq->qid);
		cmd_end(f, cmd, WIRE_CID_CONFLICT, 0);
	} else if (!script_apply(f, cmd)) {
		cmd_run(f, cmd);
	}
}

unsigned fetch_turn(struct fake_nvme *f)
{
	unsigned all = 0, n;
	struct sq *sq;

	for (unsigned i = 0; i <= last_qid(f); i++) {
		sq = &f->sq[i];
		if (!sq->exists || !is_running(f))
			continue;
		if (uses_shadow(f, i, false))
			watch_shadow(f, sq);
		for (n = f->c.fetch_most ? f->c.fetch_most : sq->size;
		     n && sq->head != sq->tail && is_running(f); n--, all++)
			fetch(f, sq);
	}
	return all;
}
