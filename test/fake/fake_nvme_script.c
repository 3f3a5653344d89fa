/* The script of a fake controller: which commands meet which fate. */
#include "fake/fake_nvme_internal.h"

#include <errno.h>
#include <stdlib.h>

#define GATHER_TURNS  64 /* after so many what was gathered is run anyway */
#define GARBAGE_TURNS 2

static bool touches(const struct wire_sqe *sqe, uint64_t lba, uint64_t lba_n)
{
	uint64_t slba = sqe->cdw10 | (uint64_t)sqe->cdw11 << 32;
	uint64_t blocks = (sqe->cdw12 & 0xffff) + 1;

	return sqe->opc != WIRE_IO_FLUSH && sqe->opc != WIRE_IO_DSM &&
	       ranges_overlap(slba, blocks, lba, lba_n);
}

static bool matches(const struct fake_nvme_rule *r, const struct cmd *cmd)
{
	bool admin = cmd->sq->qid == 0;
	const struct wire_sqe *sqe = &cmd->sqe;

	if (r->queue != FAKE_ANY_QUEUE && (r->queue == FAKE_ADMIN) != admin)
		return false;
	if (r->opcode < 0 ? admin && sqe->opc == WIRE_ADM_AER : r->opcode != sqe->opc)
		return false;
	if (r->qid > 0 && (unsigned)r->qid != cmd->sq->qid)
		return false;
	if (r->nsid && r->nsid != sqe->nsid)
		return false;
	return r->lba_n == 0 || (!admin && touches(sqe, r->lba, r->lba_n));
}

/* The rule for a command; NULL: none. Counts. */
static const struct fake_nvme_rule *rule_for(struct fake_nvme *f, const struct cmd *cmd)
{
	for (struct rule *x = f->rules; x; x = x->next) {
		if ((x->r.times && x->hits == x->r.times) || !matches(&x->r, cmd))
			continue;
		if (x->matched++ < x->r.skip)
			continue;
		x->hits++;
		return &x->r;
	}
	return NULL;
}

static void park_until(struct fake_nvme *f, struct cmd *cmd, unsigned turns, unsigned ms)
{
	cmd->due = delay_from_now(f, turns, ms);
	cmd_park(f, cmd, CMD_DELAYED);
}

static uint16_t status_of(const struct fake_nvme_rule *r)
{
	return (uint16_t)((r->sct & 7) << 8 | r->sc | (r->dnr ? WIRE_DNR : 0));
}

/* False: it is to be run now. */
static bool act(struct fake_nvme *f, struct cmd *cmd, const struct fake_nvme_rule *r)
{
	switch (r->action) {
	case FAKE_DELAY:
		park_until(f, cmd, r->n, r->ms);
		return true;
	case FAKE_HOLD:
		cmd_park(f, cmd, CMD_HELD);
		return true;
	case FAKE_STATUS:
		cmd_end(f, cmd, status_of(r), 0);
		return true;
	case FAKE_REORDER:
		park_until(f, cmd, GATHER_TURNS, r->ms);
		cmd->state = CMD_GATHERED;
		return true;
	case FAKE_BAD_PHASE:
		post_garbage(f, cmd->sq->cq);
		park_until(f, cmd, r->n ? r->n : GARBAGE_TURNS, r->ms);
		return true;
	case FAKE_BAD_CID:
	case FAKE_IDLE_CID:
	case FAKE_TWICE:
	case FAKE_BAD_SQHD:
	case FAKE_LOSE_INTERRUPT:
		return false;
	case FAKE_DROP:
	case FAKE_CFS:
	case FAKE_VANISH:
	case FAKE_TRUNCATE:
		break;
	}
	cmd_park(f, cmd, CMD_DROPPED);
	if (r->action == FAKE_CFS)
		become_fatal(f);
	else if (r->action != FAKE_DROP)
		go_away(f, r->action == FAKE_VANISH ? GONE_ONES : GONE_TRUNCATED);
	return true;
}

