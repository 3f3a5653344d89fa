/* One function per message; vhost-user.rst, "Front-end message types". fds that a handler keeps are
 * set to -1 in the message. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "mem/mem.h"
#include "util/log.h"
#include "virtio/vhost_internal.h"

struct call {
	struct vhost_session *s;
	struct vhost_msg *m;
	bool *replied;
	struct err *e;
};

static int reply(struct call *c, const void *payload, uint32_t size, int fd)
{
	int rc = vhost_reply(c->s->fd, c->m->hdr.request, payload, size, fd);

	*c->replied = rc == 0;
	return rc ? -EPIPE : 0;
}

static int reply_u64(struct call *c, uint64_t value)
{
	return reply(c, &value, sizeof(value), -1);
}

static int take_fd(struct vhost_msg *m)
{
	int fd = m->fds_n ? m->fds[0] : -1;

	if (m->fds_n)
		m->fds[0] = -1;
	return fd;
}

/* The ring a message names; compared as it came, in 32 bits. */
static struct vhost_ring *ring_at(struct call *c, uint32_t index)
{
	if (index < c->s->c.rings)
		return &c->s->ring[index];
	err_set(c->e, -EINVAL, "there is no ring %u: this disk has %u", index, c->s->c.rings);
	return NULL;
}

/* --- features --- */

static int get_features(struct call *c)
{
	return reply_u64(c, c->s->offered);
}

static int set_features(struct call *c)
{
	uint64_t f = c->m->p.u64;
	struct vhost_session *s = c->s;
	int rc = 0;

	if (f & ~s->offered)
		return err_set(c->e, -EINVAL, "feature bits 0x%" PRIx64 " were not offered",
			       f & ~s->offered);
	s->features = f;
	s->acked_features = true;
	s->c.ops->features_set(s->c.device, f);
	for (unsigned i = 0; i < s->c.rings; i++) {
		int one = vhost_ring_update(s, &s->ring[i], c->e);

		rc = rc ? rc : one;
		vhost_ring_set_log(s, &s->ring[i]);
	}
	return rc;
}

static int get_protocol_features(struct call *c)
{
	return reply_u64(c, vhost_protocol_features());
}

static int set_protocol_features(struct call *c)
{
	uint64_t f = c->m->p.u64;

	if (f & ~vhost_protocol_features())
		return err_set(c->e, -EINVAL,
			       "protocol feature bits 0x%" PRIx64 " were not offered",
			       f & ~vhost_protocol_features());
	return 0;
}

static int get_queue_num(struct call *c)
{
	return reply_u64(c, c->s->c.rings);
}

static int set_owner(struct call *c)
{
	(void)c;
	return 0;
}

static int set_backend_req_fd(struct call *c)
{
	if (c->s->backend_fd >= 0)
		close(c->s->backend_fd);
	c->s->backend_fd = take_fd(c->m);
	return 0;
}

static int reset_device(struct call *c)
{
	for (unsigned i = 0; i < c->s->c.rings; i++)
		vhost_ring_reset(c->s, &c->s->ring[i]);
	return 0;
}

/* --- memory --- */

static struct guest_range range_of(const struct vhost_region *r)
{
	return (struct guest_range){ r->gpa, r->size, r->user_addr, r->offset };
}

static int set_mem_table(struct call *c)
{
	const struct vhost_mem_table *t = &c->m->p.mem;
	struct guest_range ranges[VHOST_TABLE_REGIONS];
	struct guest_mem *mem;
	int rc;

	if (t->n > VHOST_TABLE_REGIONS || c->m->hdr.size != 8 + t->n * sizeof(struct vhost_region))
		return err_set(c->e, -EPROTO, "a table of %u regions does not fit %u bytes", t->n,
			       c->m->hdr.size);
	if (c->m->fds_n != t->n) {
		vhost_hint_share_on(c->s);
		return err_set(c->e, -EINVAL, "%u regions came with %u file descriptors", t->n,
			       c->m->fds_n);
	}
	for (unsigned i = 0; i < t->n; i++)
		ranges[i] = range_of(&t->region[i]);
	rc = guest_mem_map(ranges, c->m->fds, t->n, c->s->c.rings, &mem, c->e);
	if (rc) {
		vhost_hint_share_on(c->s);
		return rc;
	}
	return vhost_session_set_mem(c->s, mem, c->e);
}

