#include "bdev/registry.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "bdev/internal.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct list bdevs = LIST_INIT(bdevs);

/* A name that is being created: on its own list, since the driver makes the bdev. */
struct reservation {
	const char *name;
	struct list node;
};

static struct list reservations = LIST_INIT(reservations);

void registry_lock(void)
{
	reactor_mutex_lock(&lock);
}

void registry_unlock(void)
{
	pthread_mutex_unlock(&lock);
}

static struct bdev *find(const char *name)
{
	struct uuid uuid;
	bool is_uuid = uuid_parse(name, &uuid);
	struct bdev *b;

	list_for_each (b, &bdevs, node)
		if (strcmp(b->name, name) == 0 ||
		    (is_uuid && memcmp(&b->uuid, &uuid, sizeof(uuid)) == 0))
			return b;
	return NULL;
}

static bool name_taken(const char *name)
{
	struct reservation *r;

	list_for_each (r, &reservations, node)
		if (strcmp(r->name, name) == 0)
			return true;
	return find(name) != NULL;
}

/* --- create, delete --- */

static char **name_in(const struct bdev_driver *d, void *args)
{
	return param_at(param_find(d->params, "name"), args);
}

/* "Malloc0", "Malloc1", ... under the lock. */
static char *invent_name(const struct bdev_driver *d)
{
	char name[64];

	for (unsigned i = 0;; i++) {
		snprintf(name, sizeof(name), "%s%u", d->name, i);
		name[0] = (char)(name[0] - ('a' - 'A'));
		if (!name_taken(name))
			return strdup(name);
	}
}

static int reserve(const struct bdev_driver *d, void *args, struct reservation *r, struct err *e)
{
	char **name = name_in(d, args);
	int rc = 0;

	registry_lock();
	if (!*name)
		*name = invent_name(d);
	if (!*name)
		rc = err_set(e, -ENOMEM, "Out of memory.");
	else if (name_taken(*name))
		rc = err_field(
			e, -EEXIST, "name", *name, NULL,
			"A bdev named '%.80s' exists already. Choose another name or delete it first.",
			*name);
	r->name = *name;
	if (rc == 0)
		list_add_tail(&reservations, &r->node);
	registry_unlock();
	return rc;
}

static int check_uuid(const struct bdev_driver *d, void *args, struct err *e)
{
	struct uuid *uuid = param_at(param_find(d->params, "uuid"), args);
	char text[UUID_TEXT];
	struct bdev *other;

	if (uuid_is_null(uuid))
		uuid_random(uuid);
	uuid_format(uuid, text);
	registry_lock();
	other = find(text);
	registry_unlock();
	if (other)
		return err_field(e, -EEXIST, "uuid", text, NULL,
				 "A bdev with this UUID exists already.");
	return 0;
}

int bdev_create(const struct bdev_driver *d, void *args, char **name_out, struct err *e)
{
	struct reservation r;
	struct bdev *b;
	int rc = check_uuid(d, args, e);

	if (rc == 0)
		rc = reserve(d, args, &r, e);
	if (rc)
		goto out_free;
	rc = d->create(args, &b, e);
	registry_lock();
	list_del(&r.node);
	if (rc == 0) {
		b->driver = d;
		b->args = args;
		b->name = *name_in(d, args);
		b->uuid = *(struct uuid *)param_at(param_find(d->params, "uuid"), args);
		b->ctx_size = MAX(b->ctx_size, bdev_fit_ctx_size());
		list_init(&b->queues);
		list_init(&b->watchers);
		list_add_tail(&bdevs, &b->node);
		if (name_out)
			*name_out = strdup(b->name);
	}
	registry_unlock();
	if (rc == 0)
		return 0;
out_free:
	param_free(d->params, args);
	free(args);
	return rc;
}

static void destroy(struct bdev *b)
{
	const struct bdev_driver *d = b->driver;
	void *args = b->args;

	d->destroy(b);
	param_free(d->params, args);
	free(args);
}

int bdev_delete(const struct bdev_driver *d, const char *name, struct err *e)
{
	struct bdev *b;
	int rc = 0;

	registry_lock();
	b = find(name);
	if (!b || b->driver != d)
		rc = err_field(e, -ENODEV, "name", name, NULL,
			       b ? "'%.80s' is not of this kind: its driver is %s."
				 : "There is no bdev named '%.80s'.%s",
			       name, b ? b->driver->name : "");
	else if (b->users)
		rc = err_field(
			e, -EBUSY, "name", name, NULL,
			"'%.80s' is in use. Delete the vhost controllers and bdevs that use it first.",
			name);
	else
		list_del(&b->node);
	registry_unlock();
	if (rc == 0)
		destroy(b);
	return rc;
}

void bdev_delete_all(void)
{
	for (;;) {
		struct bdev *b, *last = NULL;

		registry_lock();
		list_for_each (b, &bdevs, node)
			if (!b->users)
				last = b;
		if (last)
			list_del(&last->node);
		registry_unlock();
		if (!last)
			return;
		destroy(last);
	}
}

int bdev_get(const char *name, struct bdev **out, struct err *e)
{
	struct bdev *b;

	registry_lock();
	b = find(name);
	if (b && b->gone)
		b = NULL;
	if (b)
		b->users++;
	registry_unlock();
	if (!b)
		return err_field(e, -ENODEV, "name", name, NULL,
				 "There is no bdev named '%.80s'. bdev_get_bdevs lists them.",
				 name);
	*out = b;
	return 0;
}

