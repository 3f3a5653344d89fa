/* How a fake controller reaches memory: page by page, and only what is mapped. PRPs, SGLs. */
#include "fake/fake_nvme_internal.h"

#include <string.h>

/* ---- one range ---- */

bool is_in_cmb(const struct fake_nvme *f, uint64_t iova)
{
	return f->cmb_on && iova >= f->cmb_base && iova - f->cmb_base < f->c.cmb_size;
}

/* The controller memory buffer answers to the addresses that the host gave it. NULL: not there. */
static uint8_t *cmb_at(struct fake_nvme *f, uint64_t iova, size_t len)
{
	if (!is_in_cmb(f, iova) || !range_fits(iova - f->cmb_base, len, f->c.cmb_size))
		return NULL;
	return f->cmb + (iova - f->cmb_base);
}

static bool reached(struct fake_nvme *f, bool ok, uint64_t iova, size_t len, const char *what)
{
	if (!ok)
		fault(f, "DMA of %zu bytes at 0x%llx, which is not mapped: %s", len,
		      (unsigned long long)iova, what);
	return ok;
}

bool dma_read(struct fake_nvme *f, void *to, uint64_t iova, size_t len, const char *what)
{
	uint8_t *cmb = cmb_at(f, iova, len);

	if (cmb) {
		memcpy(to, cmb, len);
		return true;
	}
	return reached(f, fake_iommu_read(f->c.iommu, to, iova, len), iova, len, what);
}

bool dma_write(struct fake_nvme *f, uint64_t iova, const void *from, size_t len, const char *what)
{
	uint8_t *cmb = cmb_at(f, iova, len);

	if (cmb) {
		memcpy(cmb, from, len);
		return true;
	}
	return reached(f, fake_iommu_write(f->c.iommu, iova, from, len), iova, len, what);
}

bool dma_store64(struct fake_nvme *f, uint64_t iova, uint64_t v, const char *what)
{
	uint8_t *cmb = cmb_at(f, iova, sizeof(v));

	if (cmb) {
		store_release((uint64_t *)(void *)cmb, v);
		return true;
	}
	return reached(f, fake_iommu_store64(f->c.iommu, iova, v), iova, sizeof(v), what);
}

bool dma_store32(struct fake_nvme *f, uint64_t iova, uint32_t v, const char *what)
{
	return reached(f, fake_iommu_store32(f->c.iommu, iova, v), iova, sizeof(v), what);
}

bool dma_load32(struct fake_nvme *f, uint64_t iova, uint32_t *out, const char *what)
{
	return reached(f, fake_iommu_load32(f->c.iommu, iova, out), iova, sizeof(*out), what);
}

/* ---- a command's data: one walk, to or from the host ---- */

struct walk {
	struct fake_nvme *f;
	const char *what;
	uint8_t *data; /* what is left, ours */
	size_t left;
	bool to_host;
};

static uint16_t move(struct walk *w, uint64_t iova, size_t len)
{
	bool ok = w->to_host ? dma_write(w->f, iova, w->data, len, w->what)
			     : dma_read(w->f, w->data, iova, len, w->what);

	w->data += len;
	w->left -= len;
	return ok ? WIRE_OK : WIRE_DATA_TRANSFER;
}

static uint16_t bad_prp(struct walk *w, const char *why, uint64_t prp)
{
	fault(w->f, "%s: %s 0x%llx, %zu bytes left", w->what, why, (unsigned long long)prp,
	      w->left);
	return WIRE_PRP_OFFSET;
}

static uint16_t move_page(struct walk *w, uint64_t prp, const char *why)
{
	if (!IS_ALIGNED(prp, w->f->page))
		return bad_prp(w, why, prp);
	return move(w, prp, MIN(w->left, w->f->page));
}

