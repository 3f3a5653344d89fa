/* The inside of a session: vhost_session.c (life, memory, dispatch), vhost_ring.c (rings) and
 * vhost_handlers.c (messages). */
#ifndef VIRTIO_VHOST_INTERNAL_H
#define VIRTIO_VHOST_INTERNAL_H

#include "virtio/dirty_log.h"
#include "virtio/inflight.h"
#include "virtio/vhost_msg.h"
#include "virtio/vhost_session.h"

struct vhost_ring {
	struct virtq_setup setup;
	bool have_num, have_addr; /* told on this connection */
	bool have_kick;		  /* fd, or the word that there is none */
	bool enabled;
	bool running; /* the device has vq */
	bool paused;  /* running, but disabled */
	bool log;     /* VHOST_VRING_F_LOG */
	uint64_t log_addr;
	int kick_fd, call_fd, err_fd;
	struct virtq *vq; /* while running */
	struct virtq_inflight inflight;
	bool inflight_open;
	void *scratch; /* takes the place of guest memory once the front-end is gone */
};

/* The shared region that GET_INFLIGHT_FD made or SET_INFLIGHT_FD brought. */
struct vhost_inflight_map {
	void *map;
	size_t map_len;
	char *base;
	unsigned queues, queue_size;
	bool packed; /* the format it was made for */
	size_t stride;
};

struct vhost_session {
	int fd;
	struct vhost_session_config c;
	uint64_t offered, features;
	bool acked_features; /* SET_FEATURES has been seen */
	struct guest_mem *mem;
	struct list retired; /* struct guest_mem still held by requests */
	struct vhost_ring *ring;
	struct vhost_inflight_map inflight;
	struct dirty_log *log;
	int backend_fd; /* for messages to the front-end */
	bool hinted;	/* that memory must be shared */
};

/* vhost_handlers.c. 0; -errno with a sentence. *replied: the reply has been sent. */
int vhost_handle(struct vhost_session *s, struct vhost_msg *m, bool *replied, struct err *e);

/* Has the driver chosen packed rings? */
static inline bool vhost_session_packed(const struct vhost_session *s)
{
	return s->features & FEATURE(VIRTIO_F_RING_PACKED);
}

/* vhost_session.c */
uint64_t vhost_protocol_features(void);
/* Switch all rings to mem and retire the old table. Takes mem in any case. */
int vhost_session_set_mem(struct vhost_session *s, struct guest_mem *mem, struct err *e);

/* Say once per connection what forgetting share=on looks like from here. */
void vhost_hint_share_on(struct vhost_session *s);

/* vhost_ring.c */
void vhost_ring_init(struct vhost_ring *r, unsigned index);
/* Start, pause or resume the ring, as its present facts ask for. */
int vhost_ring_update(struct vhost_session *s, struct vhost_ring *r, struct err *e);
/* Stop it and wait for what is in flight; setup.base is where it stood. Harmless when
 * stopped. */
void vhost_ring_stop(struct vhost_session *s, struct vhost_ring *r);
/* The front-end is gone: what ends from now on is not told. */
void vhost_ring_abandon(struct vhost_session *s, struct vhost_ring *r);
/* Stop it and forget what was told of it, fds included. */
void vhost_ring_reset(struct vhost_session *s, struct vhost_ring *r);
/* Change a fact of a ring, on its reactor when it runs. */
int vhost_ring_remap(struct vhost_session *s, struct vhost_ring *r, const struct guest_mem *mem,
		     struct err *e);
void vhost_ring_set_call(struct vhost_ring *r, int fd);
void vhost_ring_set_err(struct vhost_ring *r, int fd);
void vhost_ring_set_kick(struct vhost_session *s, struct vhost_ring *r, int fd);
void vhost_ring_set_log(struct vhost_session *s, struct vhost_ring *r);

#endif
