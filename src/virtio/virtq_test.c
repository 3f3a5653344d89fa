/* The split virtqueue from both sides: this file plays the driver. */
#include "virtio/virtq.h"

#include <errno.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "util/unit.h"
#include "virtio/inflight.h"

#define NUM	 8
#define MEM	 (1u << 20)
#define GPA	 UINT64_C(0x40000000)
#define GPA2	 (GPA + MEM)
#define USER	 UINT64_C(0x7000000000)
#define DESC_AT	 0
#define AVAIL_AT 0x1000
#define USED_AT	 0x2000
#define TABLE_AT 0x3000
#define DATA_AT	 0x10000

/* A guest: two regions that touch in its physical space and lie on different fds. */
struct guest {
	int fds[2], call;
	char *mem[2]; /* the driver's own mappings */
	struct virtq_desc *desc;
	struct virtq_avail *avail;
	struct virtq_used *used;
	struct guest_mem *table;
	struct virtq *vq;
	uint16_t avail_idx;
	struct virtq_setup setup;
};

static int make(void **state)
{
	struct guest *g = calloc(1, sizeof(*g));
	struct guest_range ranges[2] = { { GPA, MEM, USER, 0 },
					 { GPA2, MEM, USER + 0x10000000, 0 } };
	struct err e = { 0 };

	for (int i = 0; i < 2; i++) {
		g->fds[i] = memfd_create("guest", 0);
		assert_int_equal(ftruncate(g->fds[i], MEM), 0);
		g->mem[i] = mmap(NULL, MEM, PROT_READ | PROT_WRITE, MAP_SHARED, g->fds[i], 0);
	}
	assert_int_equal(guest_mem_map(ranges, g->fds, 2, 1, &g->table, &e), 0);
	g->desc = (void *)(g->mem[0] + DESC_AT);
	g->avail = (void *)(g->mem[0] + AVAIL_AT);
	g->used = (void *)(g->mem[0] + USED_AT);
	g->setup = (struct virtq_setup){ .num = NUM,
					 .desc_user = USER + DESC_AT,
					 .avail_user = USER + AVAIL_AT,
					 .used_user = USER + USED_AT };
	assert_int_equal(virtq_create(&g->setup, &g->vq), 0);
	assert_int_equal(virtq_map(g->vq, &g->setup, g->table, &e), 0);
	g->call = g->vq->call_fd = eventfd(0, EFD_NONBLOCK);
	assert_int_equal(virtq_begin(g->vq, &g->setup, NULL, &e), 0);
	*state = g;
	return 0;
}

static int drop(void **state)
{
	struct guest *g = *state;

	virtq_destroy(g->vq);
	guest_mem_destroy(g->table);
	for (int i = 0; i < 2; i++) {
		munmap(g->mem[i], MEM);
		close(g->fds[i]);
	}
	close(g->call);
	free(g);
	return 0;
}

static void put_desc(struct virtq_desc *d, uint64_t addr, uint32_t len, uint16_t flags,
		     uint16_t next)
{
	*d = (struct virtq_desc){ to_le64(addr), to_le32(len), to_le16(flags), to_le16(next) };
}

static void publish(struct guest *g, uint16_t head)
{
	g->avail->ring[g->avail_idx % NUM] = to_le16(head);
	g->avail->idx = to_le16(++g->avail_idx);
}

static unsigned interrupts(struct guest *g)
{
	uint64_t n = 0;

	return read(g->call, &n, sizeof(n)) == sizeof(n) ? (unsigned)n : 0;
}

/* Head 0: one readable and one writable descriptor. */
static void make_simple(struct guest *g)
{
	put_desc(&g->desc[0], GPA + DATA_AT, 16, VIRTQ_DESC_F_NEXT, 1);
	put_desc(&g->desc[1], GPA + DATA_AT + 64, 513, VIRTQ_DESC_F_WRITE, 0);
}

