/*
 * A fake guest: memory in memfds, split or packed virtqueues and a virtio-blk driver, talking to a
 * vhost-user-blk back-end over its socket. Small enough that a test can reach into every field.
 *
 * Theory of operation. A struct guest is one front-end session. guest_connect() opens it;
 * guest_negotiate() settles features; guest_mem_add() makes regions and guest_mem_share() hands
 * them over; guest_queue_setup() lays a ring into guest memory and guest_queue_start() gives it
 * to the device. guest_open() does all of it with one region. guest_close() ends everything.
 *
 * Guest physical addresses ("gpa", uint64_t) and our own pointers differ by a constant: every
 * guest reserves one window of address space and maps its regions into it, so that regions
 * adjacent for the guest are adjacent for us too, and guest_ptr() is an addition.
 *
 * A request, in three depths:
 *	guest_write(g, 0, sector, buf, len)		one call, waits
 *	guest_req_submit() ... guest_req_poll()		asynchronous, one struct guest_req per slot
 *	guest_desc(), guest_avail(), guest_notify()	every field by hand, for hostile cases
 * The third does not mix with the first two on one queue: it bypasses the descriptor free list.
 *
 * All three do the same on a packed queue (RING_PACKED acknowledged when it was set up): there
 * guest_desc() fills a table of the driver's own, and guest_avail() lays the chain of a head into
 * the ring, with the head as its buffer id. What only a packed ring has is under "packed queues".
 *
 * Shared fields are read and written with atomics; a hostile test changes ring memory as it
 * likes. What the driver itself must rely on (free list, chain lengths) is kept in private memory.
 *
 * One thread per queue. Different queues of a guest may be driven by different threads once
 * set up; guest_alloc() and everything that talks on the socket belongs to one thread at a time.
 *
 * VIRTIO 1.3, sections 2.7 (split virtqueue), 2.8 (packed virtqueue) and 5.2 (block device). The
 * host is little-endian.
 */
#ifndef FAKE_GUEST_H
#define FAKE_GUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fake/vhost_wire.h"

#define VIRTIO_BLK_SIZE_MAX	(1ull << 1)
#define VIRTIO_BLK_SEG_MAX	(1ull << 2)
#define VIRTIO_BLK_RO		(1ull << 5)
#define VIRTIO_BLK_BLK_SIZE	(1ull << 6)
#define VIRTIO_BLK_FLUSH	(1ull << 9)
#define VIRTIO_BLK_MQ		(1ull << 12)
#define VIRTIO_BLK_DISCARD	(1ull << 13)
#define VIRTIO_BLK_WRITE_ZEROES (1ull << 14)
#define VHOST_LOG_ALL		(1ull << 26)
#define VIRTIO_INDIRECT_DESC	(1ull << 28)
#define VIRTIO_EVENT_IDX	(1ull << 29)
#define VHOST_USER_PROTOCOL	(1ull << 30)
#define VIRTIO_VERSION_1	(1ull << 32)
#define VIRTIO_RING_PACKED	(1ull << 34)

/* What guest_open() acknowledges unless told otherwise (EVENT_IDX, INDIRECT and RING_PACKED on
 * top). */
#define GUEST_FEATURES                                                                       \
	(VIRTIO_VERSION_1 | VHOST_USER_PROTOCOL | VIRTIO_BLK_SEG_MAX | VIRTIO_BLK_SIZE_MAX | \
	 VIRTIO_BLK_BLK_SIZE | VIRTIO_BLK_FLUSH | VIRTIO_BLK_RO | VIRTIO_BLK_MQ |            \
	 VIRTIO_BLK_DISCARD | VIRTIO_BLK_WRITE_ZEROES)
#define GUEST_PROTOCOL (VHOST_PROTOCOL_MQ | VHOST_PROTOCOL_REPLY_ACK | VHOST_PROTOCOL_CONFIG)

