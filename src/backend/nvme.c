/* Controllers: attaching and detaching them, and looking at them by name. */
#include "backend/nvme.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "backend/nvme_device.h"
#include "backend/nvme_pci.h"
#include "pci/sysfs.h"
#include "util/log.h"

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

static int start(struct nvme_device *dev, char ***names, unsigned *n, struct err *e)
{
	struct nvme_options o = options_of(dev);
	int rc = nvme_ctrl_open(dev->hw, &o, &dev->ctrl, e);

	if (rc)
		return rc;
	rc = nvme_rescan(dev, e);
	if (rc == 0)
		rc = nvme_bdev_names(dev, names, n, e);
	if (rc == 0)
		rc = nvme_watch_start(dev, e);
	if (rc)
		(void)nvme_delete_bdevs(dev, NULL);
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

static int not_there(const char *name, struct err *e)
{
	return err_field(
		e, -ENODEV, "name", name, NULL,
		"There is no NVMe controller named '%.80s'. bdev_nvme_get_controllers lists them.",
		name);
}

/* Nobody finds it any more. */
static int detach(struct nvme_device *dev, struct err *e)
{
	int rc;

	nvme_watch_stop(dev);
	rc = nvme_delete_bdevs(dev, e);
	if (rc)
		return rc;
	pthread_mutex_lock(&lock);
	list_del(&dev->node);
	pthread_mutex_unlock(&lock);
	device_free(dev);
	return 0;
}

/* Somebody was quick and holds one of its bdevs: it stays as it was. */
static void stay(struct nvme_device *dev)
{
	struct err e = { 0 };

	dev->rescans = 1; /* for those that were deleted */
	if (nvme_watch_start(dev, &e))
		log_error("NVMe %s: %s", dev->args->name, e.text);
	pthread_mutex_lock(&lock);
	dev->leaving = false;
	pthread_mutex_unlock(&lock);
}

int nvme_detach(const char *name, struct err *e)
{
	struct nvme_device *dev;
	const char *user;
	int rc = 0;

	pthread_mutex_lock(&lock);
	dev = find(name);
	if (!dev)
		rc = not_there(name, e);
	else if (dev->users || dev->leaving)
		rc = err_set(e, -EBUSY, "'%.80s' is busy with another request; try again.", name);
	else if ((user = nvme_held(dev)))
		rc = err_field(
			e, -EBUSY, "name", name, NULL,
			"'%.80s' is in use. Delete the vhost controllers and bdevs that use it first.",
			user);
	else
		dev->leaving = true;
	pthread_mutex_unlock(&lock);
	if (rc)
		return rc;
	rc = detach(dev, e);
	if (rc)
		stay(dev);
	return rc;
}

void nvme_detach_all(void)
{
	for (;;) {
		struct nvme_device *dev = NULL;
		struct err e = { 0 };

		pthread_mutex_lock(&lock);
		if (!list_empty(&devices))
			dev = list_entry(devices.prev, struct nvme_device, node);
		if (dev)
			dev->leaving = true;
		pthread_mutex_unlock(&lock);
		if (!dev)
			return;
		if (detach(dev, &e)) {
			log_error("%s", e.text);
			return;
		}
	}
}

/* --- looking, resetting --- */

/* It cannot go until put() is called. */
static int get(const char *name, struct nvme_device **out, struct err *e)
{
	struct nvme_device *dev;

	pthread_mutex_lock(&lock);
	dev = find(name);
	if (dev && (!dev->watched || dev->leaving))
		dev = NULL; /* not attached yet, or no more */
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

/* The watcher counts meanwhile. */
static struct nvme_mends mends_of(const struct nvme_device *dev)
{
	const struct nvme_mends *m = &dev->mends;

	return (struct nvme_mends){ .aborts = READ_ONCE(m->aborts),
				    .rebuilds = READ_ONCE(m->rebuilds),
				    .resets = READ_ONCE(m->resets),
				    .lost_interrupts = READ_ONCE(m->lost_interrupts) };
}

static struct nvme_info info_of(const struct nvme_device *dev)
{
	return (struct nvme_info){ .name = dev->args->name,
				   .bdf = dev->hw_close == nvme_pci_close ? dev->args->traddr
									  : NULL,
				   .args = dev->args,
				   .state = dev->state,
				   .mends = mends_of(dev),
				   .ctrl = dev->ctrl };
}

void nvme_bdev_look(const struct bdev *b, int (*fn)(const struct nvme_info *i, void *arg),
		    void *arg)
{
	struct nvme_info i = info_of(nvme_bdev_device(b));

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
		struct nvme_info i;

		if (rc || !dev->watched || dev->leaving ||
		    (name && strcmp(name, dev->args->name) != 0))
			continue;
		i = info_of(dev);
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