void bdev_put(struct bdev *b)
{
	registry_lock();
	b->users--;
	registry_unlock();
}

int bdev_for_each(int (*fn)(struct bdev *b, void *arg), void *arg)
{
	struct bdev *b;
	int rc = 0;

	registry_lock();
	list_for_each (b, &bdevs, node) {
		rc = fn(b, arg);
		if (rc)
			break;
	}
	registry_unlock();
	return rc;
}

/* --- queues --- */

static void stats_init(struct bdev_stats *s)
{
	memset(s, 0, sizeof(*s));
	for (int i = 0; i < BDEV_OPS; i++)
		s->op[i].min_ticks = UINT64_MAX;
}

/* from may be counting at this moment. */
static void stats_add(struct bdev_stats *to, const struct bdev_stats *from)
{
	to->doorbells += READ_ONCE(from->doorbells);
	to->interrupts += READ_ONCE(from->interrupts);
	for (int i = 0; i < BDEV_OPS; i++) {
		struct bdev_op_stats *t = &to->op[i];
		const struct bdev_op_stats *f = &from->op[i];

		if (READ_ONCE(f->ops) + READ_ONCE(f->errors) == 0)
			continue;
		t->ops += READ_ONCE(f->ops);
		t->bytes += READ_ONCE(f->bytes);
		t->errors += READ_ONCE(f->errors);
		t->ticks += READ_ONCE(f->ticks);
		t->max_ticks = MAX(t->max_ticks, READ_ONCE(f->max_ticks));
		t->min_ticks =
			MIN(t->min_ticks ? t->min_ticks : UINT64_MAX, READ_ONCE(f->min_ticks));
	}
}

void bdev_get_stats(const struct bdev *b, struct bdev_stats *s)
{
	struct bdev_queue *q;

	*s = b->closed;
	list_for_each (q, &b->queues, node)
		stats_add(s, &q->stats);
}

static void submit_gone(struct bdev_io *io)
{
	bdev_io_end(io, -ENXIO);
}

static int take_gone(void *arg)
{
	struct bdev_queue *q = arg;

	q->submit = q->submit_one = submit_gone;
	return 0;
}

bool bdev_io_is_gone(const struct bdev_io *io)
{
	return io->q->submit == submit_gone;
}

void bdev_set_gone(struct bdev *b)
{
	struct bdev_queue *q;

	registry_lock();
	b->gone = true;
	list_for_each (q, &b->queues, node)
		reactor_call(q->reactor, take_gone, q);
	registry_unlock();
}

int bdev_queue_open(struct bdev *b, struct reactor *r, struct bdev_queue **out, struct err *e)
{
	struct bdev_queue *q = aligned_alloc(CACHE_LINE, ROUND_UP(sizeof(*q), CACHE_LINE));
	int rc;

	if (!q)
		return err_set(e, -ENOMEM, "Out of memory.");
	memset(q, 0, sizeof(*q));
	q->submit = b->driver->submit;
	q->submit_one = b->driver->submit_one ? b->driver->submit_one : q->submit;
	q->size = b->size;
	q->block_mask = b->block_size - 1;
	q->align_mask = b->limits.buf_align - 1;
	q->boundary = b->limits.boundary;
	q->picky = q->align_mask || q->boundary;
	q->max_len = (uint32_t)MIN(b->limits.max_len, b->size);
	q->max_iov = b->limits.max_iov;
	q->readonly = b->readonly;
	q->one_shape = BDEV_SHAPE(BDEV_READ);
	q->one_mask = q->picky ? 0 : q->readonly ? UINT32_MAX : ~BDEV_SHAPE_RW; /* 0: nothing */
	q->bdev = b;
	q->reactor = r;
	stats_init(&q->stats);
	rc = bdev_fit_open(q, e);
	if (rc)
		goto out_free;
	rc = b->driver->queue_open ? b->driver->queue_open(q, e) : 0;
	if (rc)
		goto out_fit;
	registry_lock();
	list_add_tail(&b->queues, &q->node);
	if (b->gone) /* while it was opened */
		reactor_call(r, take_gone, q);
	registry_unlock();
	*out = q;
	return 0;
out_fit:
	bdev_fit_close(q);
out_free:
	free(q);
	return rc;
}

static int take_size(void *arg)
{
	struct bdev_queue *q = arg;

	q->size = q->bdev->size;
	q->max_len = (uint32_t)MIN(q->bdev->limits.max_len, q->size);
	return 0;
}

void bdev_resize(struct bdev *b, uint64_t size)
{
	struct bdev_watcher *w;
	struct bdev_queue *q;

	registry_lock();
	b->size = size;
	list_for_each (q, &b->queues, node)
		reactor_call(q->reactor, take_size, q);
	list_for_each (w, &b->watchers, node)
		w->resized(w);
	registry_unlock();
}

void bdev_watch(struct bdev *b, struct bdev_watcher *w)
{
	registry_lock();
	list_add_tail(&b->watchers, &w->node);
	registry_unlock();
}

void bdev_unwatch(struct bdev_watcher *w)
{
	registry_lock();
	list_del(&w->node);
	registry_unlock();
}

void bdev_queue_close(struct bdev_queue *q)
{
	struct bdev *b = q->bdev;

	registry_lock();
	list_del(&q->node);
	stats_add(&b->closed, &q->stats);
	registry_unlock();
	if (b->driver->queue_close)
		b->driver->queue_close(q);
	bdev_fit_close(q);
	free(q);
}