static int get_max_mem_slots(struct call *c)
{
	return reply_u64(c, GUEST_REGIONS_MAX);
}

static int add_mem_reg(struct call *c)
{
	struct guest_range range = range_of(&c->m->p.mem_reg.region);
	struct guest_mem *mem;
	int rc = guest_mem_add(c->s->mem, &range, c->m->fds[0], &mem, c->e);

	if (rc) {
		vhost_hint_share_on(c->s);
		return rc;
	}
	return vhost_session_set_mem(c->s, mem, c->e);
}

static int rem_mem_reg(struct call *c)
{
	struct guest_range range = range_of(&c->m->p.mem_reg.region);
	struct guest_mem *mem;
	int rc = guest_mem_remove(c->s->mem, &range, &mem, c->e);

	return rc ? rc : vhost_session_set_mem(c->s, mem, c->e);
}

static int set_log_base(struct call *c)
{
	struct dirty_log *log, *old = c->s->log;
	int rc = dirty_log_open(c->m->fds[0], c->m->p.log.size, c->m->p.log.offset, &log, c->e);

	if (rc)
		return rc;
	c->s->log = log;
	for (unsigned i = 0; i < c->s->c.rings; i++)
		vhost_ring_set_log(c->s, &c->s->ring[i]);
	dirty_log_close(old);
	return reply(c, NULL, 0, -1);
}

static int set_log_fd(struct call *c)
{
	(void)c; /* an eventfd for "the log has changed", which no front-end waits for; it is closed
		    with the message */
	return 0;
}

/* --- rings --- */

static int set_vring_num(struct call *c)
{
	struct vhost_ring *r = ring_at(c, c->m->p.state.index);
	uint32_t num = c->m->p.state.num;

	if (!r)
		return -EINVAL;
	if (num == 0 || num > VIRTQ_SIZE_MAX || !(vhost_session_packed(c->s) || IS_POWER_OF_2(num)))
		return err_set(c->e, -EINVAL,
			       "ring %u cannot have %u entries: %s up to %u is needed",
			       r->setup.index, num,
			       vhost_session_packed(c->s) ? "a number" : "a power of 2",
			       VIRTQ_SIZE_MAX);
	if (r->running && num != r->setup.num)
		return err_set(c->e, -EBUSY, "ring %u is running", r->setup.index);
	r->setup.num = num;
	r->have_num = true;
	return vhost_ring_update(c->s, r, c->e);
}

static int check_addr(struct call *c, struct vhost_ring *r, const struct vhost_vring_addr *a)
{
	struct virtq_layout l = virtq_layout(r->setup.num, vhost_session_packed(c->s));
	const struct guest_mem *mem = c->s->mem;

	if (!IS_ALIGNED(a->desc, VIRTQ_DESC_ALIGN) || !IS_ALIGNED(a->avail, l.avail_align) ||
	    !IS_ALIGNED(a->used, l.used_align))
		return err_set(c->e, -EINVAL,
			       "the addresses of ring %u are not aligned to %u, %u and %u bytes",
			       r->setup.index, VIRTQ_DESC_ALIGN, l.avail_align, l.used_align);
	if (range_wraps(a->desc, l.desc) || range_wraps(a->avail, l.avail) ||
	    range_wraps(a->used, l.used))
		return err_set(c->e, -EINVAL, "the addresses of ring %u wrap around",
			       r->setup.index);
	if (a->flags & ~VHOST_VRING_F_LOG)
		return err_set(c->e, -EINVAL, "ring %u has unknown flags 0x%x", r->setup.index,
			       a->flags);
	if (mem->n && r->have_num &&
	    (!guest_mem_from_user(mem, a->desc, l.desc) ||
	     !guest_mem_from_user(mem, a->avail, l.avail) ||
	     !guest_mem_from_user(mem, a->used, l.used)))
		return err_set(c->e, -EFAULT,
			       "the parts of ring %u are not each in one memory region",
			       r->setup.index);
	return 0;
}