enum { DESC_NEXT = 1, DESC_WRITE = 2, DESC_INDIRECT = 4, DESC_AVAIL = 1 << 7, DESC_USED = 1 << 15 };
enum { AVAIL_NO_INTERRUPT = 1, USED_NO_NOTIFY = 1 };
enum { EVENT_ENABLE = 0, EVENT_DISABLE = 1, EVENT_DESC = 2 };
enum {
	BLK_IN = 0,
	BLK_OUT = 1,
	BLK_FLUSH = 4,
	BLK_GET_ID = 8,
	BLK_DISCARD = 11,
	BLK_WRITE_ZEROES = 13
};
enum { BLK_OK = 0, BLK_IOERR = 1, BLK_UNSUPP = 2 };

#define BLK_SECTOR    512u
#define BLK_UNMAP     1u    /* flag of a WRITE_ZEROES segment */
#define BLK_NO_STATUS 0xeeu /* what a status byte holds before the device writes it */

struct virtq_desc {
	uint64_t addr;
	uint32_t len;
	uint16_t flags;
	uint16_t next;
};

struct virtq_avail {
	uint16_t flags;
	uint16_t idx;
	uint16_t ring[]; /* then used_event */
};

struct virtq_used_elem {
	uint32_t id;
	uint32_t len;
};

struct virtq_used {
	uint16_t flags;
	uint16_t idx;
	struct virtq_used_elem ring[]; /* then avail_event */
};

struct packed_desc {
	uint64_t addr;
	uint32_t len;
	uint16_t id;
	uint16_t flags;
};

struct packed_event {
	uint16_t off_wrap; /* bits 0-14: a slot, bit 15: its wrap counter */
	uint16_t flags;
};

struct blk_header {
	uint32_t type;
	uint32_t reserved;
	uint64_t sector;
};

struct blk_segment { /* of DISCARD and WRITE_ZEROES */
	uint64_t sector;
	uint32_t num_sectors;
	uint32_t flags;
};

struct blk_config {	   /* the part that drivers read */
	uint64_t capacity; /* sectors of 512 bytes */
	uint32_t size_max;
	uint32_t seg_max;
	uint16_t cylinders;
	uint8_t heads;
	uint8_t sectors;
	uint32_t blk_size;
	uint8_t physical_block_exp;
	uint8_t alignment_offset;
	uint16_t min_io_size;
	uint32_t opt_io_size;
	uint8_t writeback;
	uint8_t unused0;
	uint16_t num_queues;
	uint32_t max_discard_sectors;
	uint32_t max_discard_seg;
	uint32_t discard_sector_alignment;
	uint32_t max_write_zeroes_sectors;
	uint32_t max_write_zeroes_seg;
	uint8_t write_zeroes_may_unmap;
	uint8_t pad[3];
};

_Static_assert(sizeof(struct virtq_desc) == 16, "descriptor");
_Static_assert(sizeof(struct packed_desc) == 16, "packed descriptor");
_Static_assert(sizeof(struct packed_event) == 4, "event suppression area");
_Static_assert(sizeof(struct blk_header) == 16, "request header");
_Static_assert(sizeof(struct blk_config) == 64, "configuration");
_Static_assert(offsetof(struct blk_config, max_discard_sectors) == 36, "configuration");

#define GUEST_MAX_QUEUES  64
#define GUEST_WINDOW	  (8ull << 30)	/* how far apart two regions may lie */
#define GUEST_BASE	  0x40000000ull /* where guest_open() puts its memory */
#define GUEST_DEADLINE_MS 20000		/* for what a healthy back-end does at once */
#define GUEST_MAX_CHAIN	  300		/* descriptors of one struct guest_req */
#define GUEST_SYNC_SIZE	  65536u	/* data buffer of the synchronous helpers */

struct guest_region {
	uint64_t gpa;
	uint64_t size;
	uint64_t offset; /* in fd */
	int fd;
};

struct guest_seg {
	uint64_t gpa;
	uint32_t len;
	bool write; /* the device writes it */
};

enum guest_how {
	GUEST_DIRECT,
	GUEST_INDIRECT, /* the whole chain in one table */
	GUEST_MIXED,	/* the first segment direct, the rest in a table; not in packed queues */
};

struct guest;

