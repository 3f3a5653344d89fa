/* Addresses of PCI devices as people write them; the devices themselves are
 * test/integration/test_list.py's. */
#include "pci/sysfs.h"

#include "util/compiler.h"
#include "util/unit.h"

static void addresses_are_read_as_people_write_them(void **state)
{
	static const struct {
		const char *text, *bdf;
	} cases[] = {
		{ "0000:01:00.0", "0000:01:00.0" }, { "01:00.0", "0000:01:00.0" },
		{ "0000:AB:1f.7", "0000:ab:1f.7" }, { "10000:e1:00.0", "10000:e1:00.0" }, /* VMD */
		{ "1:2:3.4", "0001:02:03.4" },
	};
	char bdf[PCI_BDF_MAX];

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		assert_true(pci_bdf_parse(cases[i].text, bdf));
		assert_string_equal(bdf, cases[i].bdf);
	}
}

static void what_is_no_address_is_refused(void **state)
{
	static const char *const cases[] = {
		"",
		"nvme0",
		"01:00",
		"01:00.8",
		"0000:01:20.0",
		"01:00.0x",
		"0000:01:00.0 ",
		" 01:00.0",
		"-1:00:00.0",
		"0000:01:00.00",
		"0000:100:0.0",
		"fffff0:00:00.0",
		"0000:01:00,0",
		"0000:01:00.0\n",
	};
	char bdf[PCI_BDF_MAX];

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
		assert_false(pci_bdf_parse(cases[i], bdf));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(addresses_are_read_as_people_write_them),
		cmocka_unit_test(what_is_no_address_is_refused),
	};

	return RUN_TESTS(tests);
}
