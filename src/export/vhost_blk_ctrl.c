/* Controllers: the disks, their sockets and their control threads. */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "bdev/registry.h"
#include "export/vhost_blk_ctrl.h"
#include "util/cpumask.h"
#include "util/log.h"
#include "util/sock.h"
#include "util/ticks.h"

#define QUEUES_DEFAULT \
	VHOST_RINGS_MAX /* QEMU asks for one per virtual CPU; unused ones cost nothing */
#define RETIRE_MS 50
#define MOVE_MS	  1000 /* how long a ring that is to move waits for its I/O, and for its session */

const struct param vhost_blk_params[] = {
	PARAM_STRING(struct vhost_blk_args, ctrlr, .required = true, .min = 1, .max = 90,
		     .help = "name of the controller and of its socket"),
	PARAM_STRING(struct vhost_blk_args, dev_name, .required = true, .min = 1,
		     .help = "the bdev to serve"),
	PARAM_STRING(struct vhost_blk_args, cpumask,
		     .help = "reactors that serve its queues, as 0x3 or [0,1] (default: all)"),
	PARAM_BOOL(struct vhost_blk_args, readonly, .help = "serve it read-only"),
	PARAM_STRING(
		struct vhost_blk_args, serial, .max = VIRTIO_BLK_ID_BYTES,
		.help = "serial number the guest sees, at most 20 bytes (default: the controller's name)"),
	PARAM_UINT(struct vhost_blk_args, num_queues, .min = 1, .max = VHOST_RINGS_MAX,
		   .def = QUEUES_DEFAULT, .help = "the most queues a guest may use"),
	PARAM_BOOL(
		struct vhost_blk_args, packed_ring,
		.help = "offer packed virtqueues, for guests that ask for them (QEMU: packed=on)"),
	PARAM_UINT(
		struct vhost_blk_args, poll_us, .max = 1000000, .def = VHOST_BLK_POLL_DAEMON,
		.top = "always",
		.help = "microseconds that an idle queue is polled at most; 0: always interrupts, "
			"always: never sleep (default: the daemon's)"),
	PARAM_STRING(struct vhost_blk_args, transport, .obsolete = true),
	{ 0 }
};

struct list vhost_blk_controllers = LIST_INIT(vhost_blk_controllers);
pthread_mutex_t vhost_blk_changing = PTHREAD_MUTEX_INITIALIZER;

static char *folder;
static unsigned controllers_made;

void vhost_blk_set_folder(const char *path)
{
	free(folder);
	folder = strdup(path);
}

/* --- the control thread --- */

/* One front-end at a time: another that connects meanwhile is turned away. */
static void turn_away(struct vhost_blk *v)
{
	int fd = accept4(v->listen_fd, NULL, NULL, SOCK_CLOEXEC);

	if (fd < 0) {
		usleep(10000); /* out of fds: it waits in the backlog */
		return;
	}
	log_warn("%s: a second front-end was turned away: one is connected already",
		 v->args->ctrlr);
	close(fd);
}

static int step(struct vhost_blk *v)
{
	int rc;

	pthread_mutex_lock(&v->session_lock);
	rc = vhost_session_step(v->session);
	pthread_mutex_unlock(&v->session_lock);
	return rc;
}

/* The bdev has a new size: the guest hears of it. */
static void resize(struct vhost_blk *v)
{
	uint64_t n;

	if (read(v->resized_fd, &n, sizeof(n)) < 0)
		return;
	pthread_mutex_lock(&v->session_lock);
	vhost_blk_device_resize(v);
	vhost_session_config_changed(v->session);
	pthread_mutex_unlock(&v->session_lock);
}

static void note_resized(struct bdev_watcher *w)
{
	static const uint64_t one = 1;
	struct vhost_blk *v = container_of(w, struct vhost_blk, watcher);

	(void)!write(v->resized_fd, &one, sizeof(one));
}

/* Serve one front-end until it or we leave. true: we. */
static bool run_session(struct vhost_blk *v)
{
	bool held = false;

	for (;;) {
		int conn = vhost_session_fd(v->session);
		struct pollfd p[] = { { conn, POLLIN, 0 },
				      { v->stop_fd, POLLIN, 0 },
				      { v->listen_fd, POLLIN, 0 },
				      { v->resized_fd, POLLIN, 0 } };

		if (poll(p, ARRAY_SIZE(p), held ? RETIRE_MS : -1) < 0 && errno != EINTR)
			return false;
		if (p[1].revents)
			return true;
		/* First the one that is here: if it has gone, the other may come. */
		if (p[0].revents && step(v) < 0)
			return false;
		if (p[2].revents && !p[0].revents)
			turn_away(v);
		if (p[3].revents)
			resize(v);
		held = vhost_session_retire(v->session);
	}
}

