/* The journey of a request to a vhost-user-blk device: virtio 1.2, 5.2.6. */
#include <errno.h>
#include <string.h>

#include "backend/virtio.h"
#include "reactor/uring.h"
#include "util/iov.h"
#include "util/log.h"

/* --- a request becomes a chain --- */

/* hot. Can the device see [p, p + len)? */
static inline bool is_shared(struct virtio_queue *vq, const void *p, size_t len)
{
	const struct dma_shared *s = &vq->shared[vq->shared_near];
	size_t offset = (size_t)((const char *)p - (const char *)s->base);

	if (likely(offset < s->len && len <= s->len - offset))
		return true;
	for (unsigned i = 0; i < vq->shared_n; i++) {
		s = &vq->shared[i];
		offset = (size_t)((const char *)p - (const char *)s->base);
		if (offset < s->len && len <= s->len - offset) {
			vq->shared_near = i;
			return true;
		}
	}
	return false;
}

static inline void put(struct virtq_desc *d, const void *p, size_t len, uint16_t flags,
		       uint16_t next)
{
	*d = (struct virtq_desc){ to_le64((uintptr_t)p), to_le32((uint32_t)len), to_le16(flags),
				  to_le16(next) };
}

/* hot. The data of a read or write as descriptors from table[1] on; returns their number. */
static inline unsigned put_data(struct virtio_queue *vq, struct virtio_slot *s,
				struct virtq_desc *table, uint16_t base)
{
	const struct bdev_io *io = s->io;
	uint16_t flags = VIRTQ_DESC_F_NEXT | (io->op == BDEV_READ ? VIRTQ_DESC_F_WRITE : 0);
	unsigned n = 0;

	s->bounced = io->iovcnt > vq->max_iov;
	for (; n < io->iovcnt && !s->bounced; n++) {
		if (unlikely(!is_shared(vq, io->iov[n].iov_base, io->iov[n].iov_len))) {
			s->bounced = true;
			break;
		}
		put(&table[1 + n], io->iov[n].iov_base, io->iov[n].iov_len, flags,
		    (uint16_t)(base + n + 2));
	}
	if (likely(!s->bounced))
		return n;
	if (io->op == BDEV_WRITE)
		iov_copy_out(io->iov, io->iovcnt, 0, s->area->data, io->len);
	put(&table[1], s->area->data, io->len, flags, (uint16_t)(base + 2));
	return 1;
}

static unsigned put_range(struct virtio_slot *s, struct virtq_desc *table, uint16_t base)
{
	const struct bdev_io *io = s->io;
	bool unmap = io->op == BDEV_WRITE_ZEROES && !(io->flags & BDEV_NO_UNMAP);

	s->area->range = (struct virtio_blk_range){
		.sector = to_le64(io->offset >> VIRTIO_BLK_SECTOR_SHIFT),
		.num_sectors = to_le32(io->len >> VIRTIO_BLK_SECTOR_SHIFT),
		.flags = to_le32(unmap ? VIRTIO_BLK_WRITE_ZEROES_F_UNMAP : 0),
	};
	put(&table[1], &s->area->range, sizeof(s->area->range), VIRTQ_DESC_F_NEXT,
	    (uint16_t)(base + 2));
	return 1;
}

static uint32_t type_of(const struct virtio_slot *s)
{
	static const uint32_t types[BDEV_OPS] = {
		[BDEV_READ] = VIRTIO_BLK_T_IN,
		[BDEV_WRITE] = VIRTIO_BLK_T_OUT,
		[BDEV_FLUSH] = VIRTIO_BLK_T_FLUSH,
		[BDEV_DISCARD] = VIRTIO_BLK_T_DISCARD,
		[BDEV_WRITE_ZEROES] = VIRTIO_BLK_T_WRITE_ZEROES,
	};

	return s->flushing ? VIRTIO_BLK_T_FLUSH : types[s->io->op];
}

static noinline void send_chain(struct virtio_queue *vq, struct virtio_slot *s)
{
	struct virtq_desc *table = vq->indirect ? s->area->table : &vq->ring.desc[s->head];
	uint16_t base = vq->indirect ? 0 : s->head;
	uint32_t type = type_of(s);
	bool data = type == VIRTIO_BLK_T_IN || type == VIRTIO_BLK_T_OUT;
	unsigned n = 0;

	s->area->hdr.type = to_le32(type);
	s->area->hdr.sector = to_le64(data ? s->io->offset >> VIRTIO_BLK_SECTOR_SHIFT : 0);
	s->area->status = 0xff;
	put(&table[0], &s->area->hdr, sizeof(s->area->hdr), VIRTQ_DESC_F_NEXT,
	    (uint16_t)(base + 1));
	if (likely(data))
		n = put_data(vq, s, table, base);
	else if (type != VIRTIO_BLK_T_FLUSH)
		n = put_range(s, table, base);
	put(&table[1 + n], &s->area->status, 1, VIRTQ_DESC_F_WRITE, 0);
	if (vq->indirect)
		put(&vq->ring.desc[s->head], table, (n + 2) * sizeof(*table), VIRTQ_DESC_F_INDIRECT,
		    0);
	s->framed = vq->indirect && n == 1 && data;
	vring_add(&vq->ring, s->head);
	reactor_flush(&vq->flush);
}

