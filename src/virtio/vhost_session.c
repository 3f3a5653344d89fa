#include "virtio/vhost_session.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "mem/mem.h"
#include "util/log.h"
#include "virtio/vhost_internal.h"

uint64_t vhost_protocol_features(void)
{
	return FEATURE(VHOST_PROTOCOL_F_MQ) | FEATURE(VHOST_PROTOCOL_F_LOG_SHMFD) |
	       FEATURE(VHOST_PROTOCOL_F_REPLY_ACK) | FEATURE(VHOST_PROTOCOL_F_BACKEND_REQ) |
	       FEATURE(VHOST_PROTOCOL_F_CONFIG) | FEATURE(VHOST_PROTOCOL_F_INFLIGHT_SHMFD) |
	       FEATURE(VHOST_PROTOCOL_F_RESET_DEVICE) |
	       FEATURE(VHOST_PROTOCOL_F_CONFIGURE_MEM_SLOTS);
}

int vhost_session_open(int fd, const struct vhost_session_config *c, struct vhost_session **out)
{
	struct vhost_session *s = calloc(1, sizeof(*s));

	if (!s)
		return -ENOMEM;
	s->fd = fd;
	s->c = *c;
	s->backend_fd = -1;
	s->offered = c->features | FEATURE(VIRTIO_F_VERSION_1) | FEATURE(VIRTIO_F_INDIRECT_DESC) |
		     FEATURE(VIRTIO_F_EVENT_IDX) | FEATURE(VIRTIO_F_ANY_LAYOUT) |
		     FEATURE(VHOST_F_LOG_ALL) | FEATURE(VHOST_USER_F_PROTOCOL_FEATURES);
	list_init(&s->retired);
	s->ring = calloc(c->rings, sizeof(*s->ring));
	if (!s->ring || guest_mem_create(c->rings, &s->mem)) {
		free(s->ring);
		free(s);
		return -ENOMEM;
	}
	for (unsigned i = 0; i < c->rings; i++)
		vhost_ring_init(&s->ring[i], i);
	*out = s;
	return 0;
}

void vhost_session_close(struct vhost_session *s, bool gone)
{
	for (unsigned i = 0; gone && i < s->c.rings; i++)
		vhost_ring_abandon(s, &s->ring[i]);
	for (unsigned i = 0; i < s->c.rings; i++)
		vhost_ring_reset(s, &s->ring[i]);
	for (unsigned i = 0; i < s->mem->n; i++)
		if (mem_lost(s->mem->region[i]->map))
			log_warn("%s: the front-end made its memory smaller while it was in use",
				 s->c.name);
	vhost_session_retire(s); /* nothing is in flight: this takes them all */
	guest_mem_destroy(s->mem);
	dirty_log_close(s->log);
	if (s->inflight.map) {
		mem_unregister(s->inflight.map);
		munmap(s->inflight.map, s->inflight.map_len);
	}
	if (s->backend_fd >= 0)
		close(s->backend_fd);
	close(s->fd);
	free(s->ring);
	free(s);
}

int vhost_session_fd(const struct vhost_session *s)
{
	return s->fd;
}

void vhost_session_config_changed(struct vhost_session *s)
{
	struct vhost_hdr hdr = { .request = VHOST_BACKEND_CONFIG_CHANGE, .flags = VHOST_VERSION };

	/* Twelve bytes. A front-end that does not even take them finds the new size in its own
	 * time. */
	if (s->backend_fd >= 0 &&
	    send(s->backend_fd, &hdr, sizeof(hdr), MSG_NOSIGNAL | MSG_DONTWAIT) != sizeof(hdr))
		log_warn("%s: the front-end cannot be told that the disk has another size: %s",
			 s->c.name, err_words(errno));
}

/* --- the note --- */

#define NOTE_MAGIC 0x656c6666u /* "ffle" */

struct note {
	uint32_t magic;
	uint32_t value;
};

/* In the padding behind ring 0's descriptors: 48 bytes for split rings of 4 entries and more, 32
 * for packed ones with an even number of them. */
