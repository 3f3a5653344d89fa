/*
 * Arming a ring while the driver makes something available, in the compiled code: the device's side
 * runs one instruction at a time, and before each of them in turn the driver acts.
 *
 * What the driver does has two halves, which may lie far apart: it publishes a chain, and it looks
 * whether a kick is wanted. The look changes nothing that the device reads, so one run of the
 * device's code for each place of the first half tries all places of the second.
 *
 * One processor sees its own stores in order: what barriers are for is tried on a model
 * (reactor/handshake_test.c).
 */
#include "util/unit.h"

#if defined(__x86_64__)

#include <limits.h>
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>
#include <x86intrin.h>

#include "virtio/virtq.h"

#define SPLIT_NUM  8
#define PACKED_NUM 5 /* no power of 2 */
#define MEM	   0x10000
#define GPA	   UINT64_C(0x40000000)
#define USER	   UINT64_C(0x7000000000)
#define AVAIL_AT   0x1000
#define USED_AT	   0x2000
#define DATA_AT	   0x3000
#define TRAP_FLAG  0x100
#define VARIANTS   6	 /* of a ring, that a sweep begins with */
#define TRAPS_MAX  10000 /* of one of them: 10 us each on a virtual machine */

/* --- the guest --- */

struct format {
	const char *name;
	uint64_t features;
	unsigned num;
	uint32_t starts[3]; /* chains made available before: the ring's end is near */
};

#define SPLIT_STARTS            \
	{                       \
		0, 65534, 65535 \
	}
#define PACKED_STARTS                                 \
	{                                             \
		0, PACKED_NUM - 2, 2 * PACKED_NUM - 1 \
	}

static const struct format split_flags = {
	.name = "split ring, flags",
	.num = SPLIT_NUM,
	.starts = SPLIT_STARTS,
};
static const struct format split_event = {
	.name = "split ring, event index",
	.features = FEATURE(VIRTIO_F_EVENT_IDX),
	.num = SPLIT_NUM,
	.starts = SPLIT_STARTS,
};
static const struct format packed_flags = {
	.name = "packed ring, flags",
	.features = FEATURE(VIRTIO_F_RING_PACKED),
	.num = PACKED_NUM,
	.starts = PACKED_STARTS,
};
static const struct format packed_event = {
	.name = "packed ring, event index",
	.features = FEATURE(VIRTIO_F_RING_PACKED) | FEATURE(VIRTIO_F_EVENT_IDX),
	.num = PACKED_NUM,
	.starts = PACKED_STARTS,
};

struct guest {
	const struct format *format;
	int fd;
	char *mem;
	struct virtq_desc *desc;
	struct virtq_avail *avail;
	struct virtq_used *used;
	struct virtq_packed_desc *ring;
	const struct virtq_event *event;
	struct guest_mem *table;
	struct virtq_setup setup;
	struct virtq *vq;
	uint32_t made;	 /* chains, each of one descriptor */
	uint32_t looked; /* as many were there at the last look for a wish */
};

static int make(void **state)
{
	struct guest *g = calloc(1, sizeof(*g));
	struct guest_range range = { GPA, MEM, USER, 0 };
	struct err e = { 0 };

	g->format = *state;
	g->fd = memfd_create("guest", 0);
	assert_int_equal(ftruncate(g->fd, MEM), 0);
	g->mem = mmap(NULL, MEM, PROT_READ | PROT_WRITE, MAP_SHARED, g->fd, 0);
	assert_int_equal(guest_mem_map(&range, &g->fd, 1, 1, &g->table, &e), 0);
	g->desc = (void *)g->mem;
	g->ring = (void *)g->mem;
	g->avail = (void *)(g->mem + AVAIL_AT);
	g->used = (void *)(g->mem + USED_AT);
	g->event = (void *)(g->mem + USED_AT);
	g->setup = (struct virtq_setup){ .num = g->format->num,
					 .desc_user = USER,
					 .avail_user = USER + AVAIL_AT,
					 .used_user = USER + USED_AT,
					 .features = g->format->features };
	assert_int_equal(virtq_create(&g->setup, &g->vq), 0);
	assert_int_equal(virtq_map(g->vq, &g->setup, g->table, &e), 0);
	*state = g;
	return 0;
}

