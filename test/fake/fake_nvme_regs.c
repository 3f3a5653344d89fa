/* The registers of a fake controller and its life: enabled, shut down, failed, gone. */
#include "fake/fake_nvme_internal.h"

#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define CMB_BIR 2u

/* ---- words of the BAR ---- */

static uint32_t *reg(struct fake_nvme *f, unsigned off)
{
	return (uint32_t *)(void *)(f->bar + off);
}

uint32_t reg_get(struct fake_nvme *f, unsigned off)
{
	return load_acquire(reg(f, off));
}

void reg_set(struct fake_nvme *f, unsigned off, uint32_t v)
{
	store_release(reg(f, off), v);
}

uint64_t reg_get64(struct fake_nvme *f, unsigned off)
{
	return reg_get(f, off) | (uint64_t)reg_get(f, off + 4) << 32;
}

static void reg_set64(struct fake_nvme *f, unsigned off, uint64_t v)
{
	reg_set(f, off, (uint32_t)v);
	reg_set(f, off + 4, (uint32_t)(v >> 32));
}

static uint64_t cap(const struct fake_nvme *f)
{
	const struct fake_nvme_config *c = &f->c;

	return c->mqes | 1ull << 16 | (uint64_t)c->to << 24 | (uint64_t)c->dstrd << 32 |
	       (uint64_t)c->css << 37 | (uint64_t)c->mpsmin << 48 | (uint64_t)c->mpsmax << 52 |
	       (uint64_t)(c->cmb_size != 0) << 57;
}

static void set_csts(struct fake_nvme *f, uint32_t v)
{
	f->csts = v;
	reg_set(f, WIRE_REG_CSTS, v);
}

/* ---- delays ---- */

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

struct delay delay_from_now(const struct fake_nvme *f, unsigned turns, unsigned ms)
{
	return (struct delay){ .turn = f->stats.turns + turns,
			       .ns = ms ? now_ns() + ms * 1000000ull : 0 };
}

bool has_passed(const struct fake_nvme *f, const struct delay *d)
{
	return f->stats.turns >= d->turn && (d->ns == 0 || now_ns() >= d->ns);
}

/* ---- life ---- */

bool is_running(const struct fake_nvme *f)
{
	return !f->gone && f->life == LIFE_READY && !(f->csts & WIRE_CSTS_CFS) && !f->shutting;
}

void become_fatal(struct fake_nvme *f)
{
	if (!f->gone)
		set_csts(f, f->csts | WIRE_CSTS_CFS);
}

static bool css_is_known(const struct fake_nvme *f)
{
	switch (WIRE_CC_CSS(f->cc)) {
	case 0:
		return f->c.css & 0x01;
	case 6:
		return f->c.css & 0x40;
	case 7:
		return f->c.css & 0x80;
	}
	return false;
}

static bool fills_pages(const struct fake_nvme *f, size_t entries, size_t entry)
{
	return entries * entry % f->page == 0;
}

static bool admin_queues_are_good(struct fake_nvme *f)
{
	uint32_t aqa = reg_get(f, WIRE_REG_AQA);
	uint64_t asq = reg_get64(f, WIRE_REG_ASQ), acq = reg_get64(f, WIRE_REG_ACQ);
	unsigned sqs = (aqa & 0xfff) + 1, cqs = (aqa >> 16 & 0xfff) + 1;

	if (aqa & 0xf000f000u)
		fault(f, "AQA 0x%08x has reserved bits set", aqa);
	if (sqs < 2 || cqs < 2)
		fault(f, "admin queues of %u and %u entries", sqs, cqs);
	else if (!IS_ALIGNED(asq | acq, f->page))
		fault(f, "ASQ 0x%llx or ACQ 0x%llx is not at a page of %zu",
		      (unsigned long long)asq, (unsigned long long)acq, f->page);
	else if (f->c.admin_whole_pages && (!fills_pages(f, sqs, 64) || !fills_pages(f, cqs, 16)))
		return false; /* a quirk of this controller, not the host's mistake */
	else
		return true;
	return false;
}

static bool cc_is_good(struct fake_nvme *f)
{
	unsigned mps = WIRE_CC_MPS(f->cc);

	if (mps < f->c.mpsmin || mps > f->c.mpsmax)
		fault(f, "CC.MPS %u is not in %u..%u", mps, f->c.mpsmin, f->c.mpsmax);
	else if (!css_is_known(f) || WIRE_CC_AMS(f->cc))
		fault(f, "CC 0x%08x has an unknown CSS or AMS", f->cc);
	else
		return true;
	return false;
}