/* Entries from `list` to the end of its page; the last one is a pointer when more pages follow. */
static uint16_t walk_list(struct walk *w, uint64_t list)
{
	size_t page = w->f->page;
	uint16_t status = WIRE_OK;
	uint64_t prp;

	if (!IS_ALIGNED(list, 8))
		return bad_prp(w, "a PRP list is at", list);
	while (w->left && !status) {
		if (!dma_read(w->f, &prp, list, sizeof(prp), "a PRP list"))
			return WIRE_DATA_TRANSFER;
		if ((list & (page - 1)) == page - 8 && w->left > page) {
			if (!IS_ALIGNED(prp, page))
				return bad_prp(w, "the next PRP list is at", prp);
			list = prp;
			continue;
		}
		status = move_page(w, prp, "a PRP list's entry is");
		list += 8;
	}
	return status;
}

/* 4.3.1 */
static uint16_t walk_prps(struct walk *w, uint64_t prp1, uint64_t prp2)
{
	size_t page = w->f->page;
	uint16_t status;

	if (!IS_ALIGNED(prp1, 4))
		return bad_prp(w, "PRP1 is", prp1);
	status = move(w, prp1, MIN(w->left, page - (prp1 & (page - 1))));
	if (status)
		return status;
	if (w->left == 0) {
		if (prp2)
			fault(w->f, "%s: PRP2 is 0x%llx, and nothing is left for it", w->what,
			      (unsigned long long)prp2);
		return WIRE_OK;
	}
	if (w->left <= page)
		return move_page(w, prp2, "PRP2 is");
	return walk_list(w, prp2);
}

/* ---- SGLs: 4.3.2 ---- */

static uint16_t bad_sgl(struct walk *w, uint16_t status, const char *why, const struct wire_sgl *d)
{
	fault(w->f, "%s: SGL %s (address 0x%llx, length %u, type 0x%02x), %zu bytes left", w->what,
	      why, (unsigned long long)d->addr, d->len, d->type, w->left);
	return status;
}

static uint16_t walk_block(struct walk *w, const struct wire_sgl *d)
{
	size_t len = MIN(d->len, w->left);

	if (d->len > w->left && !(w->f->c.sgls & WIRE_SGLS_LONGER))
		return bad_sgl(w, WIRE_SGL_LENGTH_BAD, "is longer than the data", d);
	if ((w->f->c.sgls & 3) == 2 && !IS_ALIGNED(d->addr | d->len, 4))
		return bad_sgl(w, WIRE_SGL_SEGMENT_BAD, "is not dword aligned", d);
	return move(w, d->addr, len);
}

/* What is not wanted of a read; in a write it counts for nothing. */
static uint16_t walk_bucket(struct walk *w, const struct wire_sgl *d)
{
	size_t len = MIN(d->len, w->left);

	if (!(w->f->c.sgls & WIRE_SGLS_BUCKET))
		return bad_sgl(w, WIRE_SGL_TYPE_BAD, "bit bucket, which is not offered", d);
	if (w->to_host) {
		w->data += len;
		w->left -= len;
	}
	return WIRE_OK;
}

static bool is_segment(const struct wire_sgl *d)
{
	return d->type == WIRE_SGL_SEGMENT << 4 || d->type == WIRE_SGL_LAST << 4;
}

/* The descriptors of one segment. A descriptor of another segment, in the last place, goes to
 * *next. */
static uint16_t walk_segment(struct walk *w, const struct wire_sgl *segment, struct wire_sgl *next)
{
	uint64_t end = segment->addr + segment->len;
	uint16_t status = WIRE_OK;
	struct wire_sgl d;

	if (!IS_ALIGNED(segment->addr, 8) || !segment->len || segment->len % sizeof(d) ||
	    range_wraps(segment->addr, segment->len))
		return bad_sgl(w, WIRE_SGL_SEGMENT_BAD, "segment has a bad place or length",
			       segment);
	next->type = 0;
	for (uint64_t at = segment->addr; at < end && !status; at += sizeof(d)) {
		if (!dma_read(w->f, &d, at, sizeof(d), "an SGL segment"))
			return WIRE_DATA_TRANSFER;
		if (d.type == WIRE_SGL_DATA << 4)
			status = walk_block(w, &d);
		else if (d.type == WIRE_SGL_BUCKET << 4)
			status = walk_bucket(w, &d);
		else if (!is_segment(&d))
			status = bad_sgl(w, WIRE_SGL_TYPE_BAD, "has an unknown type", &d);
		else if (at + sizeof(d) != end || segment->type != WIRE_SGL_SEGMENT << 4)
			status = bad_sgl(w, WIRE_SGL_SEGMENT_BAD, "segment is out of place", &d);
		else
			*next = d;
	}
	if (!status && segment->type == WIRE_SGL_SEGMENT << 4 && !is_segment(next))
		status = bad_sgl(w, WIRE_SGL_SEGMENT_BAD, "segment leads nowhere", segment);
	return status;
}

