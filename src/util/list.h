/* Intrusive doubly linked list. A head points to itself when empty; a node is on at most one list.
 */
#ifndef UTIL_LIST_H
#define UTIL_LIST_H

#include <stdbool.h>

#include "util/compiler.h"

struct list {
	struct list *next, *prev;
};

#define LIST_INIT(name)          \
	{                        \
		&(name), &(name) \
	}

#define list_entry(node, type, member) container_of(node, type, member)

#define list_for_each(pos, head, member)                                                   \
	for (pos = list_entry((head)->next, typeof(*pos), member); &pos->member != (head); \
	     pos = list_entry(pos->member.next, typeof(*pos), member))

/* The body may delete pos. */
#define list_for_each_safe(pos, tmp, head, member)                    \
	for (pos = list_entry((head)->next, typeof(*pos), member),    \
	    tmp = list_entry(pos->member.next, typeof(*pos), member); \
	     &pos->member != (head);                                  \
	     pos = tmp, tmp = list_entry(tmp->member.next, typeof(*tmp), member))

static inline void list_init(struct list *head)
{
	head->next = head->prev = head;
}

static inline bool list_empty(const struct list *head)
{
	return head->next == head;
}

static inline void list_add_tail(struct list *head, struct list *node)
{
	node->prev = head->prev;
	node->next = head;
	head->prev->next = node;
	head->prev = node;
}

static inline void list_del(struct list *node)
{
	node->prev->next = node->next;
	node->next->prev = node->prev;
	node->next = node->prev = node;
}

#endif
