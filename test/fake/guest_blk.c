/* The virtio-blk driver of a fake guest. VIRTIO 1.3, section 5.2.6. */
#include "fake/guest.h"

#include <errno.h>
#include <string.h>

int guest_req_init(struct guest *g, struct guest_req *r, uint32_t data_size)
{
	memset(r, 0, sizeof(*r));
	r->header = guest_alloc(g, sizeof(struct blk_header), 8);
	r->status = guest_alloc(g, 1, 1);
	r->table = guest_alloc(g, 16ull * GUEST_MAX_CHAIN, 16);
	r->data = data_size ? guest_alloc(g, data_size, 512) : r->header;
	r->data_size = data_size;
	r->how = g->acked & VIRTIO_INDIRECT_DESC ? GUEST_INDIRECT : GUEST_DIRECT;
	return r->header && r->status && r->table && r->data ? 0 : -ENOSPC;
}

static unsigned seg_flags(const struct guest_seg *s, bool last)
{
	return (s->write ? DESC_WRITE : 0u) | (last ? 0u : DESC_NEXT);
}

/* The entries of a packed queue's table follow each other: NEXT means nothing (2.8.7). */
static unsigned table_flags(const struct guest_queue *q, const struct guest_seg *s, bool last)
{
	return seg_flags(s, last || q->packed);
}

static uint16_t take_desc(struct guest_queue *q)
{
	uint16_t i = q->free_head;

	q->free_head = q->free_next[i];
	q->nfree--;
	return i;
}

static void give_chain(struct guest_queue *q, uint16_t head)
{
	uint16_t last = head;
	unsigned i;

	for (i = 1; i < q->chain_len[head]; i++)
		last = q->free_next[last];
	q->free_next[last] = q->free_head;
	q->free_head = head;
	q->nfree += q->chain_len[head];
}

int guest_chain_add(struct guest_queue *q, const struct guest_seg *segs, unsigned n,
		    enum guest_how how, uint64_t table, uint16_t *head)
{
	/* No table is linked to by NEXT in a packed queue (2.8.19). */
	unsigned direct = how == GUEST_DIRECT ? n : how == GUEST_MIXED && !q->packed;
	unsigned need = direct + (direct < n), i;
	uint16_t first, d;

	if (q->nfree < need)
		return -EBUSY;
	if (n - direct > GUEST_MAX_CHAIN)
		return -E2BIG;
	for (i = direct; i < n; i++)
		guest_table(q->guest, table, i - direct, segs[i].gpa, segs[i].len,
			    table_flags(q, &segs[i], i + 1 == n), i - direct + 1);
	first = q->free_head;
	for (i = 0; i < direct; i++) {
		d = take_desc(q);
		guest_desc(q, d, segs[i].gpa, segs[i].len, seg_flags(&segs[i], i + 1 == n),
			   q->free_head);
	}
	if (direct < n) {
		d = take_desc(q);
		guest_desc(q, d, table, 16 * (n - direct), DESC_INDIRECT, 0);
	}
	q->chain_len[first] = (uint16_t)need;
	guest_avail(q, first);
	*head = first;
	return 0;
}

int guest_req_submit(struct guest_queue *q, struct guest_req *r, uint32_t type, uint64_t sector,
		     uint32_t len)
{
	struct blk_header h = { .type = type, .sector = sector };
	struct guest_seg segs[GUEST_MAX_CHAIN];
	bool in = type == BLK_IN || type == BLK_GET_ID;
	unsigned n = 0, i;
	int rc;

	if (r->nsegs > GUEST_MAX_CHAIN - 2)
		return -E2BIG;
	memcpy(guest_ptr(q->guest, r->header), &h, sizeof(h));
	*(uint8_t *)guest_ptr(q->guest, r->status) = BLK_NO_STATUS;
	segs[n++] = (struct guest_seg){ .gpa = r->header, .len = sizeof(h) };
	for (i = 0; r->segs && i < r->nsegs; i++)
		segs[n++] = r->segs[i];
	if (!r->segs && len)
		segs[n++] = (struct guest_seg){ .gpa = r->data, .len = len, .write = in };
	segs[n++] = (struct guest_seg){ .gpa = r->status, .len = 1, .write = true };
	rc = guest_chain_add(q, segs, n, r->how, r->table, &r->head);
	if (rc)
		return rc;
	q->by_head[r->head] = r;
	return 0;
}

struct guest_req *guest_req_take(struct guest_queue *q, const struct virtq_used_elem *e)
{
	struct guest_req *r = e->id < q->size ? q->by_head[e->id] : NULL;

	if (!r)
		return NULL;
	q->by_head[e->id] = NULL;
	give_chain(q, (uint16_t)e->id);
	r->used_len = e->len;
	return r;
}