static struct note *note_of(const struct vhost_session *s)
{
	const struct vhost_inflight_map *map = &s->inflight;
	size_t used = inflight_defined(map->queue_size, map->packed);

	if (!map->base || map->stride - used < sizeof(struct note))
		return NULL;
	return (struct note *)(void *)(map->base + used);
}

int vhost_session_note_get(const struct vhost_session *s)
{
	const struct note *n = note_of(s);

	return n && READ_ONCE(n->magic) == NOTE_MAGIC ? (int)(READ_ONCE(n->value) & 0xff) : -1;
}

void vhost_session_note_set(struct vhost_session *s, uint8_t value)
{
	struct note *n = note_of(s);

	if (!n)
		return;
	WRITE_ONCE(n->value, value);
	store_release(&n->magic, NOTE_MAGIC);
}

/* --- memory --- */

bool vhost_session_retire(struct vhost_session *s)
{
	struct guest_mem *m, *next;

	list_for_each_safe (m, next, &s->retired, node) {
		if (!guest_mem_idle(m))
			continue;
		list_del(&m->node);
		guest_mem_destroy(m);
	}
	return !list_empty(&s->retired);
}

int vhost_session_set_mem(struct vhost_session *s, struct guest_mem *mem, struct err *e)
{
	struct guest_mem *old = s->mem;
	int rc = 0;

	s->mem = mem;
	for (unsigned i = 0; i < s->c.rings; i++) {
		int one = vhost_ring_remap(s, &s->ring[i], mem, e);

		rc = rc ? rc : one;
	}
	/* Rings hold it no more; requests may. A ring that broke in the change keeps its pointers,
	 * so it is stopped first. */
	for (unsigned i = 0; rc && i < s->c.rings; i++)
		if (s->ring[i].running && s->ring[i].vq->broken)
			vhost_ring_stop(s, &s->ring[i]);
	list_add_tail(&s->retired, &old->node);
	vhost_session_retire(s);
	for (unsigned i = 0; rc == 0 && i < s->c.rings; i++)
		rc = vhost_ring_update(s, &s->ring[i], e);
	return rc;
}

void vhost_hint_share_on(struct vhost_session *s)
{
	if (!s->hinted)
		log_warn(
			"%s: the guest's memory cannot be used. Is it shared? QEMU needs: "
			"-object memory-backend-memfd,id=mem,size=SIZE,share=on -machine memory-backend=mem",
			s->c.name);
	s->hinted = true;
}

/* --- messages --- */

/* need_reply asks for a yes or no where the request has no reply of its own. */
static int acknowledge(struct vhost_session *s, const struct vhost_msg *m, int rc)
{
	uint64_t ack = rc ? 1 : 0;

	return vhost_reply(s->fd, m->hdr.request, &ack, sizeof(ack), -1);
}

int vhost_session_step(struct vhost_session *s)
{
	struct err e = { 0 };
	struct vhost_msg m;
	bool replied = false, wants;
	int rc = vhost_recv(s->fd, &m, &e);

	if (rc == -EPIPE)
		return rc;
	if (rc) {
		log_warn("%s: %s; closing the connection", s->c.name, e.text);
		return rc;
	}
	rc = vhost_msg_check(&m, &e);
	if (rc == 0)
		rc = vhost_handle(s, &m, &replied, &e);
	vhost_msg_close_fds(&m);
	/* Also without SET_PROTOCOL_FEATURES: QEMU leaves it out when it reconnects, and then waits
	 * for the answer. */
	wants = m.hdr.flags & VHOST_F_NEED_REPLY && !vhost_has_reply(m.hdr.request);
	if (rc == -EPIPE)
		return rc;
	if (rc)
		log_warn("%s: %s refused: %s%s", s->c.name, vhost_request_name(m.hdr.request),
			 e.text, wants || replied ? "" : "; closing the connection");
	if (wants && !replied)
		return acknowledge(s, &m, rc);
	return replied ? 0 : rc;
}
