/*
 * Namespaces that come, go and change while I/O runs, controllers that are plugged in again, and
 * interrupts.
 *
 * Of the reports about NVMe drivers these are 100, 101, 103, 105 and 106; nvme_bringup_test.c says
 * where the others are.
 */
#include <errno.h>
#include <unistd.h>

#include "nvme/rig.h"

#define BLOCK 4096u

static const struct fake_nvme_ns_config second = {
	.nsid = 2, .blocks = 4096, .lbads = 9, .dlfeat = 1
};

static bool is_there(const char *name)
{
	struct bdev *b;
	struct err e;

	if (bdev_get(name, &b, &e))
		return false;
	bdev_put(b);
	return true;
}

static bool second_is_there(struct rig *r)
{
	(void)r;
	return is_there("Nn2");
}

static bool second_is_gone(struct rig *r)
{
	return !second_is_there(r);
}

static uint64_t wanted; /* blocks of 512 */

static bool has_size(struct rig *r)
{
	return READ_ONCE(r->q->size) == wanted * 512;
}

static void resize(struct rig *r, uint64_t blocks)
{
	wanted = blocks;
	assert_true(fake_nvme_ns_resize(r->fake, 1, blocks));
	assert_true(rig_until(r, has_size));
}

static void opened(struct rig *r)
{
	struct fake_nvme_config c = rig_config(r);

	rig_open(r, &c);
}

/* A namespace that somebody uses on the rig's reactor, besides its first one. */
struct user {
	struct bdev *b;
	struct bdev_queue *q;
	struct rig_io io;
};

/* false: it is not there. */
static bool use_if_there(struct rig *r, struct user *u, const char *name)
{
	struct err e;

	if (bdev_get(name, &u->b, &e))
		return false;
	assert_int_equal(bdev_queue_open(u->b, r->reactor, &u->q, &e), 0);
	rig_io_alloc(&u->io, u->q);
	return true;
}

static void use(struct rig *r, struct user *u, const char *name)
{
	assert_true(use_if_there(r, u, name));
}

static void unuse(struct user *u)
{
	rig_io_free(&u->io);
	bdev_queue_close(u->q);
	bdev_put(u->b);
}

static int try(struct rig *r, struct user *u, enum bdev_op op)
{
	u->io.iov[0] = (struct iovec){ r->data, BLOCK };
	rig_start(&u->io, op, 0, u->io.iov, 1, BLOCK, 0);
	while (!u->io.done)
		reactor_turn(r->reactor);
	return u->io.status;
}

/* --- sizes: NVME 100 --- */

/* NVME 100: bigger, smaller, bigger again; nobody polls the controller for it. */
static void it_changes_its_size(void **state)
{
	struct fake_nvme_stats before, after;
	struct rig r;

	(void)state;
	opened(&r);
	resize(&r, 65536);
	assert_int_equal(rig_run(&r, BDEV_WRITE, 65536 * 512 - BLOCK, r.data, BLOCK, 0), 0);
	resize(&r, 1000);
	assert_int_equal(rig_run(&r, BDEV_READ, 65536 * 512 - BLOCK, r.data, BLOCK, 0), -ERANGE);
	assert_int_equal(rig_run(&r, BDEV_READ, 1000 * 512 - 512, r.data, 1024, 0), -ERANGE);
	assert_int_equal(rig_run(&r, BDEV_READ, 1000 * 512 - BLOCK, r.data, BLOCK, 0), 0);
	resize(&r, 1);
	assert_int_equal(rig_run(&r, BDEV_READ, 0, r.data, 512, 0), 0);
	resize(&r, 32768);
	before = rig_stats(&r);
	rig_turn_ms(&r, 300);
	after = rig_stats(&r);
	assert_int_equal(after.admin[6], before.admin[6]); /* Identify */
	assert_int_equal(after.admin[2], before.admin[2]); /* Get Log Page */
	rig_close(&r);
}

static bool first_is_gone(struct rig *r)
{
	/* The device says -ERANGE; we do as soon as we know. */
	return rig_run(r, BDEV_READ, 0, r->data, 512, 0) == -ENXIO;
}

static bool first_is_back(struct rig *r)
{
	(void)r;
	return is_there("Nn1");
}

static bool first_is_buried(struct rig *r)
{
	return !first_is_back(r);
}

