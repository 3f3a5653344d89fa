#define _GNU_SOURCE 1
#include "fake/packed_model.h"

#include <poll.h>
#include <string.h>
#include <unistd.h>

#define MODEL_SEGS 600
#define KICK_MS	   2000

struct segs {
	struct guest_seg seg[MODEL_SEGS];
	unsigned n;
};

void model_init(struct packed_model *m, struct guest_queue *q, uint32_t base)
{
	m->q = q;
	m->avail = base & 0x7fff;
	m->avail_wrap = base >> 15 & 1;
	m->used = base >> 16 & 0x7fff;
	m->used_wrap = base >> 31;
	m->signalled = m->used;
	m->event_idx = q->guest->acked & VIRTIO_EVENT_IDX;
	m->random = 1;
}

uint32_t model_base(const struct packed_model *m)
{
	return m->avail | (uint32_t)m->avail_wrap << 15 | (uint32_t)m->used << 16 |
	       (uint32_t)m->used_wrap << 31;
}

static void wrong(struct packed_model *m, const char *what)
{
	if (!m->error)
		m->error = what;
}

/* 2.8.1: the descriptor at our position is available. */
static bool available(const struct packed_model *m)
{
	uint16_t flags = __atomic_load_n(&m->q->ring[m->avail].flags, __ATOMIC_ACQUIRE);

	return !!(flags & 1u << 7) == m->avail_wrap && !!(flags & 1u << 15) != m->avail_wrap;
}

static void add(struct packed_model *m, struct segs *s, const struct packed_desc *d)
{
	bool write = d->flags & 2;

	if (s->n == MODEL_SEGS || (s->n && s->seg[s->n - 1].write && !write)) {
		wrong(m, "readable after writable, or too many descriptors");
		return;
	}
	s->seg[s->n++] = (struct guest_seg){ .gpa = d->addr, .len = d->len, .write = write };
}

static void add_table(struct packed_model *m, struct segs *s, const struct packed_desc *d)
{
	struct packed_desc e;
	unsigned i;

	if (s->n || d->flags & 1 || d->len % 16 || !d->len)
		wrong(m, "a table that is not alone, or of odd size");
	for (i = 0; i < d->len / 16; i++) {
		memcpy(&e, guest_ptr(m->q->guest, d->addr + 16ull * i), sizeof(e));
		if (e.flags & ~2u)
			wrong(m, "a flag other than WRITE in a table");
		add(m, s, &e);
	}
}

/* Copies between @p and the segments of one direction, from byte @at of them on. */
static void copy(struct packed_model *m, const struct segs *s, bool write, uint64_t at, uint8_t *p,
		 uint64_t len)
{
	uint64_t n;
	uint8_t *g;
	unsigned i;

	for (i = 0; i < s->n && len; i++) {
		if (s->seg[i].write != write)
			continue;
		if (at >= s->seg[i].len) {
			at -= s->seg[i].len;
			continue;
		}
		n = s->seg[i].len - at < len ? s->seg[i].len - at : len;
		g = (uint8_t *)guest_ptr(m->q->guest, s->seg[i].gpa) + at;
		memcpy(write ? g : p, write ? p : g, n);
		p += n;
		len -= n;
		at = 0;
	}
}

static uint64_t bytes(const struct segs *s, bool write)
{
	uint64_t n = 0;
	unsigned i;

	for (i = 0; i < s->n; i++)
		n += s->seg[i].write == write ? s->seg[i].len : 0;
	return n;
}

static uint32_t execute(struct packed_model *m, const struct segs *s)
{
	uint64_t in = bytes(s, true), out = bytes(s, false);
	uint8_t status = BLK_OK;
	struct blk_header h;

	if (!in || out < sizeof(h)) {
		wrong(m, "no place for header or status");
		return 0;
	}
	copy(m, s, false, 0, (uint8_t *)&h, sizeof(h));
	if (h.type == BLK_IN && h.sector * 512 + in - 1 <= m->sectors * 512)
		copy(m, s, true, 0, m->disk + h.sector * 512, in - 1);
	else if (h.type == BLK_OUT && h.sector * 512 + out - 16 <= m->sectors * 512)
		copy(m, s, false, 16, m->disk + h.sector * 512, out - 16);
	else if (h.type != BLK_FLUSH)
		status = BLK_IOERR;
	copy(m, s, true, in - 1, &status, 1);
	return (uint32_t)in;
}

