/* The NVM command set of a fake controller. */
#include "fake/fake_nvme_internal.h"

#include <stdlib.h>
#include <string.h>

#define DSM_DEALLOCATE 4u

/* A command's blocks, checked. */
struct extent {
	struct ns *ns;
	uint64_t slba;
	uint64_t blocks;
	size_t stride, len; /* of a block in the data buffer, of all */
	size_t meta_len;    /* of metadata in a buffer of its own */
	bool durable;
	uint8_t *data, *meta;
};

static uint64_t slba_of(const struct wire_sqe *sqe)
{
	return sqe->cdw10 | (uint64_t)sqe->cdw11 << 32;
}

static bool is_too_long(const struct fake_nvme *f, const struct extent *x)
{
	uint64_t most = 4096ull << f->c.mpsmin << f->c.mdts;
	uint64_t len = x->len;

	if (f->c.mdts == 0)
		return false;
	if (f->c.mdts_excludes_metadata)
		len = x->blocks << x->ns->c.lbads;
	return len > most;
}

static void count_crossing(struct fake_nvme *f, const struct extent *x)
{
	unsigned noiob = x->ns->c.noiob;

	if (noiob && x->slba / noiob != (x->slba + x->blocks - 1) / noiob)
		f->stats.crossings++;
}

/* The blocks of a read, write or their like; a status. */
static uint16_t extent_get(struct fake_nvme *f, const struct wire_sqe *sqe, struct extent *x)
{
	struct ns *ns = ns_find(f, sqe->nsid);

	if (!ns)
		return WIRE_BAD_NS;
	*x = (struct extent){ .ns = ns,
			      .slba = slba_of(sqe),
			      .blocks = (sqe->cdw12 & 0xffff) + 1,
			      .stride = ns_stride(ns),
			      .durable = !cache_is_on(f) || sqe->cdw12 & WIRE_FUA };
	x->len = x->blocks * x->stride;
	x->meta_len = ns->c.extended ? 0 : x->blocks * ns->c.ms;
	if (!range_fits(x->slba, x->blocks, ns->c.blocks))
		return WIRE_LBA_RANGE | WIRE_DNR;
	return WIRE_OK;
}

/* The same with buffers for its data. */
static uint16_t extent_open(struct fake_nvme *f, const struct wire_sqe *sqe, struct extent *x)
{
	uint16_t status;

	*x = (struct extent){ 0 };
	status = extent_get(f, sqe, x);
	if (status)
		return status;
	if (is_too_long(f, x)) {
		fault(f, "%zu bytes are more than MDTS allows", x->len);
		return WIRE_BAD_FIELD | WIRE_DNR;
	}
	count_crossing(f, x);
	x->data = malloc(x->len + x->meta_len);
	if (!x->data)
		return WIRE_INTERNAL;
	x->meta = x->data + x->len;
	return WIRE_OK;
}

static uint16_t load(struct fake_nvme *f, const struct cmd *cmd, struct extent *x)
{
	uint16_t status = data_get(f, cmd, x->data, x->len);

	if (!status && x->meta_len)
		status = meta_get(f, cmd, x->meta, x->meta_len);
	return status;
}

/* ---- commands ---- */

static uint16_t do_write(struct fake_nvme *f, const struct cmd *cmd)
{
	struct extent x;
	uint16_t status = extent_open(f, &cmd->sqe, &x);

	if (!status && x.ns->c.read_only)
		status = WIRE_READ_ONLY | WIRE_DNR;
	if (!status)
		status = load(f, cmd, &x);
	if (!status &&
	    (!store_write(&x.ns->data, x.slba * x.stride, x.data, x.len, x.durable) ||
	     !store_write(&x.ns->meta, x.slba * x.ns->c.ms, x.meta, x.meta_len, x.durable)))
		status = WIRE_INTERNAL;
	free(x.data);
	return status;
}

static uint16_t do_read(struct fake_nvme *f, const struct cmd *cmd)
{
	struct extent x;
	uint16_t status = extent_open(f, &cmd->sqe, &x);

	if (!status) {
		if (cmd->sqe.cdw12 & WIRE_FUA)
			store_harden(&x.ns->data, x.slba * x.stride, x.len);
		store_read(&x.ns->data, x.slba * x.stride, x.data, x.len);
		store_read(&x.ns->meta, x.slba * x.ns->c.ms, x.meta, x.meta_len);
		status = data_put(f, cmd, x.data, x.len);
	}
	if (!status && x.meta_len)
		status = meta_put(f, cmd, x.meta, x.meta_len);
	free(x.data);
	return status;
}

static bool is_equal(const struct extent *x)
{
	uint8_t *is = malloc(x->len + x->meta_len);
	bool equal;

	if (!is)
		abort();
	store_read(&x->ns->data, x->slba * x->stride, is, x->len);
	store_read(&x->ns->meta, x->slba * x->ns->c.ms, is + x->len, x->meta_len);
	equal = memcmp(is, x->data, x->len + x->meta_len) == 0;
	free(is);
	return equal;
}

