/* The admin queue: commands that block, and the controller's events. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "mem/mem.h"
#include "nvme/internal.h"

/* Whole pages of both queues, which one hypervisor insists on: 256 CQEs are 4 KiB. */
#define ADMIN_ENTRIES 256
#define EVENTS_MAX    4
#define SPIN_US	      200 /* most commands take less */

enum admin_state { ADMIN_WAITING, ADMIN_DONE, ADMIN_CANCELED };

struct admin_req {
	struct nvme_req req;
	struct nvme_ctrl *c;
	struct list node; /* in c->admin_reqs while it is outstanding */
	enum admin_state state;
	bool orphan; /* nobody waits for it any more: who ends it frees it */
	struct nvme_cqe cqe;
	void *data; /* what the device sees */
	size_t len;
};

uint64_t nvme_now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

void nvme_sleep_us(unsigned us)
{
	nanosleep(&(struct timespec){ us / 1000000, us % 1000000 * 1000 }, NULL);
}

/* --- requests --- */

static void req_free(struct admin_req *r)
{
	dma_free(r->data, r->len);
	free(r);
}

/* Under the lock. */
static void req_end(struct admin_req *r, enum admin_state state)
{
	list_del(&r->node);
	r->state = state;
	if (r->orphan)
		req_free(r);
}

static void command_done(struct nvme_req *req, const struct nvme_cqe *cqe)
{
	struct admin_req *r = container_of(req, struct admin_req, req);

	r->cqe = *cqe;
	req_end(r, ADMIN_DONE);
}

static int req_alloc(struct nvme_ctrl *c, size_t len, struct admin_req **out, struct err *e)
{
	struct admin_req *r = calloc(1, sizeof(*r));
	int rc = 0;

	if (!r)
		return err_set(e, -ENOMEM, "Out of memory.");
	r->req.done = command_done;
	r->c = c;
	r->len = len;
	if (len)
		rc = dma_zalloc(len, NVME_PAGE, &r->data, e);
	if (rc) {
		free(r);
		return rc;
	}
	*out = r;
	return 0;
}

/* Under the lock. Errors: -EAGAIN. */
static int req_send(struct admin_req *r, const struct nvme_sqe *from, struct err *e)
{
	struct nvme_ctrl *c = r->c;
	struct nvme_sqe *sqe = c->live ? nvme_sqe_get(&c->admin) : NULL;
	struct iovec iov = { r->data, r->len };
	le16 cid;
	int rc;

	if (!sqe)
		return err_set(e, -EAGAIN,
			       c->live ? "The controller's admin queue is full."
				       : "The controller is being reset; try again.");
	cid = sqe->cid;
	*sqe = *from;
	sqe->cid = cid;
	rc = r->len ? nvme_map(&c->admin, sqe, &iov, 1) : 0;
	if (rc)
		return err_set(e, rc, "The device cannot reach the command's data.");
	list_add_tail(&c->admin_reqs, &r->node);
	nvme_sqe_push(&c->admin, &r->req);
	nvme_ring(&c->admin);
	return 0;
}

/* Under the lock. */
static void reap(struct nvme_ctrl *c)
{
	if (!c->live)
		return;
	nvme_reap(&c->admin);
	nvme_ring(&c->admin); /* events are asked for again */
}

/* The state of r, after a look; past the deadline it is given up. */
static enum admin_state look(struct admin_req *r, bool late)
{
	struct nvme_ctrl *c = r->c;
	enum admin_state state;

	pthread_mutex_lock(&c->lock);
	if (r->state == ADMIN_WAITING)
		reap(c);
	state = r->state;
	if (state == ADMIN_WAITING && late)
		r->orphan = true;
	pthread_mutex_unlock(&c->lock);
	return state;
}

static enum admin_state wait_for(struct admin_req *r, unsigned timeout_ms)
{
	uint64_t start = nvme_now_ms(), waited = 0;
	enum admin_state state;
	unsigned nap = 10;