static void enable(struct fake_nvme *f)
{
	f->stats.enables++;
	f->page = (size_t)4096 << WIRE_CC_MPS(f->cc);
	f->life = LIFE_STARTING;
	f->shutting = f->shut = false;
	f->life_due = delay_from_now(f, f->c.ready_turns, f->c.ready_ms);
	set_csts(f, 0);
	if (!cc_is_good(f) || !admin_queues_are_good(f))
		become_fatal(f);
}

static void become_ready(struct fake_nvme *f)
{
	uint32_t aqa = reg_get(f, WIRE_REG_AQA);

	f->life = LIFE_READY;
	doorbells_rest(f);
	cq_open(f, 0, (aqa >> 16 & 0xfff) + 1, reg_get64(f, WIRE_REG_ACQ), true, 0);
	sq_open(f, 0, (aqa & 0xfff) + 1, reg_get64(f, WIRE_REG_ASQ), 0);
	set_csts(f, f->csts | WIRE_CSTS_RDY);
}

static void disable(struct fake_nvme *f)
{
	f->stats.disables++;
	f->life = LIFE_STOPPING;
	f->life_due = delay_from_now(f, f->c.disable_turns, f->c.disable_ms);
}

/* Everything but the registers that survive a reset by CC.EN (3.7.2). */
static void forget_everything(struct fake_nvme *f)
{
	queues_vanish(f);
	admin_reset(f);
	f->life = LIFE_OFF;
}

static void become_disabled(struct fake_nvme *f)
{
	forget_everything(f);
	set_csts(f, f->csts & WIRE_CSTS_SHST);
}

static unsigned life_step(struct fake_nvme *f)
{
	if (f->life == LIFE_STARTING && !f->never_ready && !(f->csts & WIRE_CSTS_CFS) &&
	    has_passed(f, &f->life_due))
		become_ready(f);
	else if (f->life == LIFE_STOPPING && !f->never_disabled && has_passed(f, &f->life_due))
		become_disabled(f);
	else
		return 0;
	return 1;
}

static unsigned shutdown_step(struct fake_nvme *f)
{
	if (!f->shutting || f->shut || !has_passed(f, &f->shut_due))
		return 0;
	f->shut = true;
	if (WIRE_CC_SHN(f->cc) == 1)
		cache_flush(f);
	set_csts(f, (f->csts & ~WIRE_CSTS_SHST) | WIRE_CSTS_SHST_DONE);
	return 1;
}

/* ---- what the host wrote ---- */

static void cc_changed(struct fake_nvme *f, uint32_t cc)
{
	uint32_t old = f->cc;

	f->cc = cc;
	if (old & cc & WIRE_CC_EN && (old ^ cc) & WIRE_CC_FIXED)
		fault(f, "CC went from 0x%08x to 0x%08x while enabled", old, cc);
	if (~old & cc & WIRE_CC_EN) {
		if (f->life != LIFE_OFF)
			fault(f, "enabled before RDY was 0");
		forget_everything(f);
		enable(f);
	} else if (old & ~cc & WIRE_CC_EN) {
		disable(f);
	}
	if (WIRE_CC_SHN(cc) && !WIRE_CC_SHN(old) && !f->shutting) {
		f->stats.shutdowns++;
		f->shutting = true;
		f->shut_due = delay_from_now(f, f->c.shutdown_turns, f->c.shutdown_ms);
		set_csts(f, (f->csts & ~WIRE_CSTS_SHST) | WIRE_CSTS_SHST_BUSY);
	}
}

static void read_only_check(struct fake_nvme *f)
{
	uint32_t csts = reg_get(f, WIRE_REG_CSTS);

	if (csts != f->csts) {
		fault(f, "CSTS was written: 0x%08x", csts);
		set_csts(f, f->csts);
	}
	if (reg_get(f, WIRE_REG_INTMS) || reg_get(f, WIRE_REG_INTMC)) {
		if (f->c.vectors)
			fault(f, "INTMS or INTMC was written, which is not for MSI-X");
		reg_set64(f, WIRE_REG_INTMS, 0);
	}
	if (reg_get64(f, WIRE_REG_CAP) != cap(f) || reg_get(f, WIRE_REG_VS) != f->c.vs) {
		fault(f, "CAP or VS was written");
		reg_set64(f, WIRE_REG_CAP, cap(f));
		reg_set(f, WIRE_REG_VS, f->c.vs);
	}
}

