#include "virtio/vhost_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "reactor/uring.h"
#include "util/log.h"

static void close_fd(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

void vhost_ring_init(struct vhost_ring *r, unsigned index)
{
	memset(r, 0, sizeof(*r));
	r->setup.index = index;
	r->kick_fd = r->call_fd = r->err_fd = -1;
}

/* --- start, stop --- */

static bool is_enabled(const struct vhost_session *s, const struct vhost_ring *r)
{
	return r->enabled ||
	       (s->acked_features && !(s->features & FEATURE(VHOST_USER_F_PROTOCOL_FEATURES)));
}

static bool can_run(const struct vhost_session *s, const struct vhost_ring *r)
{
	return r->have_num && r->have_addr && r->have_kick && s->mem->n > 0 && is_enabled(s, r);
}

/* The ring's part of the in-flight region, if there is one. */
static int open_inflight(struct vhost_session *s, struct vhost_ring *r, struct err *e)
{
	const struct vhost_inflight_map *map = &s->inflight;
	struct virtq *vq = r->vq;
	void *region;
	int rc;

	if (!map->base || r->setup.index >= map->queues)
		return 0;
	region = map->base + r->setup.index * map->stride;
	if (map->packed != vq->packed)
		return err_set(e, -EINVAL, "the in-flight region is not for %s rings",
			       vq->packed ? "packed" : "split");
	if (vq->packed)
		rc = inflight_packed_open(region, (uint16_t)map->queue_size, vq->num, r->setup.base,
					  vq->ring, &r->inflight, e);
	else
		rc = inflight_open(region, (uint16_t)map->queue_size, vq->num,
				   from_le16(READ_ONCE(vq->used->idx)), &r->inflight, e);
	r->inflight_open = rc == 0;
	return rc;
}

static int start(struct vhost_session *s, struct vhost_ring *r, struct err *e)
{
	int rc;

	r->setup.features = s->features;
	rc = virtq_create(&r->setup, &r->vq);
	if (rc)
		return err_set(e, rc, "out of memory for a ring of %u entries", r->setup.num);
	r->vq->name = s->c.name;
	rc = virtq_map(r->vq, &r->setup, s->mem, e);
	if (rc == 0)
		rc = open_inflight(s, r, e);
	if (rc == 0)
		rc = virtq_begin(r->vq, &r->setup, r->inflight_open ? &r->inflight : NULL, e);
	if (rc)
		goto out_inflight;
	r->vq->call_fd = r->call_fd;
	r->vq->err_fd = r->err_fd;
	r->vq->log_addr = r->log_addr;
	r->vq->log = r->log || s->features & FEATURE(VHOST_F_LOG_ALL) ? s->log : NULL;
	rc = s->c.ops->ring_start(s->c.device, r->vq, r->kick_fd, e);
	if (rc)
		goto out_inflight;
	r->running = true;
	r->paused = false;
	log_debug("%s: ring %u started with %u entries at 0x%x", s->c.name, r->setup.index,
		  r->setup.num, r->setup.base);
	return 0;
out_inflight:
	if (r->inflight_open)
		inflight_close(&r->inflight);
	r->inflight_open = false;
	virtq_destroy(r->vq);
	r->vq = NULL;
	return rc;
}

int vhost_ring_update(struct vhost_session *s, struct vhost_ring *r, struct err *e)
{
	/* QEMU sends no memory at all when none of it is shared. */
	if (r->have_addr && r->have_kick && is_enabled(s, r) && s->mem->n == 0)
		vhost_hint_share_on(s);
	if (!r->running)
		return can_run(s, r) ? start(s, r, e) : 0;
	if (!is_enabled(s, r) && !r->paused) {
		s->c.ops->ring_pause(s->c.device, r->vq);
		r->paused = true;
	} else if (is_enabled(s, r) && r->paused) {
		s->c.ops->ring_resume(s->c.device, r->vq);
		r->paused = false;
	}
	return 0;
}

void vhost_ring_stop(struct vhost_session *s, struct vhost_ring *r)
{
	if (!r->running)
		return;
	s->c.ops->ring_stop(s->c.device, r->vq);
	r->setup.base = virtq_base(r->vq);
	r->running = false;
	if (r->inflight_open)
		inflight_close(&r->inflight);
	r->inflight_open = false;
	virtq_destroy(r->vq);
	r->vq = NULL;
	free(r->scratch);
	r->scratch = NULL;
	log_debug("%s: ring %u stopped at 0x%x", s->c.name, r->setup.index, r->setup.base);
}

void vhost_ring_abandon(struct vhost_session *s, struct vhost_ring *r)
{
	if (!r->running || r->scratch)
		return;
	/* Without memory for it the ends are told to a driver that may not listen: harmless, if not
	 * what the protocol asks for. */
	r->scratch = calloc(1, virtq_scratch_size(r->vq));
	if (r->scratch)
		s->c.ops->ring_abandon(s->c.device, r->vq, r->scratch);
}

void vhost_ring_reset(struct vhost_session *s, struct vhost_ring *r)
{
	vhost_ring_stop(s, r);
	close_fd(&r->kick_fd);
	close_fd(&r->call_fd);
	close_fd(&r->err_fd);
	vhost_ring_init(r, r->setup.index);
}

/* --- changes while it runs --- */

struct change {
	struct virtq *vq;
	const struct virtq_setup *setup;
	const struct guest_mem *mem;
	struct err *e;
	int fd;
	struct dirty_log *log;
	uint64_t log_addr;
};

static int remap_here(void *arg)
{
	struct change *c = arg;
	int rc = virtq_map(c->vq, c->setup, c->mem, c->e);

	if (rc) {
		/* The rings are gone, but requests in flight still end into the old mapping, which
		 * lives until they do. */
		virtq_break(c->vq, "the new memory table does not hold it");
	}
	return rc;
}

int vhost_ring_remap(struct vhost_session *s, struct vhost_ring *r, const struct guest_mem *mem,
		     struct err *e)
{
	struct change c = { .vq = r->vq, .setup = &r->setup, .mem = mem, .e = e };

	(void)s;
	return r->running ? reactor_call(r->vq->reactor, remap_here, &c) : 0;
}

static int call_here(void *arg)
{
	struct change *c = arg;

	c->vq->call_fd = c->fd;
	/* What was signalled on the old fd may have been missed; one interrupt too many is legal.
	 */
	if (c->fd >= 0)
		uring_signal(c->vq->reactor, c->fd);
	return 0;
}

void vhost_ring_set_call(struct vhost_ring *r, int fd)
{
	struct change c = { .vq = r->vq, .fd = fd };
	int old = r->call_fd;

	r->call_fd = fd;
	if (r->running)
		reactor_call(r->vq->reactor, call_here, &c);
	close_fd(&old);
}

static int err_here(void *arg)
{
	struct change *c = arg;

	c->vq->err_fd = c->fd;
	return 0;
}

void vhost_ring_set_err(struct vhost_ring *r, int fd)
{
	struct change c = { .vq = r->vq, .fd = fd };
	int old = r->err_fd;

	r->err_fd = fd;
	if (r->running)
		reactor_call(r->vq->reactor, err_here, &c);
	close_fd(&old);
}

/* The device watches the fd from start to stop, so a running ring is taken round that way: rare,
 * and safe. */
void vhost_ring_set_kick(struct vhost_session *s, struct vhost_ring *r, int fd)
{
	vhost_ring_stop(s, r);
	close_fd(&r->kick_fd);
	r->kick_fd = fd;
	r->have_kick = true;
}

static int log_here(void *arg)
{
	struct change *c = arg;

	c->vq->log = c->log;
	c->vq->log_addr = c->log_addr;
	return 0;
}

void vhost_ring_set_log(struct vhost_session *s, struct vhost_ring *r)
{
	bool on = r->log || s->features & FEATURE(VHOST_F_LOG_ALL);
	struct change c = { .vq = r->vq, .log = on ? s->log : NULL, .log_addr = r->log_addr };

	if (r->running)
		reactor_call(r->vq->reactor, log_here, &c);
}
