#include "virtio/guest_mem.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "mem/mem.h"
#include "util/unit.h"
#include "virtio/inflight.h"

#define PAGE 4096u

static int make_fd(size_t size)
{
	int fd = memfd_create("guest", 0);

	assert_int_equal(ftruncate(fd, (off_t)size), 0);
	return fd;
}

static void a_plain_guest_is_mapped(void **state)
{
	/* QEMU -m 256 on one memfd: nothing is a multiple of 2 MiB. */
	const struct guest_range r[] = { { 0, 0xa0000, 0x7f0000000000, 0 },
					 { 0xc0000, 0xff40000, 0x7f00000c0000, 0xc0000 } };
	int fd = make_fd(256u << 20), fds[] = { fd, fd };
	struct guest_mem *m;
	struct err e = { 0 };
	char *p;

	(void)state;
	assert_int_equal(guest_mem_map(r, fds, 2, 1, &m, &e), 0);
	assert_int_equal(guest_mem_find(m, 0x9ffff)->size, 0xa0000);
	assert_null(guest_mem_find(m, 0xa0000));
	assert_int_equal(guest_mem_find(m, 0xc0000)->size, 0xff40000);
	p = guest_mem_from_user(m, 0x7f00000c0000 + 0xff40000 - 1, 1);
	assert_non_null(p);
	assert_int_equal(guest_mem_to_gpa(m, p), 0xfffffff);
	assert_null(guest_mem_from_user(m, 0x7f00000c0000 + 0xff40000 - 1, 2));
	guest_mem_destroy(m);
	close(fd);
}

static void bad_tables_are_refused(void **state)
{
	static const struct guest_range bad[][2] = {
		{ { 0, 0, 0, 0 }, { PAGE, PAGE, PAGE, 0 } },		     /* empty */
		{ { 0, 0xfffffffffffff001, 0, 0 }, { 0 } },		     /* rounds to 0 */
		{ { 0xfffffffffffff000, 0x2000, 0, 0 }, { 0 } },	     /* gpa wraps */
		{ { 0, 0x2000, 0xfffffffffffff000, 0 }, { 0 } },	     /* user wraps */
		{ { 0, 0x2000, 0, 0xfffffffffffff000 }, { 0 } },	     /* offset wraps */
		{ { 0, 0x2000, 0, 0xf000 }, { 0x10000, PAGE, 0x10000, 0 } }, /* behind the file */
		{ { 0, 0x2000, 0, 0 }, { 0x1000, PAGE, 0x10000, 0 } },	     /* overlap in gpa */
		{ { 0, 0x2000, 0, 0 }, { 0x10000, PAGE, 0x1000, 0 } },	     /* overlap in user */
	};
	int fd = make_fd(0x10000), fds[] = { fd, fd };

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		struct guest_mem *m = NULL;
		struct err e = { 0 };

		assert_int_equal(guest_mem_map(bad[i], fds, 2, 1, &m, &e), -EINVAL);
		assert_null(m);
		assert_true(strlen(e.text) > 10);
	}
	close(fd);
}

static void slots_come_and_go(void **state)
{
	enum { N = 64 };
	int fd = make_fd(N * PAGE);
	struct guest_mem *m, *next;
	struct err e = { 0 };

	(void)state;
	assert_int_equal(guest_mem_create(1, &m), 0);
	for (uint64_t i = 0; i < N; i++) { /* every second page of the guest, from the top down */
		struct guest_range r = { (N - i) * 2 * PAGE, PAGE, (i + 1) * 2 * PAGE, i * PAGE };

		assert_int_equal(guest_mem_add(m, &r, fd, &next, &e), 0);
		guest_mem_destroy(m);
		m = next;
	}
	assert_int_equal(m->n, N);
	for (uint64_t i = 0; i < N; i++) {
		assert_non_null(guest_mem_find(m, (i + 1) * 2 * PAGE));
		assert_null(guest_mem_find(m, ((i + 1) * 2 + 1) * PAGE));
	}
	for (uint64_t i = 0; i < N; i++) {
		struct guest_range r = { (N - i) * 2 * PAGE, PAGE, (i + 1) * 2 * PAGE, 0 };

		assert_int_equal(guest_mem_remove(m, &r, &next, &e), 0);
		assert_null(guest_mem_find(next, r.gpa));
		assert_non_null(guest_mem_find(m, r.gpa)); /* the old table still has it */
		guest_mem_destroy(m);
		m = next;
		assert_int_equal(guest_mem_remove(m, &r, &next, &e), -ENOENT);
	}
	guest_mem_destroy(m);
	close(fd);
}