bool model_take(struct packed_model *m, struct model_chain *c)
{
	struct segs s = { .n = 0 };
	struct packed_desc d;

	if (!available(m))
		return false;
	c->slots = 0;
	do {
		if (!available(m))
			wrong(m, "a chain whose descriptors are not all available");
		d = m->q->ring[m->avail];
		if (++m->avail == m->q->size) {
			m->avail = 0;
			m->avail_wrap = !m->avail_wrap;
		}
		if (d.flags & 4)
			add_table(m, &s, &d);
		else
			add(m, &s, &d);
		if (++c->slots > m->q->size)
			wrong(m, "a chain longer than the ring");
	} while (d.flags & 1 && c->slots <= m->q->size);
	c->id = d.id;
	if (c->id >= m->q->size)
		wrong(m, "an id beyond the ring");
	c->written = execute(m, &s);
	m->requests++;
	return true;
}

void model_give(struct packed_model *m, const struct model_chain *c)
{
	struct packed_desc *d = &m->q->ring[m->used];

	d->id = (uint16_t)c->id;
	d->len = c->written;
	__atomic_store_n(&d->flags, (uint16_t)((m->used_wrap ? 0x8080 : 0) | (c->written ? 2 : 0)),
			 __ATOMIC_RELEASE);
	m->used = (uint16_t)(m->used + c->slots);
	if (m->used >= m->q->size) {
		m->used = (uint16_t)(m->used - m->q->size);
		m->used_wrap = !m->used_wrap;
	}
}

/* 2.8.10 and 2.8.21: was the position that the driver names passed since the last interrupt? */
static bool passed(const struct packed_model *m, uint16_t off_wrap)
{
	int now = m->used, old = m->signalled, event = off_wrap & 0x7fff;

	if (off_wrap >> 15 != m->used_wrap)
		event -= (int)m->q->size;
	if (old >= now)
		old -= (int)m->q->size;
	return event >= old && event < now;
}

void model_call(struct packed_model *m)
{
	uint64_t one = 1;
	uint16_t flags;
	bool want;

	/* What was used must be visible before the driver's wish is read. */
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	flags = __atomic_load_n(&m->q->driver_event->flags, __ATOMIC_ACQUIRE);
	if (flags > 2 || (flags == 2 && !m->event_idx))
		wrong(m, "flags of the driver's event area");
	want = flags == 0 || (flags == 2 && passed(m, __atomic_load_n(&m->q->driver_event->off_wrap,
								      __ATOMIC_RELAXED)));
	m->signalled = m->used;
	if (want && write(m->q->call, &one, sizeof(one)) == sizeof(one))
		m->calls++;
}

static bool serve(struct packed_model *m)
{
	unsigned n = 0, i;

	while (m->nheld < MODEL_HELD && model_take(m, &m->held[m->nheld])) {
		m->nheld++;
		n++;
	}
	for (i = 0; m->nheld; i++) {
		m->random = m->random * 6364136223846793005u + 1442695040888963407u;
		n = m->reorder ? (unsigned)(m->random >> 33) % m->nheld : 0;
		model_give(m, &m->held[n]);
		memmove(&m->held[n], &m->held[n + 1], sizeof(m->held[0]) * (--m->nheld - n));
	}
	if (i)
		model_call(m);
	return i;
}

static void ask_for_kick(struct packed_model *m)
{
	struct packed_event *e = m->q->device_event;

	if (m->event_idx)
		__atomic_store_n(&e->off_wrap, (uint16_t)(m->avail | m->avail_wrap << 15),
				 __ATOMIC_RELAXED);
	__atomic_store_n(&e->flags, (uint16_t)(m->event_idx ? 2 : 0), __ATOMIC_RELEASE);
	/* The wish must be visible before the last look. */
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
}

static void *model_main(void *arg)
{
	struct packed_model *m = arg;
	struct pollfd p = { .fd = m->q->kick, .events = POLLIN };

	while (!m->stop && !m->error) {
		if (serve(m))
			continue;
		ask_for_kick(m);
		if (available(m) || m->stop)
			continue;
		if (poll(&p, 1, KICK_MS) == 0 && available(m))
			m->lost_kicks++;
		guest_event_take(m->q->kick);
		__atomic_store_n(&m->q->device_event->flags, (uint16_t)1, __ATOMIC_RELAXED);
	}
	return NULL;
}

void model_start(struct packed_model *m)
{
	m->stop = false;
	pthread_create(&m->thread, NULL, model_main, m);
}

void model_stop(struct packed_model *m)
{
	m->stop = true;
	guest_kick(m->q);
	pthread_join(m->thread, NULL);
}
