/* A reactor turned by hand. */
#include "reactor/reactor.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include "reactor/uring.h"
#include "util/ticks.h"
#include "util/unit.h"

#define PATIENCE_US 100

static char order[32];

static void note(char c)
{
	size_t n = strlen(order);

	if (n + 1 < sizeof(order)) {
		order[n] = c;
		order[n + 1] = '\0';
	}
}

static int make(void **state)
{
	order[0] = '\0';
	return reactor_create((struct reactor **)state);
}

static int drop(void **state)
{
	reactor_destroy(*state);
	return 0;
}

struct noted {
	struct task task;
	struct poller poller;
	struct timer timer;
	char name;
	unsigned polls, work;
	bool may_arm, armed;
	struct noted *soon, *flush;
};

static void task_noted(struct task *t)
{
	struct noted *n = container_of(t, struct noted, task);

	note(n->name);
	if (n->soon)
		reactor_soon(&n->soon->task);
	if (n->flush)
		reactor_flush(&n->flush->task);
}

static unsigned poll_noted(struct poller *p)
{
	struct noted *n = container_of(p, struct noted, poller);

	n->polls++;
	if (!n->work)
		return 0;
	n->work--;
	note(n->name);
	if (n->soon)
		reactor_soon(&n->soon->task);
	return 1;
}

static bool arm_noted(struct poller *p)
{
	struct noted *n = container_of(p, struct noted, poller);

	n->armed = n->may_arm;
	return n->may_arm;
}

static void disarm_noted(struct poller *p)
{
	container_of(p, struct noted, poller)->armed = false;
}

static struct noted noted(char name)
{
	return (struct noted){
		.name = name,
		.task.fn = task_noted,
		.poller = { .fn = poll_noted,
			    .arm = arm_noted,
			    .disarm = disarm_noted,
			    .patience.most = ticks_from_us(PATIENCE_US) },
	};
}

static void a_turn_has_its_order(void **state)
{
	struct noted posted = noted('p'), poller = noted('q'), task = noted('t'),
		     flush = noted('f');

	poller.work = 1;
	poller.soon = &task;
	task.flush = &flush;
	posted.flush = &flush; /* twice in one turn: runs once */
	poller_add(&poller.poller);
	reactor_post(*state, &posted.task);
	assert_true(reactor_turn(*state) > 0);
	assert_string_equal(order, "pqtf");
	assert_int_equal(reactor_turn(*state), 0);
	poller_del(&poller.poller);
}

static void tasks_run_until_none_is_left(void **state)
{
	struct noted a = noted('a'), b = noted('b'), c = noted('c');

	a.soon = &b;
	b.soon = &c;
	reactor_soon(&a.task);
	assert_int_equal(reactor_turn(*state), 3);
	assert_string_equal(order, "abc");
}

static void spin_past_budget(struct reactor *r)
{
	uint64_t until = ticks() + ticks_from_us(300);

	while ((int64_t)(ticks() - until) < 0)
		;
	reactor_turn(r);
}

static void an_idle_poller_arms_and_wakes(void **state)
{
	struct noted n = noted('n');

	n.may_arm = true;
	poller_add(&n.poller);
	reactor_turn(*state);
	assert_false(n.armed); /* within its budget it is polled */
	spin_past_budget(*state);
	assert_true(n.armed);
	n.polls = 0;
	reactor_turn(*state);
	assert_int_equal(n.polls, 0);
	poller_wake(&n.poller);
	assert_false(n.armed);
	n.work = 1;
	reactor_turn(*state);
	assert_string_equal(order, "n");
	poller_del(&n.poller);
}

static void a_poller_that_cannot_arm_stays(void **state)
{
	struct noted n = noted('n');

	poller_add(&n.poller);
	spin_past_budget(*state);
	spin_past_budget(*state);
	n.polls = 0;
	reactor_turn(*state);
	assert_int_equal(n.polls, 1);
	poller_del(&n.poller);
}

/* Idle for so long, then woken. */
static void nap(struct noted *n, uint64_t us)
{
	uint64_t until = ticks() + ticks_from_us(us);

	while (!n->armed)
		reactor_turn(reactor_this());
	while ((int64_t)(ticks() - until) < 0)
		;
	reactor_turn(reactor_this());
	poller_wake(&n->poller);
	n->work = 1;
	reactor_turn(reactor_this());
}