static void a_table_in_use_is_not_idle(void **state)
{
	struct guest_mem *m;

	(void)state;
	assert_int_equal(guest_mem_create(3, &m), 0);
	assert_true(guest_mem_idle(m));
	m->use[2].inflight++;
	assert_false(guest_mem_idle(m));
	m->use[2].inflight--;
	guest_mem_destroy(m);
}

/* A guest that shrinks its memory gets zeroes, and we go on. */
static void vanished_memory_is_survived(void **state)
{
	const struct guest_range r = { 0, 16 * PAGE, 0, 0 };
	int fd = make_fd(16 * PAGE);
	struct guest_mem *m;
	struct err e = { 0 };
	volatile char *p;

	(void)state;
	assert_int_equal(mem_guard_sigbus(), 0);
	assert_int_equal(guest_mem_map(&r, &fd, 1, 1, &m, &e), 0);
	p = guest_mem_find(m, 8 * PAGE)->host + 8 * PAGE;
	*p = 'x';
	assert_false(mem_lost(m->region[0]->map));
	assert_int_equal(ftruncate(fd, 0), 0);
	assert_int_equal(*p, 0);
	assert_true(mem_lost(m->region[0]->map));
	guest_mem_destroy(m);
	close(fd);
}

static void inflight_regions_are_not_trusted(void **state)
{
	enum { NUM = 4 };
	struct inflight_region *r = calloc(1, inflight_stride(NUM, false));
	struct virtq_inflight f;
	struct err e = { 0 };

	(void)state;
	r->version = 7;
	r->desc_num = NUM;
	assert_int_equal(inflight_open(r, NUM, NUM, 0, &f, &e), -EINVAL);
	r->version = 1;
	r->desc_num = 65535;
	assert_int_equal(inflight_open(r, NUM, NUM, 0, &f, &e), -EINVAL);
	r->desc_num = NUM;
	r->last_batch_head = 0xffff;
	r->used_idx = 1; /* 65535 behind */
	for (int i = 0; i < NUM; i++)
		r->desc[i] = (struct inflight_desc){ .inflight = 1,
						     .next = (uint16_t)i,
						     .counter = UINT64_MAX };
	assert_int_equal(inflight_open(r, NUM, NUM, 0, &f, &e), 0);
	assert_int_equal(f.resubmit_n, NUM);
	inflight_close(&f);
	r->last_batch_head = 2; /* whose next is itself */
	r->used_idx = 1;
	assert_int_equal(inflight_open(r, NUM, NUM, 0, &f, &e), 0);
	assert_int_equal(f.resubmit_n, NUM - 1);
	inflight_close(&f);
	free(r);
}

/* SPDK #3766: a region that has completed nothing on a ring that has. */
static void a_fresh_region_takes_the_ring_as_it_is(void **state)
{
	enum { NUM = 4 };
	struct inflight_region *r = calloc(1, inflight_stride(NUM, false));
	struct virtq_inflight f;
	struct err e = { 0 };

	(void)state;
	assert_int_equal(inflight_open(r, NUM, NUM, 500, &f, &e), 0);
	for (uint16_t i = 0; i < NUM; i++)
		inflight_take(&f, i);
	inflight_close(&f);
	assert_int_equal(inflight_open(r, NUM, NUM, 500, &f, &e), 0);
	assert_int_equal(f.resubmit_n, NUM);
	for (uint16_t i = 0; i < NUM; i++)
		assert_int_equal(f.resubmit[i], i);
	inflight_close(&f);
	free(r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_plain_guest_is_mapped),
		cmocka_unit_test(bad_tables_are_refused),
		cmocka_unit_test(slots_come_and_go),
		cmocka_unit_test(a_table_in_use_is_not_idle),
		cmocka_unit_test(vanished_memory_is_survived),
		cmocka_unit_test(inflight_regions_are_not_trusted),
		cmocka_unit_test(a_fresh_region_takes_the_ring_as_it_is),
	};

	return RUN_TESTS(tests);
}