static int set_vring_addr(struct call *c)
{
	const struct vhost_vring_addr *a = &c->m->p.addr;
	struct vhost_ring *r = ring_at(c, a->index);
	int rc = r ? check_addr(c, r, a) : -EINVAL;

	if (rc)
		return rc;
	r->setup.desc_user = a->desc;
	r->setup.avail_user = a->avail;
	r->setup.used_user = a->used;
	r->have_addr = true;
	r->log = a->flags & VHOST_VRING_F_LOG;
	r->log_addr = a->log;
	vhost_ring_set_log(c->s, r);
	rc = vhost_ring_remap(c->s, r, c->s->mem, c->e);
	return rc ? rc : vhost_ring_update(c->s, r, c->e);
}

static int set_vring_base(struct call *c)
{
	struct vhost_ring *r = ring_at(c, c->m->p.state.index);

	if (!r)
		return -EINVAL;
	if (c->m->p.state.num > UINT16_MAX && !vhost_session_packed(c->s))
		return err_set(c->e, -EINVAL,
			       "ring %u cannot start at %u: a split ring's index has 16 bits",
			       r->setup.index, c->m->p.state.num);
	if (r->running)
		return err_set(c->e, -EBUSY, "ring %u is running", r->setup.index);
	r->setup.base = c->m->p.state.num; /* virtq_begin() knows whether it is in the ring */
	return 0;
}

static int get_vring_base(struct call *c)
{
	struct vhost_ring *r = ring_at(c, c->m->p.state.index);
	struct vhost_vring_state state;

	if (!r)
		return -EINVAL;
	if (r->running) {
		vhost_ring_stop(c->s, r);
		vhost_ring_told(c->s, r);
	}
	/* The ring starts again with a new SET_VRING_KICK. */
	r->have_kick = false;
	if (r->kick_fd >= 0)
		close(r->kick_fd);
	r->kick_fd = -1;
	state = (struct vhost_vring_state){ r->setup.index, r->setup.base };
	return reply(c, &state, sizeof(state), -1);
}

/* The ring of a KICK, CALL or ERR message; *fd is taken from it, -1 when the message says that
 * there is none. */
static struct vhost_ring *ring_with_fd(struct call *c, int *fd)
{
	uint64_t v = c->m->p.u64;
	bool none = v & VHOST_VRING_NO_FD;
	struct vhost_ring *r;
	struct stat st;

	if (v & ~(uint64_t)(VHOST_VRING_INDEX_MASK | VHOST_VRING_NO_FD) ||
	    none != (c->m->fds_n == 0)) {
		err_set(c->e, -EPROTO,
			"the file descriptor and the word about it (0x%" PRIx64 ") disagree", v);
		return NULL;
	}
	/* Events go through eventfds; a file that cannot be waited for would make a reactor spin.
	 */
	if (!none && (fstat(c->m->fds[0], &st) < 0 || S_ISREG(st.st_mode) || S_ISDIR(st.st_mode))) {
		err_set(c->e, -EINVAL, "the file descriptor is not an eventfd");
		return NULL;
	}
	/* A guest may hand over one that is full: a reactor must not wait in write(). */
	if (!none)
		fcntl(c->m->fds[0], F_SETFL, O_NONBLOCK);
	r = ring_at(c, (uint32_t)(v & VHOST_VRING_INDEX_MASK));
	if (r)
		*fd = take_fd(c->m); /* else it is closed with the message */
	return r;
}

static int set_vring_kick(struct call *c)
{
	int fd;
	struct vhost_ring *r = ring_with_fd(c, &fd);

	if (!r)
		return -EINVAL;
	vhost_ring_set_kick(c->s, r, fd);
	return vhost_ring_update(c->s, r, c->e);
}

static int set_vring_call(struct call *c)
{
	int fd;
	struct vhost_ring *r = ring_with_fd(c, &fd);

	if (!r)
		return -EINVAL;
	vhost_ring_set_call(r, fd);
	return 0;
}

