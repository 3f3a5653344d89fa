/* I/O commands that somebody composed: each on a queue of its own, which lives as long as it. */
#include <errno.h>
#include <string.h>

#include "mem/mem.h"
#include "nvme/internal.h"

struct io_req {
	struct nvme_req req;
	struct nvme_cqe cqe;
	bool done;
};

static void io_done(struct nvme_req *req, const struct nvme_cqe *cqe)
{
	struct io_req *r = container_of(req, struct io_req, req);

	r->cqe = *cqe;
	r->done = true;
}

static int send(struct nvme_qpair *qp, const struct nvme_sqe *from, void *data, size_t len,
		struct io_req *r, struct err *e)
{
	struct nvme_sqe *sqe = nvme_sqe_get(qp);
	struct iovec iov = { data, len };
	le16 cid = sqe->cid;
	int rc;

	*sqe = *from;
	sqe->cid = cid;
	rc = len ? nvme_map(qp, sqe, &iov, 1) : 0;
	if (rc)
		return err_set(e, rc, "The device cannot reach the command's data.");
	nvme_sqe_push(qp, &r->req);
	nvme_ring(qp);
	return 0;
}

static int wait_for(struct nvme_qpair *qp, const struct io_req *r, unsigned ms, struct err *e)
{
	uint64_t start = nvme_now_ms();

	while (!r->done && nvme_now_ms() - start <= ms) {
		nvme_reap(qp);
		if (!r->done)
			nvme_sleep_us(50);
	}
	if (r->done)
		return 0;
	return err_set(e, -ETIMEDOUT, "The controller has not answered for %u ms.", ms);
}

static int run(struct nvme_ctrl *c, struct nvme_qpair *qp, const struct nvme_sqe *sqe, void *data,
	       size_t len, unsigned ms, struct nvme_cqe *cqe, struct err *e)
{
	struct io_req r = { .req.done = io_done };
	int rc = send(qp, sqe, data, len, &r, e);

	if (rc == 0)
		rc = wait_for(qp, &r, ms ? ms : c->options.admin_timeout_ms, e);
	if (rc)
		return rc;
	*cqe = r.cqe;
	cqe->status = to_le16((uint16_t)(from_le16(cqe->status) >> 1));
	return 0;
}

int nvme_io_raw(struct nvme_ctrl *c, const struct nvme_sqe *sqe, void *data, size_t len,
		bool to_device, unsigned timeout_ms, struct nvme_cqe *cqe, struct err *e)
{
	struct nvme_qpair qp;
	void *buffer = NULL;
	int rc = nvme_queue_open(c, &qp, e);

	if (rc)
		return rc;
	rc = len ? dma_zalloc(len, NVME_PAGE, &buffer, e) : 0;
	if (rc == 0 && len && to_device)
		memcpy(buffer, data, len);
	if (rc == 0)
		rc = run(c, &qp, sqe, buffer, len, timeout_ms, cqe, e);
	if (rc == 0 && len && !to_device)
		memcpy(data, buffer, len);
	nvme_queue_close(c, &qp); /* before its memory goes */
	dma_free(buffer, len);
	return rc;
}