/* One request and its buffers; the caller owns it and may move the addresses elsewhere. */
struct guest_req {
	uint64_t header; /* gpa */
	uint64_t status; /* gpa */
	uint64_t table;	 /* gpa of an indirect table of GUEST_MAX_CHAIN entries; 0: none */
	uint64_t data;	 /* gpa */
	uint32_t data_size;
	const struct guest_seg *segs; /* the data, in pieces; NULL: in one, at @data */
	unsigned nsegs;
	enum guest_how how;
	/* of the present or last submission */
	uint16_t head;
	uint32_t used_len;
	uint64_t start_ns;
	void *owner; /* the caller's */
};

struct guest_queue {
	struct guest *guest;
	unsigned index;
	unsigned size;
	bool packed;
	uint64_t desc_gpa, avail_gpa, used_gpa; /* packed: ring, driver's and device's event area */
	struct virtq_desc *desc;		/* packed: the driver's own */
	struct virtq_avail *avail;
	struct virtq_used *used;
	int kick, call, err; /* eventfds */
	bool no_kick_fd;     /* set before start: the device polls */
	bool no_call_fd;     /* set before start: we poll */
	bool quiet;	     /* keep interrupts suppressed; see guest_queue_quiet() */
	uint16_t avail_idx;  /* next to fill; guest_publish() shows it */
	uint16_t kicked_idx; /* avail_idx of the last decision to kick */
	uint16_t used_idx;   /* next to reap */
	uint64_t kicks;	     /* sent */
	uint64_t calls;	     /* received by the wait functions */
	/* of a packed queue; avail_idx and used_idx are slots there */
	struct packed_desc *ring;
	struct packed_event *driver_event, *device_event;
	bool avail_wrap, used_wrap;
	uint16_t unkicked; /* descriptors since the last decision to kick */
	bool staged;	   /* a first descriptor that guest_publish() shows */
	uint16_t staged_slot, staged_flags;
	uint16_t used_flags; /* of the last used descriptor */
	uint16_t *slots;     /* by id: descriptors that it takes in the ring */
	/* the descriptor free list and what hangs on each head */
	unsigned nfree;
	uint16_t free_head;
	uint16_t *free_next;
	uint16_t *chain_len;
	struct guest_req **by_head;
	struct guest_req sync; /* for the synchronous helpers */
};

struct guest {
	int sock;
	uint64_t offered, acked;	     /* virtio features */
	uint64_t protocol_offered, protocol; /* vhost-user protocol features */
	struct blk_config config;	     /* of guest_negotiate() */
	void *reserved;			     /* address space for the window */
	uint8_t *window;
	uint64_t window_gpa;
	struct guest_region region[VHOST_MAX_REGIONS];
	unsigned nregions;
	uint64_t alloc_next, alloc_end;
	int inflight_fd; /* -1: no in-flight region */
	struct vhost_inflight inflight;
	struct guest_queue *queue[GUEST_MAX_QUEUES];
};

struct guest_params {
	const char *path;
	uint64_t mem_size;   /* 0: 8 MiB */
	unsigned queues;     /* 0: 1 */
	unsigned queue_size; /* 0: 128 */
	bool indirect;	     /* negotiate and use them */
	bool event_idx;
	bool packed;	  /* -ENOTSUP if it is not offered */
	bool inflight;	  /* with an in-flight region from the back-end */
	bool huge;	  /* memory in 2 MiB pages: -ENOMEM if there are none */
	uint64_t without; /* features not to acknowledge */
};

/* ---- session and memory (guest.c) ---- */

int guest_connect(const char *path, struct guest **out);

/* A guest that talks to nobody: only memory and queues. */
int guest_create(struct guest **out);

/* Owner, features, protocol features, configuration. Only offered bits are acknowledged. */
int guest_negotiate(struct guest *g, uint64_t features, uint64_t protocol);

/* Reads @size bytes of configuration space; -EIO if the device refused. */
int guest_config_read(struct guest *g, uint32_t offset, uint32_t size, void *buf);

/* A new region on a memfd of its own; the first one feeds guest_alloc(). */
int guest_mem_add(struct guest *g, uint64_t gpa, uint64_t size, bool huge);

