/*
 * fair SOCKET NEIGHBOUR SECONDS: what a disk with a full ring does to another one on the same
 * reactor. One thread on the last CPU drives both. Prints the neighbour's P50 and P99 at depth 1 in
 * microseconds, alone and beside the other at depth 128, taken in turns.
 */
#include <stdio.h>
#include <stdlib.h>

#include "bench/driver.h"
#include "util/hist.h"
#include "util/ticks.h"

#define DEPTH  128
#define BATCH  32
#define SLICES 10 /* of each kind */

static struct driver flood, lone;
static struct hist latency[2]; /* alone, beside the other */
static uint16_t free_heads[DEPTH];
static unsigned free_n;

static void drive_flood(bool more)
{
	for (unsigned n = 0; more && free_n && n < BATCH; n++)
		driver_send(&flood, free_heads[--free_n]);
	driver_publish(&flood);
	for (unsigned n = vring_used_n(&flood.ring); n > 0; n--)
		free_heads[free_n++] = driver_take(&flood);
}

/* One request after the other, as soon as its predecessor is back. */
static void drive_lone(struct hist *h, uint64_t *sent)
{
	uint64_t now = ticks();

	if (*sent) {
		if (vring_used_n(&lone.ring) == 0)
			return;
		driver_take(&lone);
		hist_add(h, now - *sent);
	}
	driver_send(&lone, 0);
	*sent = ticks();
	driver_publish(&lone);
}

static void slice(bool flooded, uint64_t length, uint64_t *sent)
{
	uint64_t until = ticks() + length;

	while (ticks() < until) {
		if (flooded)
			drive_flood(true);
		drive_lone(&latency[flooded], sent);
	}
	while (free_n < DEPTH) {
		drive_flood(false);
		drive_lone(&latency[flooded], sent);
	}
}

static double us(const struct hist *h, double percent)
{
	return (double)ticks_to_ns(hist_percentile(h, percent)) / 1000;
}

int main(int argc, char **argv)
{
	double seconds = argc == 4 ? atof(argv[3]) : 0;
	uint64_t sent = 0, length;

	if (!(seconds > 0))
		driver_die("usage: fair SOCKET NEIGHBOUR SECONDS");
	driver_init(&flood);
	driver_init(&lone);
	driver_pin(false);
	driver_open(&flood, argv[1]);
	driver_open(&lone, argv[2]);
	hist_reset(&latency[0]);
	hist_reset(&latency[1]);
	for (; free_n < DEPTH; free_n++)
		free_heads[free_n] = (uint16_t)free_n;
	length = (uint64_t)(seconds * (double)ticks_hz() / (2 * SLICES));
	for (int i = 0; i < 2 * SLICES; i++)
		slice(i % 2, length, &sent);
	while (vring_used_n(&lone.ring) == 0)
		;
	for (int i = 0; i < 2; i++)
		printf("%.2f %.2f%s", us(&latency[i], 50), us(&latency[i], 99), i ? "\n" : " ");
	driver_close(&flood);
	driver_close(&lone);
	return 0;
}
