/* Attach and detach controllers; their namespaces as bdevs. */
#include "backend/nvme.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "backend/nvme_device.h"
#include "bdev/registry.h"
#include "pci/sysfs.h"
#include "util/log.h"

/* Controllers that may have Write Zeroes of 16 bits' worth of blocks. */
#define ZEROES_BLOCKS 65536
/* Of Dataset Management: 32 bits' worth, as long as bytes fit a request. */
#define DISCARD_MAX (1u << 30)

const struct param nvme_attach_params[] = {
	PARAM_STRING(struct nvme_attach_args, traddr, .required = true, .positional = true,
		     .min = 1, .help = "PCI address: 0000:01:00.0"),
	PARAM_STRING(struct nvme_attach_args, name, .required = true, .min = 1, .max = 200,
		     .help = "name of the controller; its disks are NAMEn1, ..."),
	PARAM_STRING(struct nvme_attach_args, trtype, .required = true, .help = "PCIe"),
	PARAM_UINT(struct nvme_attach_args, num_io_queues, .max = NVME_QUEUES_MAX,
		   .help = "I/O queue pairs to ask for (default: one per reactor, and one)"),
	PARAM_UINT(struct nvme_attach_args, io_queue_entries, .max = NVME_ENTRIES_MAX,
		   .help = "entries of a queue (default: bdev_nvme_set_options')"),
	PARAM_BOOL(struct nvme_attach_args, noiommu,
		   .help = "take the device without the protection of an IOMMU"),
	PARAM_STRING(struct nvme_attach_args, adrfam, .obsolete = true),
	PARAM_STRING(struct nvme_attach_args, trsvcid, .obsolete = true),
	PARAM_STRING(struct nvme_attach_args, subnqn, .obsolete = true),
	PARAM_STRING(struct nvme_attach_args, hostnqn, .obsolete = true),
	PARAM_STRING(struct nvme_attach_args, multipath, .obsolete = true),
	PARAM_BOOL(struct nvme_attach_args, prchk_reftag, .fixed = true),
	PARAM_BOOL(struct nvme_attach_args, prchk_guard, .fixed = true),
	PARAM_INT(struct nvme_attach_args, ctrlr_loss_timeout_sec, .obsolete = true),
	PARAM_UINT(struct nvme_attach_args, reconnect_delay_sec, .obsolete = true),
	PARAM_UINT(struct nvme_attach_args, fast_io_fail_timeout_sec, .obsolete = true),
	PARAM_UINT(struct nvme_attach_args, max_bdevs, .obsolete = true),
	PARAM_BOOL(struct nvme_attach_args, allow_unrecognized_csi, .obsolete = true),
	{ 0 }
};

/* Guards what follows; taken before a device's own lock, and before the registry's. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct list devices = LIST_INIT(devices);
static struct nvme_settings settings = { .timeout_us = 30000000,
					 .timeout_admin_us = 30000000,
					 .io_queue_entries = 256 };

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
	if (p->qp->id < c->vectors) {
		p->irq_fd = c->irq_fd[p->qp->id];
		p->mask = dev->hw->vector_control(dev->hw, p->qp->id);
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
	nvme_queue_close(c, p->qp);
out_free:
	free(p);
	return rc;
}

static void path_close(struct nvme_device *dev, struct nvme_path *p)
{
	nvme_path_stop(p);
	list_del(&p->node);
	nvme_queue_close(dev->ctrl, p->qp);
	free(p);
}

static int path_get(struct nvme_device *dev, struct reactor *r, struct nvme_path **out,
		    struct err *e)
{
	int rc = 0;

	pthread_mutex_lock(&dev->lock);
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
	pthread_mutex_lock(&dev->lock);
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
	d->closed = n->gone;
	q->priv = d;
	return 0;
}

static void ns_queue_close(struct bdev_queue *q)
{
	struct nvme_door *d = q->priv;

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
		if (n->ns.nsid == nsid && !n->gone)
			found = n;
	registry_unlock();
	return found;
}

static void ns_remove(struct nvme_bdev *n)
{
	struct bdev_queue *q;

	log_warn("bdev %s: its namespace has gone; I/O to it fails from now on", n->name);
	registry_lock();
	n->gone = true;
	list_for_each (q, &n->bdev.queues, node)
		nvme_door_close(q->priv);
	registry_unlock();
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
		if (n->gone)
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

	if (rc)
		return rc;
	refresh_all(dev, nsids, n);
	nvme_bury(dev); /* whose names come back, perhaps */
	for (unsigned i = 0; i < n; i++) {
		struct err inner = { 0 };

		if (!ns_find(dev, nsids[i]) && ns_add(dev, nsids[i], &inner))
			log_warn("NVMe %s: %s", dev->args->name, inner.text);
	}
	free(nsids);
	return 0;
}

