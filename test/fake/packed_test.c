/* The fake guest's packed queues against a device in the same process. TAP. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake/guest.h"
#include "fake/packed_model.h"
#include "fake/tap.h"

#define SECTORS 4096u
#define DEPTH	16u

struct rig {
	struct guest *g;
	struct guest_queue *q;
	struct packed_model m;
	struct guest_req req[DEPTH];
	uint64_t random;
};

static uint8_t disk[SECTORS * 512], shadow[SECTORS * 512];

static uint32_t below(struct rig *r, uint32_t n)
{
	r->random = r->random * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(r->random >> 33) % n;
}

static bool rig_open(struct rig *r, unsigned size, uint64_t features, uint32_t base)
{
	unsigned i;
	int rc;

	memset(r, 0, sizeof(*r));
	rc = guest_create(&r->g);
	if (rc)
		return false;
	r->g->acked = VIRTIO_RING_PACKED | features;
	rc = guest_mem_add(r->g, GUEST_BASE, 4u << 20, false);
	if (!rc)
		rc = guest_queue_setup(r->g, 0, size, &r->q);
	for (i = 0; !rc && i < DEPTH; i++)
		rc = guest_req_init(r->g, &r->req[i], 4096);
	if (rc)
		return false;
	guest_queue_reset(r->q, base);
	r->m = (struct packed_model){ .disk = disk, .sectors = SECTORS };
	model_init(&r->m, r->q, base);
	return true;
}

/* ---- the bytes of a ring of four, from the specification ---- */

static bool slot_is(struct rig *r, unsigned i, uint64_t addr, uint32_t len, unsigned flags)
{
	const struct packed_desc *d = &r->q->ring[i];
	bool ok = d->addr == addr && d->len == len && d->flags == flags;

	if (!ok)
		tap_diag("slot %u: addr 0x%llx len %u flags 0x%04x, expected flags 0x%04x", i,
			 (unsigned long long)d->addr, d->len, d->flags, flags);
	return ok;
}

/* A chain of four, twice, then one of one; odd rounds have the other wrap counter. */
static bool bytes_of_four(struct rig *r)
{
	const struct guest_seg segs[4] = {
		{ .gpa = 0x1000, .len = 16 },
		{ .gpa = 0x2000, .len = 512 },
		{ .gpa = 0x3000, .len = 512, .write = true },
		{ .gpa = 0x4000, .len = 1, .write = true },
	};
	struct model_chain c = { .slots = 4, .written = 513 };
	struct virtq_used_elem e;
	unsigned round, mark;
	uint16_t head;
	bool ok = true;

	for (round = 0; round < 2; round++) {
		mark = round ? 0x8000 : 0x80;
		ok = ok && !guest_chain_add(r->q, segs, 4, GUEST_DIRECT, 0, &head);
		ok = ok && (r->q->ring[0].flags & 0x8080) == (round ? 0x8080 : 0);
		guest_publish(r->q);
		ok = ok && slot_is(r, 0, 0x1000, 16, mark | 1) &&
		     slot_is(r, 1, 0x2000, 512, mark | 1) && slot_is(r, 2, 0x3000, 512, mark | 3) &&
		     slot_is(r, 3, 0x4000, 1, mark | 2) && r->q->ring[3].id == head;
		ok = ok && guest_chain_add(r->q, segs, 1, GUEST_DIRECT, 0, &head) == -EBUSY;
		ok = ok && !guest_used_pop(r->q, &e);
		c.id = head;
		model_give(&r->m, &c);
		ok = ok && slot_is(r, 0, 0x1000, 513, round ? 2 : 0x8082);
		ok = ok && guest_used_pop(r->q, &e) && e.id == head && e.len == 513;
		guest_queue_reset(r->q, guest_queue_base(r->q));
	}
	ok = ok && guest_queue_base(r->q) == 0x80008000 && model_base(&r->m) >> 16 == 0x8000;
	ok = ok && !guest_chain_add(r->q, segs, 1, GUEST_DIRECT, 0, &head);
	guest_publish(r->q);
	return ok && slot_is(r, 0, 0x1000, 16, 0x80);
}

static void test_bytes(void)
{
	struct rig r;
	bool ok = rig_open(&r, 4, 0, 0x80008000) && bytes_of_four(&r);

	guest_close(r.g);
	tap_result(ok, "a ring of 4 has the specified bytes: chain of 4, twice, then of 1");
}

static void test_events(void)
{
	static const struct {
		unsigned slot, wrap, added, event, flags, want;
	} t[] = {
		/* a ring of 5; before it, @added descriptors up to @slot */
		{ 3, 1, 3, 0x8000, 2, 1 }, { 3, 1, 3, 0x8002, 2, 1 }, { 3, 1, 3, 0x8003, 2, 0 },
		{ 3, 1, 1, 0x8001, 2, 0 }, { 3, 1, 1, 0x8002, 2, 1 }, { 1, 0, 3, 0x8003, 2, 1 },
		{ 1, 0, 3, 0x8002, 2, 0 }, { 1, 0, 3, 0x8004, 2, 1 }, { 1, 0, 3, 0x0000, 2, 1 },
		{ 1, 0, 3, 0x0001, 2, 0 }, { 0, 0, 5, 0x8000, 2, 1 }, { 0, 0, 5, 0x8004, 2, 1 },
		{ 0, 0, 5, 0x0000, 2, 0 }, { 0, 1, 2, 0x0003, 2, 1 }, { 3, 1, 3, 0, 0, 1 },
		{ 3, 1, 3, 0x8001, 1, 0 },
	};
	bool ok = true, want;
	struct rig r;
	unsigned i;

	if (!rig_open(&r, 5, VIRTIO_EVENT_IDX, 0x80008000))
		ok = false;
	for (i = 0; ok && i < sizeof(t) / sizeof(t[0]); i++) {
		r.q->avail_idx = (uint16_t)t[i].slot;
		r.q->avail_wrap = t[i].wrap;
		r.q->unkicked = (uint16_t)t[i].added;
		*r.q->device_event = (struct packed_event){ .off_wrap = (uint16_t)t[i].event,
							    .flags = (uint16_t)t[i].flags };
		want = guest_packed_kick_wanted(r.q);
		ok = want == t[i].want;
		if (!ok)
			tap_diag("row %u: kick %d", i, want);
	}
	guest_close(r.g);
	tap_result(ok, "event positions before and after a wrap ask for a kick or not");
}

