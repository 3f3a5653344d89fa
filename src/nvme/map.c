/*
 * Where a command's data are: physical region pages (Base 4.1.1) where their rules allow it, else
 * a scatter/gather list (4.1.2) when the controller takes those.
 *
 * The entries lie in the page of the command's identifier. A page holds 512 PRPs, which with PRP1
 * is enough for NVME_TRANSFER_MAX at any offset, so lists of several pages never arise.
 */
#include <errno.h>

#include "nvme/qpair.h"

#define PRPS_MAX (NVME_PAGE / sizeof(le64))

_Static_assert(NVME_TRANSFER_MAX / NVME_PAGE <= PRPS_MAX, "one page of PRPs");
_Static_assert(NVME_PIECES_MAX * sizeof(struct nvme_sgl) <= NVME_PAGE, "one page of SGL entries");

/* Entries that are written somewhere, or (list NULL) only counted. */
struct prps {
	le64 *list;
	unsigned n;
	iova_t first;
};

/* One page, or the part of it that the data begin with. */
static bool add_prp(struct prps *p, iova_t at)
{
	if (p->first == IOVA_NONE) {
		p->first = at;
		return true;
	}
	if (p->n == PRPS_MAX)
		return false;
	if (p->list)
		p->list[p->n] = to_le64(at);
	p->n++;
	return true;
}

/*
 * Only the first page may begin late and only the last one end early: every piece but the first
 * starts at a page, and every one but the last ends at one.
 */
static bool build_prps(struct nvme_qpair *qp, struct prps *p, const struct iovec *iov, int n)
{
	const uint64_t mask = qp->page - 1;

	for (int i = 0; i < n; i++) {
		iova_t at = iommu_iova(iov[i].iov_base, iov[i].iov_len, &qp->hint),
		       end = at + iov[i].iov_len;

		if (at == IOVA_NONE || (i == 0 ? at & 3 : at & mask) || (i < n - 1 && end & mask))
			return false;
		for (; at < end; at = (at | mask) + 1)
			if (!add_prp(p, at))
				return false;
	}
	return true;
}

/* The same for an SGL. */
static bool build_sgl(struct nvme_qpair *qp, struct nvme_sgl *list, const struct iovec *iov, int n)
{
	if (!qp->sgl || n > NVME_PIECES_MAX)
		return false;
	for (int i = 0; i < n; i++) {
		iova_t at = iommu_iova(iov[i].iov_base, iov[i].iov_len, &qp->hint);

		if (at == IOVA_NONE || (at | iov[i].iov_len) & 3)
			return false;
		if (list)
			list[i] = (struct nvme_sgl){ .addr = to_le64(at),
						     .length = to_le32((uint32_t)iov[i].iov_len),
						     .type = NVME_SGL_DATA };
	}
	return true;
}

static void put_prps(struct nvme_sqe *sqe, const struct prps *p, iova_t list_iova)
{
	sqe->prp1 = to_le64(p->first);
	if (p->n == 1)
		sqe->prp2 = p->list[0];
	else if (p->n > 1)
		sqe->prp2 = to_le64(list_iova);
}

static void put_sgl(struct nvme_sqe *sqe, const struct nvme_sgl *list, int n, iova_t list_iova)
{
	sqe->flags |= NVME_PSDT_SGL;
	if (n == 1)
		sqe->sgl = list[0];
	else
		sqe->sgl = (struct nvme_sgl){ .addr = to_le64(list_iova),
					      .length = to_le32((uint32_t)n * sizeof(*list)),
					      .type = NVME_SGL_LAST_SEGMENT };
}

int nvme_map_list(struct nvme_qpair *qp, struct nvme_sqe *sqe, const struct iovec *iov, int n)
{
	uint16_t cid = from_le16(sqe->cid);
	void *list = qp->lists[cid];
	iova_t list_iova = qp->lists_iova + cid * (iova_t)NVME_PAGE;
	struct prps p = { .list = list, .first = IOVA_NONE };

	if (build_prps(qp, &p, iov, n))
		put_prps(sqe, &p, list_iova);
	else if (build_sgl(qp, list, iov, n))
		put_sgl(sqe, list, n, list_iova);
	else
		return -EFAULT;
	return 0;
}

bool nvme_reaches(struct nvme_qpair *qp, const struct iovec *iov, int n)
{
	struct prps p = { .first = IOVA_NONE };

	return build_prps(qp, &p, iov, n) || build_sgl(qp, NULL, iov, n);
}

void *nvme_inline_data(struct nvme_qpair *qp, struct nvme_sqe *sqe)
{
	uint16_t cid = from_le16(sqe->cid);

	sqe->prp1 = to_le64(qp->lists_iova + cid * (iova_t)NVME_PAGE);
	return qp->lists[cid];
}