/* NVME 100: size 0 is no namespace any more; when it has a size again it is one. */
static void it_shrinks_to_nothing(void **state)
{
	struct rig r;

	(void)state;
	opened(&r);
	assert_true(fake_nvme_ns_resize(r.fake, 1, 0));
	assert_true(rig_until(&r, first_is_gone));
	assert_int_equal(rig_run(&r, BDEV_WRITE, 0, r.data, 512, 0), -ENXIO);
	rig_unuse(&r);
	assert_true(rig_until(&r, first_is_buried));
	assert_true(fake_nvme_ns_resize(r.fake, 1, 4096));
	assert_true(rig_until(&r, first_is_back));
	rig_use(&r);
	assert_int_equal(rig_run(&r, BDEV_WRITE, 0, r.data, 512, 0), 0);
	rig_close(&r);
}

/* It has shrunk and the event has not come yet: the device's own answer fails the request. */
static void it_shrinks_before_we_know(void **state)
{
	struct fake_nvme_rule hold = {
		.queue = FAKE_ADMIN, .opcode = 2, .qid = -1, .times = 1, .action = FAKE_HOLD
	};
	struct rig r;

	(void)state;
	opened(&r);
	assert_int_equal(fake_nvme_script(r.fake, &hold), 0);
	assert_true(fake_nvme_ns_resize(r.fake, 1, 1000));
	assert_int_equal(rig_run(&r, BDEV_READ, 1u << 20, r.data, BLOCK, 0), -ERANGE);
	wanted = 1000;
	while (!fake_nvme_held(r.fake))
		reactor_turn(r.reactor);
	fake_nvme_release(r.fake);
	assert_true(rig_until(&r, has_size));
	rig_close(&r);
}

/* --- coming and going --- */

/* NVME 101: nsid 2 comes and goes every other millisecond; 1 does not notice, and 2 fails cleanly.
 */
static void a_storm_of_events(void **state)
{
	unsigned ok = 0, failed = 0;
	struct rig r;

	(void)state;
	opened(&r);
	for (unsigned round = 0; round < 300; round++) {
		struct user u;
		bool used;

		(void)fake_nvme_ns_add(r.fake, &second);
		rig_turn_ms(&r, round % 4);
		used = use_if_there(&r, &u, "Nn2");
		(void)fake_nvme_ns_remove(r.fake, 2);
		for (int i = 0; i < 8; i++) {
			assert_int_equal(rig_run(&r, BDEV_WRITE, i * BLOCK, r.data, BLOCK, 0), 0);
			if (used && try(&r, &u, BDEV_READ) == 0)
				ok++;
			else if (used)
				failed++;
		}
		if (used)
			unuse(&u);
	}
	assert_true(failed > 0);
	assert_true(rig_stats(&r).events > 50);
	assert_int_equal(rig_mends(NULL).resets + rig_mends(NULL).aborts, 0);
	assert_true(rig_until(&r, second_is_gone));
	rig_close(&r);
}

/* NVME 103: a log that says it has overflown, and one that names others: all are looked at, and the
 * next event comes. */
static void logs_that_say_too_little(void **state)
{
	static const uint32_t named[] = { UINT32_MAX, 5, 9 };
	struct rig r;

	(void)state;
	opened(&r);
	for (unsigned i = 0; i < 2 * ARRAY_SIZE(named); i++) {
		if (i % 2 == 0)
			assert_true(fake_nvme_ns_add(r.fake, &second));
		else
			assert_true(fake_nvme_ns_remove(r.fake, 2));
		fake_nvme_ns_changed(r.fake, named[i / 2]);
		assert_true(rig_until(&r, i % 2 ? second_is_gone : second_is_there));
	}
	/* 1024 of them, and one more */
	for (uint32_t nsid = 100; nsid < 1125; nsid++)
		fake_nvme_ns_changed(r.fake, nsid);
	assert_true(fake_nvme_ns_add(r.fake, &second));
	assert_true(rig_until(&r, second_is_there));
	resize(&r, 777);
	rig_close(&r);
}

/* The log cannot be read at first: it is read again, or no event would ever come. */
static void a_log_that_fails(void **state)
{
	struct fake_nvme_rule fail = { .queue = FAKE_ADMIN,
				       .opcode = 2,
				       .qid = -1,
				       .times = 1,
				       .action = FAKE_STATUS,
				       .sc = 6 };
	struct rig r;

	(void)state;
	opened(&r);
	assert_int_equal(fake_nvme_script(r.fake, &fail), 0);
	resize(&r, 1000);
	resize(&r, 2000);
	/* The list of namespaces, and what it is asked for about one of them. */
	fake_nvme_script_clear(r.fake);
	fail.opcode = 6;
	assert_int_equal(fake_nvme_script(r.fake, &fail), 0);
	resize(&r, 3000);
	fail.skip = 1;
	fake_nvme_script_clear(r.fake);
	assert_int_equal(fake_nvme_script(r.fake, &fail), 0);
	resize(&r, 4000);
	rig_close(&r);
}

