/* Namespaces as bdevs: the driver, the paths that its queues share, and what comes and goes. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "backend/nvme_device.h"
#include "bdev/registry.h"
#include "util/log.h"

/* Controllers that may have Write Zeroes of 16 bits' worth of blocks. */
#define ZEROES_BLOCKS 65536
/* Of Dataset Management: 32 bits' worth, as long as bytes fit a request. */
#define DISCARD_MAX (1u << 30)

static struct nvme_bdev *to_nvme(const struct bdev *b)
{
	return container_of(b, struct nvme_bdev, bdev);
}

/* --- the bdev driver: one namespace --- */

struct ns_args {
	char *name;
	struct uuid uuid;
	struct nvme_device *dev;
	struct nvme_ns ns;
};

/* bdevs are not made by request, but by attaching a controller. */
static const struct param ns_params[] = { PARAM_STRING(struct ns_args, name, .required = true),
					  PARAM_UUID(struct ns_args, uuid),
					  { 0 } };

static void set_limits(struct nvme_bdev *n)
{
	const struct nvme_ctrl *c = n->dev->ctrl;
	unsigned shift = n->ns.block_shift;
	uint16_t oncs = from_le16(c->id.oncs);
	uint64_t blocks = MIN((uint64_t)c->max_transfer >> shift, ZEROES_BLOCKS);

	n->bdev.limits = (struct bdev_limits){
		.max_len = (uint32_t)(MAX(blocks, 1) << shift),
		.max_discard = oncs & NVME_ONCS_DSM ? DISCARD_MAX : 0,
		.max_zeroes = oncs & NVME_ONCS_ZEROES
				      ? (uint32_t)MIN((uint64_t)ZEROES_BLOCKS << shift, DISCARD_MAX)
				      : 0,
		.max_iov = NVME_PIECES_MAX,
		.buf_align = 1,
		.boundary = (uint32_t)MIN((uint64_t)n->ns.boundary << shift, UINT32_MAX),
	};
	if (n->bdev.limits.boundary % (1u << shift))
		n->bdev.limits.boundary = 0; /* 4 GiB: none */
}

static int ns_create(const void *args, struct bdev **out, struct err *e)
{
	const struct ns_args *a = args;
	struct nvme_bdev *n = calloc(1, sizeof(*n));

	if (!n)
		return err_set(e, -ENOMEM, "Out of memory.");
	n->dev = a->dev;
	n->ns = a->ns;
	snprintf(n->name, sizeof(n->name), "%s", a->name);
	n->bdev.size = n->ns.blocks << n->ns.block_shift;
	n->bdev.block_size = 1u << n->ns.block_shift;
	n->bdev.physical_block_size = 1u << n->ns.physical_shift;
	n->bdev.readonly = n->ns.readonly;
	n->bdev.ctx_size = sizeof(struct nvme_io);
	n->bdev.has_doorbells = true;
	set_limits(n);
	registry_lock();
	list_add_tail(&n->dev->bdevs, &n->node);
	registry_unlock();
	*out = &n->bdev;
	return 0;
}

static void ns_destroy(struct bdev *b)
{
	struct nvme_bdev *n = to_nvme(b);

	registry_lock();
	list_del(&n->node);
	registry_unlock();
	free(n);
}

/* --- paths --- */

/* Under the device's lock. */
static struct nvme_path *path_find(struct nvme_device *dev, const struct reactor *r)
{
	struct nvme_path *p;

	list_for_each (p, &dev->paths, node)
		if (p->reactor == r)
			return p;
	return NULL;
}

static int path_open(struct nvme_device *dev, struct reactor *r, struct nvme_path **out,
		     struct err *e)
{
	struct nvme_path *p = aligned_alloc(CACHE_LINE, ROUND_UP(sizeof(*p), CACHE_LINE));
	struct nvme_ctrl *c = dev->ctrl;
	int rc;

	if (!p)
		return err_set(e, -ENOMEM, "Out of memory.");
	memset(p, 0, sizeof(*p));
	p->reactor = r;
	p->irq_fd = -1;
	rc = nvme_queue_open(c, &p->qp, e);
	if (rc)
		goto out_free;
	if (p->qp.id < c->vectors) {
		p->irq_fd = c->irq_fd[p->qp.id];
		p->mask = dev->hw->vector_control(dev->hw, p->qp.id);
	}
	rc = nvme_path_start(p);
	if (rc) {
		err_set(e, rc, "The interrupt cannot be waited for: %s.", err_words(rc));
		goto out_queue;
	}
	list_add_tail(&dev->paths, &p->node);
	*out = p;
	return 0;
out_queue:
	nvme_queue_close(c, &p->qp);
out_free:
	free(p);
	return rc;
}

