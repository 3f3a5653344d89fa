/*
 * The handshakes between who makes something available and who sleeps, as models, in every order
 * that x86 allows (tso.h).
 *
 * Each model is also spoilt in all the ways that are easily taken for an optimisation. An explorer
 * that found no loss there would have no right to say that there is none elsewhere.
 */
#include "reactor/tso.h"

#include "util/compiler.h"
#include "util/unit.h"

/* --- programs --- */

enum spoil {
	AS_IT_IS,
	NO_FENCE_IN_SLEEPER,
	NO_FENCE_IN_WAKER,
	NO_FENCE_AT_ALL,
	NO_SECOND_LOOK,
	SECOND_LOOK_TOO_EARLY, /* before it asks to be woken */
	PUBLISHED_TOO_EARLY    /* before it is complete */
};

/* Variables. A thing's number is added to ENTRY, a packed ring's slot to LOOK. */
enum { WISH, LOOK, ENTRY = LOOK + 3 };

static bool equal(uint8_t loaded, const struct tso_op *op)
{
	return loaded == op->value;
}

static bool differs(uint8_t loaded, const struct tso_op *op)
{
	return loaded != op->value;
}

/* How the sleeper sees that something is there, and what it says. */
struct sleeper {
	struct tso_op look; /* an IF, of the variable that it names */
	uint8_t wake_me, let_me;
	bool never_says_let_me;
};

/* Returns the IF, whose target is not known yet. */
static uint8_t emit_look(struct tso_program *p, struct tso_op look)
{
	tso_emit(p, (struct tso_op){ .kind = LOAD, .var = look.var });
	return tso_emit(p, look);
}

/* Nothing was there: ask to be woken, look again, sleep; then poll again. */
static void emit_sleep(struct tso_program *p, const struct sleeper *s, enum spoil spoil,
		       uint8_t poll)
{
	uint8_t second = 0;

	/* a reactor collects its wake-ups a little earlier, which forgets fewer of them */
	tso_emit(p, (struct tso_op){ .kind = FORGET });
	if (spoil == SECOND_LOOK_TOO_EARLY)
		second = emit_look(p, s->look);
	tso_emit(p, (struct tso_op){ .kind = STORE, .var = WISH, .value = s->wake_me });
	if (spoil != NO_FENCE_IN_SLEEPER && spoil != NO_FENCE_AT_ALL)
		tso_emit(p, (struct tso_op){ .kind = FENCE });
	if (spoil != SECOND_LOOK_TOO_EARLY && spoil != NO_SECOND_LOOK)
		second = emit_look(p, s->look);
	tso_emit(p, (struct tso_op){ .kind = WAIT });
	if (second)
		p->ops[second].to = p->n;
	if (!s->never_says_let_me)
		tso_emit(p, (struct tso_op){ .kind = STORE, .var = WISH, .value = s->let_me });
	tso_emit(p, (struct tso_op){ .kind = GOTO, .to = poll });
}

/* Something was published: does the sleeper want to know? */
static void emit_wake(struct tso_program *p, struct tso_op unwanted, enum spoil spoil)
{
	uint8_t skip;

	if (spoil != NO_FENCE_IN_WAKER && spoil != NO_FENCE_AT_ALL)
		tso_emit(p, (struct tso_op){ .kind = FENCE });
	skip = emit_look(p, unwanted);
	tso_emit(p, (struct tso_op){ .kind = KICK });
	p->ops[skip].to = p->n;
}

/* --- the rings --- */

#define INDEXES 4 /* of a split ring: small, so that they come round */
#define SLOTS	3 /* of a packed one */

enum { EVENT_ENABLE = 0, EVENT_DISABLE = 0x10, EVENT_DESC = 0x20, EVENT_WRAP = 0x80 };

/*
 * Things are numbered on and on. The device's program names for each number what it looks at and
 * what it asks for; the driver's names what it stores and which wish it does not have to heed, when
 * it has published [old, new).
 */
struct format {
	unsigned starts; /* numbers at which a run may begin */
	unsigned wishes; /* that a ring which is polled may have */
	uint8_t (*wish)(unsigned n);
	void (*begin)(struct tso_machine *m, unsigned start);
	struct sleeper (*sleeper)(unsigned n);
	struct tso_op (*publish)(unsigned n);
	bool (*unwanted)(uint8_t wish, const struct tso_op *op);
};