static void a_chain_becomes_an_iovec(void **state)
{
	struct guest *g = *state;
	struct virtq_chain c;

	assert_int_equal(virtq_pop(g->vq, &c), 0);
	make_simple(g);
	publish(g, 0);
	assert_int_equal(virtq_pop(g->vq, &c), 1);
	assert_false(c.malformed);
	assert_int_equal(c.head, 0);
	assert_int_equal(c.out_n, 1);
	assert_int_equal(c.in_n, 1);
	assert_int_equal(c.out_len, 16);
	assert_int_equal(c.in_len, 513);
	strcpy(g->mem[0] + DATA_AT, "hello");
	assert_string_equal(c.iov[0].iov_base, "hello");
	virtq_push(g->vq, 0, 513);
	assert_int_equal(from_le16(g->used->idx), 0); /* staged */
	virtq_flush(g->vq);
	assert_int_equal(from_le16(g->used->idx), 1);
	assert_int_equal(from_le32(g->used->ring[0].len), 513);
	assert_int_equal(virtq_pop(g->vq, &c), 0);
}

static void one_interrupt_for_a_batch(void **state)
{
	struct guest *g = *state;
	struct virtq_chain c;

	for (uint16_t i = 0; i < 4; i++) {
		put_desc(&g->desc[i], GPA + DATA_AT, 1, VIRTQ_DESC_F_WRITE, 0);
		publish(g, i);
	}
	while (virtq_pop(g->vq, &c) == 1)
		virtq_push(g->vq, c.head, 0);
	virtq_flush(g->vq);
	virtq_flush(g->vq); /* nothing new: nothing said */
	assert_int_equal(interrupts(g), 1);
	g->avail->flags = to_le16(VIRTQ_AVAIL_F_NO_INTERRUPT);
	publish(g, 0);
	assert_int_equal(virtq_pop(g->vq, &c), 1);
	virtq_push(g->vq, 0, 0);
	virtq_flush(g->vq);
	assert_int_equal(interrupts(g), 0);
}

/* 2.7.10, across the wrap of the 16-bit indexes. */
static void event_index_decides_across_the_wrap(void **state)
{
	struct guest *g = *state;
	struct virtq_chain c;

	g->avail->idx = g->used->idx = to_le16(65533);
	g->avail_idx = 65533;
	g->setup.base = 65533;
	g->setup.features = FEATURE(VIRTIO_F_EVENT_IDX);
	assert_int_equal(virtq_begin(g->vq, &g->setup, NULL, NULL), 0);
	put_desc(&g->desc[0], GPA + DATA_AT, 1, VIRTQ_DESC_F_WRITE, 0);
	for (uint16_t i = 0; i < 8; i++) {
		uint16_t event = (uint16_t)(65535 + (i < 5 ? 0 : 1));
		bool first = i == 0, wanted = (uint16_t)(65533 + i) == event;

		g->avail->ring[NUM] = to_le16(event);
		publish(g, 0);
		assert_int_equal(virtq_pop(g->vq, &c), 1);
		virtq_push(g->vq, 0, 0);
		virtq_flush(g->vq);
		assert_int_equal(interrupts(g), first || wanted);
	}
}

static void a_full_ring_is_not_empty(void **state)
{
	struct guest *g = *state;
	struct virtq_chain c;

	for (uint16_t i = 0; i < NUM; i++) {
		put_desc(&g->desc[i], GPA + DATA_AT, 1, VIRTQ_DESC_F_WRITE, 0);
		g->avail->ring[i] = to_le16(i);
	}
	g->avail->idx = to_le16(NUM);
	for (uint16_t i = 0; i < NUM; i++) {
		assert_int_equal(virtq_pop(g->vq, &c), 1);
		assert_int_equal(c.head, i);
	}
	assert_int_equal(virtq_pop(g->vq, &c), 0);
}

static void buffers_cross_adjacent_regions(void **state)
{
	struct guest *g = *state;
	struct virtq_chain c;

	put_desc(&g->desc[0], GPA2 - 100, 300, 0, 0);
	publish(g, 0);
	assert_int_equal(virtq_pop(g->vq, &c), 1);
	assert_false(c.malformed);
	assert_int_equal(c.out_n, 2);
	assert_int_equal(c.iov[0].iov_len, 100);
	assert_int_equal(c.iov[1].iov_len, 200);
	memset(g->mem[1], 'x', 1);
	assert_int_equal(*(char *)c.iov[1].iov_base, 'x');
}