/* What changes while the controller is down is seen when it is up again: it tells of nothing that
 * was before its reset. */
static void changes_during_a_reset(void **state)
{
	struct rig r;

	(void)state;
	rig_timeout_ms(400);
	opened(&r);
	fake_nvme_set_cfs(r.fake);
	assert_true(fake_nvme_ns_add(r.fake, &second));
	wanted = 5000;
	assert_true(fake_nvme_ns_resize(r.fake, 1, wanted));
	assert_true(rig_until(&r, has_size));
	assert_true(rig_until(&r, second_is_there));
	assert_int_equal(rig_mends(NULL).resets, 1);
	rig_timeout_ms(30000);
	rig_close(&r);
}

static bool second_works(struct rig *r)
{
	struct user u;
	int rc;

	rig_turn_ms(r, 20);
	if (!second_is_there(r))
		return false;
	use(r, &u, "Nn2");
	rc = try(r, &u, BDEV_WRITE);
	unuse(&u);
	return rc == 0;
}

/* A namespace that goes and comes while its bdev is held is there again when it is let go of. */
static void it_returns_while_its_bdev_is_held(void **state)
{
	struct rig r;
	struct user u;

	(void)state;
	opened(&r);
	assert_true(fake_nvme_ns_add(r.fake, &second));
	assert_true(rig_until(&r, second_is_there));
	use(&r, &u, "Nn2");
	assert_int_equal(try(&r, &u, BDEV_WRITE), 0);
	assert_true(fake_nvme_ns_remove(r.fake, 2));
	while (try(&r, &u, BDEV_READ) == 0)
		;
	rig_turn_ms(&r, 100);
	assert_true(fake_nvme_ns_add(r.fake, &second));
	rig_turn_ms(&r, 200);
	assert_true(try(&r, &u, BDEV_READ) < 0); /* what has gone does not come back to life */
	unuse(&u);
	assert_true(rig_until(&r, second_works));
	rig_close(&r);
}

static bool health_was_read(struct rig *r)
{
	return rig_stats(r).admin[2] >= wanted;
}

/* Events of health, again and again: each lets the next one come, and those of namespaces too. */
static void events_of_health(void **state)
{
	struct rig r;

	(void)state;
	opened(&r);
	for (unsigned i = 1; i <= 5; i++) {
		wanted = i;
		fake_nvme_event(r.fake, 1, (uint8_t)(i % 3), 2);
		assert_true(rig_until(&r, health_was_read));
	}
	fake_nvme_event(r.fake, 0, 3, 1); /* an error; its log is another */
	wanted = 6;
	assert_true(rig_until(&r, health_was_read));
	fake_nvme_event(r.fake, 0, 4, 1);
	wanted = 7;
	assert_true(rig_until(&r, health_was_read));
	fake_nvme_event(r.fake, 7, 0xff, 0xc0); /* a vendor's: of no interest */
	resize(&r, 999);
	rig_close(&r);
}

/* --- pulled and plugged in --- */

static bool was_removed(struct rig *r)
{
	enum nvme_state s;

	(void)r;
	(void)rig_mends(&s);
	return s == NVME_REMOVED && !is_there("Nn1");
}

/* NVME 105, 106: pulled, noticed by whoever looks first; then it is attached again and works. */
static void plugged_in_again(void **state)
{
	struct fake_nvme_stats s;
	struct rig r;
	struct err e = { 0 };

	(void)state;
	rig_timeout_ms(400);
	opened(&r);
	for (unsigned round = 0; round < 8; round++) {
		assert_int_equal(rig_run(&r, BDEV_WRITE, 0, r.data, BLOCK, 0), 0);
		for (unsigned i = 0; i < 32; i++)
			rig_submit(&r, i, BDEV_READ, i * BLOCK, r.data, BLOCK, 0);
		if (round & 1)
			fake_nvme_truncate_bar(r.fake);
		else
			fake_nvme_vanish(r.fake);
		if (round & 2)
			rig_reset(&r);
		for (unsigned i = 0; i < 32; i++)
			(void)rig_wait(&r, i);
		if (round & 2)
			assert_true(rig_reset_wait(&r) < 0);
		rig_unuse(&r);
		assert_true(rig_until(&r, was_removed)); /* its bdevs, too */
		rig_detach(&r);
		fake_nvme_return(r.fake);
		if (rig_attach(&r, &e))
			fail_msg("attach: %s", e.text);
		rig_use(&r);
	}
	fake_nvme_stats(r.fake, &s);
	assert_false(s.gone);
	rig_timeout_ms(30000);
	rig_close(&r);
}

