/* The packed virtqueue and its in-flight region; this file plays the driver. */
#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "util/unit.h"
#include "virtio/inflight.h"
#include "virtio/virtq_framed.h"

#define NUM	  5 /* no power of 2 */
#define MEM	  (1u << 20)
#define GPA	  UINT64_C(0x40000000)
#define RING_AT	  0
#define DRIVER_AT 0x1000
#define DEVICE_AT 0x1004
#define TABLE_AT  0x2000
#define DATA_AT	  0x10000
#define START	  (VIRTQ_WRAP | (uint32_t)VIRTQ_WRAP << 16)

struct guest {
	int fd, call;
	char *mem;
	struct virtq_packed_desc *ring;
	struct virtq_event *driver, *device;
	struct guest_mem *table;
	struct virtq *vq;
	struct virtq_setup setup;
	unsigned slot; /* of the next descriptor */
	bool wrap;
	struct inflight_packed_region *region;
	struct virtq_inflight inflight;
};

static void begin(struct guest *g, bool tracked)
{
	struct err e = { 0 };

	if (tracked)
		assert_int_equal(inflight_packed_open(g->region, NUM, NUM, g->setup.base, g->ring,
						      &g->inflight, &e),
				 0);
	assert_int_equal(virtq_begin(g->vq, &g->setup, tracked ? &g->inflight : NULL, &e), 0);
}

static int make(void **state)
{
	struct guest *g = calloc(1, sizeof(*g));
	struct guest_range range = { GPA, MEM, 0x7000000000, 0 };
	struct err e = { 0 };

	g->fd = memfd_create("guest", 0);
	assert_int_equal(ftruncate(g->fd, MEM), 0);
	g->mem = mmap(NULL, MEM, PROT_READ | PROT_WRITE, MAP_SHARED, g->fd, 0);
	assert_int_equal(guest_mem_map(&range, &g->fd, 1, 1, &g->table, &e), 0);
	g->ring = (void *)(g->mem + RING_AT);
	g->driver = (void *)(g->mem + DRIVER_AT);
	g->device = (void *)(g->mem + DEVICE_AT);
	g->wrap = true;
	g->region = calloc(1, inflight_stride(NUM, true));
	g->setup = (struct virtq_setup){ .num = NUM,
					 .desc_user = range.user_addr + RING_AT,
					 .avail_user = range.user_addr + DRIVER_AT,
					 .used_user = range.user_addr + DEVICE_AT,
					 .base = START,
					 .features = FEATURE(VIRTIO_F_RING_PACKED) };
	assert_int_equal(virtq_create(&g->setup, &g->vq), 0);
	assert_int_equal(virtq_map(g->vq, &g->setup, g->table, &e), 0);
	g->call = g->vq->call_fd = eventfd(0, EFD_NONBLOCK);
	begin(g, false);
	*state = g;
	return 0;
}

static int drop(void **state)
{
	struct guest *g = *state;

	inflight_close(&g->inflight);
	virtq_destroy(g->vq);
	guest_mem_destroy(g->table);
	munmap(g->mem, MEM);
	close(g->fd);
	close(g->call);
	free(g->region);
	free(g);
	return 0;
}

static uint16_t lap(const struct guest *g)
{
	return g->wrap ? VIRTQ_DESC_F_AVAIL : VIRTQ_DESC_F_USED;
}

/* A descriptor in the next slot; a chain is put from its first to its last. */
static void put(struct guest *g, uint16_t id, uint16_t flags, uint32_t len)
{
	g->ring[g->slot] = (struct virtq_packed_desc){ to_le64(GPA + DATA_AT), to_le32(len),
						       to_le16(id), to_le16(flags | lap(g)) };
	if (++g->slot == NUM) {
		g->slot = 0;
		g->wrap = !g->wrap;
	}
}

static void put_chain(struct guest *g, uint16_t id, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		put(g, id, (uint16_t)(VIRTQ_DESC_F_WRITE | (i + 1 < n ? VIRTQ_DESC_F_NEXT : 0)), 1);
}

/* Does the driver see a used descriptor in a slot that it comes to in this lap? */
static bool is_used(const struct guest *g, unsigned slot, bool wrap)
{
	return (from_le16(g->ring[slot].flags) & VIRTQ_LAP) == (wrap ? VIRTQ_LAP : 0);
}