/* ---- data ---- */

static int submit(struct rig *r, struct guest_req *q, struct guest_seg *segs)
{
	uint32_t len = 512 * (1 + below(r, 8)), cut = 1 + below(r, len - 1), i = q->owner ? 1 : 0;
	uint64_t sector = (uint64_t)(q - r->req) * 64 + below(r, 32);
	uint8_t *data = guest_ptr(r->g, q->data);
	uint32_t k;
	int rc;

	q->owner = (void *)(uintptr_t)sector;
	q->how = (enum guest_how)below(r, 3);
	if (r->q->size < 4)
		q->how = GUEST_INDIRECT;
	if (q->how == GUEST_INDIRECT && below(r, 2) && r->q->size >= 4)
		q->how = GUEST_DIRECT;
	segs[0] = (struct guest_seg){ .gpa = q->data, .len = cut, .write = i };
	segs[1] = (struct guest_seg){ .gpa = q->data + cut, .len = len - cut, .write = i };
	q->segs = segs;
	q->nsegs = 2;
	q->start_ns = len;
	for (k = 0; !i && k < len; k++)
		data[k] = (uint8_t)below(r, 256);
	rc = guest_req_submit(r->q, q, i ? BLK_IN : BLK_OUT, sector, 0);
	/* What the ring had no room for stays undone. */
	if (!rc && !i)
		memcpy(shadow + sector * 512, data, len);
	return rc;
}

static bool finish(struct rig *r)
{
	struct virtq_used_elem e;
	struct guest_req *q;
	uint64_t sector;
	int rc = guest_used_wait_call(r->q, &e, 4000);

	q = rc ? NULL : guest_req_take(r->q, &e);
	if (!q || guest_req_status(r->g, q) != BLK_OK) {
		tap_diag("%s", rc ? "an interrupt was lost" : q ? "bad status" : "wrong id");
		return false;
	}
	sector = (uintptr_t)q->owner;
	if (q->segs[0].write)
		return !memcmp(guest_ptr(r->g, q->data), shadow + sector * 512, q->start_ns) &&
		       e.len == q->start_ns + 1;
	return e.len == 1;
}

static bool run_data(struct rig *r, unsigned rounds)
{
	struct guest_seg segs[DEPTH][2];
	unsigned i, k, n = 0, depth;
	bool ok = true;

	for (i = 0; ok && i < rounds && !r->m.error; i++) {
		depth = 1 + below(r, DEPTH);
		for (k = n = 0; k < depth; k++) {
			r->req[k].owner = (void *)(uintptr_t)below(r, 2);
			n += !submit(r, &r->req[k], segs[k]);
			if (below(r, 3) == 0)
				guest_notify(r->q);
		}
		guest_notify(r->q);
		ok = n > 0;
		while (ok && n--)
			ok = finish(r);
	}
	return ok;
}

static void test_data(unsigned size, uint64_t features, uint32_t base, bool reorder)
{
	char name[160];
	struct rig r;
	bool ok;

	snprintf(name, sizeof(name), "ring of %u from 0x%08x%s%s: data, interrupts and kicks", size,
		 base, features & VIRTIO_EVENT_IDX ? ", EVENT_IDX" : "",
		 reorder ? ", reordered" : "");
	memset(disk, 0, sizeof(disk));
	memset(shadow, 0, sizeof(shadow));
	ok = rig_open(&r, size, features | VIRTIO_INDIRECT_DESC, base);
	if (ok) {
		r.m.reorder = reorder;
		model_start(&r.m);
		ok = run_data(&r, 2000);
		model_stop(&r.m);
		if (r.m.error)
			tap_diag("the model: %s", r.m.error);
		if (r.m.lost_kicks)
			tap_diag("%llu kicks lost", (unsigned long long)r.m.lost_kicks);
		if (guest_queue_base(r.q) != model_base(&r.m))
			tap_diag("the driver stands at 0x%08x, the model at 0x%08x",
				 guest_queue_base(r.q), model_base(&r.m));
		ok = ok && !r.m.error && !r.m.lost_kicks &&
		     guest_queue_base(r.q) == model_base(&r.m) && r.q->nfree == size;
	}
	guest_close(r.g);
	tap_result(ok, name);
}

int main(void)
{
	static const unsigned size[] = { 1, 2, 3, 5, 7, 8, 64, 255, 32768 };
	unsigned i;

	test_bytes();
	test_events();
	for (i = 0; i < sizeof(size) / sizeof(size[0]); i++) {
		test_data(size[i], 0, 0x80008000, false);
		test_data(size[i], VIRTIO_EVENT_IDX, 0x80008000, true);
	}
	test_data(7, VIRTIO_EVENT_IDX, 0x80038003, true);
	test_data(7, VIRTIO_EVENT_IDX, 0x00060006, true);
	test_data(32768, VIRTIO_EVENT_IDX, 0xfff0fff0, true);
	return tap_done();
}
