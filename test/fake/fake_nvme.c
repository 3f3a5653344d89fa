/* A fake controller as a whole: made, turned, handed to a driver. */
#include "fake/fake_nvme_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define BAR_LEAST     (16u << 10)
#define SETTLE_MOST   1000
#define IDLE_SPINS    64 /* turns without work before the thread sleeps in between */
#define IDLE_SLEEP_US 30

struct fake_nvme_config fake_nvme_defaults(void)
{
	return (struct fake_nvme_config){
		.mqes = 1023,
		.to = 10,
		.css = 0x01,
		.mpsmax = 4,
		.vs = 0x00010400,
		.serial = "FAKE0001",
		.model = "Riffle fake NVMe",
		.firmware = "1.0",
		.mdts = 5,
		.acl = 3,
		.aerl = 3,
		.elpe = 15,
		.sqes = 0x66,
		.cqes = 0x44,
		.cntrltype = 1,
		.vwc = true,
		.oacs = WIRE_OACS_FORMAT,
		.oncs = WIRE_ONCS_COMPARE | WIRE_ONCS_DSM | WIRE_ONCS_ZEROES | WIRE_ONCS_VERIFY,
		.oaes = WIRE_OAES_NS,
		.nn = 16,
		.vectors = 9,
		.io_sqs = 8,
		.io_cqs = 8,
		.dbbuf_patience = 4,
		.cmb_for = 0x1f,
		.ns = { { .nsid = 1, .blocks = 32768, .lbads = 9, .dlfeat = 1 } },
		.ns_n = 1,
	};
}

/* ---- the lock, and what is noted under it ---- */

void fake_lock(struct fake_nvme *f)
{
	__atomic_add_fetch(&f->waiting, 1, __ATOMIC_RELAXED);
	pthread_mutex_lock(&f->lock);
	__atomic_sub_fetch(&f->waiting, 1, __ATOMIC_RELAXED);
}

void fake_unlock(struct fake_nvme *f)
{
	pthread_mutex_unlock(&f->lock);
}

void fault(struct fake_nvme *f, const char *fmt, ...)
{
	va_list ap;

	if (f->stats.faults < FAULTS_KEPT) {
		va_start(ap, fmt);
		vsnprintf(f->fault[f->stats.faults], FAKE_NVME_TEXT, fmt, ap);
		va_end(ap);
	}
	f->stats.faults++;
}

/* ---- turns ---- */

static unsigned turn(struct fake_nvme *f)
{
	unsigned n;

	f->stats.turns++;
	n = regs_turn(f);
	n += doorbells_turn(f);
	n += fetch_turn(f);
	n += script_turn(f);
	n += events_turn(f);
	n += post_turn(f);
	n += vectors_turn(f);
	hmb_turn(f);
	return n;
}

unsigned fake_nvme_turn(struct fake_nvme *f)
{
	unsigned n;

	fake_lock(f);
	n = turn(f);
	fake_unlock(f);
	return n;
}

unsigned fake_nvme_settle(struct fake_nvme *f)
{
	unsigned all = 0, n = 1;

	for (unsigned i = 0; n && i < SETTLE_MOST; i++)
		all += n = fake_nvme_turn(f);
	return all;
}

/* Mutexes are not fair: whoever waits for it is let through. */
static void step_aside(struct fake_nvme *f, unsigned idle)
{
	while (READ_ONCE(f->waiting))
		sched_yield();
	if (idle > IDLE_SPINS)
		usleep(IDLE_SLEEP_US);
	else if (idle)
		sched_yield();
}

static void *run_thread(void *arg)
{
	struct fake_nvme *f = arg;
	unsigned idle = 0;

	while (!load_acquire(&f->stop)) {
		pthread_mutex_lock(&f->lock);
		idle = turn(f) ? 0 : idle + 1;
		pthread_mutex_unlock(&f->lock);
		step_aside(f, idle);
	}
	return NULL;
}

int fake_nvme_start(struct fake_nvme *f)
{
	if (f->threaded)
		return 0;
	store_release(&f->stop, false);
	if (pthread_create(&f->thread, NULL, run_thread, f))
		return -EAGAIN;
	f->threaded = true;
	return 0;
}

void fake_nvme_stop(struct fake_nvme *f)
{
	if (!f->threaded)
		return;
	store_release(&f->stop, true);
	pthread_join(f->thread, NULL);
	f->threaded = false;
}

/* ---- the seam ---- */

void vectors_drop(struct fake_nvme *f)
{
	for (unsigned i = 0; i < FAKE_NVME_VECTORS; i++) {
		if (f->vector[i].fd >= 0)
			close(f->vector[i].fd);
		f->vector[i].fd = -1;
		f->vector[i].pending = false;
	}
}

/* Like the kernel, the controller holds on to the eventfds themselves, not to their numbers. */
static int hw_set_vectors(struct nvme_hw *hw, const int *fds, unsigned n, struct err *e)
{
	struct fake_nvme *f = container_of(hw, struct fake_nvme, hw);
	int rc = 0;

	fake_lock(f);
	vectors_drop(f);
	if (n > f->c.vectors)
		rc = err_set(e, -EINVAL, "the fake has %u vectors, not %u", f->c.vectors, n);
	else if (n && f->gone)
		rc = err_set(e, -ENODEV, "the fake is gone");
	for (unsigned i = 0; !rc && i < n; i++) {
		if (fds[i] < 0)
			continue;
		f->vector[i].fd = fcntl(fds[i], F_DUPFD_CLOEXEC, 0);
		if (f->vector[i].fd < 0)
			rc = err_set(e, -errno, "eventfd of vector %u: %s", i, err_words(errno));
	}
	fake_unlock(f);
	return rc;
}

