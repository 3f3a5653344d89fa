/* The daemon that the cases run against, and the bystander. */
#define _GNU_SOURCE 1
#include "ring/ring.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SETTLE_MS     5000 /* for the daemon to close what a guest left */
#define FDS_SLACK     2
#define MAPS_SLACK    80 /* malloc arenas and cached thread stacks come and stay */
#define GUEST_MEMFD   "memfd:guest"
#define RSS_SLACK_KIB 24576 /* what malloc keeps of rings of 32768 */

static void bystander_fail(struct bystander *b, const char *what, int rc)
{
	snprintf(b->why, sizeof(b->why), "%s: %s", what,
		 rc < 0 ? strerror(-rc) : "not the status or the data it should be");
	b->failed = true;
}

static void bystander_round(struct bystander *b, struct guest *g)
{
	uint64_t sector = b->rounds * 8 % 8192, stamp[512], back[512];
	unsigned i;
	int rc;

	for (i = 0; i < 512; i++)
		stamp[i] = b->rounds * 512 + i;
	rc = guest_write(g, 0, sector, stamp, sizeof(stamp));
	if (rc)
		bystander_fail(b, "its write", rc);
	rc = guest_read(g, 0, sector, back, sizeof(back));
	if (rc || memcmp(stamp, back, sizeof(back)))
		bystander_fail(b, "its read", rc);
	b->rounds++;
}

static void *bystander_main(void *arg)
{
	struct bystander *b = arg;
	struct guest_params p = { .path = b->path, .mem_size = 1u << 20 };
	struct guest *g;
	int rc = guest_open(&p, &g);

	if (rc) {
		bystander_fail(b, "cannot open a guest", rc);
		return NULL;
	}
	while (!b->stop && !b->failed) {
		b->paused = b->pause;
		if (!b->pause)
			bystander_round(b, g);
		usleep(3000);
	}
	b->paused = true;
	guest_close(g);
	return NULL;
}

void ring_bystander_pause(struct ring_env *env, bool on)
{
	env->bystander.pause = on;
	while (env->bystander.paused != on && !env->bystander.failed)
		usleep(1000);
}

long ring_busy_percent(struct ring_test *t)
{
	struct daemon *d = &t->env->daemon;
	uint64_t start;
	long cpu;

	ring_bystander_pause(t->env, true);
	usleep(200000);
	start = vhost_now_ns();
	cpu = daemon_cpu_ms(d);
	usleep(500000);
	cpu = daemon_cpu_ms(d) - cpu;
	ring_bystander_pause(t->env, false);
	return cpu * 100 / (long)((vhost_now_ns() - start) / 1000000);
}

static bool make_file(const char *path, size_t size, int byte)
{
	uint8_t *buf = malloc(1 << 20);
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	bool ok = fd >= 0 && buf;
	size_t done;

	if (buf)
		memset(buf, byte, 1 << 20);
	for (done = 0; ok && done < size; done += 1 << 20)
		ok = write(fd, buf, 1 << 20) == 1 << 20;
	if (fd >= 0) {
		fsync(fd);
		close(fd);
	}
	free(buf);
	return ok;
}

static bool rpc_ok(struct ring_env *env, int rc, const char *what)
{
	if (rc)
		tap_diag("%s: riffle rpc ended with %d: %s", what, rc, env->daemon.reply);
	return rc == 0;
}

#define RPC(env, ...) rpc_ok(env, daemon_rpc(&(env)->daemon, __VA_ARGS__, NULL), #__VA_ARGS__)

static bool make_controller(struct ring_env *env, const char *name, const char *bdev,
			    const char *queues, bool packed, const char *extra)
{
	const char *ring = packed ? "packed_ring=true" : "packed_ring=false";
	char ctrlr[64], dev[64], num[64];

	snprintf(ctrlr, sizeof(ctrlr), "ctrlr=%s", name);
	snprintf(dev, sizeof(dev), "dev_name=%s", bdev);
	snprintf(num, sizeof(num), "num_queues=%s", queues);
	return RPC(env, "vhost_create_blk_controller", ctrlr, dev, num, ring, extra);
}

