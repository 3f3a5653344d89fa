/* Which paths there are, and how each carries out the job: in a sample's process, from opening to
 * closing. */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "backend/file_lock.h"
#include "backend/virtio.h"
#include "bdev/registry.h"
#include "cmd/compare.h"
#include "cmd/compare_daemon.h"
#include "cmd/compare_kernel.h"
#include "cmd/compare_loop.h"

static const struct {
	const char *word, *name;
	enum compare_kind kind;
} of_a_file[] = {
	{ "uring", "kernel io_uring", COMPARE_URING },
	{ "spin", "kernel io_uring spin", COMPARE_SPIN },
	{ "aio", "kernel libaio", COMPARE_AIO },
	{ "loop", "kernel loop", COMPARE_LOOP },
	{ "file", "riffle file", COMPARE_FILE },
	{ "vhost", "riffle vhost", COMPARE_VHOST },
};

/* --- choosing --- */

static struct compare_path *add_path(struct compare *c, enum compare_kind kind, const char *name,
				     bool asked)
{
	struct compare_path *p = &c->paths[c->paths_n];

	*p = (struct compare_path){ .kind = kind, .asked = asked };
	snprintf(p->name, sizeof(p->name), "%s", name);
	c->paths_n++;
	return p;
}

/* The same target twice is how one sees what a difference is worth: it gets a number. */
static void add_target(struct compare *c, const char *spec)
{
	struct compare_path *p = add_path(c, COMPARE_TARGET, spec, true);
	unsigned same = 1;

	p->spec = spec;
	for (struct compare_path *other = c->paths; other < p; other++)
		same += other->spec && strcmp(other->spec, spec) == 0;
	if (same > 1)
		snprintf(p->name, sizeof(p->name), "%.60s (%u)", spec, same);
}

static int add_word(struct compare *c, const char *word, struct err *e)
{
	for (size_t i = 0; i < ARRAY_SIZE(of_a_file); i++) {
		if (strcmp(word, of_a_file[i].word) != 0)
			continue;
		for (unsigned k = 0; k < c->paths_n; k++)
			if (c->paths[k].kind == of_a_file[i].kind)
				return err_set(e, -EINVAL, "--paths names '%s' twice.", word);
		add_path(c, of_a_file[i].kind, of_a_file[i].name, true);
		return 0;
	}
	return err_set(e, -EINVAL,
		       "--paths takes names from uring,spin,aio,loop,file,vhost, not '%.80s'.",
		       word);
}

static int add_words(struct compare *c, const char *wanted, struct err *e)
{
	char *copy = strdup(wanted), *rest = copy, *word;
	int rc = copy ? 0 : err_set(e, -ENOMEM, "Out of memory.");

	while (rc == 0 && (word = strsep(&rest, ",")))
		rc = add_word(c, word, e);
	free(copy);
	return rc;
}

/* "PATH" or "file:PATH"; NULL: another target. */
static const char *path_of(const char *spec)
{
	if (strncmp(spec, "file:", 5) == 0)
		return strchr(spec, '+') ? NULL : spec + 5;
	return *spec == '/' || *spec == '.' || !strchr(spec, ':') ? spec : NULL;
}

static int find_file(struct compare *c, struct err *e)
{
	for (unsigned i = 0; i < c->o->targets_n; i++) {
		const char *path = path_of(c->o->target_specs[i]);

		if (!path)
			continue;
		if (c->file)
			return err_set(
				e, -EINVAL,
				"compare takes one file or device; '%.80s' and '%.80s' are two.",
				c->file, path);
		if (!*path || strchr(path, ','))
			return err_set(
				e, -EINVAL,
				"'%.120s' must be the path of a file or device, without a comma "
				"and parameters.",
				path);
		c->file = path;
	}
	return 0;
}

int compare_paths_choose(struct compare *c, const char *wanted, struct err *e)
{
	int rc = find_file(c, e);

	if (rc)
		return rc;
	if (wanted && !c->file)
		return err_set(e, -EINVAL,
			       "--paths chooses among the paths to a file or device: give one.");
	if (wanted)
		rc = add_words(c, wanted, e);
	else if (c->file)
		for (size_t i = 0; i < ARRAY_SIZE(of_a_file); i++)
			add_path(c, of_a_file[i].kind, of_a_file[i].name, false);
	for (unsigned i = 0; i < c->o->targets_n; i++)
		if (!path_of(c->o->target_specs[i]))
			add_target(c, c->o->target_specs[i]);
	return rc;
}

/* --- the kernel's --- */