struct guest_req *guest_req_poll(struct guest_queue *q)
{
	struct virtq_used_elem e;
	struct guest_req *r = NULL;

	while (!r && guest_used_pop(q, &e))
		r = guest_req_take(q, &e);
	return r;
}

int guest_req_wait(struct guest_queue *q, int timeout_ms, struct guest_req **out)
{
	struct virtq_used_elem e;
	int rc = guest_used_wait(q, &e, timeout_ms);

	if (rc)
		return rc;
	*out = guest_req_take(q, &e);
	return *out ? 0 : -EPROTO;
}

unsigned guest_req_status(const struct guest *g, const struct guest_req *r)
{
	return __atomic_load_n((uint8_t *)guest_ptr(g, r->status), __ATOMIC_ACQUIRE);
}

int guest_io(struct guest_queue *q, struct guest_req *r, uint32_t type, uint64_t sector,
	     uint32_t len, int timeout_ms)
{
	struct guest_req *done;
	int rc = guest_req_submit(q, r, type, sector, len);

	if (rc)
		return rc;
	guest_notify(q);
	rc = guest_req_wait(q, timeout_ms, &done);
	if (rc)
		return rc;
	return done == r ? (int)guest_req_status(q->guest, r) : -EPROTO;
}

static int sync_req(struct guest *g, unsigned queue, struct guest_queue **q, struct guest_req **r)
{
	*q = g->queue[queue];
	*r = &(*q)->sync;
	return (*r)->header ? 0 : guest_req_init(g, *r, GUEST_SYNC_SIZE);
}

int guest_read(struct guest *g, unsigned queue, uint64_t sector, void *buf, size_t len)
{
	struct guest_queue *q;
	struct guest_req *r;
	size_t done, n;
	int rc = sync_req(g, queue, &q, &r);

	for (done = 0; !rc && done < len; done += n) {
		n = len - done < r->data_size ? len - done : r->data_size;
		rc = guest_io(q, r, BLK_IN, sector + done / BLK_SECTOR, (uint32_t)n,
			      GUEST_DEADLINE_MS);
		memcpy((uint8_t *)buf + done, guest_ptr(g, r->data), n);
	}
	return rc;
}

int guest_write(struct guest *g, unsigned queue, uint64_t sector, const void *buf, size_t len)
{
	struct guest_queue *q;
	struct guest_req *r;
	size_t done, n;
	int rc = sync_req(g, queue, &q, &r);

	for (done = 0; !rc && done < len; done += n) {
		n = len - done < r->data_size ? len - done : r->data_size;
		memcpy(guest_ptr(g, r->data), (const uint8_t *)buf + done, n);
		rc = guest_io(q, r, BLK_OUT, sector + done / BLK_SECTOR, (uint32_t)n,
			      GUEST_DEADLINE_MS);
	}
	return rc;
}

int guest_flush(struct guest *g, unsigned queue)
{
	struct guest_queue *q;
	struct guest_req *r;
	int rc = sync_req(g, queue, &q, &r);

	return rc ? rc : guest_io(q, r, BLK_FLUSH, 0, 0, GUEST_DEADLINE_MS);
}

int guest_get_id(struct guest *g, unsigned queue, char id[20])
{
	struct guest_queue *q;
	struct guest_req *r;
	int rc = sync_req(g, queue, &q, &r);

	if (rc)
		return rc;
	rc = guest_io(q, r, BLK_GET_ID, 0, 20, GUEST_DEADLINE_MS);
	memcpy(id, guest_ptr(g, r->data), 20);
	return rc;
}

static int one_segment(struct guest *g, unsigned queue, uint32_t type, uint64_t sector,
		       uint32_t num_sectors, uint32_t flags)
{
	struct blk_segment s = { .sector = sector, .num_sectors = num_sectors, .flags = flags };
	struct guest_queue *q;
	struct guest_req *r;
	int rc = sync_req(g, queue, &q, &r);

	if (rc)
		return rc;
	memcpy(guest_ptr(g, r->data), &s, sizeof(s));
	return guest_io(q, r, type, 0, sizeof(s), GUEST_DEADLINE_MS);
}

int guest_discard(struct guest *g, unsigned queue, uint64_t sector, uint32_t num_sectors)
{
	return one_segment(g, queue, BLK_DISCARD, sector, num_sectors, 0);
}

int guest_write_zeroes(struct guest *g, unsigned queue, uint64_t sector, uint32_t num_sectors,
		       uint32_t flags)
{
	return one_segment(g, queue, BLK_WRITE_ZEROES, sector, num_sectors, flags);
}
