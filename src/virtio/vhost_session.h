/*
 * vhost_session: the back-end's half of a vhost-user connection.
 *
 * A session lives as long as one connection and belongs to one blocking thread, its device's:
 *
 *	vhost_session_open(&s, fd, ops, ...);
 *	while (wait until fd is readable)
 *		if (vhost_session_step(s) < 0)
 *			break;
 *	vhost_session_close(s);
 *
 * The session knows messages, memory and rings; what the rings carry is the device's, which it
 *calls through struct vhost_device_ops. A ring is started once it has a size, addresses, memory, a
 *kick fd (or the word that there is none) and is enabled; it is stopped by GET_VRING_BASE,
 *RESET_DEVICE and the end of the connection. Between start and stop the struct virtq belongs to its
 *reactor, and the session changes it only through reactor_call().
 */
#ifndef VIRTIO_VHOST_SESSION_H
#define VIRTIO_VHOST_SESSION_H

#include <stdbool.h>
#include <stdint.h>

#include "util/err.h"
#include "virtio/virtq.h"

#define VHOST_RINGS_MAX 256

struct vhost_session;

/* All on the session's thread. */
struct vhost_device_ops {
	/*
	 * Take vq (mapped, indexes set) to a reactor, which the device writes into vq->reactor, and
	 * serve it from now on. kick_fd
	 * (-1: none, poll) stays the session's and open until stop. Errors: the device's, with a
	 * sentence.
	 */
	int (*ring_start)(void *device, struct virtq *vq, int kick_fd, struct err *e);
	/* Take nothing more from the ring, or go on. What is in flight goes on either way. */
	void (*ring_pause)(void *device, struct virtq *vq);
	void (*ring_resume)(void *device, struct virtq *vq);
	/* The front-end is gone: write nothing more to its memory (virtq_abandon() with scratch,
	 * and the device's own). */
	void (*ring_abandon)(void *device, struct virtq *vq, void *scratch);
	/* Wait until nothing is in flight, and give vq back. */
	void (*ring_stop)(void *device, struct virtq *vq);

	/* Fill or change the device's configuration space; len bytes at offset, within
	 * VHOST_CONFIG_MAX. */
	void (*config_get)(void *device, uint32_t offset, void *data, uint32_t len);
	int (*config_set)(void *device, uint32_t offset, const void *data, uint32_t len,
			  struct err *e);
	/* The driver's choice; also called when it changes. */
	void (*features_set)(void *device, uint64_t features);
};

struct vhost_session_config {
	const char *name;  /* for the log */
	unsigned rings;	   /* <= VHOST_RINGS_MAX */
	uint64_t features; /* the device's; the session adds its own */
	const struct vhost_device_ops *ops;
	void *device;
};

/* fd becomes the session's. Errors: -ENOMEM. */
int vhost_session_open(int fd, const struct vhost_session_config *c, struct vhost_session **out);
/*
 * Stops all rings, unmaps, closes every fd. gone: the front-end has left, so what is still in
 * flight ends without a word; else it is given back as usual.
 */
void vhost_session_close(struct vhost_session *s, bool gone);

/* Receive and handle one message; the fd is readable. < 0: the connection is over (the reason is
 * logged). */
int vhost_session_step(struct vhost_session *s);

/* Unmap memory that the last request has let go of. true: there is still some that is held; call
 * again soon. */
bool vhost_session_retire(struct vhost_session *s);

/*
 * A byte that outlives this process: the device's note in the in-flight region, behind what the
 * protocol defines. Back-ends that do not know it leave it alone. vhost_session_note_get(): -1 when
 * there is none. Session thread.
 */
int vhost_session_note_get(const struct vhost_session *s);
void vhost_session_note_set(struct vhost_session *s, uint8_t value); /* nothing without a region */

/* The configuration space has changed: the front-end is told, if it wants to know
 * (VHOST_USER_BACKEND_CONFIG_CHANGE_MSG). */
void vhost_session_config_changed(struct vhost_session *s);

/* To wait for. */
int vhost_session_fd(const struct vhost_session *s);

#endif