static void set_file_facts(struct compare_facts *facts, const struct file_facts *f)
{
	facts->size = f->size / f->block_size * f->block_size;
	facts->block_size = f->block_size;
	snprintf(facts->flush, sizeof(facts->flush),
		 "a completed write may be in a volatile cache; a flush is fdatasync%s",
		 f->direct ? "" : "; no O_DIRECT, writes go to the kernel's page cache");
}

static uint32_t most(const struct perf_depths *d)
{
	uint32_t n = 0;

	for (unsigned i = 0; i < d->n; i++)
		n = MAX(n, d->v[i]);
	return n;
}

static int run_engine(const struct compare *c, const struct compare_path *p,
		      const struct kernel_engine *engine, int fd, uint32_t depth,
		      struct compare_sample *s, struct err *e)
{
	struct compare_facts *facts = &s->facts;
	bool unregistered = false;
	int rc;

	if (depth)
		return kernel_run(engine, c->o, fd, c->o->span, depth, p->name, &s->result, e);
	rc = kernel_probe(engine, c->o, fd, most(&c->o->depths), &unregistered, e);
	snprintf(facts->what + strlen(facts->what), sizeof(facts->what) - strlen(facts->what),
		 "%s%s", engine->what,
		 unregistered ? " (but buffers are not registered: raise ulimit -l)" : "");
	return rc;
}

/* What the block layer makes of one request. */
static unsigned pieces_of(uint64_t io_size, const struct loop *l)
{
	uint64_t max = l->max_kib ? l->max_kib * UINT64_C(1024) : io_size;

	return (unsigned)((io_size + max - 1) / max);
}

static int run_loop(const struct compare *c, const struct compare_path *p,
		    const struct file_facts *f, uint32_t depth, struct compare_sample *s,
		    struct err *e)
{
	struct loop l;
	int rc = loop_attach(f, &l, e);

	if (rc)
		return rc;
	snprintf(s->facts.what, sizeof(s->facts.what), "a loop device with direct I/O, by ");
	snprintf(
		s->facts.flush, sizeof(s->facts.flush),
		"a completed write may be in a volatile cache; a flush of the device is an fsync of "
		"the file");
	if (l.requests)
		s->facts.depth_max =
			MAX(l.requests / perf_workers(c->o) / pieces_of(c->o->io_size, &l), 1);
	rc = run_engine(c, p, &uring_engine, l.fd, depth, s, e);
	loop_detach(&l);
	return rc;
}

/* Workers say it too, but too late for a path that need not be there. */
static int check_cpus(const struct perf_options *o, struct err *e)
{
	int cpu = -1, rc = 0;

	for (unsigned i = 0; rc == 0 && i < perf_workers(o); i++) {
		cpu = perf_next_cpu(o, cpu);
		rc = perf_pin(cpu, e);
	}
	return rc;
}

static int run_kernel(const struct compare *c, const struct compare_path *p, uint32_t depth,
		      struct compare_sample *s, struct err *e)
{
	struct file_lock *lock;
	struct file_facts f;
	int rc = 0;

	if (p->kind == COMPARE_AIO && !aio_engine)
		return err_set(e, -EOPNOTSUPP,
			       "this riffle was built without libaio (Debian: libaio-dev).");
	rc = kernel_file_open(c->o, c->file, &f, &lock, e);
	if (rc)
		return rc;
	set_file_facts(&s->facts, &f);
	if (p->kind == COMPARE_CHECK)
		rc = check_cpus(c->o, e);
	else if (p->kind == COMPARE_URING)
		rc = run_engine(c, p, &uring_engine, f.fd, depth, s, e);
	else if (p->kind == COMPARE_SPIN)
		rc = run_engine(c, p, &uring_spin_engine, f.fd, depth, s, e);
	else if (p->kind == COMPARE_AIO)
		rc = run_engine(c, p, aio_engine, f.fd, depth, s, e);
	else if (p->kind == COMPARE_LOOP)
		rc = run_loop(c, p, &f, depth, s, e);
	close(f.fd);
	file_lock_drop(lock);
	return rc;
}

/* --- riffle's --- */

/* The rings of a vhost-user disk hold so many; what is beyond waits on our side. 0: no rings. */
static uint32_t ring_depth(uint64_t io_size)
{
	struct err ignored;
	const struct param *p;
	struct bdev *b;
	uint64_t n = 0;

	if (bdev_get("perf0.0", &b, &ignored))
		return 0;
	p = param_find(b->driver->params, "vq_size");
	if (p) {
		n = *(uint64_t *)param_at(p, b->args);
		if (b->limits.max_iov <= VIRTIO_DIRECT_IOV)
			n /= VIRTIO_DIRECT_IOV + 2;
		n = MAX(n / ((io_size + b->limits.max_len - 1) / b->limits.max_len), 1);
	}
	bdev_put(b);
	return (uint32_t)n;
}

