/* Completions of a fake controller, as they should be and as the script wants them; interrupts. */
#include <string.h>

#include "fake/fake_nvme_internal.h"

#include <unistd.h>

/* A CID that the host does not wait for: the largest one below the SQ's size, or any. */
static uint16_t idle_cid(struct sq *sq)
{
	unsigned cid = sq->size;

	while (cid-- > 0)
		if (!sq_find(sq, (uint16_t)cid))
			return (uint16_t)cid;
	return (uint16_t)(sq->size + 1);
}

static void mangle(struct cmd *cmd, struct wire_cqe *e)
{
	uint16_t wrong = (uint16_t)(cmd->n ? cmd->n : cmd->sq->size);

	switch (cmd->action) {
	case FAKE_BAD_CID:
		e->cid = wrong;
		break;
	case FAKE_IDLE_CID:
		e->cid = idle_cid(cmd->sq);
		break;
	case FAKE_BAD_SQHD:
		e->sqhd = wrong;
		break;
	}
}

/* The half with the phase bit comes last and at once, and the host sees all of the rest when it
 * sees it. */
static bool cqe_write(struct fake_nvme *f, const struct cq *cq, const struct wire_cqe *e)
{
	uint64_t at = cq->base + cq->tail * sizeof(*e), end;
	const size_t half = sizeof(*e) / 2;

	memcpy(&end, (const char *)e + half, half);
	return dma_write(f, at, e, half, "a CQE") && dma_store64(f, at + half, end, "a CQE");
}

static void cmd_posted(struct fake_nvme *f, struct cmd *cmd)
{
	int action = cmd->action;

	if (action == FAKE_TWICE && !cmd->again) {
		cmd->again = true;
		return;
	}
	if ((action == FAKE_BAD_CID || action == FAKE_IDLE_CID) && !cmd->adrift) {
		cmd->action = -1;
		cmd_park(f, cmd, CMD_DROPPED);
		return;
	}
	cmd_free(f, cmd);
}

/* True: its vector is to be signalled. */
static bool post(struct fake_nvme *f, struct cq *cq, struct cmd *cmd)
{
	bool silent = cmd->action == FAKE_LOSE_INTERRUPT;
	struct wire_cqe e = { .dw0 = cmd->dw0,
			      .dw1 = cmd->dw1,
			      .sqhd = (uint16_t)cmd->sq->head,
			      .sqid = (uint16_t)cmd->sq->qid,
			      .cid = cmd->sqe.cid,
			      .status = (uint16_t)(cmd->status << 1 | cq->phase) };

	mangle(cmd, &e);
	if (!cqe_write(f, cq, &e)) {
		become_fatal(f);
		return false;
	}
	f->stats.completions++;
	cq->tail = (cq->tail + 1) % cq->size;
	if (cq->tail == 0)
		cq->phase ^= 1;
	cmd_posted(f, cmd);
	f->stats.interrupts_lost += silent;
	return !silent;
}

/* An entry as hardware leaves them behind when it is half through: not valid, and not to be looked
 * at. */
void post_garbage(struct fake_nvme *f, struct cq *cq)
{
	const struct wire_cqe e = { .dw0 = 0xdeadbeef,
				    .dw1 = 0xdeadbeef,
				    .sqhd = 0xffff,
				    .sqid = 0xffff,
				    .cid = 0xffff,
				    .status = (uint16_t)(0xfffe | (cq->phase ^ 1)) };

	if (cq_has_room(f, cq))
		(void)cqe_write(f, cq, &e);
}

static void vector_raise(struct fake_nvme *f, unsigned i)
{
	struct vector *v = &f->vector[i];

	if (i >= f->c.vectors)
		return;
	if (!v->pending && from_le32(READ_ONCE(v->control)) & 1)
		f->stats.interrupts_masked++;
	v->pending = true;
}

unsigned post_turn(struct fake_nvme *f)
{
	unsigned all = 0, loud;
	struct cq *cq;

	for (unsigned i = 0; i <= last_qid(f); i++) {
		cq = &f->cq[i];
		for (loud = 0;
		     cq->exists && is_running(f) && !list_empty(&cq->ended) && cq_has_room(f, cq);
		     all++)
			loud += post(f, cq, list_entry(cq->ended.next, struct cmd, link));
		if (loud && cq->ien)
			vector_raise(f, cq->vector);
	}
	return all;
}

unsigned vectors_turn(struct fake_nvme *f)
{
	const uint64_t one = 1;
	unsigned n = 0;

	for (unsigned i = 0; i < f->c.vectors; i++) {
		struct vector *v = &f->vector[i];

		if (!v->pending || from_le32(load_acquire(&v->control)) & 1)
			continue;
		v->pending = false;
		n++;
		if (v->fd >= 0 && write(v->fd, &one, sizeof(one)) == sizeof(one))
			f->stats.interrupts++;
	}
	return n;
}
