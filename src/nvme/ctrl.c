/* Bring-up, reset and shutdown (Base 3.5, 3.6). */
#include "nvme/ctrl.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "nvme/internal.h"
#include "util/log.h"

#define ADMIN_TIMEOUT_MS 30000
#define QUEUE_ENTRIES	 256
#define SHUTDOWN_MS	 10000
#define SHUTDOWN_MOST_MS 60000
#define ENABLE_TRIES	 3
#define NOTICE_MS	 100

/* --- waiting for the status register --- */

static int gone(struct err *e)
{
	return err_set(
		e, -ENODEV,
		"The controller has vanished: its registers read as all ones. Is it plugged in?");
}

/* CAP.TO, and as much again as one unit for who counts it tightly. */
static unsigned ready_ms(const struct nvme_ctrl *c)
{
	return (NVME_CAP_TO(c->cap) + 2) * 500;
}

/* Until CSTS & mask is value. Errors: -ENODEV, -ETIMEDOUT, -EIO (CSTS.CFS, where stop_at_fatal). */
static int wait_status(struct nvme_ctrl *c, uint32_t mask, uint32_t value, unsigned ms,
		       bool stop_at_fatal, struct err *e)
{
	uint64_t start = nvme_now_ms();

	for (;;) {
		uint64_t waited = nvme_now_ms() - start;
		uint32_t csts = reg_read32(c, NVME_REG_CSTS);

		if (csts == NVME_GONE)
			return gone(e);
		if ((csts & mask) == value)
			return 0;
		if (stop_at_fatal && csts & NVME_CSTS_CFS)
			return err_set(e, -EIO, "The controller reports a fatal error (CSTS 0x%x).",
				       csts);
		if (waited > ms)
			return err_set(
				e, -ETIMEDOUT,
				"The controller is not ready after %u ms (CSTS 0x%x). Does a power cycle help?",
				ms, csts);
		nvme_sleep_us(waited < 10 ? 100 : 1000);
	}
}

/* --- down --- */

static int disable(struct nvme_ctrl *c, struct err *e)
{
	uint32_t cc = reg_read32(c, NVME_REG_CC), csts = reg_read32(c, NVME_REG_CSTS);

	if (csts == NVME_GONE)
		return gone(e);
	/* Somebody is enabling it: CC.EN must not change before CSTS.RDY does, or never will. */
	if (cc & NVME_CC_EN && !(csts & (NVME_CSTS_RDY | NVME_CSTS_CFS)))
		(void)wait_status(c, NVME_CSTS_RDY, NVME_CSTS_RDY, ready_ms(c), true, NULL);
	reg_write32(c, NVME_REG_CC, cc & ~(NVME_CC_EN | NVME_CC_SHN_MASK));
	/* RDY that was 0 before does not tell when it has noticed; CFS, where it was 1, does. */
	if (csts & NVME_CSTS_CFS)
		(void)wait_status(c, NVME_CSTS_CFS, 0, NOTICE_MS, false, NULL);
	return wait_status(c, NVME_CSTS_RDY, 0, ready_ms(c), false, e);
}

int nvme_ctrl_disable(struct nvme_ctrl *c, struct err *e)
{
	int rc = disable(c, e);

	if (rc && c->hw->reset) {
		int reset = c->hw->reset(c->hw, e);

		rc = reset == 0 ? 0 : rc;
	}
	if (rc == 0 || rc == -ENODEV)
		admin_cancel(c);
	return rc;
}

static void shut_down(struct nvme_ctrl *c)
{
	uint32_t cc = reg_read32(c, NVME_REG_CC);
	unsigned ms = from_le32(c->id.rtd3e) / 1000; /* microseconds */
	struct err e = { 0 };

	if (cc == NVME_GONE || !(cc & NVME_CC_EN))
		return;
	reg_write32(c, NVME_REG_CC, (cc & ~NVME_CC_SHN_MASK) | NVME_CC_SHN_NORMAL);
	if (wait_status(c, NVME_CSTS_SHST_MASK, NVME_CSTS_SHST_DONE,
			MIN(MAX(ms, SHUTDOWN_MS), SHUTDOWN_MOST_MS), true, &e))
		log_warn("an NVMe controller was not shut down cleanly: %s", e.text);
	if (nvme_ctrl_disable(c, &e)) /* its memory is given back next */
		log_warn("an NVMe controller does not stop: %s", e.text);
}

/* --- up --- */