static bool make_file_disks(struct ring_env *env)
{
	char ro[256], arg[300];

	daemon_path(&env->daemon, "file.img", env->file, sizeof(env->file));
	daemon_path(&env->daemon, "ro.img", ro, sizeof(ro));
	if (!make_file(env->file, (size_t)RING_DISK_SECTORS * 512, 0) ||
	    !make_file(ro, (size_t)RING_RO_SECTORS * 512, RING_RO_BYTE)) {
		tap_diag("cannot make %s: %s", env->file, strerror(errno));
		return false;
	}
	snprintf(arg, sizeof(arg), "filename=%s", env->file);
	if (!RPC(env, "bdev_aio_create", "name=a_file", arg, "block_size=512"))
		return false;
	snprintf(arg, sizeof(arg), "filename=%s", ro);
	return RPC(env, "bdev_aio_create", "name=a_ro", arg, "block_size=512") &&
	       make_controller(env, RING_FILE, "a_file", "4", true, NULL) &&
	       make_controller(env, RING_RO, "a_ro", "1", true, "readonly=true");
}

static bool make_serials(struct ring_env *env)
{
	if (!RPC(env, "bdev_null_create", "name=n_s0", "num_blocks=2048", "block_size=512") ||
	    !RPC(env, "bdev_null_create", "name=n_s20", "num_blocks=2048", "block_size=512") ||
	    !RPC(env, "bdev_null_create", "name=n_s40", "num_blocks=2048", "block_size=512"))
		return false;
	env->serial40 =
		daemon_rpc(&env->daemon, "vhost_create_blk_controller", "ctrlr=" RING_SERIAL40,
			   "dev_name=n_s40", "serial=" RING_SERIAL RING_SERIAL, NULL) == 0;
	return make_controller(env, RING_NOSERIAL, "n_s0", "1", false, NULL) &&
	       make_controller(env, RING_SERIAL20, "n_s20", "1", true, "serial=" RING_SERIAL);
}

static bool make_disks(struct ring_env *env)
{
	return RPC(env, "bdev_malloc_create", "name=m_disk", "num_blocks=131072",
		   "block_size=512") &&
	       RPC(env, "bdev_malloc_create", "name=m_other", "num_blocks=16384",
		   "block_size=512") &&
	       RPC(env, "bdev_malloc_create", "name=m_slow", "num_blocks=16384",
		   "block_size=512") &&
	       RPC(env, "bdev_null_create", "name=n_null", "num_blocks=2097152",
		   "block_size=512") &&
	       RPC(env, "bdev_delay_create", "base_bdev_name=m_slow", "name=d_slow",
		   "avg_read_latency=300000", "p99_read_latency=300000", "avg_write_latency=300000",
		   "p99_write_latency=300000") &&
	       make_controller(env, RING_DISK, "m_disk", "4", true, NULL) &&
	       make_controller(env, RING_OTHER, "m_other", "1", false, NULL) &&
	       make_controller(env, RING_SLOW, "d_slow", "4", true, NULL) &&
	       make_controller(env, RING_NULL, "n_null", "4", true, NULL) && make_file_disks(env) &&
	       make_serials(env);
}

/* Touches all of the memory disk, so that its size is in the daemon's RSS from the start. */
static bool fill_disk(struct ring_env *env)
{
	struct guest_params p = { 0 };
	static uint8_t buf[1 << 20];
	char path[256];
	struct guest *g;
	uint64_t s;
	int rc;

	daemon_socket(&env->daemon, RING_DISK, path, sizeof(path));
	p.path = path;
	rc = guest_open(&p, &g);
	if (rc) {
		tap_diag("cannot open a guest on %s: %s", path, strerror(-rc));
		return false;
	}
	env->packed = g->offered & VIRTIO_RING_PACKED;
	memset(buf, 0x11, sizeof(buf));
	for (s = 0; !rc && s < RING_DISK_SECTORS; s += sizeof(buf) / 512)
		rc = guest_write(g, 0, s, buf, sizeof(buf));
	if (rc)
		tap_diag("cannot fill the memory disk: %d", rc);
	guest_close(g);
	return rc == 0;
}

