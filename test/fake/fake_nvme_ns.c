/* The namespaces of a fake controller, their content and its cache. */
#include "fake/fake_nvme_internal.h"

#include <string.h>

struct ns *ns_find(struct fake_nvme *f, uint32_t nsid)
{
	for (unsigned i = 0; i < FAKE_NVME_NS_MAX; i++)
		if (f->ns[i].exists && f->ns[i].c.nsid == nsid)
			return &f->ns[i];
	return NULL;
}

struct ns *ns_next(struct fake_nvme *f, uint32_t nsid)
{
	struct ns *next = NULL;

	for (unsigned i = 0; i < FAKE_NVME_NS_MAX; i++)
		if (f->ns[i].exists && f->ns[i].c.nsid > nsid &&
		    (!next || f->ns[i].c.nsid < next->c.nsid))
			next = &f->ns[i];
	return next;
}

bool ns_open(struct fake_nvme *f, const struct fake_nvme_ns_config *c)
{
	struct ns *ns = NULL;

	for (unsigned i = 0; i < FAKE_NVME_NS_MAX && !ns; i++)
		if (!f->ns[i].exists)
			ns = &f->ns[i];
	if (!ns || !c->nsid || ns_find(f, c->nsid))
		return false;
	*ns = (struct ns){ .c = *c, .exists = true };
	if (store_init(&ns->data) && store_init(&ns->meta))
		return true;
	ns_close(ns);
	return false;
}

void ns_close(struct ns *ns)
{
	if (!ns->exists)
		return;
	store_free(&ns->data);
	store_free(&ns->meta);
	ns->exists = false;
}

size_t ns_stride(const struct ns *ns)
{
	return ((size_t)1 << ns->c.lbads) + (ns->c.extended ? ns->c.ms : 0);
}

/* ---- the volatile write cache ---- */

bool cache_is_on(const struct fake_nvme *f)
{
	return f->c.vwc && f->feature[WIRE_FEAT_VWC] & 1;
}

void ns_flush(struct ns *ns)
{
	store_flush(&ns->data);
	store_flush(&ns->meta);
}

void cache_flush(struct fake_nvme *f)
{
	for (unsigned i = 0; i < FAKE_NVME_NS_MAX; i++)
		if (f->ns[i].exists)
			ns_flush(&f->ns[i]);
}

void cache_lose(struct fake_nvme *f)
{
	for (unsigned i = 0; i < FAKE_NVME_NS_MAX; i++) {
		if (!f->ns[i].exists)
			continue;
		store_lose(&f->ns[i].data);
		store_lose(&f->ns[i].meta);
	}
}

bool fake_nvme_dirty(struct fake_nvme *f)
{
	bool dirty = false;

	fake_lock(f);
	for (unsigned i = 0; i < FAKE_NVME_NS_MAX; i++)
		dirty |= f->ns[i].exists && (f->ns[i].data.dirty || f->ns[i].meta.dirty);
	fake_unlock(f);
	return dirty;
}

bool fake_nvme_peek(struct fake_nvme *f, uint32_t nsid, uint64_t offset, void *to, size_t len)
{
	struct ns *ns;
	bool ok;

	fake_lock(f);
	ns = ns_find(f, nsid);
	ok = ns && range_fits(offset, len, ns->c.blocks * ns_stride(ns));
	if (ok)
		store_read(&ns->data, offset, to, len);
	fake_unlock(f);
	return ok;
}

bool fake_nvme_poke(struct fake_nvme *f, uint32_t nsid, uint64_t offset, const void *from,
		    size_t len)
{
	struct ns *ns;
	bool ok;

	fake_lock(f);
	ns = ns_find(f, nsid);
	ok = ns && range_fits(offset, len, ns->c.blocks * ns_stride(ns)) &&
	     store_write(&ns->data, offset, from, len, true);
	fake_unlock(f);
	return ok;
}

/* ---- they change while the host looks on ---- */

static void note_changed(struct fake_nvme *f, uint32_t nsid)
{
	bool known;
	unsigned i;

	for (i = 0; i < f->changed_n && f->changed[i] < nsid; i++)
		;
	known = i < f->changed_n && f->changed[i] == nsid;
	if (nsid == UINT32_MAX || (f->changed_n == CHANGED_MAX && !known)) {
		f->changed_overflow = true;
	} else if (!known) {
		memmove(&f->changed[i + 1], &f->changed[i],
			(f->changed_n - i) * sizeof(*f->changed));
		f->changed[i] = nsid;
		f->changed_n++;
	}
	if (f->feature[WIRE_FEAT_AER] & WIRE_OAES_NS)
		post_event(f, WIRE_EVENT_NOTICE, 0, WIRE_LOG_NS_CHANGED);
}

void fake_nvme_ns_changed(struct fake_nvme *f, uint32_t nsid)
{
	fake_lock(f);
	note_changed(f, nsid);
	fake_unlock(f);
}

bool fake_nvme_ns_add(struct fake_nvme *f, const struct fake_nvme_ns_config *c)
{
	bool ok;

	fake_lock(f);
	ok = ns_open(f, c);
	if (ok)
		note_changed(f, c->nsid);
	fake_unlock(f);
	return ok;
}

bool fake_nvme_ns_remove(struct fake_nvme *f, uint32_t nsid)
{
	struct ns *ns;

	fake_lock(f);
	ns = ns_find(f, nsid);
	if (ns) {
		ns_close(ns);
		note_changed(f, nsid);
	}
	fake_unlock(f);
	return ns != NULL;
}

bool fake_nvme_ns_resize(struct fake_nvme *f, uint32_t nsid, uint64_t blocks)
{
	struct ns *ns;

	fake_lock(f);
	ns = ns_find(f, nsid);
	if (ns) {
		ns->c.blocks = blocks;
		note_changed(f, nsid);
	}
	fake_unlock(f);
	return ns != NULL;
}

bool fake_nvme_ns_protect(struct fake_nvme *f, uint32_t nsid, bool read_only)
{
	struct ns *ns;

	fake_lock(f);
	ns = ns_find(f, nsid);
	if (ns) {
		ns->c.read_only = read_only;
		note_changed(f, nsid);
	}
	fake_unlock(f);
	return ns != NULL;
}
