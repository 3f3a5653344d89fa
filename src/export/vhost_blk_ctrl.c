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
#include "export/vhost_blk.h"
#include "export/vhost_blk_queue.h"
#include "util/cpumask.h"
#include "util/log.h"
#include "util/sock.h"
#include "virtio/vhost_session.h"

#define QUEUES_DEFAULT	  16
#define WITHOUT_LIMIT_MAX (4u << 20) /* bytes of zeroes per range where the driver writes them */
#define RETIRE_MS	  50
#define REACTORS_MAX	  CPU_SETSIZE

struct vhost_blk {
	struct list node;
	struct vhost_blk_args *args;
	char *socket;
	struct bdev *bdev;
	cpu_set_t cpus;
	struct reactor **reactors; /* of cpus */
	unsigned reactors_n, first_reactor;
	struct vhost_blk_disk disk;
	struct virtio_blk_config config;

	/* The control thread's. */
	pthread_t thread;
	int listen_fd, stop_fd;
	struct vhost_session *session;
	struct vhost_blk_queue **queue; /* by ring */
	uint64_t features;
	bool write_through;

	/* Under the registry's lock. */
	bool connected, deleting;
	unsigned sessions;
};

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
	PARAM_BOOL(struct vhost_blk_args, packed_ring, .obsolete = true),
	PARAM_STRING(struct vhost_blk_args, transport, .obsolete = true),
	{ 0 }
};

static struct list controllers = LIST_INIT(controllers);
static char *folder;
static unsigned next_reactor; /* where the next controller begins to deal its queues */

void vhost_blk_set_folder(const char *path)
{
	free(folder);
	folder = strdup(path);
}

/* --- the device --- */

static int ring_start(void *device, struct virtq *vq, int kick_fd, struct err *e)
{
	struct vhost_blk *v = device;
	struct reactor *r = v->reactors[(v->first_reactor + vq->index) % v->reactors_n];
	struct vhost_blk_queue *q;
	int rc = vhost_blk_queue_start(v->bdev, &v->disk, vq, kick_fd, r, v->write_through, &q, e);

	if (rc)
		return rc;
	registry_lock(); /* those who list controllers look at queues under it */
	v->queue[vq->index] = q;
	registry_unlock();
	return 0;
}

static void ring_pause(void *device, struct virtq *vq)
{
	struct vhost_blk *v = device;

	vhost_blk_queue_pause(v->queue[vq->index]);
}

static void ring_resume(void *device, struct virtq *vq)
{
	struct vhost_blk *v = device;

	vhost_blk_queue_resume(v->queue[vq->index]);
}

static void ring_abandon(void *device, struct virtq *vq, void *scratch)
{
	struct vhost_blk *v = device;

	vhost_blk_queue_abandon(v->queue[vq->index], scratch);
}

static void ring_stop(void *device, struct virtq *vq)
{
	struct vhost_blk *v = device;
	struct vhost_blk_queue *q = v->queue[vq->index];

	registry_lock();
	v->queue[vq->index] = NULL;
	registry_unlock();
	vhost_blk_queue_stop(q, v->args->ctrlr);
}

/* 5.2.6.2: is a completed write durable at once? */
static void set_write_through(struct vhost_blk *v)
{
	bool flush = v->features & FEATURE(VIRTIO_BLK_F_FLUSH),
	     wce = v->features & FEATURE(VIRTIO_BLK_F_CONFIG_WCE);

	v->write_through = wce ? !v->config.writeback : !flush;
	for (uint64_t i = 0; i < v->args->num_queues; i++)
		if (v->queue[i])
			WRITE_ONCE(v->queue[i]->write_through, v->write_through);
}

static void features_set(void *device, uint64_t features)
{
	struct vhost_blk *v = device;

	v->features = features;
	if (features & FEATURE(VIRTIO_BLK_F_CONFIG_WCE) &&
	    !(features & FEATURE(VIRTIO_BLK_F_FLUSH)))
		v->config.writeback = 0;
	set_write_through(v);
}

static void config_get(void *device, uint32_t offset, void *data, uint32_t len)
{
	struct vhost_blk *v = device;
	uint8_t space[256] = { 0 };

	memcpy(space, &v->config, sizeof(v->config));
	memcpy(data, space + offset, len);
}

/* Only `writeback` can be written. */
static int config_set(void *device, uint32_t offset, const void *data, uint32_t len, struct err *e)
{
	struct vhost_blk *v = device;
	uint8_t value;

	if (offset != offsetof(struct virtio_blk_config, writeback) || len != 1)
		return err_set(
			e, -EINVAL,
			"only the writeback byte of the configuration space can be written, not %u "
			"bytes at %u",
			len, offset);
	memcpy(&value, data, 1);
	if (value > 1)
		return err_set(e, -EINVAL, "writeback is 0 or 1, not %u", value);
	v->config.writeback = value;
	set_write_through(v);
	return 0;
}