static int drop(void **state)
{
	struct guest *g = *state;

	virtq_destroy(g->vq);
	guest_mem_destroy(g->table);
	munmap(g->mem, MEM);
	close(g->fd);
	free(g);
	return 0;
}

/* The wrap counter when so many descriptors have been made available. */
static bool wrap_at(uint32_t made)
{
	return made / PACKED_NUM % 2 == 0;
}

static void publish_packed(struct guest *g)
{
	unsigned slot = g->made % PACKED_NUM;
	uint16_t lap = wrap_at(g->made) ? VIRTQ_DESC_F_AVAIL : VIRTQ_DESC_F_USED;

	g->ring[slot].addr = to_le64(GPA + DATA_AT);
	g->ring[slot].len = to_le32(1);
	g->ring[slot].id = to_le16((uint16_t)slot);
	store_release(&g->ring[slot].flags, to_le16(VIRTQ_DESC_F_WRITE | lap));
}

static void publish_split(struct guest *g)
{
	uint16_t head = g->made % SPLIT_NUM;

	g->desc[head] = (struct virtq_desc){ to_le64(GPA + DATA_AT), to_le32(1),
					     to_le16(VIRTQ_DESC_F_WRITE), to_le16(0) };
	g->avail->ring[head] = to_le16(head);
	store_release(&g->avail->idx, to_le16((uint16_t)(g->made + 1)));
}

static void publish(struct guest *g)
{
	if (g->vq->packed)
		publish_packed(g);
	else
		publish_split(g);
	g->made++;
}

/* virtio 1.2, 2.7.10 */
static bool need_event(uint16_t event, uint16_t now, uint16_t old)
{
	return (uint16_t)(now - event - 1) < (uint16_t)(now - old);
}

/* As Linux does it: virtqueue_kick_prepare_packed() */
static bool packed_wants_kick(const struct guest *g)
{
	uint32_t both = from_le32(READ_ONCE(*(const le32 *)(const void *)g->event));
	uint16_t flags = (uint16_t)(both >> 16), event = both & (VIRTQ_WRAP - 1);
	uint16_t now = (uint16_t)(g->made % PACKED_NUM),
		 old = (uint16_t)(now - (g->made - g->looked));

	if (flags != VIRTQ_EVENT_DESC)
		return flags != VIRTQ_EVENT_DISABLE;
	if (!(both & VIRTQ_WRAP) == wrap_at(g->made))
		event = (uint16_t)(event - PACKED_NUM);
	return need_event(event, now, old);
}

static bool split_wants_kick(const struct guest *g)
{
	if (!g->vq->event_idx)
		return !(from_le16(READ_ONCE(g->used->flags)) & VIRTQ_USED_F_NO_NOTIFY);
	return need_event(from_le16(READ_ONCE(*(le16 *)(void *)&g->used->ring[SPLIT_NUM])),
			  (uint16_t)g->made, (uint16_t)g->looked);
}

/* For what was published since the last look. */
static bool wants_kick(const struct guest *g)
{
	return g->vq->packed ? packed_wants_kick(g) : split_wants_kick(g);
}

static bool has_work(const struct virtq *vq)
{
	return vq->packed ? virtq_packed_has_work(vq) : virtq_split_has_work(vq);
}

static uint16_t take(struct guest *g)
{
	struct virtq_chain c;

	assert_int_equal(virtq_pop(g->vq, &c), 1);
	assert_false(c.malformed);
	return c.head;
}

/*
 * A ring that is polled, has served one chain, and is empty again. With `batch` the driver is in
 * the midst of several: one has been taken already, but the look for a wish is still to come.
 */
static void begin(struct guest *g, uint32_t start, bool batch)
{
	uint16_t slot = (uint16_t)(start % PACKED_NUM | (wrap_at(start) ? VIRTQ_WRAP : 0));

	memset(g->mem, 0, DATA_AT);
	for (unsigned i = 0; g->vq->packed && i < PACKED_NUM; i++) /* used a lap ago */
		if (!wrap_at(start + (i + PACKED_NUM - start % PACKED_NUM) % PACKED_NUM))
			g->ring[i].flags = to_le16(VIRTQ_LAP);
	g->setup.base = g->vq->packed ? slot | (uint32_t)slot << 16 : start;
	if (!g->vq->packed)
		g->avail->idx = g->used->idx = to_le16((uint16_t)start);
	assert_int_equal(virtq_begin(g->vq, &g->setup, NULL, NULL), 0);
	g->made = start;
	virtq_disable_kick(g->vq);
	publish(g);
	virtq_push(g->vq, take(g), 1);
	virtq_flush(g->vq);
	g->looked = g->made;
	if (batch) {
		publish(g);
		take(g);
	}
}