/* Descriptor bits AVAIL and USED. */
static uint8_t available(unsigned n)
{
	return n / SLOTS % 2 ? 2 : 1;
}

static uint8_t used_a_lap_ago(unsigned n)
{
	return n / SLOTS % 2 ? 3 : 0;
}

static void split_begin(struct tso_machine *m, unsigned start)
{
	m->memory[LOOK] = (uint8_t)(start % INDEXES);
}

static struct tso_op split_publish(unsigned n)
{
	return (struct tso_op){ .kind = STORE, .var = LOOK, .value = (uint8_t)((n + 1) % INDEXES) };
}

static struct tso_op split_look(unsigned n)
{
	return (struct tso_op){
		.kind = IF, .var = LOOK, .value = (uint8_t)(n % INDEXES), .test = differs
	};
}

static struct sleeper split_flags_sleeper(unsigned n)
{
	return (struct sleeper){ .look = split_look(n), .wake_me = 0, .let_me = 1 };
}

static uint8_t split_flags_wish(unsigned n)
{
	(void)n;
	return 1; /* NO_NOTIFY */
}

static bool split_flags_unwanted(uint8_t wish, const struct tso_op *op)
{
	(void)op;
	return wish;
}

static struct sleeper split_event_sleeper(unsigned n)
{
	return (struct sleeper){ .look = split_look(n),
				 .wake_me = (uint8_t)(n % INDEXES),
				 .never_says_let_me = true };
}

static uint8_t split_event_wish(unsigned n)
{
	return (uint8_t)n; /* left behind anywhere */
}

static bool split_event_unwanted(uint8_t event, const struct tso_op *op)
{
	unsigned passed = (unsigned)(op->value - op->old) % INDEXES;

	return (unsigned)(op->value - event - 1) % INDEXES >= passed;
}

static void packed_begin(struct tso_machine *m, unsigned start)
{
	for (unsigned n = start; n < start + SLOTS; n++)
		m->memory[LOOK + n % SLOTS] = used_a_lap_ago(n);
}

static struct tso_op packed_publish(unsigned n)
{
	return (struct tso_op){ .kind = STORE,
				.var = (uint8_t)(LOOK + n % SLOTS),
				.value = available(n) };
}

static struct tso_op packed_look(unsigned n)
{
	return (struct tso_op){
		.kind = IF, .var = (uint8_t)(LOOK + n % SLOTS), .value = available(n), .test = equal
	};
}

static struct sleeper packed_flags_sleeper(unsigned n)
{
	return (struct sleeper){ .look = packed_look(n),
				 .wake_me = EVENT_ENABLE,
				 .let_me = EVENT_DISABLE };
}

static struct sleeper packed_event_sleeper(unsigned n)
{
	uint8_t wrap = available(n) == 1 ? EVENT_WRAP : 0;

	return (struct sleeper){ .look = packed_look(n),
				 .wake_me = (uint8_t)(EVENT_DESC | wrap | n % SLOTS),
				 .let_me = EVENT_DISABLE };
}

static uint8_t packed_wish(unsigned n)
{
	(void)n;
	return EVENT_DISABLE;
}

/* As Linux does it: virtqueue_kick_prepare_packed() */
static bool packed_unwanted(uint8_t wish, const struct tso_op *op)
{
	unsigned slot = op->value % SLOTS, passed = (unsigned)(op->value - op->old);
	bool wrap = available(op->value) == 1;
	uint8_t event = wish & 0xf;

	if (!(wish & EVENT_DESC))
		return wish == EVENT_DISABLE;
	if (!(wish & EVENT_WRAP) == wrap)
		event = (uint8_t)(event - SLOTS);
	return (uint8_t)(slot - event - 1) >= passed;
}

static const struct format split_flags = {
	.starts = INDEXES,
	.wishes = 1,
	.wish = split_flags_wish,
	.begin = split_begin,
	.sleeper = split_flags_sleeper,
	.publish = split_publish,
	.unwanted = split_flags_unwanted,
};

static const struct format split_event = {
	.starts = INDEXES,
	.wishes = INDEXES,
	.wish = split_event_wish,
	.begin = split_begin,
	.sleeper = split_event_sleeper,
	.publish = split_publish,
	.unwanted = split_event_unwanted,
};

