/*
 * The thread that watches one controller, and what it does about trouble, mildest first:
 *
 *	an I/O is late			Abort
 *	it is late all the same		its queue is deleted and made again
 *	that does not do, or the	the controller is disabled (by a function-level reset if
 *need controller reports CSTS.CFS	be) and brought up again or lies in a queue three times in
 *vain, or pulled	everything fails
 *
 * Requests that were outstanding on a queue that is gone are sent again once (nvme_path.c); nothing
 * completes before the device has been stopped.
 */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "backend/nvme_device.h"
#include "util/log.h"
#include "util/ticks.h"

#define LOOK_MS	    1000
#define RESETS_MAX  3
#define RESCANS_MAX 3

static const char *name_of(const struct nvme_device *dev)
{
	return dev->args->name;
}

/* --- the controller --- */

static void for_paths(struct nvme_device *dev, void (*fn)(struct nvme_path *p))
{
	struct nvme_path *p;

	list_for_each (p, &dev->paths, node)
		fn(p);
}

static int create_queues(struct nvme_device *dev, struct err *e)
{
	struct nvme_path *p;
	int rc = 0;

	list_for_each (p, &dev->paths, node)
		if (rc == 0)
			rc = nvme_queue_create(dev->ctrl, &p->qp, e);
	return rc;
}

/* Under the lock; paths are parked. */
static int reset_once(struct nvme_device *dev, struct err *e)
{
	int rc = nvme_ctrl_disable(dev->ctrl, e);

	if (rc)
		return rc;
	for_paths(dev, nvme_path_take_back);
	rc = nvme_ctrl_enable(dev->ctrl, e);
	return rc ? rc : create_queues(dev, e);
}

/* Under the lock. The device is given up: it must not do DMA when its requests end. */
static void give_up(struct nvme_device *dev, enum nvme_state state)
{
	struct err e = { 0 };

	if (state == NVME_FAILED && dev->hw->reset && dev->hw->reset(dev->hw, &e))
		log_error("NVMe %s: %s", name_of(dev), e.text);
	dev->state = state;
	for_paths(dev, nvme_path_fail);
}

/* Under the lock. */
static int reset(struct nvme_device *dev, const char *why, struct err *e)
{
	int rc = -EIO;

	if (dev->state != NVME_LIVE)
		return err_set(e, -ENODEV, "The controller has failed or was removed.");
	log_warn("NVMe %s: %s; resetting the controller", name_of(dev), why);
	dev->state = NVME_RESETTING;
	counter_add(&dev->mends.resets, 1);
	for_paths(dev, nvme_path_park);
	for (int i = 0; rc && rc != -ENODEV && i < RESETS_MAX; i++)
		rc = reset_once(dev, e);
	if (rc == -ENODEV || rc == -ENOTSUP) {
		log_error("NVMe %s: %s All I/O to it fails from now on.", name_of(dev), e->text);
		give_up(dev, NVME_REMOVED);
		return rc;
	}
	if (rc) {
		log_error("NVMe %s: it could not be reset: %s All I/O to it fails from now on.",
			  name_of(dev), e->text);
		give_up(dev, NVME_FAILED);
		return rc;
	}
	dev->state = NVME_LIVE;
	dev->rescans = RESCANS_MAX; /* it tells of no change that was before */
	for_paths(dev, nvme_path_resume);
	log_note("NVMe %s: the controller is back", name_of(dev));
	return 0;
}

static void removed(struct nvme_device *dev, const char *how)
{
	pthread_mutex_lock(&dev->lock);
	if (dev->state != NVME_REMOVED) {
		log_error("NVMe %s: %s; all I/O to it fails from now on", name_of(dev), how);
		give_up(dev, NVME_REMOVED);
	}
	pthread_mutex_unlock(&dev->lock);
	nvme_forsake(dev);
	if (!dev->hw)
		return;
	nvme_ctrl_let_go(dev->ctrl);
	dev->hw_close(dev->hw);
	dev->hw = NULL;
}

/* --- one path --- */

/* The second step: a new queue in the place of one whose commands do not end. */
static int rebuild(struct nvme_device *dev, struct nvme_path *p, struct err *e)
{
	int rc;

	log_warn("NVMe %s: I/O is late and was aborted in vain; making queue %u anew", name_of(dev),
		 p->qp.id);
	counter_add(&dev->mends.rebuilds, 1);
	nvme_path_park(p);
	rc = nvme_queue_delete(dev->ctrl, &p->qp, e);
	if (rc)
		return rc;
	nvme_path_take_back(p);
	rc = nvme_queue_create(dev->ctrl, &p->qp, e);
	if (rc == 0)
		nvme_path_resume(p);
	return rc;
}