static void path_close(struct nvme_device *dev, struct nvme_path *p)
{
	nvme_path_stop(p);
	list_del(&p->node);
	nvme_queue_close(dev->ctrl, &p->qp);
	free(p);
}

static int path_get(struct nvme_device *dev, struct reactor *r, struct nvme_path **out,
		    struct err *e)
{
	int rc = 0;

	reactor_mutex_lock(&dev->lock);
	*out = path_find(dev, r);
	if (!*out)
		rc = dev->state == NVME_LIVE
			     ? path_open(dev, r, out, e)
			     : err_set(e, -ENODEV, "Controller '%.80s' has failed or was removed.",
				       dev->args->name);
	if (rc == 0)
		(*out)->users++;
	pthread_mutex_unlock(&dev->lock);
	return rc;
}

static void path_put(struct nvme_device *dev, struct nvme_path *p)
{
	reactor_mutex_lock(&dev->lock);
	if (--p->users == 0)
		path_close(dev, p);
	pthread_mutex_unlock(&dev->lock);
}

static int ns_queue_open(struct bdev_queue *q, struct err *e)
{
	struct nvme_bdev *n = to_nvme(q->bdev);
	struct nvme_door *d = calloc(1, sizeof(*d));
	int rc;

	if (!d)
		return err_set(e, -ENOMEM, "Out of memory.");
	rc = path_get(n->dev, q->reactor, &d->path, e);
	if (rc) {
		free(d);
		return rc;
	}
	d->nsid = n->ns.nsid;
	d->block_shift = (uint8_t)n->ns.block_shift;
	d->flushes = n->dev->ctrl->write_cache;
	d->deallocate = n->ns.zeroes_deallocate;
	d->head[BDEV_READ] = NVME_READ | (uint64_t)n->ns.nsid << 32;
	d->head[BDEV_WRITE] = NVME_WRITE | (uint64_t)n->ns.nsid << 32;
	q->priv = d;
	return 0;
}

static void ns_queue_close(struct bdev_queue *q)
{
	struct nvme_door *d = q->priv;

	nvme_path_forget(d->path, q);
	path_put(to_nvme(q->bdev)->dev, d->path);
	free(d);
}

const struct bdev_driver nvme_driver = {
	.name = "nvme",
	.product_name = "NVMe disk",
	.help = "a namespace of an NVMe controller",
	.params = ns_params,
	.args_size = sizeof(struct ns_args),
	.create = ns_create,
	.destroy = ns_destroy,
	.queue_open = ns_queue_open,
	.queue_close = ns_queue_close,
	.submit = nvme_submit,
	.submit_one = nvme_submit_one,
	.reaches = nvme_path_reaches,
};

const struct nvme_ns *nvme_bdev_ns(const struct bdev *b)
{
	return &to_nvme(b)->ns;
}

/* --- namespaces that come, change and go --- */

/* What the namespace calls itself; else what follows from the drive and the number. */
static struct uuid uuid_of(const struct nvme_ctrl *c, const struct nvme_ns *ns)
{
	static const uint8_t none[16];
	uint64_t hash = 0xcbf29ce484222325; /* FNV-1a */
	struct uuid u;

	if (memcmp(ns->uuid, none, 16) != 0)
		memcpy(&u, ns->uuid, 16);
	else if (memcmp(ns->nguid, none, 16) != 0)
		memcpy(&u, ns->nguid, 16);
	else {
		for (const char *s = c->id.sn; s < c->id.fr; s++)
			hash = (hash ^ (uint8_t)*s) * 0x100000001b3;
		memcpy(&u, &hash, 8);
		hash = (hash ^ ns->nsid) * 0x100000001b3;
		memcpy((char *)&u + 8, &hash, 8);
	}
	return u;
}

static int ns_add(struct nvme_device *dev, uint32_t nsid, struct err *e)
{
	struct ns_args *a = calloc(1, sizeof(*a));
	int rc;

	if (!a)
		return err_set(e, -ENOMEM, "Out of memory.");
	rc = nvme_ns_identify(dev->ctrl, nsid, &a->ns, e);
	if (rc || asprintf(&a->name, "%sn%u", dev->args->name, nsid) < 0) {
		free(a);
		return rc ? rc : err_set(e, -ENOMEM, "Out of memory.");
	}
	a->uuid = uuid_of(dev->ctrl, &a->ns);
	a->dev = dev;
	return bdev_create(&nvme_driver, a, NULL, e);
}

static struct nvme_bdev *ns_find(struct nvme_device *dev, uint32_t nsid)
{
	struct nvme_bdev *n, *found = NULL;

