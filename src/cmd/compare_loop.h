/*
 * A loop device on a file, with direct I/O, for as long as its fd is open: the kernel detaches it
 * with the last close, however this process ends. Root only.
 */
#ifndef CMD_COMPARE_LOOP_H
#define CMD_COMPARE_LOOP_H

#include "backend/file.h"
#include "util/err.h"

struct loop {
	int fd;		   /* of the loop device, O_DIRECT */
	unsigned requests; /* that the device keeps in flight; 0: not known */
	unsigned max_kib;  /* of one of them; 0: not known */
	char path[32];
};

/* f: the file, open by the rules of the job. Errors: -EPERM, -ENOENT (the kernel has no loop
 * devices), -EOPNOTSUPP (not with direct I/O), the kernel's, with a sentence. */
int loop_attach(const struct file_facts *f, struct loop *l, struct err *e);
void loop_detach(struct loop *l);

#endif
