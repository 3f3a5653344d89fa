/*
 * scale QUEUES REACTORS SECONDS: one null disk with so many queues on so many reactors. Prints the
 * IOPS.
 *
 * The rings are served by the daemon's own code; their driver is a poller on the same reactor, so
 * that no client is the limit and nothing but the work itself crosses from one reactor to another.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backend/list.h"
#include "bdev/registry.h"
#include "bench/driver.h"
#include "ctl/drivers.h"
#include "export/vhost_blk_queue.h"
#include "util/log.h"
#include "virtio/guest_mem.h"

#define QUEUES_MAX 64
#define DEPTH	   128

struct lane {
	struct driver driver;
	struct poller poller;
	struct virtq *vq;
	struct guest_mem *guest;
	struct vhost_blk_queue *queue;
	struct reactor *reactor;
	uint64_t done; /* written by the reactor */
};

static struct lane lanes[QUEUES_MAX];
static const struct vhost_blk_disk disk = { .id = "scale" };

/* The driver: each head is given back as soon as it comes. */
static unsigned drive(struct poller *p)
{
	struct lane *l = container_of(p, struct lane, poller);
	unsigned n = vring_used_n(&l->driver.ring);

	for (unsigned i = 0; i < n; i++)
		driver_send(&l->driver, driver_take(&l->driver));
	driver_publish(&l->driver);
	WRITE_ONCE(l->done, l->done + n);
	return n;
}

static int start_here(void *arg)
{
	struct lane *l = arg;

	for (uint16_t i = 0; i < DEPTH; i++)
		driver_send(&l->driver, i);
	driver_publish(&l->driver);
	l->poller = (struct poller){ .fn = drive, .patience.most = POLL_ALWAYS };
	poller_add(&l->poller);
	return 0;
}

static int stop_here(void *arg)
{
	poller_del(&((struct lane *)arg)->poller);
	return 0;
}

static void lane_start(struct lane *l, struct bdev *b, struct reactor *r)
{
	struct guest_range range = { 0 };
	struct virtq_setup setup = { .num = DRIVER_NUM };
	struct err e = { 0 };

	l->reactor = r;
	driver_init(&l->driver);
	range.gpa = range.user_addr = (uintptr_t)l->driver.ring.desc;
	range.size = l->driver.size;
	setup.desc_user = (uintptr_t)l->driver.ring.desc;
	setup.avail_user = (uintptr_t)l->driver.ring.avail;
	setup.used_user = (uintptr_t)l->driver.ring.used;
	if (guest_mem_map(&range, &l->driver.fd, 1, 1, &l->guest, &e) ||
	    virtq_create(&setup, &l->vq) || virtq_map(l->vq, &setup, l->guest, &e) ||
	    virtq_begin(l->vq, &setup, NULL, &e) ||
	    vhost_blk_queue_start(b, &disk, l->vq, -1, r, POLL_ALWAYS, false, &l->queue, &e))
		driver_die(e.text);
	reactor_call(r, start_here, l);
}

static void lane_stop(struct lane *l)
{
	reactor_call(l->reactor, stop_here, l);
	vhost_blk_queue_stop(l->queue, "scale");
	virtq_destroy(l->vq);
	guest_mem_destroy(l->guest);
}

static uint64_t all_done(unsigned queues)
{
	uint64_t sum = 0;

	for (unsigned i = 0; i < queues; i++)
		sum += READ_ONCE(lanes[i].done);
	return sum;
}

static struct bdev *make_disk(void)
{
	const struct bdev_driver *d = driver_find("null");
	void *args = calloc(1, d->args_size);
	struct err e = { 0 };
	struct bdev *b;

	param_defaults(d->params, args);
	if (param_parse_spec(d->params, args, "name=scale,size=1G,block_size=512", &e) ||
	    bdev_create(d, args, NULL, &e) || bdev_get("scale", &b, &e))
		driver_die(e.text);
	return b;
}

/* The first so many CPUs that we may use. */
static void start_reactors(unsigned n)
{
	cpu_set_t allowed, set;
	struct err e = { 0 };

	sched_getaffinity(0, sizeof(allowed), &allowed);
	CPU_ZERO(&set);
	for (int cpu = 0; cpu < CPU_SETSIZE && n > 0; cpu++) {
		if (!CPU_ISSET(cpu, &allowed))
			continue;
		CPU_SET(cpu, &set);
		n--;
	}
	if (n > 0)
		driver_die("there are not so many CPUs");
	if (reactors_start(&set, &e))
		driver_die(e.text);
}

int main(int argc, char **argv)
{
	unsigned queues = argc == 4 ? (unsigned)atoi(argv[1]) : 0,
		 reactors = argc == 4 ? (unsigned)atoi(argv[2]) : 0;
	double seconds = argc == 4 ? atof(argv[3]) : 0;
	struct bdev *b;
	uint64_t before;

	log_set_level(LOG_ERROR);
	if (queues < 1 || queues > QUEUES_MAX || reactors < 1 || !(seconds > 0))
		driver_die("usage: scale QUEUES REACTORS SECONDS");
	start_reactors(reactors);
	b = make_disk();
	for (unsigned i = 0; i < queues; i++)
		lane_start(&lanes[i], b, reactors_at((int)(i % reactors)));
	usleep(200000); /* to warm up */
	before = all_done(queues);
	usleep((useconds_t)(seconds * 1e6));
	printf("%.0f\n", (double)(all_done(queues) - before) / seconds);
	for (unsigned i = 0; i < queues; i++)
		lane_stop(&lanes[i]);
	bdev_put(b);
	bdev_delete_all();
	reactors_stop();
	return 0;
}