static int read_capabilities(struct nvme_ctrl *c, struct err *e)
{
	unsigned page_shift = 12, most;

	if (c->hw->bar_len < NVME_DOORBELLS)
		return err_set(e, -ENOTSUP,
			       "The controller's BAR 0 has no room for its registers.");
	if (reg_read32(c, NVME_REG_CSTS) == NVME_GONE)
		return gone(e);
	c->cap = reg_read64(c, NVME_REG_CAP);
	c->vs = reg_read32(c, NVME_REG_VS);
	if (queues_reachable(c) == 0)
		return err_set(e, -ENOTSUP, "The controller's doorbells lie beyond its BAR 0.");
	if (NVME_CAP_MQES(c->cap) == 0)
		return err_set(e, -ENOTSUP, "The controller says that its queues have 1 entry.");
	if (NVME_CAP_CSS(c->cap) && !(NVME_CAP_CSS(c->cap) & (NVME_CSS_NVM | NVME_CSS_SEVERAL)))
		return err_set(e, -ENOTSUP, "The controller has no NVM command set, so no disks.");
	most = 12 + NVME_CAP_MPSMAX(c->cap);
	page_shift = MAX(page_shift, 12 + NVME_CAP_MPSMIN(c->cap));
	if (page_shift > most || page_shift > 21)
		return err_set(e, -ENOTSUP,
			       "The controller's pages are 2^%u to 2^%u bytes; 4 KiB to 2 MiB do.",
			       12 + NVME_CAP_MPSMIN(c->cap), most);
	c->page = 1u << page_shift;
	c->entries = MIN(c->options.entries, NVME_CAP_MQES(c->cap) + 1);
	return 0;
}

static uint32_t configuration(const struct nvme_ctrl *c)
{
	uint32_t cc = NVME_CC_EN | NVME_CC_ENTRY_SIZES |
		      (uint32_t)(__builtin_ctz(c->page) - 12) << NVME_CC_MPS_SHIFT;

	return NVME_CAP_CSS(c->cap) & NVME_CSS_SEVERAL ? cc | NVME_CC_CSS_ALL : cc;
}

static int enable_once(struct nvme_ctrl *c, struct err *e)
{
	uint32_t last = c->admin.entries - 1u;
	int rc = disable(c, e);

	if (rc)
		return rc;
	nvme_qpair_rewind(&c->admin);
	queue_find_doorbells(c, &c->admin);
	reg_write32(c, NVME_REG_AQA, last << 16 | last);
	reg_write64(c, NVME_REG_ASQ, c->admin.sq_iova);
	reg_write64(c, NVME_REG_ACQ, c->admin.cq_iova);
	io_write_barrier();
	reg_write32(c, NVME_REG_CC, configuration(c));
	return wait_status(c, NVME_CSTS_RDY, NVME_CSTS_RDY, ready_ms(c), true, e);
}

/* A controller that reports a fatal error while it starts gets another chance. */
static int enable(struct nvme_ctrl *c, struct err *e)
{
	int rc = enable_once(c, e);

	for (int i = 1; rc == -EIO && i < ENABLE_TRIES; i++)
		rc = enable_once(c, e);
	if (rc == 0)
		admin_start(c);
	return rc;
}

static int take_identity(struct nvme_ctrl *c, struct err *e)
{
	struct nvme_id_ctrl *id = &c->id;
	uint64_t least = 4096u << NVME_CAP_MPSMIN(c->cap);
	struct nvme_id_ctrl before = *id;
	int rc = nvme_identify(c, NVME_CNS_CTRL, 0, id, e);

	if (rc)
		return rc;
	if (before.sn[0] && (memcmp(before.sn, id->sn, sizeof(id->sn)) != 0 ||
			     memcmp(before.mn, id->mn, sizeof(id->mn)) != 0))
		return err_set(e, -ENOTSUP, "Another controller is in its place now.");
	if ((id->sqes & 0xf) > 6 || (id->cqes & 0xf) > 4)
		return err_set(e, -ENOTSUP, "The controller's queue entries are too large.");
	if (id->cntrltype > NVME_CNTRLTYPE_IO)
		return err_set(e, -ENOTSUP, "This is no I/O controller, it has no disks.");
	c->max_transfer = NVME_TRANSFER_MAX;
	if (id->mdts && id->mdts < 32)
		c->max_transfer = (uint32_t)MIN(least << id->mdts, NVME_TRANSFER_MAX);
	c->write_cache = id->vwc & NVME_VWC_PRESENT;
	c->sgl = (from_le32(id->sgls) & 3) != 0 && !c->options.no_sgl;
	return 0;
}

static int ask_for_queues(struct nvme_ctrl *c, struct err *e)
{
	uint32_t wanted = MIN(c->options.queues, 0xffff) - 1, got;
	int rc = nvme_set_feature(c, NVME_FEATURE_QUEUES, wanted << 16 | wanted, &got, e);

	if (rc)
		return rc;
	/* It may grant less, or more than was asked for. */
	c->queues = MIN(MIN(got & 0xffff, got >> 16), wanted) + 1;
	return 0;
}

