#include "backend/nvme_path.h"

#include <errno.h>

#include "bdev/registry.h"
#include "util/log.h"

#define TRIES_MAX 2

static struct nvme_io *room_of(struct bdev_io *io)
{
	return (struct nvme_io *)(void *)io->ctx;
}

static struct bdev_io *io_of(struct nvme_req *req)
{
	return container_of(container_of(req, struct nvme_io, req), struct bdev_io, ctx);
}

static inline struct nvme_door *door_of(const struct bdev_io *io)
{
	return io->q->priv;
}

/* --- a request goes out --- */

static uint32_t rw_cdw12(const struct bdev_io *io, unsigned shift)
{
	_Static_assert(BDEV_FUA == 1, "NVME_RW_FUA is bit 30");
	return ((io->len >> shift) - 1) | (uint32_t)(io->flags & BDEV_FUA) << 30;
}

static void prep_rw(struct nvme_sqe *sqe, const struct bdev_io *io, unsigned shift)
{
	sqe->opc = io->op == BDEV_READ ? NVME_READ : NVME_WRITE;
	sqe->a.slba = to_le64(io->offset >> shift);
	sqe->cdw12 = to_le32(rw_cdw12(io, shift));
}

static void prep_zeroes(struct nvme_sqe *sqe, const struct bdev_io *io, const struct nvme_door *d)
{
	bool deallocate = d->deallocate && !(io->flags & BDEV_NO_UNMAP);

	prep_rw(sqe, io, d->block_shift);
	sqe->opc = NVME_WRITE_ZEROES;
	sqe->cdw12 = to_le32(from_le32(sqe->cdw12) | (deallocate ? NVME_ZEROES_DEAC : 0));
}

static void prep_discard(struct nvme_qpair *qp, struct nvme_sqe *sqe, const struct bdev_io *io,
			 unsigned shift)
{
	struct nvme_dsm_range *range = nvme_inline_data(qp, sqe);

	*range = (struct nvme_dsm_range){ .length = to_le32(io->len >> shift),
					  .slba = to_le64(io->offset >> shift) };
	sqe->opc = NVME_DSM;
	sqe->a.slba = to_le64((uint64_t)NVME_DSM_DEALLOCATE << 32); /* one range: 0-based 0 */
}

static void prep_rare(struct nvme_qpair *qp, struct nvme_sqe *sqe, const struct bdev_io *io,
		      const struct nvme_door *d)
{
	switch (io->op) {
	case BDEV_FLUSH:
		sqe->opc = NVME_FLUSH;
		break;
	case BDEV_DISCARD:
		prep_discard(qp, sqe, io, d->block_shift);
		break;
	default:
		prep_zeroes(sqe, io, d);
	}
}

/* hot */
static inline void ring_later(struct nvme_path *p, const struct bdev_io *io)
{
	if (likely(p->flush.next != NULL))
		return;
	p->last = io->q;
	reactor_flush(&p->flush);
}

/* Any request. The queue has room. -EFAULT: nothing was done. */
static int start(struct nvme_path *p, struct nvme_sqe *sqe, struct bdev_io *io)
{
	struct nvme_door *d = door_of(io);
	struct nvme_io *n = room_of(io);

	sqe->nsid = to_le32(d->nsid);
	if (io->op <= BDEV_WRITE) {
		if (nvme_map(&p->qp, sqe, io->iov, io->iovcnt))
			return -EFAULT;
		prep_rw(sqe, io, d->block_shift);
	} else {
		prep_rare(&p->qp, sqe, io, d);
	}
	n->sent = reactor_now();
	io->driver = (uint16_t)((io->driver & NVME_IO_TRIES) | NVME_IO_LATER);
	nvme_sqe_push(&p->qp, &n->req);
	ring_later(p, io);
	return 0;
}

/* Requests wait from now on. */
static void close_line(struct nvme_path *p)
{
	p->closed = true;
	nvme_straight_close(&p->qp);
}

static noinline void wait_in_line(struct nvme_path *p, struct bdev_io *io)
{
	struct nvme_io *n = room_of(io);

	n->next = NULL;
	*p->waiting_last = io;
	p->waiting_last = &n->next;
	close_line(p);
}

static struct bdev_io *next_in_line(struct nvme_path *p)
{
	struct bdev_io *io = p->waiting;

	p->waiting = room_of(io)->next;
	if (!p->waiting)
		p->waiting_last = &p->waiting;
	return io;
}

/* Requests that need no device, or get none. */
static bool ends_here(const struct nvme_door *d, struct bdev_io *io)
{
	if (d->path->dead || bdev_io_is_gone(io))
		bdev_io_end(io, -ENXIO);
	else if (io->op == BDEV_FLUSH && !d->flushes)
		bdev_io_end(io, 0); /* what was written is durable */
	else
		return false;
	return true;
}