static void cmb_look(struct fake_nvme *f)
{
	uint64_t msc = reg_get64(f, WIRE_REG_CMBMSC);
	uint64_t base = ROUND_DOWN(msc, BAR_PAGE);
	bool fits = !range_wraps(base, f->c.cmb_size);

	f->cmb_on = msc & WIRE_CMBMSC_CRE && msc & WIRE_CMBMSC_CME && fits;
	f->cmb_base = base;
	reg_set(f, WIRE_REG_CMBSTS, fits ? 0 : WIRE_CMBSTS_BAD);
	reg_set(f, WIRE_REG_CMBLOC, msc & WIRE_CMBMSC_CRE ? CMB_BIR : 0);
	reg_set(f, WIRE_REG_CMBSZ,
		msc & WIRE_CMBMSC_CRE ? f->c.cmb_for | (uint32_t)(f->c.cmb_size / 4096) << 12 : 0);
}

/* What the host writes to a device that is not there goes nowhere. Word by word, as it may look. */
static void show_ones(struct fake_nvme *f, size_t len)
{
	for (unsigned off = 0; off < len; off += 4)
		reg_set(f, off, UINT32_MAX);
}

unsigned regs_turn(struct fake_nvme *f)
{
	uint32_t cc;
	unsigned n = 0;

	if (f->gone == GONE_ONES)
		show_ones(f, WIRE_REG_CMBSTS + 4);
	if (f->gone)
		return 0;
	read_only_check(f);
	if (f->cmb)
		cmb_look(f);
	cc = reg_get(f, WIRE_REG_CC);
	if (cc != f->cc) {
		cc_changed(f, cc);
		n++;
	}
	n += life_step(f);
	return n + shutdown_step(f);
}

/* ---- birth, death ---- */

void regs_power_on(struct fake_nvme *f)
{
	for (unsigned off = 0; off < WIRE_DOORBELLS; off += 4)
		reg_set(f, off, 0);
	reg_set64(f, WIRE_REG_CAP, cap(f));
	reg_set(f, WIRE_REG_VS, f->c.vs);
	f->cc = 0;
	f->shutting = f->shut = f->cmb_on = false;
	f->page = (size_t)4096 << f->c.mpsmin;
	forget_everything(f);
	set_csts(f, 0);
	doorbells_rest(f);
}

void regs_be_born(struct fake_nvme *f)
{
	if (f->c.birth == FAKE_BORN_DISABLED)
		return;
	f->cc = WIRE_CC_EN | (uint32_t)f->c.mpsmin << 7 | 6u << 16 | 4u << 20;
	reg_set(f, WIRE_REG_CC, f->cc);
	reg_set(f, WIRE_REG_AQA, 0x001f001f);
	f->life = LIFE_STARTING;
	f->life_due = delay_from_now(f, f->c.ready_turns, f->c.ready_ms);
	if (f->c.birth == FAKE_BORN_FATAL)
		become_fatal(f);
	else if (f->c.birth == FAKE_BORN_READY)
		become_ready(f);
}

void go_away(struct fake_nvme *f, enum gone how)
{
	if (f->gone)
		return;
	forget_everything(f);
	vectors_drop(f);
	f->gone = how;
	if (how == GONE_TRUNCATED)
		(void)!ftruncate(f->bar_fd, 0);
	else
		show_ones(f, f->bar_len);
}

/* The driver's side may have replaced the pages of the BAR to survive: they come anew. */
static void come_back(struct fake_nvme *f)
{
	if (!f->gone)
		return;
	if (!ftruncate(f->bar_fd, (off_t)f->bar_len) &&
	    mmap(f->bar, f->bar_len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, f->bar_fd,
		 0) != MAP_FAILED) {
		f->gone = GONE_NOT;
		regs_power_on(f);
	}
}

void fake_nvme_set_cfs(struct fake_nvme *f)
{
	fake_lock(f);
	become_fatal(f);
	fake_unlock(f);
}

void fake_nvme_never_ready(struct fake_nvme *f, bool never)
{
	fake_lock(f);
	f->never_ready = never;
	fake_unlock(f);
}

void fake_nvme_never_disabled(struct fake_nvme *f, bool never)
{
	fake_lock(f);
	f->never_disabled = never;
	fake_unlock(f);
}

void fake_nvme_vanish(struct fake_nvme *f)
{
	fake_lock(f);
	go_away(f, GONE_ONES);
	fake_unlock(f);
}

void fake_nvme_truncate_bar(struct fake_nvme *f)
{
	fake_lock(f);
	go_away(f, GONE_TRUNCATED);
	fake_unlock(f);
}

void fake_nvme_return(struct fake_nvme *f)
{
	fake_lock(f);
	come_back(f);
	fake_unlock(f);
}

void fake_nvme_power_off(struct fake_nvme *f)
{
	fake_lock(f);
	go_away(f, GONE_ONES);
	cache_lose(f);
	fake_unlock(f);
}

void fake_nvme_power_on(struct fake_nvme *f)
{
	fake_nvme_return(f);
}