static void patience_follows_the_wake_ups(void **state)
{
	struct noted n = noted('n');
	uint64_t most = n.poller.patience.most;

	(void)state;
	n.may_arm = true;
	poller_add(&n.poller);
	assert_int_equal(n.poller.patience.now, most);
	for (int i = 0; i < 8; i++) /* whoever sleeps long need not have waited */
		nap(&n, 4 * PATIENCE_US);
	assert_int_equal(n.poller.patience.now, most / 2);
	for (int i = 0; i < 100 && n.poller.patience.now < most; i++)
		nap(&n, 0); /* now and then the machine makes one long */
	assert_int_equal(n.poller.patience.now, most);
	poller_del(&n.poller);
}

static void without_patience_it_arms_at_once(void **state)
{
	struct noted n = noted('n');

	n.may_arm = true;
	n.poller.patience.most = 0;
	poller_add(&n.poller);
	reactor_turn(*state);
	assert_true(n.armed);
	poller_del(&n.poller);
}

static void polled_for_ever_it_never_arms(void **state)
{
	struct noted n = noted('n');

	n.may_arm = true;
	n.poller.patience.most = POLL_ALWAYS;
	poller_add(&n.poller);
	spin_past_budget(*state);
	spin_past_budget(*state);
	assert_false(n.armed);
	poller_del(&n.poller);
}

static void turns_are_counted_while_polled(void **state)
{
	struct noted n = noted('n');

	n.may_arm = true;
	n.poller.patience.most = 0;
	poller_add(&n.poller);
	n.work = 10;
	for (int i = 0; i < 11; i++)
		reactor_turn(*state);
	assert_true(n.armed);
	for (int i = 0; i < 100; i++)
		reactor_turn(*state);
	assert_in_range(poller_turns(&n.poller, *state), 10, 12);
	poller_wake(&n.poller);
	n.work = 5;
	for (int i = 0; i < 5; i++)
		reactor_turn(*state);
	assert_in_range(poller_turns(&n.poller, *state), 14, 18);
	poller_del(&n.poller);
}

static struct bill light, heavy, none;

static unsigned poll_bills(struct poller *p)
{
	uint64_t until = ticks() + ticks_from_us(50);

	(void)p;
	while ((int64_t)(ticks() - until) < 0)
		;
	turn_bill(&light, 1);
	turn_bill(&heavy, 2);
	turn_bill(&none, 5);
	turn_unbill(&none);
	turn_bill(&heavy, 1);
	return 4;
}

static void time_is_billed_by_items(void **state)
{
	struct poller p = { .fn = poll_bills, .patience.most = POLL_ALWAYS };
	struct reactor_stats before, after;

	reactor_turn(*state);
	reactor_get_stats(*state, &before);
	poller_add(&p);
	for (int i = 0; i < 10; i++)
		reactor_turn(*state);
	poller_del(&p);
	reactor_turn(*state);
	reactor_get_stats(*state, &after);
	assert_int_equal(none.ticks, 0);
	assert_true(light.ticks + heavy.ticks <= after.busy_ticks - before.busy_ticks);
	assert_true(light.ticks + heavy.ticks + 20 >= after.busy_ticks - before.busy_ticks);
	assert_true(light.ticks * 3 <= heavy.ticks + 40 && heavy.ticks <= light.ticks * 3 + 40);
}

static unsigned few, many;

static unsigned poll_unevenly(struct poller *p)
{
	uint64_t until = ticks() + ticks_from_us(20);

	(void)p;
	while ((int64_t)(ticks() - until) < 0)
		;
	turn_bill(&light, few);
	turn_bill(&heavy, many);
	return 1;
}

static void turns_are_short_where_little_meets_much(void **state)
{
	struct poller p = { .fn = poll_unevenly, .patience.most = POLL_ALWAYS };
	uint64_t until;

	assert_int_equal(this_turn->batch, TURN_BATCH);
	poller_add(&p);
	few = many = 64; /* two that have much */
	for (int i = 0; i < 3; i++)
		reactor_turn(*state);
	assert_int_equal(this_turn->batch, TURN_BATCH);
	few = 1; /* a slow one, whose requests end in later turns */
	for (int i = 0; i < 20; i++)
		reactor_turn(*state);
	assert_int_equal(this_turn->batch, TURN_BATCH);
	few = 2;
	for (int i = 0; i < 10; i++)
		reactor_turn(*state);
	assert_in_range(this_turn->batch, 1, 4); /* 66 items in 20 us: 600 ns each */
	few = 64;
	until = ticks() + ticks_from_us(3000);
	while ((int64_t)(ticks() - until) < 0)
		reactor_turn(*state);
	assert_int_equal(this_turn->batch, TURN_BATCH);
	poller_del(&p);
}