bool nvme_bury(struct nvme_device *dev)
{
	struct nvme_bdev *n, *next;
	struct err e;
	bool left = false;

	list_for_each_safe (n, next, &dev->bdevs, node)
		if (n->gone && bdev_delete(&nvme_driver, n->name, &e))
			left = true;
	return left;
}

void nvme_forsake(struct nvme_device *dev)
{
	struct nvme_bdev *n;

	list_for_each (n, &dev->bdevs, node)
		if (!n->gone)
			ns_remove(n);
	nvme_bury(dev);
}

/* --- attach --- */

static int check_args(struct nvme_attach_args *a, struct err *e)
{
	char bdf[PCI_BDF_MAX], *spelled;

	if (strcasecmp(a->trtype, "pcie") != 0)
		return err_field(e, -EINVAL, "trtype", a->trtype, "PCIe",
				 "Only PCIe devices can be attached; '%.40s' is not offered.",
				 a->trtype);
	if (!pci_bdf_parse(a->traddr, bdf))
		return err_field(
			e, -EINVAL, "traddr", a->traddr, "0000:01:00.0",
			"'%.60s' is no PCI address. `riffle list` shows those of all NVMe devices.",
			a->traddr);
	spelled = strdup(bdf);
	if (!spelled)
		return err_set(e, -ENOMEM, "Out of memory.");
	free(a->traddr);
	a->traddr = spelled;
	return 0;
}

static void args_free(struct nvme_attach_args *a)
{
	param_free(nvme_attach_params, a);
	free(a);
}

static void device_free(struct nvme_device *dev)
{
	if (dev->ctrl)
		nvme_ctrl_close(dev->ctrl);
	if (dev->hw)
		dev->hw_close(dev->hw);
	pthread_cond_destroy(&dev->reset_over);
	pthread_mutex_destroy(&dev->lock);
	args_free(dev->args);
	free(dev);
}

/* Under the lock. */
static struct nvme_device *find(const char *name)
{
	struct nvme_device *dev;

	list_for_each (dev, &devices, node)
		if (strcmp(dev->args->name, name) == 0)
			return dev;
	return NULL;
}

/* Its name and address are taken before the slow work begins. */
static int enlist(struct nvme_device *dev, struct err *e)
{
	const struct nvme_attach_args *a = dev->args;
	const struct nvme_device *other;
	int rc = 0;

	pthread_mutex_lock(&lock);
	if (find(a->name))
		rc = err_field(e, -EEXIST, "name", a->name, NULL,
			       "A controller named '%.80s' is attached already.", a->name);
	list_for_each (other, &devices, node)
		if (rc == 0 && strcmp(other->args->traddr, a->traddr) == 0)
			rc = err_field(e, -EEXIST, "traddr", a->traddr, NULL,
				       "%.40s is attached already, as '%.80s'.", a->traddr,
				       other->args->name);
	if (rc == 0) {
		list_add_tail(&devices, &dev->node);
		dev->users = 1; /* the attacher */
	}
	pthread_mutex_unlock(&lock);
	return rc;
}

static void delist(struct nvme_device *dev)
{
	pthread_mutex_lock(&lock);
	list_del(&dev->node);
	pthread_mutex_unlock(&lock);
}

static struct nvme_options options_of(const struct nvme_device *dev)
{
	struct nvme_settings s = nvme_settings_get();
	const struct nvme_attach_args *a = dev->args;
	uint64_t entries = a->io_queue_entries ? a->io_queue_entries : s.io_queue_entries;

	return (struct nvme_options){
		.queues = a->num_io_queues ? (unsigned)a->num_io_queues
					   : (unsigned)MAX(reactors_count(), 1) + 1,
		.entries = (unsigned)entries,
		.admin_timeout_ms = (unsigned)(s.timeout_admin_us / 1000),
	};
}