struct detaching {
	int rc;
	struct err e;
	_Atomic bool done;
};

static void *detach_it(void *arg)
{
	struct detaching *d = arg;

	d->rc = nvme_detach("N", &d->e);
	d->done = true;
	return NULL;
}

/* Somebody takes hold of a disk while its controller is being detached: one of them is refused, and
 * who is not has all of it. */
static void held_while_it_is_detached(void **state)
{
	struct fake_nvme_rule slow = {
		.queue = FAKE_ADMIN, .opcode = 2, .qid = -1, .times = 1, .action = FAKE_HOLD
	};
	struct detaching d = { 0 };
	struct rig r;
	struct fake_nvme_config c = rig_config(&r);
	struct bdev *b;
	pthread_t thread;
	struct err e;
	int rc;

	(void)state;
	c.ns[1] = second;
	c.ns_n = 2;
	rig_open(&r, &c);
	rig_unuse(&r);
	assert_int_equal(fake_nvme_script(r.fake, &slow), 0);
	fake_nvme_ns_changed(r.fake, 1); /* the watcher is busy with it */
	while (!fake_nvme_held(r.fake))
		usleep(100);
	pthread_create(&thread, NULL, detach_it, &d);
	usleep(50000);
	rc = bdev_get("Nn2", &b, &e);
	fake_nvme_release(r.fake);
	pthread_join(thread, NULL);
	if (rc == 0) {
		assert_int_equal(d.rc, -EBUSY);
		assert_true(is_there("Nn2"));
		bdev_put(b);
		assert_true(rig_until(&r, first_is_back)); /* if it was let go of already */
		rig_use(&r);
		assert_int_equal(rig_run(&r, BDEV_READ, 0, r.data, BLOCK, 0), 0);
		resize(&r, 1000); /* it is watched as before */
		rig_unuse(&r);
		rig_detach(&r);
	}
	rig_dark(&r);
}

/* --- interrupts --- */

/* A reactor that arms at once is woken by each interrupt, and none is lost between arming and
 * sleeping; while it polls they are masked. */
static void no_interrupt_is_lost(void **state)
{
	struct fake_nvme_stats s;
	struct rig r;

	(void)state;
	reactor_set_poll_us(0);
	opened(&r);
	for (unsigned i = 0; i < 10000; i++)
		assert_int_equal(rig_run(&r, i % 2 ? BDEV_READ : BDEV_WRITE, i % 512 * BLOCK,
					 r.data, BLOCK, 0),
				 0);
	s = rig_stats(&r);
	assert_int_equal(s.interrupts_lost, 0);
	assert_int_equal(rig_mends(NULL).lost_interrupts, 0);
	assert_true(r.q->stats.interrupts > 0);
	reactor_set_poll_us(200);
	rig_close(&r);
}

static void interrupts_are_masked_while_it_polls(void **state)
{
	struct fake_nvme_stats s;
	struct rig r;
	uint64_t before;

	(void)state;
	reactor_set_poll_us(1000000);
	opened(&r);
	before = rig_stats(&r).interrupts;
	for (unsigned i = 0; i < 5000; i++)
		assert_int_equal(rig_run(&r, BDEV_READ, 0, r.data, BLOCK, 0), 0);
	s = rig_stats(&r);
	assert_true(s.interrupts - before <= 1); /* the admin queue's last */
	assert_int_equal(r.q->stats.interrupts, 0);
	reactor_set_poll_us(200);
	rig_close(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(it_changes_its_size),
		cmocka_unit_test(it_shrinks_to_nothing),
		cmocka_unit_test(it_shrinks_before_we_know),
		cmocka_unit_test(a_storm_of_events),
		cmocka_unit_test(logs_that_say_too_little),
		cmocka_unit_test(a_log_that_fails),
		cmocka_unit_test(changes_during_a_reset),
		cmocka_unit_test(it_returns_while_its_bdev_is_held),
		cmocka_unit_test(events_of_health),
		cmocka_unit_test(plugged_in_again),
		cmocka_unit_test(held_while_it_is_detached),
		cmocka_unit_test(no_interrupt_is_lost),
		cmocka_unit_test(interrupts_are_masked_while_it_polls),
	};

	return RUN_TESTS(tests);
}
