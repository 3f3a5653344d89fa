/* The command line of riffle perf and riffle perf compare. */
#ifndef CMD_PERF_OPTIONS_H
#define CMD_PERF_OPTIONS_H

#include "cmd/perf.h"
#include "util/err.h"

/* What the command line says before it is known to which target a depth belongs. */
struct perf_command {
	struct perf_options o;
	bool mix_given;
	unsigned depths_given; /* how often -q was given */
	struct perf_depths depths, target_depths[PERF_TARGETS_MAX];
	struct err err; /* why the command line is wrong */

	/* Of riffle perf compare. */
	bool compare;
	uint64_t rounds;
	const char *html, *paths;
};

/*
 * Fill *c, which has the defaults, from the command line. Positive: print the usage. Negative:
 * c->err says why it is wrong, or its text is empty and getopt has said it.
 */
int perf_parse(int argc, char **argv, struct perf_command *c);

/* Does each option go with the others? */
int perf_check_command(struct perf_command *c);

#endif