/* Everything between CSTS.RDY and the first I/O queue. */
static int initialize(struct nvme_ctrl *c, struct err *e)
{
	int rc = take_identity(c, e);

	if (rc == 0)
		rc = ask_for_queues(c, e);
	if (rc == 0)
		rc = shadow_start(c, e);
	if (rc == 0) {
		cmb_start(c);
		hmb_start(c);
	}
	if (rc == 0)
		rc = admin_watch_events(c, e);
	return rc;
}

int nvme_ctrl_enable(struct nvme_ctrl *c, struct err *e)
{
	uint32_t page = c->page;
	int rc = read_capabilities(c, e);

	if (rc == 0 && c->page != page)
		rc = err_set(e, -ENOTSUP, "The controller's page size has changed.");
	if (rc == 0)
		rc = enable(c, e);
	if (rc == 0)
		rc = initialize(c, e);
	return rc;
}

/* --- interrupts --- */

static void close_vectors(struct nvme_ctrl *c)
{
	for (unsigned i = 0; i < c->vectors; i++)
		close(c->irq_fd[i]);
	c->vectors = 0;
}

/* As many as there is use for; none where the device has none. */
static int open_vectors(struct nvme_ctrl *c, struct err *e)
{
	unsigned want = MIN(MIN(c->hw->vectors, c->options.queues + 1), NVME_VECTORS_MAX);

	while (c->vectors < want) {
		int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);

		if (fd < 0)
			return err_set(e, -errno, "No file descriptors for interrupts: %s.",
				       err_words(errno));
		c->irq_fd[c->vectors++] = fd;
	}
	return c->vectors ? c->hw->set_vectors(c->hw, c->irq_fd, c->vectors, e) : 0;
}

/* --- open, close --- */

static int bring_up(struct nvme_ctrl *c, struct err *e)
{
	int rc = read_capabilities(c, e);

	if (rc == 0)
		rc = open_vectors(c, e);
	if (rc == 0)
		rc = admin_open(c, e);
	if (rc == 0)
		rc = enable(c, e);
	if (rc == 0)
		rc = initialize(c, e);
	return rc;
}

int nvme_ctrl_open(struct nvme_hw *hw, const struct nvme_options *o, struct nvme_ctrl **out,
		   struct err *e)
{
	struct nvme_ctrl *c = aligned_alloc(CACHE_LINE, ROUND_UP(sizeof(*c), CACHE_LINE));
	int rc;

	if (!c)
		return err_set(e, -ENOMEM, "Out of memory.");
	memset(c, 0, sizeof(*c));
	c->hw = hw;
	c->options = *o;
	c->options.queues = MAX(o->queues, 1);
	c->options.entries = MIN(o->entries ? o->entries : QUEUE_ENTRIES, NVME_ENTRIES_MAX);
	c->options.entries = MAX(c->options.entries, NVME_ENTRIES_MIN);
	if (!o->admin_timeout_ms)
		c->options.admin_timeout_ms = ADMIN_TIMEOUT_MS;
	list_init(&c->admin_reqs);
	pthread_mutex_init(&c->lock, NULL);
	rc = bring_up(c, e);
	if (rc) {
		nvme_ctrl_close(c);
		return rc;
	}
	*out = c;
	return 0;
}

static int no_vectors(struct nvme_hw *hw, const int *fds, unsigned n, struct err *e)
{
	(void)hw;
	(void)fds;
	(void)n;
	(void)e;
	return 0;
}

void nvme_ctrl_let_go(struct nvme_ctrl *c)
{
	static const uint32_t ones[] = { NVME_GONE, NVME_GONE, NVME_GONE, NVME_GONE, NVME_GONE,
					 NVME_GONE, NVME_GONE, NVME_GONE, NVME_GONE, NVME_GONE };
	static struct nvme_hw nothing = { .set_vectors = no_vectors };

	admin_cancel(c);
	nothing.bar = (void *)(uintptr_t)ones;
	nothing.bar_len = sizeof(ones);
	c->hw = &nothing;
}

void nvme_ctrl_close(struct nvme_ctrl *c)
{
	struct err e = { 0 };

	hmb_stop(c);
	shut_down(c);
	cmb_stop(c);
	hmb_free(c);
	if (c->vectors)
		(void)c->hw->set_vectors(c->hw, NULL, 0, &e);
	close_vectors(c);
	admin_close(c);
	shadow_free(c);
	pthread_mutex_destroy(&c->lock);
	free(c);
}
