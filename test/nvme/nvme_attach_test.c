/*
 * Attaching NVMe controllers that are late, never ready or in trouble while they start; and a
 * failure at every step of it, after which nothing may be left behind.
 *
 * Of the reports about NVMe drivers these are 106 and 109; nvme_bringup_test.c says where the
 * others are.
 */
#include <dirent.h>
#include <errno.h>
#include <unistd.h>

#include "nvme/rig.h"

/* --- late, never, or with errors --- */

struct attaching {
	struct rig *r;
	struct fake_nvme *fake;
	int rc;
	struct err e;
	_Atomic bool done;
};

static void *attach_late_one(void *arg)
{
	struct attaching *a = arg;

	a->rc = rig_attach_as(a->r, a->fake, "LATE", "0000:00:01.0", &a->e);
	a->done = true;
	return NULL;
}

static int count_them(const struct nvme_info *i, void *arg)
{
	(void)i;
	++*(unsigned *)arg;
	return 0;
}

/* NVME 109: RDY comes after seconds; meanwhile others are looked at and do I/O. */
static void a_late_controller_delays_nobody(void **state)
{
	struct rig r;
	struct fake_nvme_config c = rig_config(&r), late = c;
	struct attaching a = { .r = &r };
	unsigned n, ios = 0;
	uint64_t start, worst = 0;
	pthread_t thread;
	struct err e = { 0 };

	(void)state;
	late.ready_ms = 3000;
	late.to = 255;
	late.serial = "LATE";
	rig_open(&r, &c);
	a.fake = fake_nvme_create(&late);
	assert_int_equal(fake_nvme_start(a.fake), 0);
	pthread_create(&thread, NULL, attach_late_one, &a);
	while (!a.done) {
		start = rig_now_ms();
		n = 0;
		assert_int_equal(nvme_for_each(NULL, count_them, &n, &e), 0);
		(void)nvme_settings_get();
		assert_true(n == 1 || a.done || n == 2);
		assert_int_equal(rig_run(&r, BDEV_READ, 0, r.data, 4096, 0), 0);
		worst = MAX(worst, rig_now_ms() - start);
		ios++;
	}
	pthread_join(thread, NULL);
	assert_int_equal(a.rc, 0);
	assert_true(ios > 100);
	assert_true(worst < 1000);
	assert_int_equal(nvme_detach("LATE", &e), 0);
	assert_int_equal(fake_nvme_faults(a.fake), 0);
	fake_nvme_destroy(a.fake);
	rig_close(&r);
}

static void never_ready(void **state)
{
	(void)state;
	for (uint8_t to = 0; to <= 1; to++) {
		struct rig r;
		struct fake_nvme_config c = rig_config(&r);
		uint64_t start = rig_now_ms();
		struct err e = { 0 };

		c.to = to;
		rig_power(&r, &c);
		fake_nvme_never_ready(r.fake, true);
		assert_int_equal(rig_attach(&r, &e), -ETIMEDOUT);
		assert_non_null(strstr(e.text, "not ready"));
		assert_true(rig_now_ms() - start < 8000);
		rig_dark(&r);
	}
}

/* It does not stop: no memory is given back before a function-level reset has stopped it. */
static void never_disabled(void **state)
{
	struct rig r;
	struct fake_nvme_config c = rig_config(&r);
	unsigned resets;

	(void)state;
	c.to = 0;
	rig_open(&r, &c);
	rig_works(&r, 4096);
	resets = rig_stats(&r).resets;
	fake_nvme_never_disabled(r.fake, true);
	rig_unuse(&r);
	rig_detach(&r);
	assert_int_equal(rig_stats(&r).resets, resets + 1);
	rig_dark(&r);
}

struct saboteur {
	struct fake_nvme *fake;
	unsigned times;
	_Atomic bool stop;
};

/* CSTS.CFS after each of the first enables, before RDY comes. */
static void *sabotage(void *arg)
{
	struct saboteur *s = arg;
	struct fake_nvme_stats now;

	for (unsigned seen = 0; !s->stop && seen < s->times;) {
		fake_nvme_stats(s->fake, &now);
		if (now.enables > seen) {
			fake_nvme_set_cfs(s->fake);
			seen = now.enables;
		}
		usleep(500);
	}
	return NULL;
}

