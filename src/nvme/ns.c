/* Namespaces (Base 5.17, NVM Command Set 4.1.5). */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "nvme/internal.h"

/* Blocks whose number and whose bytes every interface can name. */
#define BYTES_MAX (UINT64_C(1) << 62)
#define SHIFT_MAX 16
/* Before 1.1 there were no lists, and few namespaces. */
#define NVME_VERSION_1_1 0x10100u
#define OLD_NSIDS_MAX	 1024

/* --- the list --- */

static int append(uint32_t **nsids, unsigned *n, uint32_t nsid)
{
	uint32_t *more = realloc(*nsids, (*n + 1) * sizeof(**nsids));

	if (!more)
		return -ENOMEM;
	more[(*n)++] = nsid;
	*nsids = more;
	return 0;
}

/* One page of the list, behind the last that is known. *last stays 0 when there are no more. */
static int read_list(struct nvme_ctrl *c, le32 *page, uint32_t **nsids, unsigned *n, uint32_t *last,
		     struct err *e)
{
	uint32_t before = *n ? (*nsids)[*n - 1] : 0;
	int rc = nvme_identify(c, NVME_CNS_ACTIVE_NS, before, page, e);

	*last = 0;
	for (unsigned i = 0; rc == 0 && i < NVME_NSIDS_PER_LIST; i++) {
		uint32_t nsid = from_le32(page[i]);

		if (nsid == 0) {
			*last = 0;
			return 0;
		}
		if (nsid <= before || nsid == NVME_NSID_ALL)
			return err_set(e, -EPROTO,
				       "The controller's list of namespaces is out of order.");
		if (append(nsids, n, nsid))
			return err_set(e, -ENOMEM, "Out of memory.");
		before = *last = nsid;
	}
	if (rc == 0 && before == NVME_NSID_ALL - 1) /* nothing comes behind it, nor may be asked */
		*last = 0;
	return rc;
}

static int old_list(struct nvme_ctrl *c, uint32_t **nsids, unsigned *n, struct err *e)
{
	uint32_t nn = MIN(from_le32(c->id.nn), OLD_NSIDS_MAX);
	struct nvme_ns ns;

	for (uint32_t nsid = 1; nsid <= nn; nsid++) {
		struct err inner = { 0 };

		if (nvme_ns_identify(c, nsid, &ns, &inner) != -ENODEV && append(nsids, n, nsid))
			return err_set(e, -ENOMEM, "Out of memory.");
	}
	return 0;
}

int nvme_ns_list(struct nvme_ctrl *c, uint32_t **nsids, unsigned *n, struct err *e)
{
	le32 *page = malloc(NVME_PAGE);
	uint32_t last;
	int rc = 0;

	*nsids = NULL;
	*n = 0;
	if (!page)
		return err_set(e, -ENOMEM, "Out of memory.");
	if (c->vs < NVME_VERSION_1_1)
		rc = old_list(c, nsids, n, e);
	else
		do
			rc = read_list(c, page, nsids, n, &last, e);
		while (rc == 0 && last);
	free(page);
	if (rc) {
		free(*nsids);
		*nsids = NULL;
	}
	return rc;
}

/* --- one --- */

static void take_descriptor(const struct nvme_ns_descriptor *d, struct nvme_ns *ns, uint8_t *csi)
{
	static const uint8_t lengths[] = { [NVME_NIDT_EUI64] = 8,
					   [NVME_NIDT_NGUID] = 16,
					   [NVME_NIDT_UUID] = 16,
					   [NVME_NIDT_CSI] = 1 };
	uint8_t *const places[] = { NULL, ns->eui64, ns->nguid, ns->uuid, csi };

	if (d->nidt > 0 && d->nidt < ARRAY_SIZE(places) && d->nidl == lengths[d->nidt])
		memcpy(places[d->nidt], d->nid, d->nidl);
}