static volatile le32 *hw_vector_control(struct nvme_hw *hw, unsigned i)
{
	struct fake_nvme *f = container_of(hw, struct fake_nvme, hw);

	return i < f->c.vectors && !f->c.no_vector_control ? &f->vector[i].control : NULL;
}

static int hw_map_bar(struct nvme_hw *hw, unsigned bar, volatile void **base, size_t *len,
		      struct err *e)
{
	struct fake_nvme *f = container_of(hw, struct fake_nvme, hw);

	if (bar != 2 || !f->cmb)
		return err_set(e, -ENODEV, "the fake has no BAR %u", bar);
	*base = f->cmb;
	*len = f->c.cmb_size;
	return 0;
}

static int hw_reset(struct nvme_hw *hw, struct err *e)
{
	struct fake_nvme *f = container_of(hw, struct fake_nvme, hw);
	int rc = 0;

	fake_lock(f);
	if (f->c.no_reset)
		rc = err_set(e, -EOPNOTSUPP, "the fake has no function-level reset");
	else if (f->gone)
		rc = err_set(e, -ENODEV, "the fake is gone");
	else
		regs_power_on(f);
	f->stats.resets += rc == 0;
	fake_unlock(f);
	return rc;
}

struct nvme_hw *fake_nvme_hw(struct fake_nvme *f)
{
	return &f->hw;
}

/* ---- made and unmade ---- */

static int map_memory(struct fake_nvme *f)
{
	size_t queues = MAX(f->c.io_sqs, f->c.io_cqs) + 1;
	size_t doorbells = queues * 2 * (4u << f->c.dstrd);

	f->bar_len = MAX(ROUND_UP(WIRE_DOORBELLS + doorbells, BAR_PAGE), BAR_LEAST);
	f->bar_fd = memfd_create("fake nvme bar", MFD_CLOEXEC);
	if (f->bar_fd < 0 || ftruncate(f->bar_fd, (off_t)f->bar_len))
		return -errno;
	f->bar = mmap(NULL, f->bar_len, PROT_READ | PROT_WRITE, MAP_SHARED, f->bar_fd, 0);
	if (f->bar == MAP_FAILED)
		return -errno;
	if (f->c.cmb_size) {
		f->cmb = mmap(NULL, f->c.cmb_size, PROT_READ | PROT_WRITE,
			      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
		if (f->cmb == MAP_FAILED)
			return -errno;
	}
	return 0;
}

static void keep_text(char *to, size_t len, const char **text)
{
	snprintf(to, len, "%s", *text ? *text : "");
	*text = to;
}

static void init(struct fake_nvme *f, const struct fake_nvme_config *c)
{
	pthread_mutexattr_t attr;

	f->c = *c;
	f->c.io_sqs = MIN(c->io_sqs, FAKE_NVME_QUEUES_MAX);
	f->c.io_cqs = MIN(c->io_cqs, FAKE_NVME_QUEUES_MAX);
	f->c.vectors = MIN(c->vectors, FAKE_NVME_VECTORS);
	keep_text(f->serial, sizeof(f->serial), &f->c.serial);
	keep_text(f->model, sizeof(f->model), &f->c.model);
	keep_text(f->firmware, sizeof(f->firmware), &f->c.firmware);
	pthread_mutexattr_init(&attr);
	pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_RECURSIVE);
	pthread_mutex_init(&f->lock, &attr);
	pthread_mutexattr_destroy(&attr);
	for (unsigned i = 0; i < FAKE_NVME_VECTORS; i++)
		f->vector[i].fd = -1;
	f->bar_fd = -1;
	f->bar = MAP_FAILED;
	queues_init(f);
}

struct fake_nvme *fake_nvme_create(const struct fake_nvme_config *c)
{
	struct fake_nvme *f = calloc(1, sizeof(*f));
	bool ok;

	if (!f)
		return NULL;
	init(f, c);
	ok = map_memory(f) == 0;
	for (unsigned i = 0; ok && i < c->ns_n; i++)
		ok = ns_open(f, &c->ns[i]);
	if (!ok) {
		fake_nvme_destroy(f);
		return NULL;
	}
	f->hw = (struct nvme_hw){ .bar = f->bar,
				  .bar_len = f->bar_len,
				  .vectors = f->c.vectors,
				  .set_vectors = hw_set_vectors,
				  .vector_control = hw_vector_control,
				  .map_bar = hw_map_bar,
				  .reset = hw_reset };
	regs_power_on(f);
	regs_be_born(f);
	return f;
}

void fake_nvme_destroy(struct fake_nvme *f)
{
	if (!f)
		return;
	fake_nvme_stop(f);
	queues_vanish(f);
	script_free(f);
	vectors_drop(f);
	for (unsigned i = 0; i < FAKE_NVME_NS_MAX; i++)
		ns_close(&f->ns[i]);
	if (f->bar != MAP_FAILED)
		munmap(f->bar, f->bar_len);
	if (f->bar_fd >= 0)
		close(f->bar_fd);
	if (f->cmb && f->cmb != MAP_FAILED)
		munmap(f->cmb, f->c.cmb_size);
	free(f->hmb);
	pthread_mutex_destroy(&f->lock);
	free(f);
}