	while ((state = look(r, waited > timeout_ms)) == ADMIN_WAITING && waited <= timeout_ms) {
		nvme_sleep_us(nap);
		nap = MIN(nap * 5 / 4 + 1, 1000);
		waited = nvme_now_ms() - start;
	}
	return state;
}

int nvme_admin_raw(struct nvme_ctrl *c, const struct nvme_sqe *sqe, void *data, size_t len,
		   unsigned timeout_ms, struct nvme_cqe *cqe, struct err *e)
{
	struct admin_req *r = NULL;
	bool to_device = sqe->opc & 1;
	int rc = req_alloc(c, len, &r, e);

	if (rc)
		return rc;
	if (len && to_device)
		memcpy(r->data, data, len);
	pthread_mutex_lock(&c->lock);
	rc = req_send(r, sqe, e);
	pthread_mutex_unlock(&c->lock);
	if (rc) {
		req_free(r);
		return rc;
	}
	timeout_ms = timeout_ms ? timeout_ms : c->options.admin_timeout_ms;
	switch (wait_for(r, timeout_ms)) {
	case ADMIN_WAITING: /* r is its completion's now */
		return err_set(e, -ETIMEDOUT, "The controller has not answered for %u ms.",
			       timeout_ms);
	case ADMIN_CANCELED:
		rc = err_set(e, -ECANCELED, "The controller was reset meanwhile; try again.");
		break;
	default:
		*cqe = r->cqe;
		cqe->status = to_le16((uint16_t)(from_le16(cqe->status) >> 1));
		if (len && !to_device)
			memcpy(data, r->data, len);
	}
	req_free(r);
	return rc;
}

int nvme_admin(struct nvme_ctrl *c, const char *what, const struct nvme_sqe *sqe, void *data,
	       size_t len, uint32_t *result, struct err *e)
{
	struct nvme_cqe cqe = { 0 };
	struct err inner = { 0 };
	int rc = nvme_admin_raw(c, sqe, data, len, 0, &cqe, &inner);
	uint16_t status = from_le16(cqe.status);

	if (rc)
		return err_set(e, rc, "%s: %s", what, inner.text);
	if (NVME_SCT_SC(status))
		return err_set(e, nvme_status_errno(status), "%s: %s (status 0x%x).", what,
			       nvme_status_words(status), NVME_SCT_SC(status));
	if (result)
		*result = from_le32(cqe.dw0);
	return 0;
}

/* --- events (Base 5.2) --- */

static void note_event(struct nvme_ctrl *c, uint32_t dw0)
{
	unsigned type = NVME_EVENT_TYPE(dw0);

	if (type == NVME_EVENT_NOTICE && NVME_EVENT_INFO(dw0) == NVME_NOTICE_NS)
		c->news.namespaces = true;
	else if (type == NVME_EVENT_SMART)
		c->news.health = true;
	else if (type == NVME_EVENT_ERROR)
		c->news.errors = true;
}

/* Under the lock. r asks for the next event. */
static void ask_for_event(struct admin_req *r)
{
	static const struct nvme_sqe sqe = { .opc = NVME_ASYNC_EVENT };

	if (req_send(r, &sqe, NULL))
		req_free(r);
}

static void event_done(struct nvme_req *req, const struct nvme_cqe *cqe)
{
	struct admin_req *r = container_of(req, struct admin_req, req);

	list_del(&r->node);
	if (from_le16(cqe->status) >> 1) { /* it wants no more of them */
		req_free(r);
		return;
	}
	note_event(r->c, from_le32(cqe->dw0));
	ask_for_event(r);
}

int admin_watch_events(struct nvme_ctrl *c, struct err *e)
{
	uint32_t wanted = NVME_EVENTS_SMART | (from_le32(c->id.oaes) & NVME_OAES_NS);
	unsigned n = MIN(c->id.aerl + 1u, EVENTS_MAX);
	int rc = nvme_set_feature(c, NVME_FEATURE_EVENTS, wanted, NULL, e);

	for (unsigned i = 0; rc == 0 && i < n; i++) {
		struct admin_req *r = NULL;

		rc = req_alloc(c, 0, &r, e);
		if (rc)
			break;
		r->orphan = true;
		r->req.done = event_done;
		pthread_mutex_lock(&c->lock);
		ask_for_event(r);
		pthread_mutex_unlock(&c->lock);
	}
	return rc;
}