/* hot. Nobody has said or done anything about it yet. */
static inline void begin_anew(struct bdev_io *io)
{
	io->nvme_status = 0;
	io->driver = 0;
}

void nvme_submit(struct bdev_io *io)
{
	struct nvme_door *d = door_of(io);
	struct nvme_path *p = d->path;
	struct nvme_sqe *sqe;

	begin_anew(io);
	if (ends_here(d, io))
		return;
	sqe = p->closed ? NULL : nvme_sqe_get(&p->qp);
	if (!sqe)
		wait_in_line(p, io);
	else if (start(p, sqe, io))
		bdev_refit(io);
	else
		nvme_straight_open(&p->qp);
}

/* hot */
void nvme_submit_one(struct bdev_io *io)
{
	struct nvme_door *d = door_of(io);
	struct nvme_path *p = d->path;
	unsigned shift = d->block_shift;
	iova_t at;

	if (unlikely(!nvme_rw_map(&p->qp, io->iov->iov_base, io->len, &at))) {
		nvme_submit(io);
		return;
	}
	begin_anew(io);
	nvme_rw_push(&p->qp, &room_of(io)->req, at, d->head[io->op], io->offset >> shift,
		     (io->len >> shift) - 1);
	ring_later(p, io);
}

/* The requests in line, for as long as there is room for them. */
static noinline void run_line(struct nvme_path *p)
{
	struct nvme_sqe *sqe;

	while (p->waiting && !p->parked && (sqe = nvme_sqe_get(&p->qp))) {
		struct bdev_io *io = next_in_line(p);

		if (!ends_here(door_of(io), io) && start(p, sqe, io))
			bdev_refit(io);
	}
	if (!p->waiting && !p->parked && !p->dead)
		p->closed = false;
}

bool nvme_path_reaches(struct bdev_queue *q, const struct iovec *iov, int n)
{
	struct nvme_door *d = q->priv;

	return nvme_reaches(&d->path->qp, iov, n);
}

/* hot: once per turn */
static void flush(struct task *t)
{
	struct nvme_path *p = container_of(t, struct nvme_path, flush);

	nvme_ring(&p->qp);
	counter_add(&p->last->stats.doorbells, 1);
	poller_wake(&p->poller);
}

/* --- and comes back --- */

/* What a second try may mend: the device says so, or it was we who aborted it. */
static bool may_try_again(const struct bdev_io *io, uint16_t status)
{
	uint16_t code = NVME_SCT_SC(status);

	return (io->driver & NVME_IO_TRIES) + 1 < TRIES_MAX &&
	       (code == NVME_SC_ABORTED || code == NVME_SC_SQ_DELETED ||
		(code == NVME_SC_INTERRUPTED && !(status & NVME_DNR)));
}

static noinline void done_badly(struct bdev_io *io, uint16_t status)
{
	if (may_try_again(io, status)) {
		io->driver++;
		wait_in_line(door_of(io)->path, io);
		return; /* poll() runs the line */
	}
	io->nvme_status = status;
	bdev_io_end(io, nvme_status_errno(status));
}

/* hot */
static unsigned poll(struct poller *poller)
{
	struct nvme_path *p = container_of(poller, struct nvme_path, poller);
	struct nvme_pops pops = nvme_pops(&p->qp);
	struct turn *turn = this_turn;
	struct nvme_popped popped;
	unsigned left = TURN_BATCH;

	for (; left && nvme_pop(&p->qp, &pops, &popped); left--)
		if (likely(NVME_SCT_SC(popped.status) == 0))
			bdev_io_end_well(io_of(popped.req), turn);
		else
			done_badly(io_of(popped.req), popped.status);
	nvme_popped(&p->qp, &pops);
	if (unlikely(p->waiting != NULL))
		run_line(p);
	return TURN_BATCH - left;
}

/* --- sleeping and waking --- */

static bool arm(struct poller *poller)
{
	struct nvme_path *p = container_of(poller, struct nvme_path, poller);

	if (nvme_outstanding(&p->qp) == 0)
		return true; /* the next request wakes it */
	if (p->irq_fd < 0)
		return false;
	if (p->mask)
		*p->mask = to_le32(0);
	return !nvme_reapable(&p->qp);
}

static void disarm(struct poller *poller)
{
	struct nvme_path *p = container_of(poller, struct nvme_path, poller);

	if (p->mask)
		*p->mask = to_le32(1);
}

static void interrupted(struct watch *w)
{
	struct nvme_path *p = container_of(w, struct nvme_path, irq);

	p->untold = 0; /* they do arrive */
	if (p->last)
		counter_add(&p->last->stats.interrupts, 1);
	poller_wake(&p->poller);
}

/* --- life --- */

static int begin(void *arg)
{
	struct nvme_path *p = arg;
	int rc = p->irq_fd >= 0 ? watch_start(&p->irq, p->irq_fd) : 0;

	if (rc)
		return rc;
	disarm(&p->poller);
	poller_add(&p->poller);
	return 0;
}