/* What it is called all over the world, and its command set. A controller need not know. */
static void take_descriptors(struct nvme_ctrl *c, struct nvme_ns *ns, uint8_t *csi)
{
	struct err e = { 0 };
	uint8_t *page = malloc(NVME_PAGE);
	size_t at = 0;

	if (page && nvme_identify(c, NVME_CNS_NS_DESCRIPTORS, ns->nsid, page, &e) == 0)
		while (at + sizeof(struct nvme_ns_descriptor) <= NVME_PAGE) {
			const struct nvme_ns_descriptor *d = (void *)(page + at);

			at += sizeof(*d) + d->nidl;
			if (d->nidl == 0 || at > NVME_PAGE)
				break;
			take_descriptor(d, ns, csi);
		}
	free(page);
}

static int refuse(struct err *e, uint32_t nsid, const char *why)
{
	return err_set(e, -ENOTSUP, "Namespace %u cannot be used: %s", nsid, why);
}

static int take_format(const struct nvme_ctrl *c, const struct nvme_id_ns *id, struct nvme_ns *ns,
		       struct err *e)
{
	const struct nvme_lbaf *f = &id->lbaf[NVME_FLBAS_INDEX(id->flbas)];

	if (f->lbads < 9 || f->lbads > SHIFT_MAX)
		return refuse(e, ns->nsid, "its blocks are not of 512 bytes to 64 KiB.");
	if (UINT64_C(1) << f->lbads > c->max_transfer)
		return refuse(e, ns->nsid,
			      "its blocks are longer than what a command may move (MDTS).");
	if (from_le16(f->ms))
		return refuse(
			e, ns->nsid,
			"its blocks carry metadata. Format it without (nvme format --lbaf, an LBA format with ms 0).");
	ns->block_shift = f->lbads;
	ns->blocks = from_le64(id->nsze);
	if (ns->blocks > BYTES_MAX >> ns->block_shift)
		return refuse(e, ns->nsid, "it says that it is larger than 4 EiB.");
	return 0;
}

static void take_hints(const struct nvme_id_ns *id, struct nvme_ns *ns)
{
	uint64_t write_unit = id->nsfeat & NVME_NSFEAT_OPTPERF ? from_le16(id->npwg) + 1u : 1;

	ns->boundary = from_le16(id->noiob);
	ns->readonly = id->nsattr & NVME_NSATTR_PROTECTED;
	ns->reads_zeroes = (id->dlfeat & 7) == NVME_DLFEAT_ZEROES;
	ns->zeroes_deallocate = ns->reads_zeroes && id->dlfeat & NVME_DLFEAT_DEAC;
	ns->physical_shift = ns->block_shift;
	while (IS_POWER_OF_2(write_unit) && write_unit > 1 && ns->physical_shift < SHIFT_MAX) {
		ns->physical_shift++;
		write_unit >>= 1;
	}
}

static int take_ns(struct nvme_ctrl *c, const struct nvme_id_ns *id, struct nvme_ns *ns,
		   struct err *e)
{
	uint8_t csi = 0;
	int rc;

	if (from_le64(id->nsze) == 0)
		return err_set(e, -ENODEV, "Namespace %u is not active.", ns->nsid);
	memcpy(ns->nguid, id->nguid, sizeof(ns->nguid));
	memcpy(ns->eui64, id->eui64, sizeof(ns->eui64));
	take_descriptors(c, ns, &csi);
	if (csi != 0)
		return refuse(e, ns->nsid,
			      "it is of another command set (zoned, key-value) than disks are.");
	rc = take_format(c, id, ns, e);
	if (rc == 0)
		take_hints(id, ns);
	return rc;
}

int nvme_ns_identify(struct nvme_ctrl *c, uint32_t nsid, struct nvme_ns *ns, struct err *e)
{
	struct nvme_id_ns *id = malloc(sizeof(*id));
	int rc;

	if (!id)
		return err_set(e, -ENOMEM, "Out of memory.");
	*ns = (struct nvme_ns){ .nsid = nsid };
	rc = nvme_identify(c, NVME_CNS_NS, nsid, id, e);
	if (rc == -ENXIO)
		rc = err_set(e, -ENODEV, "There is no namespace %u.", nsid);
	if (rc == 0)
		rc = take_ns(c, id, ns, e);
	free(id);
	return rc;
}
