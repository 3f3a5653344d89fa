/*
 * An error that reaches a person: a code for programs and a sentence for people, built where the
 * error happens.
 *
 * Control-plane functions return 0 or -errno and fill a struct err on the way: `return err_set(e,
 * -EBUSY, "...")`. The sentence travels unchanged to the RPC reply (`data.hint`) and the command
 * line. Owner: the caller's stack.
 */
#ifndef UTIL_ERR_H
#define UTIL_ERR_H

#include "util/compiler.h"

#define ERR_TEXT_MAX 320

struct err {
	int code;		    /* -errno; 0: no error */
	char text[ERR_TEXT_MAX];    /* what happened and what to do, one or two sentences */
	char field[64];		    /* the parameter at fault; "" when none */
	char given[96];		    /* its value as given */
	char allowed[ERR_TEXT_MAX]; /* what would have been accepted */
};

/* Fills *e (which may be NULL) and returns code, so that it can end a function. */
int err_set(struct err *e, int code, const char *fmt, ...) printf_like(3, 4);

/* The same for one parameter at fault. given and allowed may be NULL. */
int err_field(struct err *e, int code, const char *field, const char *given, const char *allowed,
	      const char *fmt, ...) printf_like(6, 7);

/* The words of strerror() for a positive or negative errno, thread-safe. */
const char *err_words(int code);

#endif