static int set_vring_err(struct call *c)
{
	int fd;
	struct vhost_ring *r = ring_with_fd(c, &fd);

	if (!r)
		return -EINVAL;
	vhost_ring_set_err(r, fd);
	return 0;
}

static int set_vring_enable(struct call *c)
{
	struct vhost_ring *r = ring_at(c, c->m->p.state.index);

	if (!r)
		return -EINVAL;
	if (c->m->p.state.num > 1)
		return err_set(c->e, -EINVAL,
			       "a ring is enabled with 1 and disabled with 0, not %u",
			       c->m->p.state.num);
	r->enabled = c->m->p.state.num;
	return vhost_ring_update(c->s, r, c->e);
}

/* --- configuration space --- */

static bool config_sane(const struct vhost_msg *m)
{
	const struct vhost_config *g = &m->p.config;

	return g->size <= VHOST_CONFIG_MAX && g->offset <= VHOST_CONFIG_MAX - g->size &&
	       m->hdr.size == VHOST_CONFIG_HEAD + g->size;
}

static int get_config(struct call *c)
{
	struct vhost_config *g = &c->m->p.config;

	if (!config_sane(c->m)) {
		log_warn("%s: GET_CONFIG of %u bytes at %u is outside the configuration space",
			 c->s->c.name, g->size, g->offset);
		return reply(c, NULL, 0, -1); /* how this message says no */
	}
	c->s->c.ops->config_get(c->s->c.device, g->offset, g->data, g->size);
	return reply(c, g, VHOST_CONFIG_HEAD + g->size, -1);
}

static int set_config(struct call *c)
{
	const struct vhost_config *g = &c->m->p.config;

	if (!config_sane(c->m))
		return err_set(c->e, -EINVAL, "%u bytes at %u are outside the configuration space",
			       g->size, g->offset);
	return c->s->c.ops->config_set(c->s->c.device, g->offset, g->data, g->size, c->e);
}

/* --- in-flight region --- */

static bool any_running(const struct vhost_session *s)
{
	for (unsigned i = 0; i < s->c.rings; i++)
		if (s->ring[i].running)
			return true;
	return false;
}

static int check_inflight(struct call *c, const struct vhost_inflight *f)
{
	if (f->num_queues == 0 || f->num_queues > c->s->c.rings || f->queue_size == 0 ||
	    f->queue_size > VIRTQ_SIZE_MAX)
		return err_set(
			c->e, -EINVAL,
			"an in-flight region for %u rings of %u entries is not for this disk, "
			"which has %u",
			f->num_queues, f->queue_size, c->s->c.rings);
	if (any_running(c->s))
		return err_set(c->e, -EBUSY, "rings are running");
	return 0;
}

static void drop_inflight(struct vhost_session *s)
{
	if (s->inflight.map) {
		mem_unregister(s->inflight.map);
		munmap(s->inflight.map, s->inflight.map_len);
	}
	memset(&s->inflight, 0, sizeof(s->inflight));
}

/* Map the region and make it the session's. */
static int map_inflight(struct call *c, int fd, const struct vhost_inflight *f)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), start = ROUND_DOWN(f->mmap_offset, page);
	size_t len = f->mmap_offset - start + f->mmap_size;
	bool packed = vhost_session_packed(c->s);
	size_t stride = inflight_stride(f->queue_size, packed);
	struct stat st;
	void *map;
	int rc;

	if (f->mmap_size < f->num_queues * stride || !IS_ALIGNED(f->mmap_offset, 8) ||
	    range_wraps(f->mmap_offset, f->mmap_size) || fstat(fd, &st) < 0 || st.st_size < 0 ||
	    f->mmap_offset + f->mmap_size > (uint64_t)st.st_size)
		return err_set(c->e, -EINVAL,
			       "%" PRIu64 " bytes at %" PRIu64
			       " do not hold %u rings of %u entries",
			       f->mmap_size, f->mmap_offset, f->num_queues, f->queue_size);
	map = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)start);
	if (map == MAP_FAILED)
		return err_set(c->e, -errno, "cannot map the in-flight region: %s",
			       err_words(errno));
	rc = mem_register(map, ROUND_UP(len, page), MEM_SHARED);
	if (rc) {
		munmap(map, len);
		return err_set(c->e, rc, "cannot register the in-flight region: %s", err_words(rc));
	}
	drop_inflight(c->s);
	c->s->inflight = (struct vhost_inflight_map){
		.map = map,
		.map_len = len,
		.base = (char *)map + (f->mmap_offset - start),
		.queues = f->num_queues,
		.queue_size = f->queue_size,
		.packed = packed,
		.stride = stride,
	};
	return 0;
}

