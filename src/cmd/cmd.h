/* Subcommands of riffle: each is one file with one main function, listed in main.c. */
#ifndef CMD_CMD_H
#define CMD_CMD_H

#include "util/err.h"

/* Exit status. */
#define EXIT_OK	   0
#define EXIT_ERROR 1 /* it was tried and failed */
#define EXIT_USAGE 2 /* the command line is wrong */

int cmd_serve(int argc, char **argv);
int cmd_rpc(int argc, char **argv);
int cmd_perf(int argc, char **argv);
int cmd_list(int argc, char **argv);
int cmd_identify(int argc, char **argv);
int cmd_smart(int argc, char **argv);
int cmd_identify(int argc, char **argv);
int cmd_smart(int argc, char **argv);
int cmd_bind(int argc, char **argv);
int cmd_unbind(int argc, char **argv);
int cmd_setup(int argc, char **argv);

/* The folder of sockets when none is given: /run/riffle, or the user's own for those who may not
 * write there. */
const char *default_folder(void);
/* The RPC socket in it. */
const char *default_rpc_socket(void);

/* "riffle SUBCOMMAND: sentence" on stderr; returns EXIT_ERROR. */
int fail(const char *subcommand, const struct err *e);

#endif
