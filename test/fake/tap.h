/*
 * Test Anything Protocol on standard output: "ok N - name", "not ok N - name", "# SKIP reason",
 * "# diagnostics". The plan comes last, so that a program that dies half-way is noticed.
 */
#ifndef FAKE_TAP_H
#define FAKE_TAP_H

#include <stdbool.h>

void tap_result(bool ok, const char *name);
void tap_skip(const char *name, const char *reason);
void tap_diag(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Prints the plan; the exit status of the program. */
int tap_done(void);

#endif