static void indirect_tables_need_no_alignment_and_may_cross_regions(void **state)
{
	struct guest *g = *state;
	static const uint64_t places[] = { GPA + TABLE_AT, GPA + TABLE_AT + 1, GPA2 - 24 };
	struct virtq_chain c;

	for (size_t i = 0; i < ARRAY_SIZE(places); i++) {
		struct virtq_desc t[2];

		put_desc(&t[0], GPA + DATA_AT, 16, VIRTQ_DESC_F_NEXT, 1);
		put_desc(&t[1], GPA + DATA_AT, 32, VIRTQ_DESC_F_WRITE, 0);
		for (size_t b = 0; b < sizeof(t); b++) {
			uint64_t at = places[i] + b - GPA;

			g->mem[at >= MEM][at % MEM] = ((char *)t)[b];
		}
		/* WRITE on the referring descriptor means nothing */
		put_desc(&g->desc[0], places[i], sizeof(t),
			 VIRTQ_DESC_F_INDIRECT | VIRTQ_DESC_F_WRITE, 0);
		publish(g, 0);
		assert_int_equal(virtq_pop(g->vq, &c), 1);
		assert_false(c.malformed);
		assert_int_equal(c.out_len, 16);
		assert_int_equal(c.in_len, 32);
		virtq_push(g->vq, 0, 0);
	}
}

/* What the driver puts into desc[0..2) and the table; every one is malformed, none breaks the ring.
 */
struct bad {
	const char *what;
	struct {
		uint64_t addr;
		uint32_t len;
		uint16_t flags, next;
	} d[2], t[2];
};

static const struct bad bad_chains[] = {
	{ "loops to itself", { { GPA, 16, 1, 0 } }, { { 0 } } },
	{ "loops to itself with no bytes", { { GPA, 0, 1, 0 } }, { { 0 } } },
	{ "loops in two", { { GPA, 16, 1, 1 }, { GPA, 16, 1, 0 } }, { { 0 } } },
	{ "next is the ring's size", { { GPA, 16, 1, NUM } }, { { 0 } } },
	{ "next is 0xffff", { { GPA, 16, 1, 0xffff } }, { { 0 } } },
	{ "readable after writable", { { GPA, 16, 3, 1 }, { GPA, 16, 0, 0 } }, { { 0 } } },
	{ "no such memory", { { 0x1000, 16, 0, 0 } }, { { 0 } } },
	{ "ends behind memory", { { GPA2 + MEM - 8, 16, 0, 0 } }, { { 0 } } },
	{ "wraps around", { { UINT64_MAX - 7, 16, 0, 0 } }, { { 0 } } },
	{ "more than 4 GiB", { { GPA, 0x80000000, 1, 1 }, { GPA, 0x80000000, 0, 0 } }, { { 0 } } },
	{ "table of no bytes", { { GPA + TABLE_AT, 0, 4, 0 } }, { { 0 } } },
	{ "table of 24 bytes", { { GPA + TABLE_AT, 24, 4, 0 } }, { { GPA, 16, 0, 0 } } },
	{ "table longer than the ring",
	  { { GPA + TABLE_AT, 16 * (NUM + 1), 4, 0 } },
	  { { GPA, 16, 0, 0 } } },
	{ "table of 65536 entries", { { GPA + TABLE_AT, 1 << 20, 4, 0 } }, { { GPA, 16, 0, 0 } } },
	{ "table ends behind memory", { { GPA2 + MEM - 16, 32, 4, 0 } }, { { 0 } } },
	{ "table and next",
	  { { GPA + TABLE_AT, 16, 5, 1 }, { GPA, 16, 0, 0 } },
	  { { GPA, 16, 0, 0 } } },
	{ "table in a table", { { GPA + TABLE_AT, 16, 4, 0 } }, { { GPA + TABLE_AT, 16, 4, 0 } } },
	{ "the ring's table, as a table, with itself inside", { { GPA, 16, 4, 0 } }, { { 0 } } },
	{ "next leaves the table", { { GPA + TABLE_AT, 32, 4, 0 } }, { { GPA, 16, 1, 2 } } },
};