static void delete_bdevs(struct nvme_device *dev)
{
	struct nvme_bdev *n, *next;
	struct err e = { 0 };

	list_for_each_safe (n, next, &dev->bdevs, node)
		if (bdev_delete(&nvme_driver, n->name, &e))
			log_error("%s", e.text);
}

static int collect_names(struct nvme_device *dev, char ***names, unsigned *count, struct err *e)
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

static int start(struct nvme_device *dev, char ***names, unsigned *n, struct err *e)
{
	struct nvme_options o = options_of(dev);
	int rc = nvme_ctrl_open(dev->hw, &o, &dev->ctrl, e);

	if (rc)
		return rc;
	rc = nvme_rescan(dev, e);
	if (rc == 0)
		rc = collect_names(dev, names, n, e);
	if (rc == 0)
		rc = nvme_watch_start(dev, e);
	if (rc)
		delete_bdevs(dev);
	return rc;
}

static struct nvme_device *device_alloc(struct nvme_attach_args *args)
{
	struct nvme_device *dev = calloc(1, sizeof(*dev));

	if (!dev)
		return NULL;
	dev->args = args;
	dev->request_fd = dev->wake_fd = -1;
	dev->io_timeout_us = nvme_settings_get().timeout_us;
	list_init(&dev->paths);
	list_init(&dev->bdevs);
	pthread_mutex_init(&dev->lock, NULL);
	pthread_cond_init(&dev->reset_over, NULL);
	return dev;
}

/* hw is made by open once the name and the address are known to be free. */
static int attach(struct nvme_attach_args *args,
		  int (*open)(struct nvme_device *dev, void *arg, struct err *e), void *arg,
		  char ***names, unsigned *n, struct err *e)
{
	struct nvme_device *dev = device_alloc(args);
	int rc;

	if (!dev) {
		args_free(args);
		return err_set(e, -ENOMEM, "Out of memory.");
	}
	rc = enlist(dev, e);
	if (rc)
		goto out_free;
	rc = open(dev, arg, e);
	if (rc == 0)
		rc = start(dev, names, n, e);
	if (rc)
		goto out_delist;
	pthread_mutex_lock(&lock);
	dev->users--;
	pthread_mutex_unlock(&lock);
	return 0;
out_delist:
	delist(dev);
out_free:
	device_free(dev);
	return rc;
}

static int open_pci(struct nvme_device *dev, void *arg, struct err *e)
{
	(void)arg;
	dev->hw_close = nvme_pci_close;
	return nvme_pci_open(dev->args->traddr, dev->args->noiommu, &dev->hw, &dev->request_fd, e);
}

int nvme_attach(struct nvme_attach_args *args, char ***names, unsigned *n, struct err *e)
{
	int rc = check_args(args, e);

	if (rc) {
		args_free(args);
		return rc;
	}
	return attach(args, open_pci, NULL, names, n, e);
}

struct given_hw {
	struct nvme_hw *hw;
	void (*close)(struct nvme_hw *hw);
	int request_fd;
};

static int open_given(struct nvme_device *dev, void *arg, struct err *e)
{
	const struct given_hw *g = arg;

	(void)e;
	dev->hw = g->hw;
	dev->hw_close = g->close;
	dev->request_fd = g->request_fd;
	return 0;
}

int nvme_attach_hw(struct nvme_attach_args *args, struct nvme_hw *hw,
		   void (*hw_close)(struct nvme_hw *hw), int request_fd, char ***names, unsigned *n,
		   struct err *e)
{
	struct given_hw g = { hw, hw_close, request_fd };

	return attach(args, open_given, &g, names, n, e);
}

/* --- detach --- */

/* One of its bdevs that somebody holds; NULL: nobody does. */
static const struct nvme_bdev *held(struct nvme_device *dev)
{
	const struct nvme_bdev *n, *found = NULL;

	registry_lock();
	list_for_each (n, &dev->bdevs, node)
		if (n->bdev.users)
			found = n;
	registry_unlock();
	return found;
}

static int not_there(const char *name, struct err *e)
{
	return err_field(
		e, -ENODEV, "name", name, NULL,
		"There is no NVMe controller named '%.80s'. bdev_nvme_get_controllers lists them.",
		name);
}

/* It is off the list and its bdevs are free. */
static void detach(struct nvme_device *dev)
{
	nvme_watch_stop(dev);
	delete_bdevs(dev);
	device_free(dev);
}

