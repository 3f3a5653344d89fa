#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cmd/cmd.h"

static const struct {
	const char *name;
	int (*main)(int argc, char **argv);
	const char *help;
} commands[] = {
	{ "serve", cmd_serve, "the daemon: serve disks to virtual machines" },
	{ "rpc", cmd_rpc, "send a request to a daemon and print its answer" },
	{ "perf", cmd_perf, "measure a disk without a virtual machine" },
	{ "identify", cmd_identify, "what an NVMe device and its namespaces are and can" },
	{ "smart", cmd_smart, "what an NVMe device says of its health" },
	{ "list", cmd_list, "the NVMe devices of this machine and who uses them" },
	{ "identify", cmd_identify, "what an NVMe device and its namespaces are and can" },
	{ "smart", cmd_smart, "what an NVMe device says of its health" },
	{ "bind", cmd_bind, "give NVMe devices to vfio-pci, for riffle to drive" },
	{ "unbind", cmd_unbind, "give them back to the kernel" },
	{ "setup", cmd_setup, "bind all that nobody uses, or give all back; hugepages" },
};

const char *default_folder(void)
{
	static char own[256];
	const char *runtime = getenv("XDG_RUNTIME_DIR");

	if (geteuid() == 0 || access("/run/riffle", W_OK) == 0 || !runtime)
		return "/run/riffle";
	snprintf(own, sizeof(own), "%s/riffle", runtime);
	return own;
}

const char *default_rpc_socket(void)
{
	static char path[280];

	snprintf(path, sizeof(path), "%s/rpc.sock", default_folder());
	return path;
}

int fail(const char *subcommand, const struct err *e)
{
	fprintf(stderr, "riffle %s: %s\n", subcommand, e->text);
	return EXIT_ERROR;
}

static void usage(FILE *out)
{
	fprintf(out, "usage: riffle COMMAND [OPTION]...\n\n");
	for (size_t i = 0; i < ARRAY_SIZE(commands); i++)
		fprintf(out, "  %-8s %s\n", commands[i].name, commands[i].help);
	fprintf(out, "\n`riffle COMMAND --help` and riffle(1) say more.\n");
}

/* An answer that did not arrive - a saved configuration on a full disk - is a failure. */
static int finish(int status)
{
	if (fflush(stdout) == 0 && !ferror(stdout))
		return status;
	fprintf(stderr, "riffle: the output is not complete: %s.\n",
		errno ? strerror(errno) : "writing failed");
	return status == EXIT_OK ? EXIT_ERROR : status;
}

int main(int argc, char **argv)
{
	if (argc < 2) {
		usage(stderr);
		return EXIT_USAGE;
	}
	if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
	    strcmp(argv[1], "help") == 0) {
		usage(stdout);
		return finish(EXIT_OK);
	}
	if (strcmp(argv[1], "--version") == 0) {
		printf("riffle %s\n", RIFFLE_VERSION);
		return finish(EXIT_OK);
	}
	for (size_t i = 0; i < ARRAY_SIZE(commands); i++) {
		static char name[32]; /* how getopt calls us */

		if (strcmp(argv[1], commands[i].name) != 0)
			continue;
		snprintf(name, sizeof(name), "riffle %s", commands[i].name);
		argv[1] = name;
		return finish(commands[i].main(argc - 1, argv + 1));
	}
	fprintf(stderr, "riffle: there is no command '%s'.\n", argv[1]);
	usage(stderr);
	return EXIT_USAGE;
}
