/* Kernel modules: modprobe knows where they are and what they need. */
#include <errno.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "pci/bind.h"

static int spawn(pid_t *pid, const char *name)
{
	char *argv[] = { (char *)"modprobe", (char *)"--", (char *)name, NULL };
	int rc = posix_spawnp(pid, "modprobe", NULL, NULL, argv, environ);

	if (rc == ENOENT) /* not on the PATH of everybody */
		rc = posix_spawn(pid, "/sbin/modprobe", NULL, NULL, argv, environ);
	return -rc;
}

int module_load(const char *name, struct err *e)
{
	int status, rc;
	pid_t pid;

	rc = spawn(&pid, name);
	if (rc)
		return err_set(e, rc, "modprobe cannot be run, so that %s is not loaded: %s.", name,
			       err_words(rc));
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return err_set(e, -errno, "modprobe is lost: %s.", err_words(errno));
	if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
		return 0;
	return err_set(e, -ENOENT,
		       "`modprobe %s` failed; its message says why. Without the module there is no "
		       "driver %s: is it part of this kernel%s?",
		       name, name, strncmp(name, "vfio", 4) == 0 ? " (CONFIG_VFIO_PCI)" : "");
}