	registry_lock();
	list_for_each (n, &dev->bdevs, node)
		if (n->ns.nsid == nsid && !n->bdev.gone)
			found = n;
	registry_unlock();
	return found;
}

static void ns_remove(struct nvme_bdev *n)
{
	log_warn("bdev %s: its namespace has gone; I/O to it fails from now on", n->name);
	bdev_set_gone(&n->bdev);
}

/* It is still there: has it grown or shrunk? */
static void ns_refresh(struct nvme_bdev *n)
{
	struct nvme_ns now;
	struct err e = { 0 };
	int rc = nvme_ns_identify(n->dev->ctrl, n->ns.nsid, &now, &e);

	if (rc == -ENODEV || (rc == 0 && now.block_shift != n->ns.block_shift)) {
		ns_remove(n);
	} else if (rc) {
		log_warn("bdev %s: %s", n->name, e.text);
		n->dev->missed = true;
	} else if (now.blocks != n->ns.blocks) {
		log_note("bdev %s: it has %" PRIu64 " blocks now, before %" PRIu64, n->name,
			 now.blocks, n->ns.blocks);
		n->ns.blocks = now.blocks;
		bdev_resize(&n->bdev, now.blocks << now.block_shift);
	}
}

static bool listed(const uint32_t *nsids, unsigned n, uint32_t nsid)
{
	for (unsigned i = 0; i < n; i++)
		if (nsids[i] == nsid)
			return true;
	return false;
}

static void refresh_all(struct nvme_device *dev, const uint32_t *nsids, unsigned count)
{
	struct nvme_bdev *n, *next;

	/* The list changes by this thread only. */
	list_for_each_safe (n, next, &dev->bdevs, node) {
		if (n->bdev.gone)
			continue;
		if (listed(nsids, count, n->ns.nsid))
			ns_refresh(n);
		else
			ns_remove(n);
	}
}

int nvme_rescan(struct nvme_device *dev, struct err *e)
{
	uint32_t *nsids;
	unsigned n;
	int rc = nvme_ns_list(dev->ctrl, &nsids, &n, e);

	dev->missed = false;
	if (rc)
		return rc;
	refresh_all(dev, nsids, n);
	nvme_bury(dev); /* whose names come back, perhaps */
	for (unsigned i = 0; i < n; i++) {
		struct err inner = { 0 };

		rc = ns_find(dev, nsids[i]) ? 0 : ns_add(dev, nsids[i], &inner);
		if (rc)
			log_warn("NVMe %s: %s", dev->args->name, inner.text);
		/* Of these another look says the same. */
		if (rc && rc != -ENODEV && rc != -ENOTSUP && rc != -EEXIST)
			dev->missed = true;
	}
	free(nsids);
	return 0;
}

bool nvme_bury(struct nvme_device *dev)
{
	struct nvme_bdev *n, *next;
	struct err e;
	bool buried = false;

	list_for_each_safe (n, next, &dev->bdevs, node)
		if (n->bdev.gone && bdev_delete(&nvme_driver, n->name, &e) == 0)
			buried = true;
	return buried;
}

void nvme_forsake(struct nvme_device *dev)
{
	struct nvme_bdev *n;

	list_for_each (n, &dev->bdevs, node)
		if (!n->bdev.gone)
			ns_remove(n);
	nvme_bury(dev);
}

/* --- all of a controller's --- */

int nvme_delete_bdevs(struct nvme_device *dev, struct err *e)
{
	struct nvme_bdev *n, *next;
	int rc = 0;

	list_for_each_safe (n, next, &dev->bdevs, node)
		if (rc == 0)
			rc = bdev_delete(&nvme_driver, n->name, e);
	return rc;
}

int nvme_bdev_names(struct nvme_device *dev, char ***names, unsigned *count, struct err *e)
{
	struct nvme_bdev *n;
	unsigned i = 0;

	registry_lock();
	list_for_each (n, &dev->bdevs, node)
		i++;
	*names = calloc(i + 1, sizeof(**names));
	*count = 0;
	list_for_each (n, &dev->bdevs, node)
		if (*names && ((*names)[*count] = strdup(n->name)))
			++*count;
	registry_unlock();
	return *names ? 0 : err_set(e, -ENOMEM, "Out of memory.");
}

const char *nvme_held(struct nvme_device *dev)
{
	const struct nvme_bdev *n;
	const char *found = NULL;

	registry_lock();
	list_for_each (n, &dev->bdevs, node)
		if (n->bdev.users)
			found = n->name;
	registry_unlock();
	return found;
}

struct nvme_device *nvme_bdev_device(const struct bdev *b)
{
	return to_nvme(b)->dev;
}