static void abort_late(struct nvme_device *dev, struct nvme_path *p,
		       const struct nvme_path_look *look)
{
	struct err e = { 0 };

	for (unsigned i = 0; i < look->late_n; i++) {
		log_warn("NVMe %s: I/O on queue %u is late; aborting it", name_of(dev), p->qp.id);
		counter_add(&dev->mends.aborts, 1);
		if (nvme_abort(dev->ctrl, p->qp.id, look->late[i], &e))
			log_warn("NVMe %s: %s", name_of(dev), e.text);
	}
}

/* Under the lock. What a look at a path leads to; false: it takes a reset. */
static bool mend_path(struct nvme_device *dev, struct nvme_path *p, const char **why)
{
	uint64_t late = ticks_from_us(dev->io_timeout_us);
	struct nvme_path_look look = { .late_after = late, .very_late_after = late + late / 2 };
	struct err e = { 0 };

	nvme_path_watch(p, &look);
	if (look.interrupt_lost) {
		counter_add(&dev->mends.lost_interrupts, 1);
		log_warn(
			"NVMe %s: interrupts of queue %u do not arrive; its completions are found once a second",
			name_of(dev), p->qp.id);
	}
	*why = look.fault;
	if (look.fault)
		return false;
	abort_late(dev, p, &look);
	*why = "I/O is late, and a new queue is not to be had";
	return look.very_late == 0 || rebuild(dev, p, &e) == 0;
}

static void look_at_paths(struct nvme_device *dev)
{
	const char *why = NULL;
	struct nvme_path *p;
	struct err e = { 0 };
	bool well = true;

	pthread_mutex_lock(&dev->lock);
	list_for_each (p, &dev->paths, node)
		if (well && dev->state == NVME_LIVE)
			well = mend_path(dev, p, &why);
	if (!well)
		(void)reset(dev, why, &e);
	pthread_mutex_unlock(&dev->lock);
}

/* --- the thread --- */

static void reset_for(struct nvme_device *dev, const char *why)
{
	struct err e = { 0 };

	pthread_mutex_lock(&dev->lock);
	(void)reset(dev, why, &e);
	pthread_mutex_unlock(&dev->lock);
}

static void serve_reset(struct nvme_device *dev)
{
	pthread_mutex_lock(&dev->lock);
	if (dev->reset_wanted) {
		dev->reset_err = (struct err){ 0 };
		dev->reset_rc = reset(dev, "somebody asked for it", &dev->reset_err);
		dev->reset_wanted = false;
		pthread_cond_broadcast(&dev->reset_over);
	}
	pthread_mutex_unlock(&dev->lock);
}

static void tell_health(struct nvme_device *dev)
{
	struct nvme_smart_log log;
	struct err e = { 0 };

	/* Reading it is also what lets the next event come. */
	if (nvme_get_log(dev->ctrl, NVME_LOG_SMART, NVME_NSID_ALL, &log, sizeof(log), &e))
		log_warn("NVMe %s: %s", name_of(dev), e.text);
	else if (log.critical_warning)
		log_error(
			"NVMe %s: the drive warns of its health (critical warning 0x%02x); see riffle smart",
			name_of(dev), log.critical_warning);
}

/* Of which reading this log, too, lets the next one come. */
static void tell_errors(struct nvme_device *dev)
{
	struct nvme_error_entry newest;
	struct err e = { 0 };

	if (nvme_get_log(dev->ctrl, NVME_LOG_ERROR, NVME_NSID_ALL, &newest, sizeof(newest), &e))
		log_warn("NVMe %s: %s", name_of(dev), e.text);
	else
		log_error("NVMe %s: the controller reports an error of its own or of ours",
			  name_of(dev));
}

/* What the log says is of no interest, since all namespaces are looked at; but reading it lets the
 * next event come. */