bool script_apply(struct fake_nvme *f, struct cmd *cmd)
{
	const struct fake_nvme_rule *r = rule_for(f, cmd);

	if (!r)
		return false;
	cmd->action = (int)r->action;
	cmd->n = r->n;
	cmd->deaf = r->deaf;
	return act(f, cmd, r);
}

/* ---- what waits ---- */

static void unpark(struct fake_nvme *f, struct cmd *cmd)
{
	list_del(&cmd->link);
	cmd->state = CMD_NEW;
	cmd_run(f, cmd);
}

static struct cmd *first_due(struct fake_nvme *f)
{
	struct cmd *cmd;

	list_for_each (cmd, &f->parked, link)
		if (cmd->state == CMD_DELAYED && has_passed(f, &cmd->due))
			return cmd;
	return NULL;
}

/* The last of those that wait to be reordered in this SQ, when enough of them do. */
static struct cmd *last_gathered(struct fake_nvme *f, const struct sq *sq)
{
	struct cmd *cmd, *last = NULL;
	unsigned n = 0;
	bool due = false;

	list_for_each (cmd, &f->parked, link) {
		if (cmd->state != CMD_GATHERED || cmd->sq != sq)
			continue;
		last = cmd;
		n++;
		due |= has_passed(f, &cmd->due);
	}
	return last && (due || n >= last->n) ? last : NULL;
}

static unsigned run_gathered(struct fake_nvme *f, const struct sq *sq)
{
	struct cmd *cmd = last_gathered(f, sq);
	unsigned n = 0;

	/* Once there are enough, all go. */
	while (cmd && is_running(f)) {
		unpark(f, cmd);
		n++;
		list_for_each (cmd, &f->parked, link)
			if (cmd->state == CMD_GATHERED && cmd->sq == sq)
				cmd->n = 0;
		cmd = last_gathered(f, sq);
	}
	return n;
}

unsigned script_turn(struct fake_nvme *f)
{
	struct cmd *cmd;
	unsigned n = 0;

	if (list_empty(&f->parked))
		return 0;
	while (is_running(f) && (cmd = first_due(f))) {
		unpark(f, cmd);
		n++;
	}
	for (unsigned i = 0; i <= last_qid(f); i++)
		if (f->sq[i].exists)
			n += run_gathered(f, &f->sq[i]);
	return n;
}

unsigned fake_nvme_held(struct fake_nvme *f)
{
	struct cmd *cmd;
	unsigned n = 0;

	fake_lock(f);
	list_for_each (cmd, &f->parked, link)
		n += cmd->state == CMD_HELD;
	fake_unlock(f);
	return n;
}

void fake_nvme_release(struct fake_nvme *f)
{
	struct cmd *cmd;

	fake_lock(f);
	list_for_each (cmd, &f->parked, link)
		if (cmd->state == CMD_HELD)
			cmd->state = CMD_DELAYED; /* due since turn 0 */
	fake_unlock(f);
}

/* ---- the rules ---- */

int fake_nvme_script(struct fake_nvme *f, const struct fake_nvme_rule *r)
{
	struct rule *x = calloc(1, sizeof(*x)), **end;
	int n = 0;

	if (!x)
		return -ENOMEM;
	x->r = *r;
	fake_lock(f);
	for (end = &f->rules; *end; end = &(*end)->next)
		n++;
	*end = x;
	fake_unlock(f);
	return n;
}

unsigned fake_nvme_script_hits(struct fake_nvme *f, int rule)
{
	struct rule *x;
	unsigned hits;

	fake_lock(f);
	for (x = f->rules; x && rule > 0; x = x->next)
		rule--;
	hits = x ? x->hits : 0;
	fake_unlock(f);
	return hits;
}

void script_free(struct fake_nvme *f)
{
	struct rule *x;

	while ((x = f->rules)) {
		f->rules = x->next;
		free(x);
	}
}

void fake_nvme_script_clear(struct fake_nvme *f)
{
	fake_lock(f);
	script_free(f);
	fake_unlock(f);
}