/* CSTS.CFS while it starts: tried again, but not for ever. */
static void fatal_while_it_starts(void **state)
{
	(void)state;
	for (unsigned times = 1; times <= 5; times++) {
		struct rig r;
		struct fake_nvme_config c = rig_config(&r);
		struct saboteur s = { .times = times };
		pthread_t thread;
		struct err e = { 0 };
		int rc;

		c.ready_ms = 100;
		rig_power(&r, &c);
		s.fake = r.fake;
		pthread_create(&thread, NULL, sabotage, &s);
		rc = rig_attach(&r, &e);
		s.stop = true;
		pthread_join(thread, NULL);
		assert_int_equal(rc, times < 3 ? 0 : -EIO);
		if (rc == 0)
			rig_detach(&r);
		else
			assert_non_null(strstr(e.text, "fatal"));
		rig_dark(&r);
	}
}

/* --- a failure at every step --- */

static unsigned entries_of(const char *path)
{
	DIR *d = opendir(path);
	unsigned n = 0;

	assert_non_null(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

/* Attach; whether or not that works nothing is left behind. The reason, if any, has a sentence. */
static int attach_and_look(struct rig *r)
{
	unsigned fds = entries_of("/proc/self/fd"), threads = entries_of("/proc/self/task");
	struct err e = { 0 };
	int rc = rig_attach(r, &e);

	if (rc == 0)
		rig_detach(r);
	else
		assert_true(strlen(e.text) > 10);
	assert_int_equal(fake_iommu_mappings(r->iommu), 0);
	/* A thread that was joined may be seen a moment longer. */
	for (int i = 0; i < 1000 && entries_of("/proc/self/task") != threads; i++)
		usleep(1000);
	assert_int_equal(entries_of("/proc/self/task"), threads);
	/* The controller keeps copies of the eventfds that it was given, like the kernel. */
	assert_int_equal(entries_of("/proc/self/fd"), fds);
	return rc;
}

static void fail_at_each_command(struct fake_nvme_rule rule, unsigned timeout_ms)
{
	unsigned hits = 1, failed = 0;

	rule.queue = FAKE_ADMIN;
	rule.opcode = rule.qid = -1;
	rule.times = 1;
	for (rule.skip = 0; hits; rule.skip++) {
		struct rig r;
		struct fake_nvme_config c = rig_config(&r);
		struct nvme_settings s = nvme_settings_get();
		struct err e;

		s.timeout_admin_us = timeout_ms * 1000;
		assert_int_equal(nvme_settings_set(&s, &e), 0);
		c.oacs |= 1u << 8; /* Doorbell Buffer Config */
		c.to = 0;
		rig_power(&r, &c);
		assert_int_equal(fake_nvme_script(r.fake, &rule), 0);
		failed += attach_and_look(&r) != 0;
		hits = fake_nvme_script_hits(r.fake, 0);
		rig_dark(&r);
	}
	assert_true(failed >= 3);
	rig_timeout_ms(30000);
}

/* Each admin command ends with an error, once. */
static void errors_at_each_command(void **state)
{
	static const uint8_t sc[] = { 0x01, 0x02, 0x06, 0x0b };

	/* Invalid Command Opcode, Invalid Field, Internal Error, Invalid Namespace */

	(void)state;
	for (unsigned i = 0; i < ARRAY_SIZE(sc); i++)
		fail_at_each_command((struct fake_nvme_rule){ .action = FAKE_STATUS, .sc = sc[i] },
				     5000);
}

static void silence_at_each_command(void **state)
{
	(void)state;
	fail_at_each_command((struct fake_nvme_rule){ .action = FAKE_DROP }, 150);
	fail_at_each_command((struct fake_nvme_rule){ .action = FAKE_CFS }, 150);
	fail_at_each_command((struct fake_nvme_rule){ .action = FAKE_BAD_CID }, 150);
}

/* NVME 106: pulled in the middle of bring-up. */
static void pulled_at_each_command(void **state)
{
	(void)state;
	fail_at_each_command((struct fake_nvme_rule){ .action = FAKE_VANISH }, 150);
	fail_at_each_command((struct fake_nvme_rule){ .action = FAKE_TRUNCATE }, 150);
}

/* The IOMMU takes n mappings and no more. */
static void iommu_failures(void **state)
{
	bool failed = true;

	(void)state;
	for (unsigned n = 0; failed; n++) {
		struct rig r;
		struct fake_nvme_config c = rig_config(&r);

		c.oacs |= 1u << 8;
		rig_power(&r, &c);
		fake_iommu_fail_after(r.iommu, n);
		failed = attach_and_look(&r) != 0;
		rig_dark(&r);
		assert_true(n < 100);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_late_controller_delays_nobody),
		cmocka_unit_test(never_ready),
		cmocka_unit_test(never_disabled),
		cmocka_unit_test(fatal_while_it_starts),
		cmocka_unit_test(errors_at_each_command),
		cmocka_unit_test(silence_at_each_command),
		cmocka_unit_test(pulled_at_each_command),
		cmocka_unit_test(iommu_failures),
	};

	return RUN_TESTS(tests);
}