int nvme_detach(const char *name, struct err *e)
{
	struct nvme_device *dev;
	const struct nvme_bdev *n;
	int rc = 0;

	pthread_mutex_lock(&lock);
	dev = find(name);
	if (!dev)
		rc = not_there(name, e);
	else if (dev->users)
		rc = err_set(e, -EBUSY, "'%.80s' is busy with another request; try again.", name);
	else if ((n = held(dev)))
		rc = err_field(
			e, -EBUSY, "name", name, NULL,
			"'%.80s' is in use. Delete the vhost controllers and bdevs that use it first.",
			n->name);
	else
		list_del(&dev->node);
	pthread_mutex_unlock(&lock);
	if (rc == 0)
		detach(dev);
	return rc;
}

void nvme_detach_all(void)
{
	for (;;) {
		struct nvme_device *dev = NULL;

		pthread_mutex_lock(&lock);
		if (!list_empty(&devices)) {
			dev = list_entry(devices.prev, struct nvme_device, node);
			list_del(&dev->node);
		}
		pthread_mutex_unlock(&lock);
		if (!dev)
			return;
		detach(dev);
	}
}

/* --- looking, resetting --- */

/* It cannot go until put() is called. */
static int get(const char *name, struct nvme_device **out, struct err *e)
{
	struct nvme_device *dev;

	pthread_mutex_lock(&lock);
	dev = find(name);
	if (dev && !dev->watched)
		dev = NULL; /* not attached yet */
	if (dev)
		dev->users++;
	pthread_mutex_unlock(&lock);
	if (!dev)
		return not_there(name, e);
	*out = dev;
	return 0;
}

static void put(struct nvme_device *dev)
{
	pthread_mutex_lock(&lock);
	dev->users--;
	pthread_mutex_unlock(&lock);
}

int nvme_reset(const char *name, struct err *e)
{
	struct nvme_device *dev;
	int rc = get(name, &dev, e);

	if (rc)
		return rc;
	rc = nvme_watch_reset(dev, e);
	put(dev);
	return rc;
}

static struct nvme_info info_of(const struct nvme_device *dev)
{
	return (struct nvme_info){ .name = dev->args->name,
				   .bdf = dev->hw_close == nvme_pci_close ? dev->args->traddr
									  : NULL,
				   .args = dev->args,
				   .state = dev->state,
				   .mends = dev->mends,
				   .ctrl = dev->ctrl };
}

void nvme_bdev_look(const struct bdev *b, int (*fn)(const struct nvme_info *i, void *arg),
		    void *arg)
{
	struct nvme_info i = info_of(to_nvme(b)->dev);

	fn(&i, arg);
}

int nvme_with(const char *name,
	      int (*fn)(const struct nvme_info *i, struct nvme_ctrl *c, void *arg, struct err *e),
	      void *arg, struct err *e)
{
	struct nvme_device *dev;
	struct nvme_info i;
	int rc = get(name, &dev, e);

	if (rc)
		return rc;
	i = info_of(dev);
	rc = fn(&i, dev->ctrl, arg, e);
	put(dev);
	return rc;
}

int nvme_for_each(const char *name, int (*fn)(const struct nvme_info *i, void *arg), void *arg,
		  struct err *e)
{
	struct nvme_device *dev;
	int rc = 0;

	pthread_mutex_lock(&lock);
	if (name && !find(name))
		rc = not_there(name, e);
	list_for_each (dev, &devices, node) {
		struct nvme_info i = info_of(dev);

		if (rc || !dev->watched || (name && strcmp(name, i.name) != 0))
			continue;
		rc = fn(&i, arg);
	}
	pthread_mutex_unlock(&lock);
	return rc;
}

struct nvme_settings nvme_settings_get(void)
{
	struct nvme_settings s;

	pthread_mutex_lock(&lock);
	s = settings;
	pthread_mutex_unlock(&lock);
	return s;
}

int nvme_settings_set(const struct nvme_settings *s, struct err *e)
{
	if (s->io_queue_entries < NVME_ENTRIES_MIN || s->io_queue_entries > NVME_ENTRIES_MAX)
		return err_field(e, -EINVAL, "io_queue_entries", NULL, "2 to 4096",
				 "A queue has 2 to 4096 entries.");
	pthread_mutex_lock(&lock);
	settings = *s;
	pthread_mutex_unlock(&lock);
	return 0;
}