static bool set_connected(struct vhost_blk *v, bool connected)
{
	bool ok;

	registry_lock();
	ok = !connected || !v->deleting;
	if (ok)
		v->connected = connected;
	v->sessions += connected;
	registry_unlock();
	return ok;
}

/* true: we are to stop */
static bool serve(struct vhost_blk *v, int fd)
{
	struct vhost_session_config c = {
		.name = v->args->ctrlr,
		.rings = (unsigned)v->args->num_queues,
		.features = vhost_blk_device_features(v),
		.ops = &vhost_blk_device_ops,
		.device = v,
	};
	bool stop;

	v->features = 0;
	vhost_blk_device_resize(v);
	WRITE_ONCE(v->write_through, true);
	if (!set_connected(v, true)) {
		close(fd);
		return true;
	}
	if (vhost_session_open(fd, &c, &v->session) < 0) {
		log_error("%s: out of memory for a connection", v->args->ctrlr);
		close(fd);
		set_connected(v, false);
		return false;
	}
	log_note("%s: front-end connected", v->args->ctrlr);
	stop = run_session(v);
	pthread_mutex_lock(&v->session_lock);
	vhost_session_close(v->session, !stop);
	v->session = NULL;
	pthread_mutex_unlock(&v->session_lock);
	set_connected(v, false);
	log_note("%s: front-end disconnected", v->args->ctrlr);
	return stop;
}

static void *control_main(void *arg)
{
	struct vhost_blk *v = arg;

	for (bool stop = false; !stop;) {
		struct pollfd p[] = { { v->stop_fd, POLLIN, 0 }, { v->listen_fd, POLLIN, 0 } };
		int fd;

		if (poll(p, ARRAY_SIZE(p), -1) < 0 && errno != EINTR)
			break;
		if (p[0].revents)
			break;
		fd = p[1].revents ? accept4(v->listen_fd, NULL, NULL, SOCK_CLOEXEC) : -1;
		if (fd >= 0)
			stop = serve(v, fd);
		else if (p[1].revents)
			usleep(10000); /* out of fds: the front-end waits in the backlog */
	}
	return NULL;
}

/* --- create, delete --- */

static struct vhost_blk *find(const char *name)
{
	struct vhost_blk *v;

	list_for_each (v, &vhost_blk_controllers, node)
		if (strcmp(v->args->ctrlr, name) == 0)
			return v;
	return NULL;
}

static int not_found(const char *name, struct err *e)
{
	return err_field(e, -ENODEV, "ctrlr", name, NULL,
			 "There is no controller named '%.80s'. vhost_get_controllers lists them.",
			 name);
}