/* hot. A slot whose last request had one buffer, too: only what differs is written. */
static inline bool send_framed(struct virtio_queue *vq, struct virtio_slot *s)
{
	const struct bdev_io *io = s->io;
	bool in = io->op == BDEV_READ;

	if (unlikely(!s->framed || io->op > BDEV_WRITE || io->iovcnt != 1 ||
		     !is_shared(vq, io->iov[0].iov_base, io->iov[0].iov_len)))
		return false;
	s->area->hdr.type = to_le32(in ? VIRTIO_BLK_T_IN : VIRTIO_BLK_T_OUT);
	s->area->hdr.sector = to_le64(io->offset >> VIRTIO_BLK_SECTOR_SHIFT);
	s->area->status = 0xff;
	put(&s->area->table[1], io->iov[0].iov_base, io->iov[0].iov_len,
	    VIRTQ_DESC_F_NEXT | (in ? VIRTQ_DESC_F_WRITE : 0), 2);
	vring_add(&vq->ring, s->head);
	reactor_flush(&vq->flush);
	return true;
}

/* hot */
static void start(struct virtio_queue *vq, struct bdev_io *io)
{
	struct virtio_slot *s = &vq->slots[vq->free];

	vq->free = s->next_free;
	s->io = io;
	s->flushing = s->bounced = false;
	if (unlikely(!send_framed(vq, s)))
		send_chain(vq, s);
}

static noinline void wait_in_line(struct virtio_queue *vq, struct bdev_io *io)
{
	struct virtio_io *v = (struct virtio_io *)(void *)io->ctx;

	v->next = NULL;
	*vq->waiting_last = io;
	vq->waiting_last = &v->next;
}

static struct bdev_io *next_in_line(struct virtio_queue *vq)
{
	struct bdev_io *io = vq->waiting;

	vq->waiting = ((struct virtio_io *)(void *)io->ctx)->next;
	if (!vq->waiting)
		vq->waiting_last = &vq->waiting;
	return io;
}

/* hot */
void virtio_submit(struct bdev_io *io)
{
	struct virtio_queue *vq = io->q->priv;

	if (unlikely(vq->dead))
		bdev_io_end(io, -EIO);
	else if (unlikely(io->op == BDEV_FLUSH && !vq->can_flush))
		bdev_io_end(io, 0); /* the device writes through */
	else if (likely(vq->free < vq->slots_n && !vq->waiting))
		start(vq, io);
	else
		wait_in_line(vq, io);
}

/* hot: once per turn */
void virtio_flush(struct task *t)
{
	struct virtio_queue *vq = container_of(t, struct virtio_queue, flush);

	if (vring_publish(&vq->ring)) {
		counter_add(&vq->q->stats.doorbells, 1);
		uring_signal(vq->q->reactor, vq->kick_fd);
	}
}

/* --- and comes back --- */

static int status_of(uint8_t status)
{
	switch (status) {
	case VIRTIO_BLK_S_OK:
		return 0;
	case VIRTIO_BLK_S_UNSUPP:
		return -EOPNOTSUPP;
	default:
		return -EIO;
	}
}

/* hot */
static inline void finish(struct virtio_queue *vq, struct virtio_slot *s, int status)
{
	struct bdev_io *io = s->io;

	if (unlikely(s->bounced) && io->op == BDEV_READ && status == 0)
		iov_copy_in(io->iov, io->iovcnt, 0, s->area->data, io->len);
	s->io = NULL;
	s->next_free = vq->free;
	vq->free = (uint16_t)(s - vq->slots);
	bdev_io_end(io, status);
}

/* Virtio knows no FUA: a FLUSH behind the write does what it asks for. */
static bool needs_flush(const struct virtio_queue *vq, const struct virtio_slot *s, int status)
{
	return s->io->flags & BDEV_FUA && status == 0 && vq->can_flush && !s->flushing;
}

static noinline void device_broke(struct virtio_queue *vq, const char *what)
{
	log_error("bdev %s: the device broke ring %u: %s", vq->q->bdev->name, vq->index, what);
	virtio_queue_die(vq);
}

/* hot */
static inline void take_used(struct virtio_queue *vq, uint32_t head)
{
	uint32_t number = vq->indirect ? head : head / (VIRTIO_DIRECT_IOV + 2);
	struct virtio_slot *s;
	int status;

	if (unlikely(number >= vq->slots_n || !vq->slots[number].io ||
		     vq->slots[number].head != head)) {
		device_broke(vq, "it gave back what it had not got");
		return;
	}
	s = &vq->slots[number];
	status = status_of(READ_ONCE(s->area->status));
	if (unlikely(needs_flush(vq, s, status))) {
		s->flushing = true;
		send_chain(vq, s);
		return;
	}
	finish(vq, s, status);
}

/* hot */
unsigned virtio_poll(struct poller *p)
{
	struct virtio_queue *vq = container_of(p, struct virtio_queue, poller);
	uint16_t n = vring_used_n(&vq->ring);

	if (likely(n == 0))
		return 0;
	if (unlikely(n > vq->ring.num)) {
		device_broke(vq, "its used index jumped");
		return 0;
	}
	for (uint16_t i = 0; i < n && !vq->dead; i++)
		take_used(vq, vring_next_used(&vq->ring));
	while (unlikely(vq->waiting) && vq->free < vq->slots_n)
		start(vq, next_in_line(vq));
	return n;
}

void virtio_queue_die(struct virtio_queue *vq)
{
	if (vq->dead)
		return;
	vq->dead = true;
	poller_del(&vq->poller);
	for (unsigned i = 0; i < vq->slots_n; i++)
		if (vq->slots[i].io)
			finish(vq, &vq->slots[i], -EIO);
	while (vq->waiting)
		bdev_io_end(next_in_line(vq), -EIO);
}