/* --- one instruction at a time --- */

/* Shared with the handler; `place` counts the instructions. */
static struct race {
	struct guest *guest;
	unsigned place, publish_at;
	unsigned looks;	   /* places of the second half */
	unsigned unwanted; /* of these: it does not kick */
	bool stepping, published;
} race;

static void act_as_driver(void)
{
	if (race.place++ == race.publish_at) {
		publish(race.guest);
		race.published = true;
	}
	if (race.published) {
		race.looks++;
		race.unwanted += !wants_kick(race.guest);
	}
}

/* The kernel takes the trap flag away for the handler and gives it back with the context. */
static void trapped(int sig, siginfo_t *info, void *context)
{
	ucontext_t *u = context;

	(void)sig;
	(void)info;
	if (race.stepping)
		act_as_driver();
	else
		u->uc_mcontext.gregs[REG_EFL] &= ~TRAP_FLAG;
}

static bool step_through(bool (*act)(struct virtq *), struct virtq *vq)
{
	bool result;

	race.stepping = true;
	atomic_signal_fence(memory_order_seq_cst);
	__writeeflags(__readeflags() | TRAP_FLAG);
	result = act(vq);
	atomic_signal_fence(memory_order_seq_cst);
	race.stepping = false;
	atomic_signal_fence(memory_order_seq_cst);
	return result;
}

/* --- the sweep --- */

struct sweep {
	bool (*act)(struct virtq *vq); /* true: it found nothing, and sleeps if it can */
	bool armed;		       /* before it */
	unsigned interleavings;
	unsigned quiet;	  /* of these: it found nothing */
	unsigned lost;	  /* of those: there is no kick either */
	unsigned longest; /* instructions of one run */
	unsigned stride;  /* from one place of the first half to the next */
};

/*
 * The act, with the driver's first half before the instruction of that place. false: the act ended
 * before it, and the driver came after the end.
 */
static bool run(struct guest *g, struct sweep *s, unsigned place, bool *quiet)
{
	bool inside;

	race = (struct race){ .guest = g, .publish_at = place };
	*quiet = step_through(s->act, g->vq);
	inside = race.published;
	s->longest = MAX(s->longest, race.place);
	if (!inside)
		race.publish_at = race.place;
	act_as_driver();
	s->interleavings += race.looks;
	if (*quiet) {
		s->quiet += race.looks;
		s->lost += race.unwanted;
	}
	return inside;
}

/* What was published is there, whoever has seen it, and polled rings are not kicked. */
static void serve(struct guest *g, bool quiet)
{
	g->looked = g->made;
	assert_true(has_work(g->vq));
	if (quiet)
		virtq_disable_kick(g->vq);
	take(g);
	publish(g);
	assert_false(wants_kick(g));
	take(g);
	assert_false(has_work(g->vq));
}

/* As run(), with all around it. */
static bool try_place(struct guest *g, struct sweep *s, unsigned variant, unsigned place)
{
	bool quiet, inside;

	begin(g, g->format->starts[variant / 2], variant % 2);
	if (s->armed)
		assert_true(virtq_enable_kick(g->vq));
	inside = run(g, s, place, &quiet);
	serve(g, quiet);
	return inside;
}

/* A sanitizer makes ten instructions of one: then not every place is tried with every variant. */
static void sweep_all(struct guest *g, struct sweep *s)
{
	try_place(g, s, 0, UINT_MAX);
	s->stride = 1 + s->longest * s->longest / TRAPS_MAX;
	for (unsigned variant = 0; variant < VARIANTS; variant++) {
		unsigned place = variant * s->stride / VARIANTS;

		while (try_place(g, s, variant, place))
			place += s->stride;
	}
}