static int check_name(const char *name, struct err *e)
{
	if (strchr(name, '/') || strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
		return err_field(
			e, -EINVAL, "ctrlr", name, "a file name",
			"A controller's name is also the name of its socket: it may not have a '/'.");
	return 0;
}

static void vhost_blk_free(struct vhost_blk *v)
{
	if (v->watcher.resized)
		bdev_unwatch(&v->watcher);
	if (v->bdev)
		bdev_put(v->bdev);
	if (v->resized_fd >= 0)
		close(v->resized_fd);
	if (v->stop_fd >= 0)
		close(v->stop_fd);
	if (v->listen_fd >= 0)
		close(v->listen_fd);
	param_free(vhost_blk_params, v->args);
	free(v->args);
	free(v->socket);
	free(v->queue);
	pthread_mutex_destroy(&v->session_lock);
	free(v);
}

static int check_args(const struct vhost_blk_args *a, struct err *e)
{
	if (a->transport && *a->transport && strcasecmp(a->transport, "vhost_user_blk") != 0)
		return err_field(e, -EINVAL, "transport", a->transport, "vhost_user_blk",
				 "There is no transport '%.40s' here.", a->transport);
	return check_name(a->ctrlr, e);
}

static int prepare(struct vhost_blk *v, struct err *e)
{
	int rc = check_args(v->args, e);

	if (rc == 0)
		rc = bdev_get(v->args->dev_name, &v->bdev, e);
	if (rc == 0)
		rc = vhost_blk_choose_cpus(v, v->args->cpumask, &v->cpus, e);
	if (rc)
		return rc;
	v->queue = calloc(v->args->num_queues, sizeof(struct vhost_blk_queue *));
	if (!v->queue || asprintf(&v->socket, "%s/%s", folder, v->args->ctrlr) < 0)
		return err_set(e, -ENOMEM, "Out of memory.");
	vhost_blk_device_init(v);
	v->stop_fd = eventfd(0, EFD_CLOEXEC);
	v->resized_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (v->stop_fd < 0 || v->resized_fd < 0)
		return err_set(e, -errno, "Cannot make an eventfd: %s.", err_words(errno));
	v->watcher.resized = note_resized;
	bdev_watch(v->bdev, &v->watcher);
	return sock_listen(v->socket, &v->listen_fd, e);
}

static int launch(struct vhost_blk *v, struct err *e)
{
	char name[16];
	int rc = pthread_create(&v->thread, NULL, control_main, v);

	if (rc)
		return err_set(e, -rc, "Cannot start a thread for '%.80s': %s.", v->args->ctrlr,
			       err_words(rc));
	snprintf(name, sizeof(name), "vhost/%.9s", v->args->ctrlr);
	pthread_setname_np(v->thread, name);
	return 0;
}

int vhost_blk_create(struct vhost_blk_args *args, struct err *e)
{
	struct vhost_blk *v = calloc(1, sizeof(*v));
	int rc = 0;

	if (!v) {
		param_free(vhost_blk_params, args);
		free(args);
		return err_set(e, -ENOMEM, "Out of memory.");
	}
	v->args = args;
	v->listen_fd = v->stop_fd = v->resized_fd = -1;
	v->created = ticks();
	pthread_mutex_init(&v->session_lock, NULL);
	/* Nothing here is slow, so the name is kept free by doing one at a time. */
	pthread_mutex_lock(&vhost_blk_changing);
	registry_lock();
	if (find(args->ctrlr))
		rc = err_field(
			e, -EEXIST, "ctrlr", args->ctrlr, NULL,
			"A controller named '%.80s' exists already. Choose another name or delete it first.",
			args->ctrlr);
	registry_unlock();
	if (rc == 0)
		rc = prepare(v, e);
	if (rc == 0)
		v->id = (unsigned)reactors_count() + ++controllers_made;
	if (rc == 0)
		rc = launch(v, e);
	if (rc == 0) {
		registry_lock();
		list_add_tail(&vhost_blk_controllers, &v->node);
		registry_unlock();
	}
	pthread_mutex_unlock(&vhost_blk_changing);
	if (rc) {
		if (v->listen_fd >= 0)
			unlink(v->socket);
		vhost_blk_free(v);
	}
	return rc;
}

/* Begin to stop: nobody new can connect, and the control thread is told. */
static void stop_begin(struct vhost_blk *v)
{
	static const uint64_t one = 1;

	v->deleting = true;
	unlink(v->socket);
	if (write(v->stop_fd, &one, sizeof(one)) < 0)
		log_error("%s: cannot be told to stop: %s", v->args->ctrlr, err_words(errno));
}

static void stop_end(struct vhost_blk *v)
{
	pthread_join(v->thread, NULL);
	vhost_blk_free(v);
}

int vhost_blk_delete(const char *name, struct err *e)
{
	struct vhost_blk *v;
	int rc = 0;

	pthread_mutex_lock(&vhost_blk_changing);
	registry_lock();
	v = find(name);
	if (!v)
		rc = not_found(name, e);
	else if (v->connected)
		rc = err_field(
			e, -EBUSY, "ctrlr", name, NULL,
			"A virtual machine is connected to '%.80s'. Unplug the disk or stop the machine first.",
			name);
	else {
		stop_begin(v);
		list_del(&v->node);
	}
	registry_unlock();
	if (rc == 0)
		stop_end(v);
	pthread_mutex_unlock(&vhost_blk_changing);
	return rc;
}

void vhost_blk_delete_all(void)
{
	struct vhost_blk *v;

	/* All at once, so that one with slow I/O does not keep the others waiting. */
	registry_lock();
	list_for_each (v, &vhost_blk_controllers, node)
		stop_begin(v);
	registry_unlock();
	pthread_mutex_lock(&vhost_blk_changing);
	do {
		v = NULL;
		registry_lock();
		if (!list_empty(&vhost_blk_controllers)) {
			v = list_entry(vhost_blk_controllers.next, struct vhost_blk, node);
			if (!v->deleting) /* made since then */
				stop_begin(v);
			list_del(&v->node);
		}
		registry_unlock();
		if (v)
			stop_end(v);
	} while (v);
	pthread_mutex_unlock(&vhost_blk_changing);
}

/* --- what others see --- */

static void describe_ring(const struct vhost_blk_queue *q, struct vhost_blk_ring_info *r)
{
	memset(r, 0, sizeof(*r));
	r->index = q->vq->index;
	r->reactor = READ_ONCE(q->reactor);
	r->polled = READ_ONCE(q->poller.state) == POLLER_POLLED;
	r->size = q->vq->num;
	r->inflight = READ_ONCE(q->inflight);
	r->patience = READ_ONCE(q->poller.patience.now);
	r->polled_turns = poller_turns(&q->poller, r->reactor);
	vhost_blk_totals_add(&r->totals, q);
}

/* rings: room for all that there may be. */
static void describe(const struct vhost_blk *v, struct vhost_blk_ring_info *rings,
		     struct vhost_blk_info *info)
{
	*info = (struct vhost_blk_info){
		.id = v->id,
		.created = v->created,
		.args = v->args,
		.cpus = v->cpus,
		.socket = v->socket,
		.connected = v->connected,
		.session = v->sessions,
		.write_through = READ_ONCE(v->write_through),
		.rings = rings,
		.totals = v->gone,
	};
	for (uint64_t i = 0; i < v->args->num_queues; i++) {
		if (!v->queue[i])
			continue;
		describe_ring(v->queue[i], &rings[info->rings_started]);
		info->inflight += rings[info->rings_started++].inflight;
		vhost_blk_totals_add(&info->totals, v->queue[i]);
	}
}

int vhost_blk_for_each(int (*fn)(const struct vhost_blk_info *info, void *arg), void *arg)
{
	struct vhost_blk_ring_info rings[VHOST_RINGS_MAX];
	struct vhost_blk *v;
	int rc = 0;

	registry_lock();
	list_for_each (v, &vhost_blk_controllers, node) {
		struct vhost_blk_info info;

		describe(v, rings, &info);
		rc = fn(&info, arg);
		if (rc)
			break;
	}
	registry_unlock();
	return rc;
}

/* --- where its rings run --- */

/* Under the session's lock, so that no ring starts by the old mask and is overlooked. */
static int replace_cpumask(struct vhost_blk *v, const char *cpumask, struct err *e)
{
	char *copy = cpumask && *cpumask ? strdup(cpumask) : NULL;
	cpu_set_t cpus;
	int rc = vhost_blk_choose_cpus(v, cpumask, &cpus, e);

	if (rc == 0 && cpumask && *cpumask && !copy)
		rc = err_set(e, -ENOMEM, "Out of memory.");
	if (rc == 0)
		rc = vhost_blk_session_lock(v, MOVE_MS, e);
	if (rc) {
		free(copy);
		return rc;
	}
	registry_lock();
	v->cpus = cpus;
	free(v->args->cpumask);
	v->args->cpumask = copy;
	registry_unlock();
	pthread_mutex_unlock(&v->session_lock);
	return 0;
}

static struct vhost_blk *find_locked(const char *name)
{
	struct vhost_blk *v;

	registry_lock();
	v = find(name);
	registry_unlock();
	return v;
}

/* Move one ring that should be elsewhere. false: there is none; *rc is what came of it. */
static bool move_one(const char *name, bool *tried, int *rc, struct err *e)
{
	struct vhost_blk *v;
	struct reactor *to;
	struct err again;
	unsigned ring;
	int moved;

	pthread_mutex_lock(&vhost_blk_changing);
	v = find_locked(name);
	to = v ? vhost_blk_misplaced(v, tried, &ring) : NULL;
	if (to) {
		moved = vhost_blk_move_ring(v, ring, to, MOVE_MS, *rc ? &again : e);
		tried[ring] = moved != 0;
		*rc = *rc ? *rc : moved;
	}
	pthread_mutex_unlock(&vhost_blk_changing);
	return to != NULL;
}

int vhost_blk_set_cpumask(const char *name, const char *cpumask, struct err *e)
{
	bool tried[VHOST_RINGS_MAX] = { false };
	struct vhost_blk *v;
	int rc;

	pthread_mutex_lock(&vhost_blk_changing);
	v = find_locked(name);
	rc = v ? replace_cpumask(v, cpumask, e) : not_found(name, e);
	pthread_mutex_unlock(&vhost_blk_changing);
	if (rc)
		return rc;
	/* One at a time, so that others who wait for the lock come in between; and no longer than
	 * rings that start meanwhile could make it. */
	for (unsigned i = 0; i < 2 * VHOST_RINGS_MAX; i++)
		if (!move_one(name, tried, &rc, e))
			break;
	return rc;
}