static void bad_chains_come_back_and_the_ring_lives(void **state)
{
	struct guest *g = *state;
	struct virtq_chain c;

	for (size_t i = 0; i < ARRAY_SIZE(bad_chains); i++) {
		const struct bad *b = &bad_chains[i];
		struct virtq_desc *t = (void *)(g->mem[0] + TABLE_AT);

		for (int k = 0; k < 2; k++) {
			put_desc(&g->desc[k], b->d[k].addr, b->d[k].len, b->d[k].flags,
				 b->d[k].next);
			put_desc(&t[k], b->t[k].addr, b->t[k].len, b->t[k].flags, b->t[k].next);
		}
		publish(g, 0);
		assert_int_equal(virtq_pop(g->vq, &c), 1);
		if (!c.malformed)
			fail_msg("'%s' was taken for a good chain", b->what);
		virtq_push(g->vq, c.head, 0);
	}
	make_simple(g);
	publish(g, 0);
	assert_int_equal(virtq_pop(g->vq, &c), 1);
	assert_false(c.malformed);
}

static void chains_may_be_as_long_as_the_ring(void **state)
{
	struct guest *g = *state;
	struct virtq_chain c;

	for (uint16_t i = 0; i < NUM; i++)
		put_desc(&g->desc[i], GPA + DATA_AT, i == 2 ? 0 : 1,
			 i + 1 < NUM ? VIRTQ_DESC_F_NEXT : 0, (uint16_t)(i + 1));
	publish(g, 0);
	assert_int_equal(virtq_pop(g->vq, &c), 1);
	assert_false(c.malformed);
	assert_int_equal(c.out_len, NUM - 1); /* an empty buffer is legal */
	assert_int_equal(c.out_n, NUM - 1);
}

static void bad_rings_break(void **state)
{
	struct guest *g = *state;
	static const uint16_t jumps[] = { NUM + 1, 0x8000, 0xffff };
	struct virtq_chain c;

	for (size_t i = 0; i < ARRAY_SIZE(jumps); i++) {
		g->vq->err_fd = eventfd(0, EFD_NONBLOCK);
		g->setup.base = 0;
		assert_int_equal(virtq_begin(g->vq, &g->setup, NULL, NULL), 0);
		g->avail->idx = to_le16(jumps[i]);
		assert_int_equal(virtq_pop(g->vq, &c), -EPROTO);
		assert_int_equal(virtq_pop(g->vq, &c), -EPROTO);
		assert_true(virtq_enable_kick(g->vq)); /* it may sleep */
		close(g->vq->err_fd);
		g->vq->err_fd = -1;
	}
}

static void a_head_in_flight_is_not_taken_twice(void **state)
{
	struct guest *g = *state;
	struct virtq_chain c;

	make_simple(g);
	publish(g, 0);
	publish(g, 0);
	assert_int_equal(virtq_pop(g->vq, &c), 1);
	assert_int_equal(virtq_pop(g->vq, &c), -EPROTO);
}

static void a_head_beyond_the_ring_breaks_it(void **state)
{
	struct guest *g = *state;
	struct virtq_chain c;

	publish(g, NUM);
	assert_int_equal(virtq_pop(g->vq, &c), -EPROTO);
}

static void kicks_are_asked_for_and_work_is_seen(void **state)
{
	struct guest *g = *state;

	assert_int_equal(from_le16(g->used->flags), 0);
	virtq_disable_kick(g->vq);
	assert_int_equal(from_le16(g->used->flags), VIRTQ_USED_F_NO_NOTIFY);
	assert_true(virtq_enable_kick(g->vq));
	assert_int_equal(from_le16(g->used->flags), 0);
	virtq_disable_kick(g->vq);
	publish(g, 0);
	assert_false(virtq_enable_kick(g->vq)); /* the re-check */
	assert_int_equal(from_le16(g->used->flags), VIRTQ_USED_F_NO_NOTIFY);
}

/* vring_need_event(), virtio 1.2, 2.7.10 */
static bool driver_kicks(const struct guest *g, uint16_t old)
{
	uint16_t event = from_le16(*(le16 *)(void *)&g->used->ring[NUM]);

	return (uint16_t)(g->avail_idx - event - 1) < (uint16_t)(g->avail_idx - old);
}