bool ring_env_start(struct ring_env *env, const char *exe, const char *cpumask)
{
	int rc = daemon_start(&env->daemon, exe, cpumask, NULL);

	if (rc) {
		tap_diag("cannot start %s: %s", exe, strerror(-rc));
		return false;
	}
	env->long_run = daemon_long_run();
	env->sanitized = daemon_sanitized(&env->daemon);
	if (!make_disks(env) || !fill_disk(env)) {
		daemon_show_log(&env->daemon);
		daemon_stop(&env->daemon);
		return false;
	}
	daemon_socket(&env->daemon, RING_OTHER, env->bystander.path, sizeof(env->bystander.path));
	pthread_create(&env->bystander.thread, NULL, bystander_main, &env->bystander);
	usleep(300000);
	env->fds = daemon_fds(&env->daemon);
	env->guest_maps = daemon_maps(&env->daemon, GUEST_MEMFD);
	env->maps = daemon_maps(&env->daemon, "");
	env->rss_kib = daemon_rss_kib(&env->daemon);
	return true;
}

static void report_memory(struct ring_env *env)
{
	long rss = daemon_rss_kib(&env->daemon);
	char name[128];

	tap_diag("RSS %ld KiB at the start, %ld KiB at the end; bystander served %llu times",
		 env->rss_kib, rss, (unsigned long long)env->bystander.rounds);
	snprintf(name, sizeof(name), "memory of the daemon back to its start%s", env->label);
	if (!env->sanitized) /* it keeps freed memory */
		tap_result(rss > 0 && rss < env->rss_kib + RSS_SLACK_KIB, name);
}

/* UndefinedBehaviorSanitizer reports and goes on. */
static void report_sanitizer(struct ring_env *env)
{
	bool loud = daemon_log_has(&env->daemon, "runtime error:");
	char name[128];

	if (!env->sanitized)
		return;

	snprintf(name, sizeof(name), "the sanitizers have nothing to say%s", env->label);
	if (loud)
		daemon_show_log(&env->daemon);
	tap_result(!loud, name);
}

void ring_env_stop(struct ring_env *env, bool report)
{
	char name[128];
	int rc;

	env->bystander.stop = true;
	pthread_join(env->bystander.thread, NULL);
	if (report) {
		report_memory(env);
		report_sanitizer(env);
	}
	rc = daemon_stop(&env->daemon);
	if (rc)
		tap_diag("exit status %d", rc);
	if (!report)
		return;
	snprintf(name, sizeof(name), "SIGTERM ends the daemon with status 0%s", env->label);
	tap_result(rc == 0, name);
}

static void check_leaks(struct ring_env *env, struct ring_test *t)
{
	uint64_t deadline = vhost_now_ns() + SETTLE_MS * 1000000ull;
	int fds, guests, maps;

	do {
		fds = daemon_fds(&env->daemon);
		guests = daemon_maps(&env->daemon, GUEST_MEMFD);
		maps = daemon_maps(&env->daemon, "");
		if (fds <= env->fds + FDS_SLACK && guests <= env->guest_maps &&
		    (env->sanitized || maps <= env->maps + MAPS_SLACK))
			return;
		usleep(10000);
	} while (vhost_ms_left(deadline));
	ring_fail(t,
		  "after the guests closed, the daemon has %d fds, %d mappings of guest memory "
		  "and %d in all; it was %d, %d and %d",
		  fds, guests, maps, env->fds, env->guest_maps, env->maps);
	/* The next case is blamed for its own leaks only. */
	env->fds = fds;
	env->guest_maps = guests;
	env->maps = maps;
}

static void check_bystander(struct ring_env *env, struct ring_test *t)
{
	uint64_t deadline = vhost_now_ns() + SETTLE_MS * 1000000ull;
	struct bystander *b = &env->bystander;
	uint64_t before = b->rounds;

	while (!b->failed && b->rounds < before + 2 && vhost_ms_left(deadline))
		usleep(2000);
	if (b->failed)
		ring_fail(t, "the bystander: %s", b->why);
	if (!b->failed && b->rounds < before + 2) {
		snprintf(b->why, sizeof(b->why), "not served any more");
		b->failed = true;
		ring_fail(t, "the bystander is not served any more");
	}
}

void ring_env_settle(struct ring_env *env, struct ring_test *t)
{
	unsigned i;

	for (i = 0; i < t->nguests; i++)
		guest_close(t->guest[i]);
	t->nguests = 0;
	if (!daemon_alive(&env->daemon)) {
		ring_fail(t, "the daemon died");
		t->skip = NULL;
		return;
	}
	ring_bystander_pause(env, false);
	check_bystander(env, t);
	check_leaks(env, t);
}