static struct noted *victim;

static unsigned poll_kills(struct poller *p)
{
	poller_del(&victim->poller);
	poller_del(p);
	return 1;
}

static void a_poller_may_delete_itself_and_the_next(void **state)
{
	struct noted killer = noted('k'), next = noted('n'), last = noted('l');

	killer.poller.fn = poll_kills;
	next.work = last.work = 1;
	victim = &next;
	poller_add(&killer.poller);
	poller_add(&next.poller);
	poller_add(&last.poller);
	reactor_turn(*state);
	assert_string_equal(order, "l");
	poller_del(&last.poller);
}

static void timer_noted(struct timer *t)
{
	note(container_of(t, struct noted, timer)->name);
}

static void timers_run_in_time_order(void **state)
{
	struct noted a = noted('a'), b = noted('b'), c = noted('c'), never = noted('x');
	uint64_t now = reactor_now();

	a.timer.fn = b.timer.fn = c.timer.fn = never.timer.fn = timer_noted;
	timer_start(&b.timer, now + 2);
	timer_start(&a.timer, now + 1);
	timer_start(&never.timer, now + 1);
	timer_start(&c.timer, now + 1000000000000);
	timer_start(&c.timer, now + 3); /* started again: moved */
	timer_stop(&never.timer);
	spin_past_budget(*state);
	assert_string_equal(order, "abc");
}

static int watched;

static void on_watch(struct watch *w)
{
	(void)w;
	watched++;
}

static void turn_until_watched(struct reactor *r, int want)
{
	for (int i = 0; i < 100000 && watched < want; i++)
		reactor_turn(r);
}

static void a_watch_fires_for_each_event(void **state)
{
	const uint64_t one = 1;
	struct watch w = { .fn = on_watch };
	int fd = eventfd(0, EFD_NONBLOCK);

	watched = 0;
	assert_int_equal(watch_start(&w, fd), 0);
	reactor_turn(*state);
	assert_int_equal(watched, 0);
	for (int i = 1; i <= 3; i++) { /* nobody reads the eventfd, and still each write is seen */
		assert_int_equal(write(fd, &one, sizeof(one)), sizeof(one));
		turn_until_watched(*state, i);
		assert_int_equal(watched, i);
	}
	watch_stop(&w);
	assert_int_equal(write(fd, &one, sizeof(one)), sizeof(one));
	for (int i = 0; i < 200; i++)
		reactor_turn(*state);
	assert_int_equal(watched, 3);
	close(fd);
}

static int32_t op_result;

static void op_done(struct uring_op *op, int32_t res)
{
	(void)op;
	op_result = res;
}

static void an_operation_completes(void **state)
{
	struct uring_op op = { .done = op_done };
	struct io_uring_sqe *sqe;

	if (!uring_usable(*state)) {
		print_message("# io_uring is denied here: %s\n", uring_why_not(*state));
		skip();
	}
	op_result = 1;
	sqe = uring_sqe(*state);
	io_uring_prep_nop(sqe);
	uring_tag(sqe, &op);
	for (int i = 0; i < 1000 && op_result == 1; i++)
		reactor_turn(*state);
	assert_int_equal(op_result, 0);
}

static void more_operations_than_the_ring_holds(void **state)
{
	enum { N = 1000 };
	struct uring_op op = { .done = op_done };

	if (!uring_usable(*state))
		skip();
	for (int i = 0; i < N; i++) {
		struct io_uring_sqe *sqe = uring_sqe(*state);

		assert_non_null(sqe);
		io_uring_prep_nop(sqe);
		uring_tag(sqe, &op);
	}
	for (unsigned done = 0, i = 0; done < N; i++) {
		assert_true(i < 100000);
		done += reactor_turn(*state);
	}
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, make, drop)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_turn_has_its_order),
		TEST(tasks_run_until_none_is_left),
		TEST(an_idle_poller_arms_and_wakes),
		TEST(a_poller_that_cannot_arm_stays),
		TEST(patience_follows_the_wake_ups),
		TEST(without_patience_it_arms_at_once),
		TEST(polled_for_ever_it_never_arms),
		TEST(turns_are_counted_while_polled),
		TEST(time_is_billed_by_items),
		TEST(turns_are_short_where_little_meets_much),
		TEST(a_poller_may_delete_itself_and_the_next),
		TEST(timers_run_in_time_order),
		TEST(a_watch_fires_for_each_event),
		TEST(an_operation_completes),
		TEST(more_operations_than_the_ring_holds),
	};

	return RUN_TESTS(tests);
}