static int get_inflight_fd(struct call *c)
{
	struct vhost_inflight f = c->m->p.inflight;
	int rc = check_inflight(c, &f), fd;

	if (rc)
		return rc;
	f.mmap_size = f.num_queues * inflight_stride(f.queue_size, vhost_session_packed(c->s));
	f.mmap_offset = 0;
	f.padding = 0;
	fd = memfd_create("riffle-inflight", MFD_CLOEXEC);
	if (fd < 0 || ftruncate(fd, (off_t)f.mmap_size) < 0)
		rc = err_set(c->e, -errno, "cannot make an in-flight region: %s", err_words(errno));
	if (rc == 0)
		rc = map_inflight(c, fd, &f);
	if (rc == 0)
		rc = reply(c, &f, sizeof(f), fd);
	if (fd >= 0)
		close(fd);
	return rc;
}

static int set_inflight_fd(struct call *c)
{
	const struct vhost_inflight *f = &c->m->p.inflight;
	int rc = check_inflight(c, f);

	return rc ? rc : map_inflight(c, c->m->fds[0], f);
}

/* --- dispatch --- */

static int (*const handlers[VHOST_REQUEST_MAX])(struct call *c) = {
	[VHOST_GET_FEATURES] = get_features,
	[VHOST_SET_FEATURES] = set_features,
	[VHOST_SET_OWNER] = set_owner,
	[VHOST_RESET_OWNER] = set_owner, /* deprecated; nothing is dropped */
	[VHOST_SET_MEM_TABLE] = set_mem_table,
	[VHOST_SET_LOG_BASE] = set_log_base,
	[VHOST_SET_LOG_FD] = set_log_fd,
	[VHOST_SET_VRING_NUM] = set_vring_num,
	[VHOST_SET_VRING_ADDR] = set_vring_addr,
	[VHOST_SET_VRING_BASE] = set_vring_base,
	[VHOST_GET_VRING_BASE] = get_vring_base,
	[VHOST_SET_VRING_KICK] = set_vring_kick,
	[VHOST_SET_VRING_CALL] = set_vring_call,
	[VHOST_SET_VRING_ERR] = set_vring_err,
	[VHOST_GET_PROTOCOL_FEATURES] = get_protocol_features,
	[VHOST_SET_PROTOCOL_FEATURES] = set_protocol_features,
	[VHOST_GET_QUEUE_NUM] = get_queue_num,
	[VHOST_SET_VRING_ENABLE] = set_vring_enable,
	[VHOST_SET_BACKEND_REQ_FD] = set_backend_req_fd,
	[VHOST_GET_CONFIG] = get_config,
	[VHOST_SET_CONFIG] = set_config,
	[VHOST_GET_INFLIGHT_FD] = get_inflight_fd,
	[VHOST_SET_INFLIGHT_FD] = set_inflight_fd,
	[VHOST_RESET_DEVICE] = reset_device,
	[VHOST_GET_MAX_MEM_SLOTS] = get_max_mem_slots,
	[VHOST_ADD_MEM_REG] = add_mem_reg,
	[VHOST_REM_MEM_REG] = rem_mem_reg,
};

int vhost_handle(struct vhost_session *s, struct vhost_msg *m, bool *replied, struct err *e)
{
	struct call c = { s, m, replied, e };

	return handlers[m->hdr.request](&c);
}
