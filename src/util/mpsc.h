/*
 * Many producers, one consumer: a lock-free stack that the consumer takes whole and turns round, so
 * that items come out in the order they went in. No ABA problem: nobody pops single nodes.
 */
#ifndef UTIL_MPSC_H
#define UTIL_MPSC_H

#include <stdbool.h>
#include <stdatomic.h>
#include <stddef.h>

struct mpsc_node {
	struct mpsc_node *next;
};

struct mpsc {
	_Atomic(struct mpsc_node *) top;
};

/* Any thread. */
static inline void mpsc_push(struct mpsc *q, struct mpsc_node *n)
{
	struct mpsc_node *top = atomic_load_explicit(&q->top, memory_order_relaxed);

	do
		n->next = top;
	while (!atomic_compare_exchange_weak_explicit(&q->top, &top, n, memory_order_release,
						      memory_order_relaxed));
}

static inline bool mpsc_empty(struct mpsc *q)
{
	return atomic_load_explicit(&q->top, memory_order_relaxed) == NULL;
}

/* The consumer. Returns all nodes, oldest first, linked by next; NULL when there are none. */
static inline struct mpsc_node *mpsc_take(struct mpsc *q)
{
	struct mpsc_node *n = atomic_exchange_explicit(&q->top, NULL, memory_order_acquire);
	struct mpsc_node *first = NULL;

	while (n) {
		struct mpsc_node *next = n->next;

		n->next = first;
		first = n;
		n = next;
	}
	return first;
}

#endif