static const struct vhost_device_ops device_ops = {
	.ring_start = ring_start,
	.ring_pause = ring_pause,
	.ring_resume = ring_resume,
	.ring_abandon = ring_abandon,
	.ring_stop = ring_stop,
	.config_get = config_get,
	.config_set = config_set,
	.features_set = features_set,
};

static uint64_t device_features(const struct vhost_blk *v)
{
	uint64_t f = FEATURE(VIRTIO_BLK_F_SEG_MAX) | FEATURE(VIRTIO_BLK_F_BLK_SIZE) |
		     FEATURE(VIRTIO_BLK_F_FLUSH) | FEATURE(VIRTIO_BLK_F_TOPOLOGY) |
		     FEATURE(VIRTIO_BLK_F_CONFIG_WCE) | FEATURE(VIRTIO_BLK_F_MQ);

	if (v->disk.readonly)
		return f | FEATURE(VIRTIO_BLK_F_RO);
	if (v->disk.discard)
		f |= FEATURE(VIRTIO_BLK_F_DISCARD);
	if (v->disk.max_zeroes)
		f |= FEATURE(VIRTIO_BLK_F_WRITE_ZEROES);
	return f;
}

static void fill_disk(struct vhost_blk *v)
{
	const struct bdev *b = v->bdev;
	const char *serial = v->args->serial ? v->args->serial : v->args->ctrlr;

	v->disk.size = b->size;
	v->disk.readonly = v->args->readonly || b->readonly;
	v->disk.discard = b->limits.max_discard > 0;
	v->disk.max_discard = ROUND_DOWN(b->limits.max_discard, b->block_size);
	if (!b->limits.no_zeroes)
		v->disk.max_zeroes = b->limits.zeroes_unmap_only || !b->limits.max_zeroes
					     ? WITHOUT_LIMIT_MAX
					     : ROUND_DOWN(b->limits.max_zeroes, b->block_size);
	memcpy(v->disk.id, serial, strnlen(serial, sizeof(v->disk.id)));
}

static void fill_config(struct vhost_blk *v)
{
	const struct bdev *b = v->bdev;
	uint32_t sectors = b->block_size >> VIRTIO_BLK_SECTOR_SHIFT;

	v->config = (struct virtio_blk_config){
		.capacity = to_le64(b->size >> VIRTIO_BLK_SECTOR_SHIFT),
		.seg_max = to_le32(VHOST_BLK_SEG_MAX),
		.blk_size = to_le32(b->block_size),
		.topology.physical_block_exp =
			(uint8_t)__builtin_ctz(b->physical_block_size / b->block_size),
		.topology.min_io_size = to_le16((uint16_t)(b->physical_block_size / b->block_size)),
		.writeback = 1,
		.num_queues = to_le16((uint16_t)v->args->num_queues),
		.max_discard_sectors = to_le32(v->disk.max_discard >> VIRTIO_BLK_SECTOR_SHIFT),
		.max_discard_seg = to_le32(VHOST_BLK_RANGES),
		.discard_sector_alignment = to_le32(sectors),
		.max_write_zeroes_sectors = to_le32(v->disk.max_zeroes >> VIRTIO_BLK_SECTOR_SHIFT),
		.max_write_zeroes_seg = to_le32(VHOST_BLK_RANGES),
		.write_zeroes_may_unmap = v->disk.discard,
	};
}

/* --- the control thread --- */

/* One front-end at a time: another that connects meanwhile is turned away. */
static void turn_away(struct vhost_blk *v)
{
	int fd = accept4(v->listen_fd, NULL, NULL, SOCK_CLOEXEC);

	if (fd < 0)
		return;
	log_warn("%s: a second front-end was turned away: one is connected already",
		 v->args->ctrlr);
	close(fd);
}

/* Serve one front-end until it or we leave. true: we. */
static bool run_session(struct vhost_blk *v)
{
	bool held = false;

	for (;;) {
		int conn = vhost_session_fd(v->session);
		struct pollfd p[] = { { conn, POLLIN, 0 },
				      { v->stop_fd, POLLIN, 0 },
				      { v->listen_fd, POLLIN, 0 } };

		if (poll(p, ARRAY_SIZE(p), held ? RETIRE_MS : -1) < 0 && errno != EINTR)
			return false;
		if (p[1].revents)
			return true;
		/* First the one that is here: if it has gone, the other may come. */
		if (p[0].revents && vhost_session_step(v->session) < 0)
			return false;
		if (p[2].revents && !p[0].revents)
			turn_away(v);
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
		.features = device_features(v),
		.ops = &device_ops,
		.device = v,
	};
	bool stop;

	v->features = 0;
	v->config.writeback = 1;
	v->write_through = true;
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
	vhost_session_close(v->session, !stop);
	v->session = NULL;
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

	list_for_each (v, &controllers, node)
		if (strcmp(v->args->ctrlr, name) == 0)
			return v;
	return NULL;
}

