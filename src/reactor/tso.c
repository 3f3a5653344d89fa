#include "reactor/tso.h"

#include "util/compiler.h"
#include "util/unit.h"

#define STATES	(1u << 18)
#define TABLE	(2 * STATES)
#define NOWHERE UINT32_MAX

struct store {
	uint8_t var, value, add;
};

struct thread {
	uint8_t pc, loaded, seen, stores_n;
	struct store stores[TSO_STORES]; /* oldest first; the rest is zero */
};

/* Bytes alone: states are compared and hashed as such. */
struct state {
	uint8_t memory[TSO_VARS];
	struct thread threads[TSO_THREADS];
	uint8_t kicked, wrong;
};

struct tso {
	struct state states[STATES]; /* in the order in which they were found */
	uint32_t from[STATES];
	uint8_t moves[STATES]; /* by which: thread << 1, and whether it drained */
	uint32_t table[TABLE]; /* 0: free; else the state's number + 1 */
	uint32_t n;
};

uint8_t tso_emit(struct tso_program *p, struct tso_op op)
{
	assert_true(p->n < TSO_OPS);
	p->ops[p->n] = op;
	return p->n++;
}

/* --- the machine --- */

static uint8_t load(const struct state *s, const struct thread *t, uint8_t var)
{
	for (unsigned i = t->stores_n; i-- > 0;)
		if (t->stores[i].var == var)
			return t->stores[i].value;
	return s->memory[var];
}

static bool buffer_store(struct thread *t, const struct tso_op *op)
{
	if (t->stores_n == TSO_STORES)
		return false;
	t->stores[t->stores_n++] = (struct store){ op->var, op->value, op->kind == ADD };
	return true;
}

/* The oldest store of the buffer reaches memory; false: there is none. */
static bool drain(struct state *s, struct thread *t)
{
	struct store *first = t->stores;
	uint8_t *to = &s->memory[first->var];

	if (t->stores_n == 0)
		return false;
	*to = (uint8_t)(first->add ? *to + first->value : first->value);
	memmove(first, first + 1, sizeof(t->stores) - sizeof(*first));
	t->stores[TSO_STORES - 1] = (struct store){ 0 };
	t->stores_n--;
	return true;
}

static bool see(const struct tso_machine *m, struct state *s, struct thread *t, unsigned n)
{
	t->seen = (uint8_t)(t->seen + n);
	s->wrong |= t->seen > m->things;
	return true;
}

static bool jump(struct thread *t, const struct tso_op *op)
{
	if (op->kind == GOTO || op->test(t->loaded, op))
		t->pc = op->to;
	t->loaded = 0;
	return true;
}

static bool wait_for_kick(struct state *s, const struct thread *t)
{
	if (t->stores_n || !s->kicked)
		return false;
	s->kicked = 0;
	return true;
}

/* false: it cannot be done now, and s is spoilt. */
static bool run_op(const struct tso_machine *m, struct state *s, struct thread *t,
		   const struct tso_op *op)
{
	t->pc++;
	switch (op->kind) {
	case STORE:
	case ADD:
		return buffer_store(t, op);
	case LOAD:
		t->loaded = load(s, t, op->var);
		return true;
	case FENCE:
		return t->stores_n == 0;
	case IF:
	case GOTO:
		return jump(t, op);
	case SEE:
		s->wrong |= t->loaded != op->value;
		t->loaded = 0;
		return see(m, s, t, 1);
	case TAKE:
		see(m, s, t, s->memory[op->var]);
		s->memory[op->var] = 0;
		return true;
	case KICK:
		s->kicked = 1;
		return t->stores_n == 0;
	case FORGET:
		s->kicked = 0;
		return true;
	case WAIT:
		return wait_for_kick(s, t);
	case END:
		break;
	}
	return false;
}

/* An operation, and those behind it that nobody else can notice. */
static bool run(const struct tso_machine *m, struct state *s, unsigned thread)
{
	const struct tso_op *ops = m->programs[thread].ops;
	struct thread *t = &s->threads[thread];

	if (!run_op(m, s, t, &ops[t->pc]))
		return false;
	while (ops[t->pc].kind == IF || ops[t->pc].kind == GOTO || ops[t->pc].kind == SEE)
		run_op(m, s, t, &ops[t->pc]);
	return true;
}

/* --- the explorer --- */

struct tso *tso_create(void)
{
	return calloc(1, sizeof(struct tso));
}

void tso_destroy(struct tso *x)
{
	free(x);
}

static uint32_t hash(const struct state *s)
{
	const uint8_t *byte = (const uint8_t *)s;
	uint32_t h = 2166136261; /* FNV-1a */

	for (size_t i = 0; i < sizeof(*s); i++)
		h = (h ^ byte[i]) * 16777619;
	return h ^ h >> 15;
}

/* Remember s, unless it is known. */
static void found(struct tso *x, const struct state *s, uint32_t from, uint8_t move)
{
	uint32_t at = hash(s) % TABLE;

	for (; x->table[at]; at = (at + 1) % TABLE)
		if (memcmp(&x->states[x->table[at] - 1], s, sizeof(*s)) == 0)
			return;
	assert_true(x->n < STATES);
	x->states[x->n] = *s;
	x->from[x->n] = from;
	x->moves[x->n] = move;
	x->table[at] = ++x->n;
}

/* All that can happen next; false: nothing can. */
static bool go_on(struct tso *x, const struct tso_machine *m, uint32_t at)
{
	bool moved = false;

	for (unsigned move = 0; move < 2 * m->threads; move++) {
		struct state s = x->states[at];

		if (move & 1 ? drain(&s, &s.threads[move >> 1]) : run(m, &s, move >> 1)) {
			found(x, &s, at, (uint8_t)move);
			moved = true;
		}
	}
	return moved;
}

static void explain_move(const struct tso_machine *m, const struct state *s, uint8_t move)
{
	static const char *const names[] = { "store", "add",  "load", "fence",	"if",	"goto",
					     "see",   "take", "kick", "forget", "wait", "end" };
	const struct thread *t = &s->threads[move >> 1];
	const struct tso_op *op = &m->programs[move >> 1].ops[t->pc];

	if (move & 1)
		print_message("# thread %u: its store of %u to variable %u is seen\n", move >> 1,
			      t->stores[0].value, t->stores[0].var);
	else
		print_message("# thread %u: %s, variable %u, value %u\n", move >> 1,
			      names[op->kind], op->var,
			      op->kind == LOAD ? load(s, t, op->var) : op->value);
}

static void explain_way_to(const struct tso *x, const struct tso_machine *m, uint32_t at)
{
	if (x->from[at] == NOWHERE)
		return;
	explain_way_to(x, m, x->from[at]);
	explain_move(m, &x->states[x->from[at]], x->moves[at]);
}

struct tso_verdict tso_explore(struct tso *x, const struct tso_machine *m, bool explain)
{
	struct tso_verdict v = { 0 };
	struct state start = { 0 };

	memcpy(start.memory, m->memory, sizeof(start.memory));
	memset(x->table, 0, sizeof(x->table));
	x->n = 0;
	found(x, &start, NOWHERE, 0);
	for (uint32_t at = 0; at < x->n; at++) {
		bool lost = !go_on(x, m, at) && x->states[at].threads[0].seen < m->things;
		bool wrong = x->states[at].wrong;

		if (explain && ((lost && !v.lost) || (wrong && !v.wrong)))
			explain_way_to(x, m, at);
		v.lost |= lost;
		v.wrong |= wrong;
	}
	v.states = x->n;
	return v;
}