static void sweep(struct guest *g, struct sweep *s, const char *what)
{
	struct sigaction action = { .sa_sigaction = trapped, .sa_flags = SA_SIGINFO }, before;

	assert_int_equal(sigaction(SIGTRAP, &action, &before), 0);
	sweep_all(g, s);
	assert_int_equal(sigaction(SIGTRAP, &before, NULL), 0);
	print_message("# %s, %s: %u interleavings of up to %u instructions\n", g->format->name,
		      what, s->interleavings, s->longest);
	print_message("# it finds nothing in %u, and there is no kick in %u of them\n", s->quiet,
		      s->lost);
	if (s->stride > 1)
		print_message("# so many instructions: it publishes before one in %u of them\n",
			      s->stride);
	assert_true(s->longest > 8); /* or no trap has come */
	assert_in_range(s->quiet, 1, s->interleavings);
}

/* A right way: it has gone to sleep and it has found work, and neither was a mistake. */
static void must_lose_nothing(struct guest *g, struct sweep s, const char *what)
{
	sweep(g, &s, what);
	assert_true(s.quiet < s.interleavings);
	assert_int_equal(s.lost, 0);
}

/* --- the right ways --- */

static void arming_loses_nothing(void **state)
{
	must_lose_nothing(*state, (struct sweep){ .act = virtq_enable_kick }, "arming");
}

static bool wake_and_poll(struct virtq *vq)
{
	virtq_disable_kick(vq);
	return !has_work(vq);
}

/* What this poll has not seen, with or without a kick, serve() finds in the next. */
static void waking_loses_nothing(void **state)
{
	struct sweep s = { .act = wake_and_poll, .armed = true };

	sweep(*state, &s, "waking");
	assert_true(s.quiet < s.interleavings);
}

static bool wake_and_arm(struct virtq *vq)
{
	return wake_and_poll(vq) && virtq_enable_kick(vq);
}

static void a_wakeup_for_nothing_loses_nothing(void **state)
{
	must_lose_nothing(*state, (struct sweep){ .act = wake_and_arm, .armed = true },
			  "woken for nothing");
}

/* --- wrong ways, which the sweep must find --- */

static void ask_for_kick(struct virtq *vq)
{
	uint32_t slot = vq->next | (vq->next_wrap ? VIRTQ_WRAP : 0);

	if (vq->packed)
		WRITE_ONCE(*(le32 *)(void *)vq->device_event,
			   to_le32(vq->event_idx ? slot | VIRTQ_EVENT_DESC << 16 : 0));
	else if (vq->event_idx)
		WRITE_ONCE(*(le16 *)(void *)&vq->used->ring[vq->num], to_le16(vq->last_avail));
	else
		WRITE_ONCE(vq->used->flags, to_le16(0));
	full_barrier();
}

static noinline bool arm_without_a_second_look(struct virtq *vq)
{
	ask_for_kick(vq);
	return true;
}

static noinline bool arm_after_the_second_look(struct virtq *vq)
{
	if (has_work(vq))
		return false;
	ask_for_kick(vq);
	return true;
}

static void no_second_look_is_found(void **state)
{
	struct sweep s = { .act = arm_without_a_second_look };

	sweep(*state, &s, "no second look");
	assert_true(s.lost > 0);
}

static void an_early_second_look_is_found(void **state)
{
	struct sweep s = { .act = arm_after_the_second_look };

	sweep(*state, &s, "second look before asking");
	assert_true(s.lost > 0);
}

#define TEST(fn, format)                                                     \
	{                                                                    \
#format ": " #fn, fn, make, drop, (void *)(uintptr_t)&format \
	}
#define TESTS(format)                                                           \
	TEST(arming_loses_nothing, format), TEST(waking_loses_nothing, format), \
		TEST(a_wakeup_for_nothing_loses_nothing, format),               \
		TEST(no_second_look_is_found, format), TEST(an_early_second_look_is_found, format)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TESTS(split_flags),
		TESTS(split_event),
		TESTS(packed_flags),
		TESTS(packed_event),
	};

	return RUN_TESTS(tests);
}

#else

int main(void)
{
	puts("# only on x86-64 can a process step through its own instructions");
	return 77; /* skipped */
}

#endif
