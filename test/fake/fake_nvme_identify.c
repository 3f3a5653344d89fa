/* What a fake controller says about itself and its namespaces. */
#include "fake/fake_nvme_internal.h"

#include <stdio.h>
#include <string.h>

#define IDENTIFY_LEN 4096
#define LIST_MAX     1024

/* Space padded, not terminated. */
static void put_text(char *to, size_t len, const char *text)
{
	memset(to, ' ', len);
	memcpy(to, text, MIN(strlen(text), len));
}

static void fill_ctrl(const struct fake_nvme *f, struct wire_id_ctrl *id)
{
	const struct fake_nvme_config *c = &f->c;

	id->vid = id->ssvid = 0x1b36;
	put_text(id->sn, sizeof(id->sn), f->serial);
	put_text(id->mn, sizeof(id->mn), f->model);
	put_text(id->fr, sizeof(id->fr), f->firmware);
	id->mdts = c->mdts;
	id->cntlid = 1;
	id->ver = c->vs;
	id->rtd3e = 1000000; /* us */
	id->oaes = c->oaes;
	id->ctratt = c->ctratt | (c->mdts_excludes_metadata ? WIRE_CTRATT_MEM : 0);
	id->cntrltype = c->cntrltype;
	id->oacs = c->oacs;
	id->acl = c->acl;
	id->aerl = c->aerl;
	id->frmw = 0x03;
	id->lpa = 0x04; /* Get Log Page with an offset */
	id->elpe = c->elpe;
	id->hmpre = c->hmpre;
	id->hmmin = c->hmmin;
	id->sqes = c->sqes;
	id->cqes = c->cqes;
	id->nn = c->nn;
	id->oncs = c->oncs;
	id->vwc = c->vwc ? 0x07 : 0x06; /* Flush takes NSID FFFFFFFFh */
	id->sgls = c->sgls;
	snprintf(id->subnqn, sizeof(id->subnqn), "nqn.2024-01.org.riffle:fake:%s", f->serial);
}

/* The other formats are there to be mistaken for it. */
static void fill_formats(const struct fake_nvme_ns_config *c, struct wire_id_ns *id)
{
	id->nlbaf = c->lbaf;
	for (unsigned i = 0; i < c->lbaf; i++)
		id->lbaf[i] = (struct wire_lbaf){ .ms = 64, .lbads = i % 2 ? 0 : 14 };
	id->lbaf[c->lbaf & 63] = (struct wire_lbaf){ .ms = c->ms, .lbads = c->lbads };
	id->flbas = (uint8_t)((c->lbaf & 15) | (c->lbaf >> 4 & 3) << 5 | (c->extended ? 0x10 : 0));
	id->mc = c->ms ? (c->extended ? 1 : 2) : 0;
}

static void fill_ns(const struct ns *ns, struct wire_id_ns *id)
{
	const struct fake_nvme_ns_config *c = &ns->c;

	id->nsze = id->ncap = id->nuse = c->blocks;
	id->dlfeat = c->dlfeat;
	id->noiob = c->noiob;
	id->nsattr = c->read_only ? WIRE_NSATTR_PROTECT : 0;
	memcpy(id->nguid, c->nguid, sizeof(id->nguid));
	memcpy(id->eui64, c->eui64, sizeof(id->eui64));
	fill_formats(c, id);
}

static uint16_t id_ns(struct fake_nvme *f, uint32_t nsid, void *to)
{
	const struct ns *ns = ns_find(f, nsid);

	if (nsid == 0 || nsid > f->c.nn)
		return WIRE_BAD_NS | WIRE_DNR;
	if (ns)
		fill_ns(ns, to);
	return WIRE_OK;
}

static uint16_t id_list(struct fake_nvme *f, uint32_t nsid, void *to)
{
	uint32_t *list = to;
	unsigned n = 0;

	if (nsid >= UINT32_MAX - 1)
		return WIRE_BAD_NS | WIRE_DNR;
	for (struct ns *ns = ns_next(f, nsid); ns && n < LIST_MAX; ns = ns_next(f, ns->c.nsid))
		list[n++] = ns->c.nsid;
	return WIRE_OK;
}

static uint8_t *put_id(uint8_t *to, uint8_t type, const uint8_t *id, uint8_t len)
{
	static const uint8_t none[16];

	if (memcmp(id, none, len) == 0)
		return to;
	to[0] = type;
	to[1] = len;
	memcpy(to + 4, id, len);
	return to + 4 + len;
}

static uint16_t id_descriptors(struct fake_nvme *f, uint32_t nsid, uint8_t *to)
{
	const struct ns *ns = ns_find(f, nsid);

	if (!ns)
		return WIRE_BAD_NS | WIRE_DNR;
	to = put_id(to, 1, ns->c.eui64, sizeof(ns->c.eui64));
	to = put_id(to, 2, ns->c.nguid, sizeof(ns->c.nguid));
	to = put_id(to, 3, ns->c.uuid, sizeof(ns->c.uuid));
	if (f->c.vs >= 0x00020000) {
		to[0] = 4;
		to[1] = 1;
		to[4] = ns->c.csi;
	}
	return WIRE_OK;
}

/* Data of the NVM command set: nothing to report. Since 2.0. */
static uint16_t id_command_set(struct fake_nvme *f, const struct wire_sqe *sqe)
{
	if (f->c.vs < 0x00020000 || sqe->cdw11 >> 24)
		return WIRE_BAD_FIELD | WIRE_DNR;
	return WIRE_OK;
}

static uint16_t fill(struct fake_nvme *f, const struct wire_sqe *sqe, void *to)
{
	switch (sqe->cdw10 & 0xff) {
	case 0x00:
		return id_ns(f, sqe->nsid, to);
	case 0x01:
		fill_ctrl(f, to);
		return WIRE_OK;
	case 0x02:
		if (f->c.vs >= 0x00010100)
			return id_list(f, sqe->nsid, to);
		break;
	case 0x03:
		if (f->c.vs >= 0x00010300)
			return id_descriptors(f, sqe->nsid, to);
		break;
	case 0x05:
	case 0x06:
		return id_command_set(f, sqe);
	}
	return WIRE_BAD_FIELD | WIRE_DNR;
}

uint16_t identify(struct fake_nvme *f, struct cmd *cmd)
{
	union {
		uint8_t bytes[IDENTIFY_LEN];
		uint64_t aligned;
	} data = { { 0 } };
	uint16_t status = fill(f, &cmd->sqe, &data);

	return status ? status : data_put(f, cmd, &data, sizeof(data));
}
