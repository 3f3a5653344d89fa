/* Names of drivers, and IOMMU groups on a sysfs made of files; binding itself needs a kernel:
 * test/integration/test_bind.py has one. */
#include "pci/bind.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include "util/compiler.h"
#include "util/unit.h"

static void drivers_of_processes_are_known_by_name(void **state)
{
	(void)state;
	assert_true(pci_driver_is_user("vfio-pci"));
	assert_true(pci_driver_is_user("uio_pci_generic"));
	assert_true(pci_driver_is_user("igb_uio"));
	assert_false(pci_driver_is_user("nvme"));
	assert_false(pci_driver_is_user(""));
}

static void a_name_is_no_path(void **state)
{
	static const char *const wrong[] = { "", ".", "../nvme", "a/b", "a b", "nvme\n" };
	char longest[66];

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(wrong); i++)
		assert_false(pci_driver_name_ok(wrong[i]));
	assert_true(pci_driver_name_ok("vfio-pci"));
	assert_true(pci_driver_name_ok("uio_pci_generic"));
	memset(longest, 'x', sizeof(longest) - 1);
	longest[65] = '\0';
	assert_false(pci_driver_name_ok(longest));
}

/* --- a machine --- */

static char top[] = "/tmp/riffle-bind-test-XXXXXX", sysfs[64];

static void put(const char *bdf, const char *name, const char *text)
{
	char path[256];
	FILE *file;

	snprintf(path, sizeof(path), "%s/bus/pci/devices/%s/%s", sysfs, bdf, name);
	file = fopen(path, "w");
	assert_non_null(file);
	fputs(text, file);
	fclose(file);
}

static void point(const char *bdf, const char *name, const char *target)
{
	char path[256];

	snprintf(path, sizeof(path), "%s/bus/pci/devices/%s/%s", sysfs, bdf, name);
	assert_int_equal(symlink(target, path), 0);
}

static struct pci_device device(const char *bdf, const char *class, const char *driver,
				const char *group)
{
	char path[256];
	struct pci_device d;

	snprintf(path, sizeof(path), "%s/bus/pci/devices/%s", sysfs, bdf);
	assert_int_equal(mkdir(path, 0755), 0);
	put(bdf, "class", class);
	if (driver)
		point(bdf, "driver", driver);
	if (group)
		point(bdf, "iommu_group", group);
	assert_int_equal(pci_device_read(sysfs, bdf, &d, NULL), 0);
	return d;
}

static int make_machine(void **state)
{
	static const char *const folders[] = { "", "/bus", "/bus/pci", "/bus/pci/devices" };
	char path[128];

	(void)state;
	if (!mkdtemp(top))
		return -1;
	snprintf(sysfs, sizeof(sysfs), "%s/sys", top);
	for (size_t i = 0; i < ARRAY_SIZE(folders); i++) {
		snprintf(path, sizeof(path), "%s%s", sysfs, folders[i]);
		if (mkdir(path, 0755) < 0)
			return -1;
	}
	return 0;
}

static int remove_machine(void **state)
{
	char command[128];

	(void)state;
	snprintf(command, sizeof(command), "rm -r %s", top);
	return system(command);
}

static void a_group_is_opened_as_a_whole(void **state)
{
	struct pci_device both[2], alone, bare;
	struct err e;

	(void)state;
	both[0] = device("0000:01:00.0", "0x010802", "../nvme", "groups/5");
	both[1] = device("0000:01:00.1", "0x040300", "../snd_hda_intel", "groups/5");
	device("0000:00:01.0", "0x060400", "../pcieport", "groups/5");
	device("0000:01:00.2", "0x0c0330", NULL, "groups/5");
	device("0000:01:00.3", "0x0c0330", "../vfio-pci", "groups/5");
	device("0000:01:00.4", "0x0c0330", "../pci-stub", "groups/5");
	alone = device("0000:02:00.0", "0x010802", "../nvme", "groups/6");
	bare = device("0000:03:00.0", "0x010802", "../nvme", NULL);

	assert_int_equal(pci_group_check(sysfs, &both[0], both, 1, &e), -EBUSY);
	assert_non_null(strstr(e.text, "group 5 with 0000:01:00.1 (snd_hda_intel), and"));
	assert_int_equal(pci_group_check(sysfs, &both[0], both, 2, &e), 0);
	assert_int_equal(pci_group_check(sysfs, &alone, &alone, 1, &e), 0);
	assert_int_equal(pci_group_check(sysfs, &bare, &bare, 1, &e), -ENOTSUP);
	assert_non_null(strstr(e.text, "intel_iommu=on"));
	assert_non_null(strstr(e.text, "protects nothing.")); /* the sentence is whole */
}

static void a_write_has_a_deadline(void **state)
{
	char path[128];

	(void)state;
	snprintf(path, sizeof(path), "%s/fifo", top);
	assert_int_equal(mkfifo(path, 0600), 0);
	assert_int_equal(sysfs_write(50, "x", "%s", path), -ETIMEDOUT);
	assert_int_equal(sysfs_write(5000, "x", "%s/nothing", top), -ENOENT);
	assert_int_equal(sysfs_write(5000, "x", "%s", "/dev/full"), -ENOSPC);
	assert_int_equal(sysfs_write(5000, "x", "%s", "/dev/null"), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(drivers_of_processes_are_known_by_name),
		cmocka_unit_test(a_name_is_no_path),
		cmocka_unit_test(a_group_is_opened_as_a_whole),
		cmocka_unit_test(a_write_has_a_deadline),
	};

	return cmocka_run_group_tests_name(__FILE__, tests, make_machine, remove_machine);
}