static uint16_t take(struct guest *g)
{
	struct virtq_chain c;

	assert_int_equal(virtq_pop(g->vq, &c), 1);
	assert_false(c.malformed);
	return c.head;
}

static unsigned interrupts(struct guest *g)
{
	uint64_t n = 0;

	return read(g->call, &n, sizeof(n)) == sizeof(n) ? (unsigned)n : 0;
}

static void chains_of_every_length_go_round(void **state)
{
	struct guest *g = *state;
	struct virtq_chain c;
	unsigned used = 0;
	bool wrap = true;

	for (unsigned i = 0; i < 40; i++) {
		unsigned n = i % NUM + 1;

		put_chain(g, (uint16_t)(i % NUM), n);
		assert_int_equal(virtq_pop(g->vq, &c), 1);
		assert_int_equal(c.head, i % NUM);
		assert_int_equal(c.in_n, n);
		assert_int_equal(virtq_pop(g->vq, &c), 0);
		virtq_push(g->vq, (uint16_t)(i % NUM), i + 1);
		assert_false(is_used(g, used, wrap)); /* staged */
		assert_int_equal(virtq_flush(g->vq), 1);
		assert_true(is_used(g, used, wrap));
		assert_int_equal(from_le32(g->ring[used].len), i + 1);
		used += n;
		wrap = used >= NUM ? !wrap : wrap;
		used %= NUM;
	}
	assert_int_equal(virtq_base(g->vq) & 0xffff, virtq_base(g->vq) >> 16);
	assert_int_equal(virtq_base(g->vq) & 0x7fff, g->slot);
}

static void the_first_descriptor_publishes_the_batch(void **state)
{
	struct guest *g = *state;

	for (uint16_t id = 0; id < 3; id++)
		put_chain(g, id, 1);
	for (int i = 0; i < 3; i++)
		take(g);
	for (uint16_t id = 3; id-- > 0;)
		virtq_push(g->vq, id, 1);
	assert_false(is_used(g, 0, true));
	assert_int_equal(virtq_flush(g->vq), 3);
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(from_le16(g->ring[i].id), 2 - i);
	assert_int_equal(interrupts(g), 1);
}

static void lies_break_the_ring(void **state)
{
	struct guest *g = *state;
	static const struct {
		uint16_t id, flags;
	} bad[] = { { NUM, 0 }, { 0xffff, 0 }, { 0, VIRTQ_DESC_F_NEXT } };
	struct virtq_chain c;

	for (unsigned i = 0; i < ARRAY_SIZE(bad); i++) {
		memset(g->ring, 0, NUM * sizeof(*g->ring));
		g->slot = 0;
		g->wrap = true;
		begin(g, false);
		put(g, bad[i].id, bad[i].flags, 1);
		assert_int_equal(virtq_pop(g->vq, &c), -EPROTO);
		assert_false(virtq_packed_has_work(g->vq));
		assert_true(virtq_enable_kick(g->vq));
	}
	memset(g->ring, 0, NUM * sizeof(*g->ring));
	g->slot = 0;
	g->wrap = true;
	begin(g, false);
	put_chain(g, 1, 1);
	put_chain(g, 1, 1);
	take(g);
	assert_int_equal(virtq_pop(g->vq, &c), -EPROTO); /* in flight already */
}

static void bases_outside_the_ring_are_refused(void **state)
{
	struct guest *g = *state;
	static const uint32_t bad[] = {
		NUM, (uint32_t)NUM << 16 | 1,
		0x80018003, /* used behind avail by less than nothing */
		0x00040002, /* used ahead */
	};
	struct err e = { 0 };

	for (unsigned i = 0; i < 2; i++) {
		g->setup.base = bad[i];
		assert_int_equal(virtq_begin(g->vq, &g->setup, NULL, &e), -EINVAL);
	}
	g->setup.base = bad[2];
	assert_int_equal(virtq_begin(g->vq, &g->setup, NULL, &e), 0); /* two are lost: legal */
	g->setup.base = bad[3];
	assert_int_equal(virtq_begin(g->vq, &g->setup, NULL, &e), -EINVAL);
	g->setup.base = 0x8002; /* one half: both */
	assert_int_equal(virtq_begin(g->vq, &g->setup, NULL, &e), 0);
	assert_int_equal(virtq_base(g->vq), 0x80028002);
}