static uint16_t walk_sgl(struct walk *w, const struct wire_sgl *first)
{
	struct wire_sgl d = *first, next;
	uint16_t status = WIRE_OK;

	if (!(w->f->c.sgls & 3))
		return bad_sgl(w, WIRE_BAD_FIELD, "is used but not offered", first);
	if (d.type == WIRE_SGL_DATA << 4)
		status = walk_block(w, &d);
	else if (!is_segment(&d))
		status = bad_sgl(w, WIRE_SGL_TYPE_BAD, "has an unknown type", &d);
	while (!status && is_segment(&d)) {
		status = walk_segment(w, &d, &next);
		d = next;
	}
	if (!status && w->left)
		status = bad_sgl(w, WIRE_SGL_LENGTH_BAD, "is shorter than the data", first);
	return status;
}

/* ---- for commands ---- */

static uint16_t walk_data(struct walk *w, const struct cmd *cmd)
{
	switch (cmd->sqe.flags >> 6) {
	case 0:
		return walk_prps(w, cmd->sqe.prp1, cmd->sqe.prp2);
	case 1:
	case 2:
		if (cmd->sq->qid)
			return walk_sgl(w, &cmd->sqe.sgl);
	}
	fault(w->f, "%s: PSDT %u", w->what, cmd->sqe.flags >> 6);
	return WIRE_BAD_FIELD;
}

uint16_t data_get(struct fake_nvme *f, const struct cmd *cmd, void *to, size_t len)
{
	struct walk w = { .f = f, .what = "data to the device", .data = to, .left = len };

	f->stats.bytes_written += cmd->sq->qid ? len : 0;
	return walk_data(&w, cmd);
}

uint16_t data_put(struct fake_nvme *f, const struct cmd *cmd, const void *from, size_t len)
{
	struct walk w = { .f = f,
			  .what = "data to the host",
			  .data = (uint8_t *)(uintptr_t)from,
			  .left = len,
			  .to_host = true };

	f->stats.bytes_read += cmd->sq->qid ? len : 0;
	return walk_data(&w, cmd);
}

/* PSDT 0 and 1: one contiguous piece. */
static uint16_t walk_meta(struct walk *w, const struct cmd *cmd)
{
	uint64_t mptr = cmd->sqe.mptr;
	struct wire_sgl d;

	if (cmd->sqe.flags >> 6 == 2) {
		if (!IS_ALIGNED(mptr, 8))
			return bad_prp(w, "MPTR is", mptr);
		if (!dma_read(w->f, &d, mptr, sizeof(d), "the SGL of metadata"))
			return WIRE_DATA_TRANSFER;
		return walk_sgl(w, &d);
	}
	if (!IS_ALIGNED(mptr, 4)) {
		bad_prp(w, "MPTR is", mptr);
		return WIRE_BAD_FIELD;
	}
	return move(w, mptr, w->left);
}

uint16_t meta_get(struct fake_nvme *f, const struct cmd *cmd, void *to, size_t len)
{
	struct walk w = { .f = f, .what = "metadata to the device", .data = to, .left = len };

	return walk_meta(&w, cmd);
}

uint16_t meta_put(struct fake_nvme *f, const struct cmd *cmd, const void *from, size_t len)
{
	struct walk w = { .f = f,
			  .what = "metadata to the host",
			  .data = (uint8_t *)(uintptr_t)from,
			  .left = len,
			  .to_host = true };

	return walk_meta(&w, cmd);
}