static const struct format packed_flags = {
	.starts = 2 * SLOTS,
	.wishes = 1,
	.wish = packed_wish,
	.begin = packed_begin,
	.sleeper = packed_flags_sleeper,
	.publish = packed_publish,
	.unwanted = packed_unwanted,
};

static const struct format packed_event = {
	.starts = 2 * SLOTS,
	.wishes = 1,
	.wish = packed_wish,
	.begin = packed_begin,
	.sleeper = packed_event_sleeper,
	.publish = packed_publish,
	.unwanted = packed_unwanted,
};

static void emit_device(struct tso_program *p, const struct format *f, unsigned start,
			unsigned things, enum spoil spoil)
{
	for (unsigned k = 0; k <= things; k++) {
		struct sleeper s = f->sleeper(start + k);
		uint8_t poll = p->n, there = emit_look(p, s.look);

		emit_sleep(p, &s, spoil, poll);
		p->ops[there].to = p->n;
		if (k < things)
			tso_emit(p, (struct tso_op){ .kind = LOAD, .var = (uint8_t)(ENTRY + k) });
		tso_emit(p, (struct tso_op){ .kind = SEE, .value = 1 });
	}
	tso_emit(p, (struct tso_op){ .kind = END }); /* it saw more than there is */
}

/* Bit n of cuts: the driver looks for a wish behind thing n, not only behind the last. */
static void emit_driver(struct tso_program *p, const struct format *f, unsigned start,
			unsigned things, unsigned cuts, enum spoil spoil)
{
	unsigned old = start;

	for (unsigned k = 0; k < things; k++) {
		struct tso_op entry = { .kind = STORE, .var = (uint8_t)(ENTRY + k), .value = 1 };
		struct tso_op publish = f->publish(start + k);

		tso_emit(p, spoil == PUBLISHED_TOO_EARLY ? publish : entry);
		tso_emit(p, spoil == PUBLISHED_TOO_EARLY ? entry : publish);
		if (k + 1 < things && !(cuts >> k & 1))
			continue;
		emit_wake(p,
			  (struct tso_op){ .kind = IF,
					   .var = WISH,
					   .test = f->unwanted,
					   .old = (uint8_t)old,
					   .value = (uint8_t)(start + k + 1) },
			  spoil);
		old = start + k + 1;
	}
	tso_emit(p, (struct tso_op){ .kind = END });
}

/* How many things, and where the driver looks between them. */
static const struct way {
	unsigned things, cuts;
} ways[] = { { 1, 0 }, { 2, 0 }, { 2, 1 }, { 3, 0 }, { 3, 1 }, { 3, 2 }, { 3, 3 } };

static unsigned ring_runs(const struct format *f)
{
	return (unsigned)ARRAY_SIZE(ways) * f->starts * f->wishes;
}

static void build_ring(struct tso_machine *m, const struct format *f, unsigned run,
		       enum spoil spoil)
{
	const struct way *way = &ways[run % ARRAY_SIZE(ways)];
	unsigned start = run / ARRAY_SIZE(ways) % f->starts;

	m->threads = 2;
	m->things = way->things;
	f->begin(m, start);
	m->memory[WISH] = f->wish(run / ARRAY_SIZE(ways) / f->starts);
	emit_device(&m->programs[0], f, start, way->things, spoil);
	emit_driver(&m->programs[1], f, start, way->things, way->cuts, spoil);
}

/* --- the mailbox: reactor_post() and reactor_sleep() --- */

#define POSTS 3

static void emit_reactor(struct tso_program *p, enum spoil spoil)
{
	struct sleeper s = { .look = { .kind = IF, .var = LOOK, .value = 0, .test = differs },
			     .wake_me = 1,
			     .let_me = 0 };
	uint8_t poll = p->n, there = emit_look(p, s.look);

	emit_sleep(p, &s, spoil, poll);
	p->ops[there].to = p->n;
	tso_emit(p, (struct tso_op){ .kind = TAKE, .var = LOOK });
	tso_emit(p, (struct tso_op){ .kind = GOTO, .to = poll });
}