static uint16_t do_compare(struct fake_nvme *f, const struct cmd *cmd)
{
	struct extent x;
	uint16_t status = extent_open(f, &cmd->sqe, &x);

	if (!status)
		status = load(f, cmd, &x);
	if (!status && !is_equal(&x))
		status = WIRE_COMPARE_FAILED;
	free(x.data);
	return status;
}

static uint16_t fill(struct extent *x, uint8_t v)
{
	if (!store_fill(&x->ns->data, x->slba * x->stride, x->blocks * x->stride, v, x->durable) ||
	    !store_fill(&x->ns->meta, x->slba * x->ns->c.ms, x->blocks * x->ns->c.ms, v,
			x->durable))
		return WIRE_INTERNAL;
	return WIRE_OK;
}

static uint16_t do_write_zeroes(struct fake_nvme *f, const struct cmd *cmd)
{
	struct extent x;
	uint16_t status = extent_get(f, &cmd->sqe, &x);

	if (status)
		return status;
	if (x.ns->c.read_only)
		return WIRE_READ_ONLY | WIRE_DNR;
	return fill(&x, 0);
}

static uint16_t do_verify(struct fake_nvme *f, const struct cmd *cmd)
{
	struct extent x;

	return extent_get(f, &cmd->sqe, &x);
}

static uint16_t do_flush(struct fake_nvme *f, const struct cmd *cmd)
{
	struct ns *ns = ns_find(f, cmd->sqe.nsid);

	if (cmd->sqe.nsid == UINT32_MAX)
		cache_flush(f);
	else if (!ns)
		return WIRE_BAD_NS;
	else
		ns_flush(ns);
	return WIRE_OK;
}

static uint16_t deallocate(struct fake_nvme *f, struct ns *ns, const struct wire_dsm_range *r)
{
	struct extent x = { .ns = ns,
			    .slba = r->slba,
			    .blocks = r->blocks,
			    .stride = ns_stride(ns),
			    .durable = !cache_is_on(f) };

	if ((ns->c.dlfeat & 7) == 0)
		return WIRE_OK;
	return fill(&x, (ns->c.dlfeat & 7) == 2 ? 0xff : 0);
}

static uint16_t do_dsm(struct fake_nvme *f, const struct cmd *cmd)
{
	struct ns *ns = ns_find(f, cmd->sqe.nsid);
	unsigned n = (cmd->sqe.cdw10 & 0xff) + 1;
	struct wire_dsm_range r[256];
	uint16_t status;

	if (!ns)
		return WIRE_BAD_NS;
	status = data_get(f, cmd, r, n * sizeof(*r));
	for (unsigned i = 0; i < n && !status; i++)
		if (!range_fits(r[i].slba, r[i].blocks, ns->c.blocks))
			status = WIRE_LBA_RANGE | WIRE_DNR;
	if (!status && ns->c.read_only)
		status = WIRE_READ_ONLY | WIRE_DNR;
	if (!(cmd->sqe.cdw11 & DSM_DEALLOCATE))
		return status;
	for (unsigned i = 0; i < n && !status; i++)
		status = deallocate(f, ns, &r[i]);
	return status;
}

static const struct {
	uint8_t opcode;
	uint16_t oncs; /* 0: mandatory */
	uint16_t (*run)(struct fake_nvme *f, const struct cmd *cmd);
} commands[] = {
	{ WIRE_IO_FLUSH, 0, do_flush },
	{ WIRE_IO_WRITE, 0, do_write },
	{ WIRE_IO_READ, 0, do_read },
	{ WIRE_IO_COMPARE, WIRE_ONCS_COMPARE, do_compare },
	{ WIRE_IO_WRITE_ZEROES, WIRE_ONCS_ZEROES, do_write_zeroes },
	{ WIRE_IO_DSM, WIRE_ONCS_DSM, do_dsm },
	{ WIRE_IO_VERIFY, WIRE_ONCS_VERIFY, do_verify },
};

static uint16_t run(struct fake_nvme *f, const struct cmd *cmd)
{
	if (cmd->sqe.flags & 3)
		return WIRE_BAD_FIELD | WIRE_DNR; /* fused operations are not offered */
	for (size_t i = 0; i < ARRAY_SIZE(commands); i++) {
		if (commands[i].opcode != cmd->sqe.opc)
			continue;
		if (commands[i].oncs & ~f->c.oncs)
			break;
		return commands[i].run(f, cmd);
	}
	fault(f, "I/O opcode 0x%02x is not offered", cmd->sqe.opc);
	return WIRE_BAD_OPCODE | WIRE_DNR;
}

void io_run(struct fake_nvme *f, struct cmd *cmd)
{
	cmd_end(f, cmd, run(f, cmd), 0);
}