struct nvme_news nvme_ctrl_poll(struct nvme_ctrl *c)
{
	uint32_t csts = reg_read32(c, NVME_REG_CSTS);
	struct nvme_news news;

	pthread_mutex_lock(&c->lock);
	if (csts != NVME_GONE)
		reap(c);
	news = c->news;
	c->news = (struct nvme_news){ 0 };
	news.gone = csts == NVME_GONE;
	news.fatal = !news.gone && c->live &&
		     (csts & NVME_CSTS_CFS || !(csts & NVME_CSTS_RDY) || c->admin.fault);
	pthread_mutex_unlock(&c->lock);
	return news;
}

/* --- life --- */

int admin_open(struct nvme_ctrl *c, struct err *e)
{
	return nvme_qpair_alloc(&c->admin, 0, ADMIN_ENTRIES, c->page, e);
}

void admin_close(struct nvme_ctrl *c)
{
	admin_cancel(c);
	nvme_qpair_free(&c->admin);
}

void admin_start(struct nvme_ctrl *c)
{
	pthread_mutex_lock(&c->lock);
	c->live = true;
	c->news = (struct nvme_news){ 0 };
	pthread_mutex_unlock(&c->lock);
}

void admin_cancel(struct nvme_ctrl *c)
{
	struct nvme_req *req;

	pthread_mutex_lock(&c->lock);
	c->live = false;
	while (c->admin.memory && (req = nvme_take_back(&c->admin)))
		req_end(container_of(req, struct admin_req, req), ADMIN_CANCELED);
	pthread_mutex_unlock(&c->lock);
}

/* --- the commands that everybody needs --- */

int nvme_identify(struct nvme_ctrl *c, uint8_t cns, uint32_t nsid, void *data, struct err *e)
{
	struct nvme_sqe sqe = { .opc = NVME_IDENTIFY,
				.nsid = to_le32(nsid),
				.a.cdw10 = to_le32(cns) };

	return nvme_admin(c, "Identify", &sqe, data, NVME_PAGE, NULL, e);
}

int nvme_get_log(struct nvme_ctrl *c, uint8_t log, uint32_t nsid, void *data, size_t len,
		 struct err *e)
{
	uint32_t dwords = (uint32_t)(len / 4 - 1); /* 0-based */
	struct nvme_sqe sqe = { .opc = NVME_GET_LOG,
				.nsid = to_le32(nsid),
				.a.slba = to_le64((dwords & 0xffff) << 16 | log |
						  (uint64_t)(dwords >> 16) << 32) };

	return nvme_admin(c, "Get Log Page", &sqe, data, len, NULL, e);
}

int nvme_set_feature(struct nvme_ctrl *c, uint8_t feature, uint32_t value, uint32_t *result,
		     struct err *e)
{
	struct nvme_sqe sqe = { .opc = NVME_SET_FEATURES,
				.a.slba = to_le64(feature | (uint64_t)value << 32) };

	return nvme_admin(c, "Set Features", &sqe, NULL, 0, result, e);
}

int nvme_get_feature(struct nvme_ctrl *c, uint8_t feature, uint32_t *result, struct err *e)
{
	struct nvme_sqe sqe = { .opc = NVME_GET_FEATURES, .a.cdw10 = to_le32(feature) };

	return nvme_admin(c, "Get Features", &sqe, NULL, 0, result, e);
}

int nvme_abort(struct nvme_ctrl *c, uint16_t sqid, uint16_t cid, struct err *e)
{
	struct nvme_sqe sqe = { .opc = NVME_ABORT, .a.cdw10 = to_le32((uint32_t)cid << 16 | sqid) };

	return nvme_admin(c, "Abort", &sqe, NULL, 0, NULL, e);
}