/* The same on a piece of @fd, which stays the caller's. */
int guest_mem_add_fd(struct guest *g, uint64_t gpa, uint64_t size, int fd, uint64_t offset);

/* SET_MEM_TABLE with all regions. */
int guest_mem_share(struct guest *g);

static inline void *guest_ptr(const struct guest *g, uint64_t gpa)
{
	/* Of an address outside the window too, which a test may only hand on. */
	return (void *)((uintptr_t)g->window + (gpa - g->window_gpa));
}

/* Memory from the first region, zeroed; 0 when it is used up. Never given back. */
uint64_t guest_alloc(struct guest *g, uint64_t len, uint64_t align);

/* GET_INFLIGHT_FD; the region of each queue is for @queue_size descriptors. */
int guest_inflight_get(struct guest *g, unsigned queues, unsigned queue_size);
int guest_inflight_set(struct guest *g);

/*
 * The same guest with its memory, in-flight region and features before another back-end; its
 * queues are as they were, and not started.
 */
int guest_reconnect(struct guest *g, const char *path);

/* All of the above and @p->queues started queues. */
int guest_open(const struct guest_params *p, struct guest **out);

/* Closes the socket first, so that the back-end sees a guest that vanishes. */
void guest_close(struct guest *g);

/* ---- queues (guest_ring.c) ---- */

/* A queue of @size at fresh addresses; @out may be NULL: then it is g->queue[index]. */
int guest_queue_setup(struct guest *g, unsigned index, unsigned size, struct guest_queue **out);

/* The same at addresses of the caller's choice. */
int guest_queue_setup_at(struct guest *g, unsigned index, unsigned size, uint64_t desc,
			 uint64_t avail, uint64_t used, struct guest_queue **out);

/*
 * Where a ring stands, as GET_VRING_BASE and SET_VRING_BASE have it. Split: the avail index.
 * Packed: bits 0-14 the avail slot, 15 its wrap counter, 16-30 the used slot, 31 its wrap counter.
 */
#define GUEST_PACKED_BASE(slot, wrap) (((slot) | (unsigned)(wrap) << 15) * 0x10001u)

/* The beginning of a fresh ring. */
static inline uint32_t guest_queue_first(const struct guest_queue *q)
{
	return q->packed ? GUEST_PACKED_BASE(0u, 1) : 0;
}

/* Where the driver stands: next to make available, and (packed) next to reap. */
uint32_t guest_queue_base(const struct guest_queue *q);

/* Empties the ring in memory; both sides begin at @base. The queue must be stopped. */
void guest_queue_reset(struct guest_queue *q, uint32_t base);

/*
 * NUM, BASE, ADDR, CALL, ERR, KICK, ENABLE and a first kick, as real front-ends do. The device
 * begins at @base: that of guest_queue_reset(), or what guest_queue_stop() said.
 */
int guest_queue_start(struct guest_queue *q, uint32_t base);

/* GET_VRING_BASE; @base may be NULL. */
int guest_queue_stop(struct guest_queue *q, uint32_t *base);

/* Stop, empty, start: what a driver does with a queue that the device has given up. */
int guest_queue_restart(struct guest_queue *q);

void guest_queue_free(struct guest_queue *q);

/* Suppresses interrupts for good (@on), or asks for them again. */
void guest_queue_quiet(struct guest_queue *q, bool on);

/* Fills one descriptor of the ring's table. */
void guest_desc(struct guest_queue *q, unsigned i, uint64_t addr, uint32_t len, unsigned flags,
		unsigned next);

/* Fills one descriptor of an indirect table; a packed one holds @next where its id would be. */
void guest_table(struct guest *g, uint64_t table, unsigned i, uint64_t addr, uint32_t len,
		 unsigned flags, unsigned next);

/* Puts a head into the avail ring; guest_publish() shows it to the device. */
void guest_avail(struct guest_queue *q, unsigned head);
void guest_publish(struct guest_queue *q);

/* Kicks whether wanted or not. */
void guest_kick(struct guest_queue *q);

/* Publishes, and kicks if the device wants it (flags or EVENT_IDX). */
void guest_notify(struct guest_queue *q);