/* Large enough for the depth, where that can be: a power of 2 from 256 to 1024. */
static unsigned ring_size(const struct perf_options *o, uint32_t depth)
{
	uint64_t pieces = (o->io_size + VIRTIO_MAX_LEN - 1) / VIRTIO_MAX_LEN, size = 256;

	while (size < 1024 && size < pieces * depth)
		size *= 2;
	return (unsigned)size;
}

static void set_target_facts(struct compare_facts *facts, const struct perf_target *t,
			     uint64_t io_size)
{
	facts->size = t->bdev->size;
	facts->block_size = t->bdev->block_size;
	facts->depth_max = ring_depth(io_size);
	snprintf(facts->what, sizeof(facts->what), "riffle perf on %.120s", t->spec);
	snprintf(facts->flush, sizeof(facts->flush), "%s", t->flush);
}

static int run_target(const struct compare *c, const char *spec, pid_t daemon, uint32_t depth,
		      struct compare_sample *s, struct err *e)
{
	struct perf_options o = *c->o;
	struct perf_target t = { 0 };
	struct perf_run *run = NULL;
	int rc;

	o.targets_n = 1;
	o.target_specs[0] = spec;
	o.pid = daemon;
	o.quiet = true;
	if (depth)
		o.depths = (struct perf_depths){ .n = 1, .v = { depth } };
	rc = perf_targets_open(&o, &t, e);
	if (rc == 0) {
		set_target_facts(&s->facts, &t, o.io_size);
		rc = perf_run_open(&o, &t, &run, e);
	}
	if (rc == 0 && depth)
		rc = perf_run_row(run, depth, &s->result, e);
	if (run)
		perf_run_stop(run);
	perf_targets_close(&t, 1);
	if (run)
		perf_run_close(run);
	return rc;
}

static int run_file(const struct compare *c, uint32_t depth, struct compare_sample *s,
		    struct err *e)
{
	char *spec;
	int rc;

	if (asprintf(&spec, "file:%s", c->file) < 0)
		return err_set(e, -ENOMEM, "Out of memory.");
	rc = run_target(c, spec, 0, depth, s, e);
	snprintf(s->facts.what, sizeof(s->facts.what), "riffle's file backend in this process");
	free(spec);
	return rc;
}

static int run_vhost(const struct compare *c, uint32_t depth, struct compare_sample *s,
		     struct err *e)
{
	uint32_t deepest = depth ? depth : most(&c->o->depths);
	struct compare_daemon d;
	char spec[200];
	int rc = compare_daemon_start(&d, c->folder, c->file, c->o, e);

	if (rc)
		return rc;
	snprintf(spec, sizeof(spec), "vhost:%s,vq_size=%u", d.socket, ring_size(c->o, deepest));
	rc = run_target(c, spec, d.pid, depth, s, e);
	compare_daemon_stop(&d);
	snprintf(s->facts.what, sizeof(s->facts.what),
		 "a riffle daemon (CPU %d) serves the file, perf drives its vhost-user socket",
		 compare_daemon_cpu(c->o));
	snprintf(
		s->facts.flush, sizeof(s->facts.flush),
		"a completed write may be in a volatile cache; FLUSH goes to the daemon, where it is "
		"fdatasync");
	return rc;
}

static int run_once(const struct compare *c, const struct compare_path *p, uint32_t depth,
		    struct compare_sample *s, struct err *e)
{
	memset(&s->facts, 0, sizeof(s->facts));
	switch (p->kind) {
	case COMPARE_FILE:
		return run_file(c, depth, s, e);
	case COMPARE_VHOST:
		return run_vhost(c, depth, s, e);
	case COMPARE_TARGET:
		return run_target(c, p->spec, 0, depth, s, e);
	default:
		return run_kernel(c, p, depth, s, e);
	}
}

/* The file was free when it was checked: who holds it now is most likely what is left of the sample
 * before, which the kernel takes down when it comes to it. */
int compare_path_run(const struct compare *c, const struct compare_path *p, uint32_t depth,
		     struct compare_sample *s, struct err *e)
{
	const struct timespec pause = { .tv_nsec = 20000000 };
	int rc = run_once(c, p, depth, s, e);

	for (int i = 0; i < 50 && rc == -EBUSY && p->kind != COMPARE_CHECK && !perf_interrupted;
	     i++) {
		nanosleep(&pause, NULL);
		rc = run_once(c, p, depth, s, e);
	}
	return rc;
}