static void event_positions_are_of_a_lap(void **state)
{
	struct guest *g = *state;

	g->setup.features |= FEATURE(VIRTIO_F_EVENT_IDX);
	begin(g, false);
	for (unsigned i = 0; i < 12; i++) {
		bool wrap = i / NUM % 2 == 0;
		uint16_t at = (uint16_t)(i % NUM | (wrap ? VIRTQ_WRAP : 0)), other = 3 | VIRTQ_WRAP;

		g->driver->flags = to_le16(VIRTQ_EVENT_DESC);
		g->driver->off_wrap = to_le16(i % 2 ? at : other);
		put_chain(g, 0, 1);
		take(g);
		virtq_push(g->vq, 0, 1);
		virtq_flush(g->vq);
		/* the first one after a start is told in any case */
		assert_int_equal(interrupts(g), i == 0 || i % 2 || at == other);
	}
}

/* --- after a crash --- */

/* Three requests in flight, of which 2 and 0 end; the process dies on the way. */
static void die(struct guest *g, int stores)
{
	static const uint16_t ends[] = { 2, 0 };
	uint64_t first;

	begin(g, true);
	put_chain(g, 0, 2);
	put_chain(g, 1, 1);
	put_chain(g, 2, 1);
	for (int i = 0; i < 3; i++)
		take(g);
	if (stores-- == 0)
		return;
	inflight_packed_stage(&g->inflight, 2);
	inflight_packed_stage(&g->inflight, 0);
	if (stores-- == 0)
		return;
	inflight_packed_commit(&g->inflight, 3, true);
	if (stores-- == 0)
		return;
	for (unsigned i = 0; i < 2; i++)
		virtq_packed_put(g->vq, ends[i], 1 | (uint64_t)ends[i] << 32);
	if (stores-- == 0)
		return;
	first = from_le64(g->vq->first_word);
	store_release(virtq_packed_word(&g->ring[0]), to_le64(first));
	if (stores-- == 0)
		return;
	inflight_packed_clear(&g->inflight, 2);
	if (stores-- == 0)
		return;
	inflight_packed_clear(&g->inflight, 0);
	inflight_packed_finish(&g->inflight);
}

static void a_crash_anywhere_loses_and_repeats_nothing(void **state)
{
	struct guest *g = *state;

	for (int stores = 0; stores <= 6; stores++) {
		bool told = stores >= 4;
		struct virtq_chain c;

		memset(g->ring, 0, NUM * sizeof(*g->ring));
		memset(g->region, 0, inflight_stride(NUM, true));
		g->slot = 0;
		g->wrap = true;
		die(g, stores);
		inflight_close(&g->inflight);
		/* A successor; the front-end's word is stale. */
		begin(g, true);
		assert_int_equal(g->inflight.resubmit_n, told ? 1 : 3);
		assert_int_equal(is_used(g, 0, true), told);
		assert_int_equal(is_used(g, 1, true), told);
		assert_false(is_used(g, 3, true));
		for (uint16_t id = 0; id < 3; id++) {
			if (told && id != 1)
				continue;
			assert_int_equal(take(g), id); /* in the order of their first start */
			virtq_push(g->vq, id, 1);
		}
		put_chain(g, 3, 1); /* the driver goes on behind */
		assert_int_equal(take(g), 3);
		virtq_push(g->vq, 3, 1);
		assert_int_equal(virtq_pop(g->vq, &c), 0);
		virtq_flush(g->vq);
		assert_int_equal(g->vq->used_slot, 0);
		assert_int_equal(virtq_base(g->vq), 0);
		for (unsigned i = 0; i < NUM; i++)
			assert_int_equal(g->region->desc[i].inflight, 0);
		inflight_close(&g->inflight);
	}
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, make, drop)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(chains_of_every_length_go_round),
		TEST(the_first_descriptor_publishes_the_batch),
		TEST(lies_break_the_ring),
		TEST(bases_outside_the_ring_are_refused),
		TEST(event_positions_are_of_a_lap),
		TEST(a_crash_anywhere_loses_and_repeats_nothing),
	};

	return RUN_TESTS(tests);
}