static int read_changed(struct nvme_device *dev, struct err *e)
{
	le32 *changed;
	int rc;

	if (!(from_le32(dev->ctrl->id.oaes) & NVME_OAES_NS))
		return 0;
	changed = malloc(NVME_PAGE);
	rc = changed ? nvme_get_log(dev->ctrl, NVME_LOG_CHANGED_NS, NVME_NSID_ALL, changed,
				    NVME_PAGE, e)
		     : err_set(e, -ENOMEM, "Out of memory.");
	free(changed);
	return rc;
}

/* A look that missed something is taken again at the next occasion: no event would tell. */
static void rescan(struct nvme_device *dev)
{
	struct err e = { 0 };
	int rc = read_changed(dev, &e), list_rc;

	if (rc)
		log_warn("NVMe %s: %s", name_of(dev), e.text);
	list_rc = nvme_rescan(dev, &e);
	if (list_rc)
		log_warn("NVMe %s: its namespaces cannot be looked at: %s", name_of(dev), e.text);
	dev->rescans = rc || list_rc || dev->missed ? dev->rescans - 1 : 0;
}

static void look(struct nvme_device *dev)
{
	struct nvme_news news = { 0 };

	if (dev->state == NVME_LIVE)
		news = nvme_ctrl_poll(dev->ctrl);
	else
		dev->rescans = 0;
	if (news.gone || (dev->state == NVME_REMOVED && dev->hw))
		removed(dev, "it has vanished from the bus");
	else if (news.fatal)
		reset_for(dev, "it has failed or lost its state");
	if (news.gone || news.fatal)
		return;
	if (news.namespaces)
		dev->rescans = RESCANS_MAX;
	if (dev->rescans)
		rescan(dev);
	if (news.health)
		tell_health(dev);
	if (news.errors)
		tell_errors(dev);
	look_at_paths(dev);
	if (nvme_bury(dev))
		dev->rescans = RESCANS_MAX; /* its namespace may have returned under its name */
}

static void drain(int fd)
{
	uint64_t n;

	(void)!read(fd, &n, sizeof(n));
}

/* Several looks within the time that an I/O may take. */
static int look_ms(const struct nvme_device *dev)
{
	uint64_t ms = dev->io_timeout_us / 4000;

	return (int)MAX(MIN(ms, LOOK_MS), 10);
}

static void *watch(void *arg)
{
	struct nvme_device *dev = arg;
	int irq = dev->ctrl->vectors ? dev->ctrl->irq_fd[0] : -1;
	struct pollfd p[] = { { dev->wake_fd, POLLIN, 0 },
			      { irq, POLLIN, 0 },
			      { dev->request_fd, POLLIN, 0 } };

	while (!dev->stop) {
		int n = poll(p, ARRAY_SIZE(p), look_ms(dev));

		if (n > 0 && p[0].revents)
			drain(dev->wake_fd);
		if (n > 0 && p[1].revents)
			drain(irq);
		if (n > 0 && p[2].revents) {
			drain(dev->request_fd);
			p[2].fd = -1;
			removed(dev, "the system wants it back");
		}
		serve_reset(dev);
		look(dev);
	}
	return NULL;
}

int nvme_watch_start(struct nvme_device *dev, struct err *e)
{
	int rc;

	dev->stop = false;
	dev->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	rc = dev->wake_fd < 0 ? -errno : -pthread_create(&dev->thread, NULL, watch, dev);
	if (rc)
		return err_set(e, rc, "The controller cannot be watched: %s.", err_words(rc));
	dev->watched = true;
	pthread_setname_np(dev->thread, "nvme");
	return 0;
}

static void wake(struct nvme_device *dev)
{
	static const uint64_t one = 1;

	(void)!write(dev->wake_fd, &one, sizeof(one));
}

void nvme_watch_stop(struct nvme_device *dev)
{
	if (dev->watched) {
		dev->stop = true;
		wake(dev);
		pthread_join(dev->thread, NULL);
		dev->watched = false;
	}
	if (dev->wake_fd >= 0)
		close(dev->wake_fd);
	dev->wake_fd = -1;
}

int nvme_watch_reset(struct nvme_device *dev, struct err *e)
{
	int rc;

	pthread_mutex_lock(&dev->lock);
	dev->reset_wanted = true;
	wake(dev);
	while (dev->reset_wanted)
		pthread_cond_wait(&dev->reset_over, &dev->lock);
	rc = dev->reset_rc;
	if (rc)
		*e = dev->reset_err;
	pthread_mutex_unlock(&dev->lock);
	return rc;
}