static void emit_poster(struct tso_program *p, unsigned posts, enum spoil spoil)
{
	while (posts--) {
		tso_emit(p, (struct tso_op){ .kind = ADD, .var = LOOK, .value = 1 });
		emit_wake(p, (struct tso_op){ .kind = IF, .var = WISH, .value = 0, .test = equal },
			  spoil);
	}
	tso_emit(p, (struct tso_op){ .kind = END });
}

static void build_mailbox(struct tso_machine *m, unsigned run, enum spoil spoil)
{
	unsigned posts[] = { 1 + run % POSTS, 1 + run / POSTS };

	m->threads = 3;
	m->things = posts[0] + posts[1];
	emit_reactor(&m->programs[0], spoil);
	emit_poster(&m->programs[1], posts[0], spoil);
	emit_poster(&m->programs[2], posts[1], spoil);
}

/* --- the tests --- */

struct claim {
	const char *model;
	const struct format *format; /* NULL: the mailbox */
	enum spoil spoil;
};

struct sum {
	unsigned runs;
	unsigned long states;
	unsigned lost, wrong; /* runs in which that can happen */
};

static unsigned runs_of(const struct claim *c)
{
	return c->format ? ring_runs(c->format) : POSTS * POSTS;
}

static void build(const struct claim *c, unsigned run, struct tso_machine *m)
{
	memset(m, 0, sizeof(*m));
	if (c->format)
		build_ring(m, c->format, run, c->spoil);
	else
		build_mailbox(m, run, c->spoil);
}

static struct sum explore_all(const struct claim *c)
{
	struct tso *x = tso_create();
	struct sum sum = { .runs = runs_of(c) };

	for (unsigned run = 0; run < sum.runs; run++) {
		struct tso_machine m;
		struct tso_verdict v;

		build(c, run, &m);
		v = tso_explore(x, &m, c->spoil == AS_IT_IS);
		sum.states += v.states;
		sum.lost += v.lost;
		sum.wrong += v.wrong;
	}
	tso_destroy(x);
	print_message(
		"# %s: %lu states in %u runs, of which %u lose a wake-up and %u take too early\n",
		c->model, sum.states, sum.runs, sum.lost, sum.wrong);
	return sum;
}

static void nothing_is_lost(void **state)
{
	struct sum sum = explore_all(*state);

	assert_int_equal(sum.lost, 0);
	assert_int_equal(sum.wrong, 0);
}

static void a_wakeup_is_lost(void **state)
{
	struct sum sum = explore_all(*state);

	assert_true(sum.lost > 0);
	assert_int_equal(sum.wrong, 0);
}

static void what_is_taken_is_incomplete(void **state)
{
	assert_true(explore_all(*state).wrong > 0);
}

#define TEST(fn, what, model, format, spoil)                     \
	{                                                        \
		model ": " what, fn, NULL, NULL, &(struct claim) \
		{                                                \
			model, format, spoil                     \
		}                                                \
	}
#define TESTS(model, format)                                                                       \
	TEST(nothing_is_lost, "nothing is lost", model, format, AS_IT_IS),                         \
		TEST(a_wakeup_is_lost, "lost without the sleeper's fence", model, format,          \
		     NO_FENCE_IN_SLEEPER),                                                         \
		TEST(a_wakeup_is_lost, "lost without the waker's fence", model, format,            \
		     NO_FENCE_IN_WAKER),                                                           \
		TEST(a_wakeup_is_lost, "lost without fences", model, format, NO_FENCE_AT_ALL),     \
		TEST(a_wakeup_is_lost, "lost without a second look", model, format,                \
		     NO_SECOND_LOOK),                                                              \
		TEST(a_wakeup_is_lost, "lost when the second look comes too early", model, format, \
		     SECOND_LOOK_TOO_EARLY)
#define RING_TESTS(model, format)                                                               \
	TESTS(model, format),                                                                   \
		TEST(what_is_taken_is_incomplete, "incomplete when published too early", model, \
		     format, PUBLISHED_TOO_EARLY)

int main(void)
{
	const struct CMUnitTest tests[] = {
		RING_TESTS("split ring, flags", &split_flags),
		RING_TESTS("split ring, event index", &split_event),
		RING_TESTS("packed ring, flags", &packed_flags),
		RING_TESTS("packed ring, event index", &packed_event),
		TESTS("mailbox", NULL),
	};

	return RUN_TESTS(tests);
}
