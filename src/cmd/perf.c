/*
 * riffle perf: measure or verify disks that this process opens itself. The command line, and the
 * rows: one for each queue depth, all targets at once.
 */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cmd/cmd.h"
#include "cmd/compare.h"
#include "cmd/perf_options.h"
#include "mem/mem.h"
#include "util/ticks.h"

/* --- usage --- */

static void usage(FILE *out)
{
	fprintf(out,
		"usage: riffle perf [OPTION]... TARGET...\n"
		"       riffle perf compare [OPTION]... TARGET...   (see its own --help)\n\n"
		"Measure or verify disks in this process, without a daemon or a virtual machine.\n\n"
		"TARGET  null:                    does nothing, as fast as it can\n"
		"        malloc:size=SIZE         RAM\n"
		"        file:PATH[,block_size=N] a file or block device (write jobs overwrite it!)\n"
		"        vhost:SOCKET             a disk behind a vhost-user-blk socket\n"
		"        nvme:BDF[,nsid=N]        a namespace of an NVMe device that is bound to vfio-pci\n"
		"        DRIVER:KEY=VALUE,...     any driver, with the parameters of bdev_DRIVER_create\n"
		"        TARGET+FILTER:KEY=VALUE  a filter on top: malloc:size=64M+delay:avg_read_latency=100\n\n"
		"  -w, --job NAME      read write randread randwrite rw randrw (default: randread), or\n"
		"                      verify: write stamped blocks, read them back, name what is wrong\n"
		"  -o, --size BYTES    of one request (default: 4096; verify: at random from a block to 1M)\n"
		"  -q, --depth N,...   requests in flight per target and worker; one row for each N (default: 32)\n"
		"  -M, --reads PERCENT share of reads in rw, randrw and verify (default: 50)\n"
		"  -t, --time SECONDS  how long to measure each row (default: 10)\n"
		"      --warmup SECONDS  run so long before each row without counting (default: 0)\n"
		"  -c, --cpus CPUS     a mask (0x3) or a list ([0,2]): one pinned worker per CPU\n"
		"                      (default: one worker, not pinned)\n"
		"  -s, --span BYTES    use only the beginning of each target (default: all)\n"
		"      --rate IOPS     at most so many per target, all workers together\n"
		"      --pid PID       also show the CPU time per I/O of this process (a daemon)\n"
		"      --percentiles[=P,...]  print these percentiles of the latency, or a usual choice\n"
		"      --sleep         file targets from depth 16 on: sleep for some completions instead of spinning\n"
		"      --histogram     print the histogram (error: at most 0.8 %%) as HdrHistogram does\n"
		"  -j, --json          print JSON\n"
		"  -h, --help          say this\n\n"
		"Latency is from the pass that submits to the end of the batch of completions: exact to one\n"
		"turn of the loop, whose mean length is printed, and never too short.\n"
		"Targets are compared at one queue depth only. Ctrl-C prints the results so far.\n"
		"Exit status: 0 done, 1 it failed or verify found a fault, 2 the command line is wrong.\n");
}

/* --- the rows --- */

static int faults_found(const struct perf_result *r, unsigned n, struct err *e)
{
	for (unsigned i = 0; i < n; i++)
		if (r[i].faults.n)
			return err_set(e, -EILSEQ,
				       "%.100s has a %s block at offset %" PRIu64
				       ": verification failed.",
				       r[i].target->spec, perf_fault_names[r[i].faults.v[0].kind],
				       r[i].faults.v[0].offset);
	return 0;
}

static int run_rows(const struct perf_options *o, const struct perf_target *t, struct perf_run *run,
		    struct perf_result *results, struct err *e)
{
	unsigned n = 0;
	int rc = 0;

	perf_report_begin(o, t);
	for (unsigned d = 0; d < o->depths.n && rc == 0 && !perf_interrupted; d++) {
		struct perf_result *row = &results[n];

		rc = perf_run_row(run, o->depths.v[d], row, e);
		if (rc)
			break;
		perf_report_row(o, row, o->targets_n);
		n += o->targets_n;
		rc = faults_found(row, o->targets_n, e);
	}
	perf_run_stop(run);
	if (rc == 0 || rc == -EILSEQ)
		perf_report_end(o, results, n);
	if (perf_interrupted && o->verify && rc == 0)
		fprintf(stderr, "riffle perf: interrupted: not everything was read back.\n");
	return rc;
}

static int perf(const struct perf_options *o, struct err *e)
{
	struct perf_target targets[PERF_TARGETS_MAX] = { 0 };
	struct perf_result *results = calloc(o->depths.n * o->targets_n, sizeof(*results));
	struct perf_run *run = NULL;
	int rc = results ? perf_targets_open(o, targets, e) : err_set(e, -ENOMEM, "Out of memory.");

	if (rc == 0)
		rc = perf_run_open(o, targets, &run, e);
	if (rc == 0)
		rc = run_rows(o, targets, run, results, e);
	perf_targets_close(targets, o->targets_n);
	if (run)
		perf_run_close(run);
	free(results);
	return rc;
}

/* --- the command --- */

static void on_interrupt(int sig)
{
	(void)sig;
	perf_interrupted = true;
}

int cmd_perf(int argc, char **argv)
{
	/* The second Ctrl-C is for those whose I/O does not return. */
	struct sigaction action = { .sa_handler = on_interrupt, .sa_flags = (int)SA_RESETHAND };
	struct perf_command c = { .o = { .job = "randread", .io_size = 4096, .time_ms = 10000 } };
	int rc;

	if (argc > 1 && strcmp(argv[1], "compare") == 0)
		return cmd_perf_compare(argc - 1, argv + 1);
	c.o.depths = (struct perf_depths){ .n = 1, .v = { 32 } };
	rc = perf_parse(argc, argv, &c);
	if (rc == 0)
		rc = perf_check_command(&c);
	if (rc > 0) {
		usage(stdout);
		return EXIT_OK;
	}
	if (rc) {
		if (*c.err.text)
			fail("perf", &c.err);
		fprintf(stderr, "`riffle perf --help` lists the options.\n");
		return EXIT_USAGE;
	}
	sigaction(SIGINT, &action, NULL);
	c.o.run_id = ticks() ^ (uint64_t)getpid() << 40 ^ (uint64_t)time(NULL) << 16;
	stamp_init();
	mem_guard_sigbus(); /* a device may be pulled */
	ticks_hz();
	return perf(&c.o, &c.err) ? fail("perf", &c.err) : EXIT_OK;
}