static int choose_reactors(struct vhost_blk *v, struct err *e)
{
	char given[256], have_text[256];
	cpu_set_t have, both;
	int rc = 0;

	reactors_cpus(&have);
	v->cpus = have;
	if (v->args->cpumask && *v->args->cpumask)
		rc = cpumask_parse(v->args->cpumask, &v->cpus, e);
	if (rc)
		return rc;
	CPU_AND(&both, &v->cpus, &have);
	if (!CPU_EQUAL(&both, &v->cpus)) {
		cpumask_format(&v->cpus, given, sizeof(given));
		cpumask_format(&have, have_text, sizeof(have_text));
		return err_field(
			e, -EINVAL, "cpumask", given, have_text,
			"cpumask %s names CPUs without a reactor: this daemon has %s (riffle serve -m).",
			given, have_text);
	}
	v->reactors = calloc((size_t)reactors_count(), sizeof(struct reactor *));
	if (!v->reactors)
		return err_set(e, -ENOMEM, "Out of memory.");
	for (int i = 0; i < reactors_count(); i++)
		if (CPU_ISSET(reactor_cpu(reactors_at(i)), &v->cpus))
			v->reactors[v->reactors_n++] = reactors_at(i);
	return 0;
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
	if (v->bdev)
		bdev_put(v->bdev);
	if (v->stop_fd >= 0)
		close(v->stop_fd);
	if (v->listen_fd >= 0)
		close(v->listen_fd);
	param_free(vhost_blk_params, v->args);
	free(v->args);
	free(v->socket);
	free(v->reactors);
	free(v->queue);
	free(v);
}

static int prepare(struct vhost_blk *v, struct err *e)
{
	int rc = check_name(v->args->ctrlr, e);

	if (rc == 0)
		rc = choose_reactors(v, e);
	if (rc == 0)
		rc = bdev_get(v->args->dev_name, &v->bdev, e);
	if (rc)
		return rc;
	v->queue = calloc(v->args->num_queues, sizeof(struct vhost_blk_queue *));
	if (!v->queue || asprintf(&v->socket, "%s/%s", folder, v->args->ctrlr) < 0)
		return err_set(e, -ENOMEM, "Out of memory.");
	fill_disk(v);
	fill_config(v);
	v->stop_fd = eventfd(0, EFD_CLOEXEC);
	if (v->stop_fd < 0)
		return err_set(e, -errno, "Cannot make an eventfd: %s.", err_words(errno));
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
	static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
	int rc = 0;

	if (!v) {
		param_free(vhost_blk_params, args);
		free(args);
		return err_set(e, -ENOMEM, "Out of memory.");
	}
	v->args = args;
	v->listen_fd = v->stop_fd = -1;
	/* Nothing here is slow, so the name is kept free by doing one at a time. */
	pthread_mutex_lock(&one_at_a_time);
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
		v->first_reactor = next_reactor;
	if (rc == 0)
		rc = launch(v, e);
	if (rc == 0) {
		next_reactor += 1;
		registry_lock();
		list_add_tail(&controllers, &v->node);
		registry_unlock();
	}
	pthread_mutex_unlock(&one_at_a_time);
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

	registry_lock();
	v = find(name);
	if (!v)
		rc = err_field(
			e, -ENODEV, "ctrlr", name, NULL,
			"There is no controller named '%.80s'. vhost_get_controllers lists them.",
			name);
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
	return rc;
}

void vhost_blk_delete_all(void)
{
	struct vhost_blk *v;

	/* All at once, so that one with slow I/O does not keep the others waiting. */
	registry_lock();
	list_for_each (v, &controllers, node)
		stop_begin(v);
	registry_unlock();
	for (;;) {
		v = NULL;
		registry_lock();
		if (!list_empty(&controllers)) {
			v = list_entry(controllers.next, struct vhost_blk, node);
			list_del(&v->node);
		}
		registry_unlock();
		if (!v)
			return;
		stop_end(v);
	}
}

int vhost_blk_for_each(int (*fn)(const struct vhost_blk_info *info, void *arg), void *arg)
{
	struct vhost_blk *v;
	int rc = 0;

	registry_lock();
	list_for_each (v, &controllers, node) {
		struct vhost_blk_info info = {
			.args = v->args,
			.cpus = v->cpus,
			.socket = v->socket,
			.connected = v->connected,
			.session = v->sessions,
		};

		for (uint64_t i = 0; i < v->args->num_queues; i++) {
			info.rings_started += v->queue[i] != NULL;
			info.inflight += v->queue[i] ? READ_ONCE(v->queue[i]->inflight) : 0;
		}
		rc = fn(&info, arg);
		if (rc)
			break;
	}
	registry_unlock();
	return rc;
}