int nvme_path_start(struct nvme_path *p)
{
	p->flush.fn = flush;
	p->irq.fn = interrupted;
	p->waiting_last = &p->waiting;
	p->poller = (struct poller){ .fn = poll,
				     .arm = arm,
				     .disarm = disarm,
				     .patience.most = poll_ticks(reactor_poll_us()) };
	return reactor_call(p->reactor, begin, p);
}

static int end(void *arg)
{
	struct nvme_path *p = arg;

	poller_del(&p->poller);
	if (p->irq_fd >= 0)
		watch_stop(&p->irq);
	return 0;
}

void nvme_path_stop(struct nvme_path *p)
{
	reactor_call(p->reactor, end, p);
}

/* --- mending --- */

static int park(void *arg)
{
	struct nvme_path *p = arg;

	p->parked = true;
	close_line(p);
	return 0;
}

void nvme_path_park(struct nvme_path *p)
{
	reactor_call(p->reactor, park, p);
}

/* Their completions will never come. Those that had their second try fail. */
static void collect(struct nvme_path *p, int status)
{
	struct bdev_io *first = NULL, **last = &first;
	struct nvme_req *req;

	while ((req = nvme_take_back(&p->qp))) {
		struct bdev_io *io = io_of(req);
		if (status || (++io->driver & NVME_IO_TRIES) == TRIES_MAX) {
			bdev_io_end(io, status ? status : -EIO);
			continue;
		}
		*last = io;
		last = &room_of(io)->next;
	}
	if (!first)
		return;
	*last = p->waiting;
	if (!p->waiting)
		p->waiting_last = last;
	p->waiting = first;
}

static int take_back(void *arg)
{
	struct nvme_path *p = arg;

	collect(p, 0);
	nvme_qpair_rewind(&p->qp);
	return 0;
}

void nvme_path_take_back(struct nvme_path *p)
{
	reactor_call(p->reactor, take_back, p);
}

static int resume(void *arg)
{
	struct nvme_path *p = arg;

	p->parked = false;
	disarm(&p->poller);
	run_line(p);
	return 0;
}

void nvme_path_resume(struct nvme_path *p)
{
	reactor_call(p->reactor, resume, p);
}

static int fail_all(void *arg)
{
	struct nvme_path *p = arg;

	p->dead = true;
	close_line(p);
	p->mask = NULL; /* it may be taken away from us */
	collect(p, -EIO);
	nvme_qpair_rewind(&p->qp);
	while (p->waiting)
		bdev_io_end(next_in_line(p), -EIO);
	return 0;
}

void nvme_path_fail(struct nvme_path *p)
{
	reactor_call(p->reactor, fail_all, p);
}

struct forgetting {
	struct nvme_path *path;
	struct bdev_queue *q;
};

static int forget(void *arg)
{
	struct forgetting *f = arg;

	if (f->path->last == f->q)
		f->path->last = NULL;
	return 0;
}

void nvme_path_forget(struct nvme_path *p, struct bdev_queue *q)
{
	struct forgetting f = { p, q };

	reactor_call(p->reactor, forget, &f);
}

/* --- watching --- */

struct watching {
	struct nvme_path *path;
	struct nvme_path_look *look;
};

static void look_at(struct nvme_path_look *l, struct bdev_io *io, uint16_t cid)
{
	uint64_t sent = io->driver & NVME_IO_LATER ? room_of(io)->sent : io->start,
		 age = l->now - sent;

	if (age > l->very_late_after) {
		l->very_late++;
	} else if (age > l->late_after && !(io->driver & NVME_IO_ABORTED) &&
		   l->late_n < ARRAY_SIZE(l->late)) {
		io->driver |= NVME_IO_ABORTED;
		l->late[l->late_n++] = cid;
	}
}

/* Once, its interrupt may be on its way; again and again, interrupts do not arrive. */
static void find_untold(struct nvme_path *p, struct nvme_path_look *l)
{
	if (p->poller.state != POLLER_ARMED || !nvme_reapable(&p->qp)) {
		p->untold = 0;
		return;
	}
	l->interrupt_lost = ++p->untold > 1;
	poller_wake(&p->poller);
}

static int look(void *arg)
{
	struct watching *w = arg;
	struct nvme_path *p = w->path;
	struct nvme_path_look *l = w->look;
	struct nvme_req *req;

	l->now = reactor_now();
	find_untold(p, l);
	l->outstanding = nvme_outstanding(&p->qp);
	l->fault = p->qp.fault;
	for (uint16_t cid = 0; cid < p->qp.entries - 1; cid++)
		if ((req = nvme_req_of(&p->qp, cid)))
			look_at(l, io_of(req), cid);
	return 0;
}

void nvme_path_watch(struct nvme_path *p, struct nvme_path_look *l)
{
	struct watching w = { p, l };

	reactor_call(p->reactor, look, &w);
}