static void a_polled_ring_is_never_kicked(void **state)
{
	struct guest *g = *state;
	struct virtq_chain c;

	g->setup.features = FEATURE(VIRTIO_F_EVENT_IDX);
	g->vq->event_idx = true;
	assert_int_equal(virtq_begin(g->vq, &g->setup, NULL, NULL), 0);
	make_simple(g);
	assert_true(virtq_enable_kick(g->vq));
	publish(g, 0);
	assert_true(driver_kicks(g, 0)); /* the one that wakes it */
	virtq_disable_kick(g->vq);
	for (unsigned i = 0; i < 200000; i++) {
		assert_int_equal(virtq_pop(g->vq, &c), 1);
		virtq_push(g->vq, 0, 1);
		virtq_flush(g->vq);
		publish(g, 0);
		assert_false(driver_kicks(g, (uint16_t)(g->avail_idx - 1)));
	}
	assert_int_equal(virtq_pop(g->vq, &c), 1);
	virtq_push(g->vq, 0, 1);
	virtq_flush(g->vq);
	assert_true(virtq_enable_kick(g->vq));
	publish(g, 0);
	assert_true(driver_kicks(g, (uint16_t)(g->avail_idx - 1)));
}

static void rings_must_lie_in_one_region_and_be_aligned(void **state)
{
	struct guest *g = *state;
	struct virtq_setup s = g->setup;
	struct err e = { 0 };

	s.desc_user = USER + 8;
	assert_int_equal(virtq_map(g->vq, &s, g->table, &e), -EINVAL);
	s.desc_user = USER + MEM - 64;
	assert_int_equal(virtq_map(g->vq, &s, g->table, &e), -EFAULT);
	s = g->setup;
	s.used_user = USER + MEM - 16;
	assert_int_equal(virtq_map(g->vq, &s, g->table, &e), -EFAULT);
	s.used_user = UINT64_MAX - 3;
	assert_int_equal(virtq_map(g->vq, &s, g->table, &e), -EFAULT);
	assert_int_equal(virtq_map(g->vq, &g->setup, g->table, &e), 0);
}

static void what_was_in_flight_is_served_again(void **state)
{
	struct guest *g = *state;
	void *region = calloc(1, inflight_stride(NUM, false));
	struct virtq_inflight f;
	struct virtq_chain c;
	struct err e = { 0 };

	assert_int_equal(inflight_open(region, NUM, NUM, 0, &f, &e), 0);
	assert_int_equal(virtq_begin(g->vq, &g->setup, &f, &e), 0);
	for (uint16_t i = 0; i < 4; i++) {
		put_desc(&g->desc[i], GPA + DATA_AT, 1, VIRTQ_DESC_F_WRITE, 0);
		publish(g, (uint16_t)(3 - i));
		assert_int_equal(virtq_pop(g->vq, &c), 1);
	}
	virtq_push(g->vq, 2, 0);
	virtq_flush(g->vq);
	inflight_close(&f);
	/* The process dies here. SET_VRING_BASE may then say anything. */
	assert_int_equal(inflight_open(region, NUM, NUM, from_le16(g->used->idx), &f, &e), 0);
	g->setup.base = 0;
	assert_int_equal(virtq_begin(g->vq, &g->setup, &f, &e), 0);
	for (int want = 3; want >= 0; want--) { /* in the order of their first start */
		if (want == 2)
			continue;
		assert_false(virtq_enable_kick(g->vq)); /* no kick tells of these */
		assert_int_equal(virtq_pop(g->vq, &c), 1);
		assert_int_equal(c.head, want);
		virtq_push(g->vq, c.head, 0);
	}
	assert_int_equal(virtq_pop(g->vq, &c), 0);
	virtq_flush(g->vq);
	assert_int_equal(from_le16(g->used->idx), 4);
	inflight_close(&f);
	free(region);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, make, drop)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_chain_becomes_an_iovec),
		TEST(one_interrupt_for_a_batch),
		TEST(event_index_decides_across_the_wrap),
		TEST(a_full_ring_is_not_empty),
		TEST(buffers_cross_adjacent_regions),
		TEST(indirect_tables_need_no_alignment_and_may_cross_regions),
		TEST(bad_chains_come_back_and_the_ring_lives),
		TEST(chains_may_be_as_long_as_the_ring),
		TEST(bad_rings_break),
		TEST(a_head_in_flight_is_not_taken_twice),
		TEST(a_head_beyond_the_ring_breaks_it),
		TEST(kicks_are_asked_for_and_work_is_seen),
		TEST(a_polled_ring_is_never_kicked),
		TEST(rings_must_lie_in_one_region_and_be_aligned),
		TEST(what_was_in_flight_is_served_again),
	};

	return RUN_TESTS(tests);
}