/* Takes one used element, if there is one. */
bool guest_used_pop(struct guest_queue *q, struct virtq_used_elem *e);

/*
 * Waits for one used element. -EPIPE: the device signalled the error eventfd; -ECONNRESET: it
 * closed the socket; -ETIMEDOUT. Looks at the ring every few milliseconds, interrupt or not.
 */
int guest_used_wait(struct guest_queue *q, struct virtq_used_elem *e, int timeout_ms);

/* The same, but believes in interrupts alone: -ETIMEDOUT although there is work is a lost one. */
int guest_used_wait_call(struct guest_queue *q, struct virtq_used_elem *e, int timeout_ms);

/* Reads and clears an eventfd: how often it was signalled. */
uint64_t guest_event_take(int fd);

/* ---- packed queues (guest_packed.c) ---- */

/* What guest_queue_reset(), guest_avail() and so on do on a packed queue. */
void guest_packed_reset(struct guest_queue *q, uint32_t base);
void guest_packed_quiet(struct guest_queue *q, bool on);
void guest_packed_avail(struct guest_queue *q, unsigned head);
void guest_packed_publish(struct guest_queue *q);
bool guest_packed_kick_wanted(struct guest_queue *q);
bool guest_packed_used_pop(struct guest_queue *q, struct virtq_used_elem *e);

/*
 * By hand: one descriptor in slot avail_idx + @ahead, with all of its @flags (see
 * guest_packed_mark()), visible at once. The driver's position stays until
 * guest_packed_advance().
 */
void guest_packed_desc(struct guest_queue *q, unsigned ahead, uint64_t addr, uint32_t len,
		       unsigned id, unsigned flags);

/* AVAIL and USED as they must be for slot avail_idx + @ahead to be available. */
unsigned guest_packed_mark(const struct guest_queue *q, unsigned ahead);

/* The next @n slots are made available: buffer @id, if it is one, takes them. */
void guest_packed_advance(struct guest_queue *q, unsigned n, unsigned id);

/* ---- requests (guest_blk.c) ---- */

/* Buffers for one request from guest_alloc(). */
int guest_req_init(struct guest *g, struct guest_req *r, uint32_t data_size);

/* Builds a chain from the free list and makes it available, unpublished; -EBUSY: ring full. */
int guest_chain_add(struct guest_queue *q, const struct guest_seg *segs, unsigned n,
		    enum guest_how how, uint64_t table, uint16_t *head);

/* Queues a request: guest_notify() sends it off. @len bytes of data, or r->segs if set. */
int guest_req_submit(struct guest_queue *q, struct guest_req *r, uint32_t type, uint64_t sector,
		     uint32_t len);

/* The request that a used element finishes; NULL: its head was not in flight. */
struct guest_req *guest_req_take(struct guest_queue *q, const struct virtq_used_elem *e);

/* A finished request, or NULL. */
struct guest_req *guest_req_poll(struct guest_queue *q);

/* Waits for any finished request of @q. */
int guest_req_wait(struct guest_queue *q, int timeout_ms, struct guest_req **out);

unsigned guest_req_status(const struct guest *g, const struct guest_req *r);

/*
 * Synchronous helpers on g->queue[queue], which must have nothing else in flight. They return
 * the virtio status (BLK_OK, ...) or -errno; BLK_NO_STATUS: the device wrote none.
 */
int guest_io(struct guest_queue *q, struct guest_req *r, uint32_t type, uint64_t sector,
	     uint32_t len, int timeout_ms);
int guest_read(struct guest *g, unsigned queue, uint64_t sector, void *buf, size_t len);
int guest_write(struct guest *g, unsigned queue, uint64_t sector, const void *buf, size_t len);
int guest_flush(struct guest *g, unsigned queue);
int guest_get_id(struct guest *g, unsigned queue, char id[20]);
int guest_discard(struct guest *g, unsigned queue, uint64_t sector, uint32_t num_sectors);
int guest_write_zeroes(struct guest *g, unsigned queue, uint64_t sector, uint32_t num_sectors,
		       uint32_t flags);

#endif
