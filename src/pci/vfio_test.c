/* What VFIO and a device's configuration space tell, taken apart; processes in a procfs of our own.
 * The rest is test/vm's. */
#include <linux/pci_regs.h>
#include <linux/vfio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "pci/internal.h"
#include "util/bytes.h"
#include "util/unit.h"

#define PAGE 4096

static void put(void *to, size_t at, const void *what, size_t len)
{
	memcpy((char *)to + at, what, len);
}

/* --- the I/O address space --- */

#define CAP_AT sizeof(struct vfio_iommu_type1_info)

struct answer {
	uint64_t bytes[1024];
	size_t size;
};

/* GET_INFO's answer with one capability of ranges, whose head may lie about their number. */
static void tell_ranges(struct answer *a, const struct vfio_iova_range *ranges, unsigned n,
			unsigned claimed)
{
	struct vfio_iommu_type1_info info = {
		.flags = VFIO_IOMMU_INFO_PGSIZES | VFIO_IOMMU_INFO_CAPS,
		.iova_pgsizes = 0x40201000,
		.cap_offset = CAP_AT,
	};
	struct vfio_iommu_type1_info_cap_iova_range cap = {
		.header = { .id = VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE, .version = 1 },
		.nr_iovas = claimed,
	};

	memset(a, 0, sizeof(*a));
	put(a->bytes, 0, &info, sizeof(info));
	put(a->bytes, CAP_AT, &cap, sizeof(cap));
	put(a->bytes, CAP_AT + sizeof(cap), ranges, n * sizeof(*ranges));
	a->size = CAP_AT + sizeof(cap) + n * sizeof(*ranges);
}

static void usable_ranges_are_those_of_the_kernel(void **state)
{
	static const struct vfio_iova_range ranges[] = {
		{ 0, 0xfedfffff },
		{ 0xfef00000, 0xffffffffffffffff },
	};
	struct answer a;
	struct iommu m;

	(void)state;
	tell_ranges(&a, ranges, 2, 2);
	vfio_iommu_describe(a.bytes, a.size, PAGE, &m);
	assert_int_equal(m.page, PAGE);
	assert_int_equal(m.ranges_n, 2);
	assert_int_equal(m.usable[0].first, 0);
	assert_int_equal(m.usable[0].last, 0xfedfffff);
	assert_int_equal(m.usable[1].first, 0xfef00000);
	assert_int_equal(m.usable[1].last, UINT64_MAX);
}

static void ranges_are_of_whole_pages_and_ascend(void **state)
{
	static const struct vfio_iova_range ranges[] = {
		{ 0x1001, 0x4ffe },		     /* [0x2000, 0x3fff] */
		{ 0x5001, 0x5fff },		     /* less than a page */
		{ 0x3000, 0x8fff },		     /* overlaps */
		{ 0x9000, 0x8000 },		     /* ends before it begins */
		{ 0xa000, 0xafff },		     /* a page */
		{ UINT64_MAX - 10, UINT64_MAX - 5 }, /* no page */
	};
	struct answer a;
	struct iommu m;

	(void)state;
	tell_ranges(&a, ranges, 6, 6);
	vfio_iommu_describe(a.bytes, a.size, PAGE, &m);
	assert_int_equal(m.ranges_n, 2);
	assert_int_equal(m.usable[0].first, 0x2000);
	assert_int_equal(m.usable[0].last, 0x3fff);
	assert_int_equal(m.usable[1].first, 0xa000);
	assert_int_equal(m.usable[1].last, 0xafff);
}

static void of_too_many_ranges_the_largest_are_kept(void **state)
{
	struct vfio_iova_range ranges[IOVA_RANGES_MAX + 2];
	struct answer a;
	struct iommu m;

	(void)state;
	for (unsigned i = 0; i < IOVA_RANGES_MAX + 2; i++) {
		uint64_t start = (uint64_t)i << 32;

		ranges[i] = (struct vfio_iova_range){ start, start + (i == 3 ? 1 : 2) * PAGE - 1 };
	}
	ranges[IOVA_RANGES_MAX + 1].end += PAGE;
	tell_ranges(&a, ranges, IOVA_RANGES_MAX + 2, IOVA_RANGES_MAX + 2);
	vfio_iommu_describe(a.bytes, a.size, PAGE, &m);
	assert_int_equal(m.ranges_n, IOVA_RANGES_MAX);
	for (unsigned i = 0; i < m.ranges_n; i++) {
		assert_int_not_equal(m.usable[i].first, (uint64_t)3 << 32);
		assert_true(i == 0 || m.usable[i].first > m.usable[i - 1].last);
	}
	assert_int_equal(m.usable[m.ranges_n - 1].first, (uint64_t)(IOVA_RANGES_MAX + 1) << 32);
}

static void a_kernel_without_ranges_has_39_bits_less_the_msi_window(void **state)
{
	struct vfio_iommu_type1_info info = { .flags = VFIO_IOMMU_INFO_PGSIZES,
					      .iova_pgsizes = 0x10000 };
	struct iommu m;

	(void)state;
	vfio_iommu_describe(&info, sizeof(info), PAGE, &m);
	assert_int_equal(m.page, 0x10000);
	assert_int_equal(m.ranges_n, 2);
	assert_int_equal(m.usable[0].last, 0xfedfffff);
	assert_int_equal(m.usable[1].first, 0xfef00000);
	assert_int_equal(m.usable[1].last, 0x7fffffffff);
	vfio_iommu_describe(&info, 8, PAGE, &m); /* all but argsz and flags is missing */
	assert_int_equal(m.page, PAGE);
	assert_int_equal(m.ranges_n, 2);
}

static void more_ranges_than_bytes(void **state)
{
	static const struct vfio_iova_range range = { 0x10000, 0x1ffff };
	struct answer a;
	struct iommu m;

	(void)state;
	tell_ranges(&a, &range, 1, UINT32_MAX);
	vfio_iommu_describe(a.bytes, a.size, PAGE, &m);
	assert_int_equal(m.ranges_n, 1);
	vfio_iommu_describe(a.bytes, a.size - 1, PAGE, &m); /* the one is cut */
	assert_int_equal(m.ranges_n, 2);		    /* the fall-back */
	vfio_iommu_describe(a.bytes, CAP_AT + 3, PAGE, &m); /* the header too */
	assert_int_equal(m.ranges_n, 2);
}

static void mappings_that_are_left(void **state)
{
	static const struct vfio_iova_range range = { 0, 0xffff };
	struct vfio_iommu_type1_info_dma_avail avail = {
		.header = { .id = VFIO_IOMMU_TYPE1_INFO_DMA_AVAIL }, .avail = 65535
	};
	uint32_t next;
	struct answer a;

	(void)state;
	tell_ranges(&a, &range, 1, 1);
	assert_int_equal(vfio_iommu_dma_avail(a.bytes, a.size), UINT32_MAX);
	next = (uint32_t)a.size + 4; /* 4 bytes are all that kernels align to */
	put(a.bytes, CAP_AT + offsetof(struct vfio_info_cap_header, next), &next, 4);
	put(a.bytes, next, &avail, sizeof(avail));
	assert_int_equal(vfio_iommu_dma_avail(a.bytes, next + sizeof(avail)), 65535);
	assert_int_equal(vfio_iommu_dma_avail(a.bytes, next + sizeof(avail) - 1), UINT32_MAX);
}

static void a_chain_that_loops_ends(void **state)
{
	struct vfio_info_cap_header one = { .id = 7 }, two = { .id = 8 }, head;
	uint64_t bytes[8] = { 0 };
	uint32_t first = 8;

	(void)state;
	one.next = 24;
	two.next = 8;
	put(bytes, 8, &one, sizeof(one));
	put(bytes, 24, &two, sizeof(two));
	assert_int_equal(vfio_cap_find(bytes, sizeof(bytes), first, 8, &head, sizeof(head)), 32);
	assert_int_equal(vfio_cap_find(bytes, sizeof(bytes), first, 9, &head, sizeof(head)), 0);
	two.next = 24;
	put(bytes, 24, &two, sizeof(two));
	assert_int_equal(vfio_cap_find(bytes, sizeof(bytes), first, 9, &head, sizeof(head)), 0);
	two.next = UINT32_MAX;
	put(bytes, 24, &two, sizeof(two));
	assert_int_equal(vfio_cap_find(bytes, sizeof(bytes), first, 9, &head, sizeof(head)), 0);
	assert_int_equal(vfio_cap_find(bytes, sizeof(bytes), 0, 0, &head, sizeof(head)), 0);
	assert_int_equal(vfio_cap_find(bytes, sizeof(bytes), 61, 0, &head, sizeof(head)), 0);
}

/* --- regions --- */

static unsigned areas_of(const struct vfio_region_sparse_mmap_area *sparse, unsigned n,
			 uint64_t size, struct vfio_area *areas)
{
	struct vfio_region_info info = { .flags = VFIO_REGION_INFO_FLAG_MMAP |
						  VFIO_REGION_INFO_FLAG_CAPS,
					 .size = size,
					 .cap_offset = sizeof(info) };
	struct vfio_region_info_cap_sparse_mmap cap = {
		.header = { .id = VFIO_REGION_INFO_CAP_SPARSE_MMAP }, .nr_areas = n
	};
	uint64_t bytes[128];

	put(bytes, 0, &info, sizeof(info));
	put(bytes, sizeof(info), &cap, sizeof(cap));
	put(bytes, sizeof(info) + sizeof(cap), sparse, n * sizeof(*sparse));
	return vfio_region_areas(bytes, sizeof(info) + sizeof(cap) + n * sizeof(*sparse), PAGE,
				 areas);
}

static void a_region_is_mapped_as_far_as_the_kernel_lets_us(void **state)
{
	static const struct vfio_region_sparse_mmap_area around_msix[] = {
		{ 0x4000, 0x4000 },
		{ 0, 0x3000 },
	};
	struct vfio_region_info info = { .flags = VFIO_REGION_INFO_FLAG_MMAP, .size = 0x8000 };
	struct vfio_area areas[VFIO_AREAS_MAX];

	(void)state;
	assert_int_equal(vfio_region_areas(&info, sizeof(info), PAGE, areas), 1);
	assert_int_equal(areas[0].offset, 0);
	assert_int_equal(areas[0].len, 0x8000);
	info.flags = VFIO_REGION_INFO_FLAG_READ;
	assert_int_equal(vfio_region_areas(&info, sizeof(info), PAGE, areas), 0);
	info.flags = VFIO_REGION_INFO_FLAG_MMAP;
	info.size = 0;
	assert_int_equal(vfio_region_areas(&info, sizeof(info), PAGE, areas), 0);

	assert_int_equal(areas_of(around_msix, 2, 0x8000, areas), 2);
	assert_int_equal(areas[0].offset, 0);
	assert_int_equal(areas[0].len, 0x3000);
	assert_int_equal(areas[1].offset, 0x4000);
	assert_null(vfio_area_find(areas, 2, 0x3000, 16));
	assert_null(vfio_area_find(areas, 2, 0x2ff8, 16));
	assert_null(vfio_area_find(areas, 2, 0x7ff8, 16));
	assert_null(vfio_area_find(areas, 2, UINT64_MAX, 2));
	assert_ptr_equal(vfio_area_find(areas, 2, 0x2ff0, 16), &areas[0]);
	assert_ptr_equal(vfio_area_find(areas, 2, 0x7ff0, 16), &areas[1]);
}

static void areas_that_make_no_sense_are_left_out(void **state)
{
	static const struct vfio_region_sparse_mmap_area odd[] = {
		{ 0x1000, 0x1000 },
		{ 0x1000, 0x2000 },		 /* overlaps */
		{ 0, 0x1001 },			 /* overlaps */
		{ 0x7000, 0x2000 },		 /* ends outside */
		{ 0x3800, 0x1000 },		 /* within a page */
		{ UINT64_MAX - PAGE + 1, PAGE }, /* wraps */
		{ 0x5000, 0 },			 /* is nothing */
	};
	struct vfio_region_sparse_mmap_area many[VFIO_AREAS_MAX + 1];
	struct vfio_area areas[VFIO_AREAS_MAX];

	(void)state;
	assert_int_equal(areas_of(odd, 7, 0x8000, areas), 1);
	assert_int_equal(areas[0].offset, 0x1000);
	assert_int_equal(areas[0].len, 0x1000);
	for (unsigned i = 0; i < VFIO_AREAS_MAX + 1; i++)
		many[i] = (struct vfio_region_sparse_mmap_area){ i * 2 * PAGE, PAGE };
	assert_int_equal(areas_of(many, VFIO_AREAS_MAX + 1, 1 << 20, areas), VFIO_AREAS_MAX);
}

/* --- MSI-X --- */

static void capability(uint8_t *config, unsigned at, uint8_t id, uint8_t next)
{
	config[at] = id;
	config[at + PCI_CAP_LIST_NEXT] = next;
}

static void the_msix_table_is_found(void **state)
{
	uint8_t config[PCI_CONFIG_SIZE] = {
		[PCI_STATUS] = PCI_STATUS_CAP_LIST, [PCI_CAPABILITY_LIST] = 0x43
	};
	struct pci_msix m;

	(void)state;
	capability(config, 0x40, PCI_CAP_ID_EXP, 0x80);
	capability(config, 0x80, PCI_CAP_ID_MSIX, 0x60);
	put(config, 0x82, &(le16){ to_le16(0xc000 | 64) }, 2);
	put(config, 0x84, &(le32){ to_le32(0x2000 | 4) }, 4);
	assert_true(pci_msix_find(config, &m));
	assert_int_equal(m.vectors, 65);
	assert_int_equal(m.bar, 4);
	assert_int_equal(m.offset, 0x2000);
	put(config, 0x84, &(le32){ to_le32(0x2000 | 6) }, 4); /* there are BARs 0 to 5 */
	assert_false(pci_msix_find(config, &m));
	config[PCI_STATUS] = 0;
	assert_false(pci_msix_find(config, &m));
}

static void chains_without_msix_end(void **state)
{
	uint8_t config[PCI_CONFIG_SIZE] = {
		[PCI_STATUS] = PCI_STATUS_CAP_LIST, [PCI_CAPABILITY_LIST] = 0x40
	};
	struct pci_msix m;

	(void)state;
	capability(config, 0x40, PCI_CAP_ID_PM, 0);
	assert_false(pci_msix_find(config, &m));
	capability(config, 0x40, PCI_CAP_ID_PM, 0x40); /* itself */
	assert_false(pci_msix_find(config, &m));
	capability(config, 0x40, PCI_CAP_ID_PM, 0x50);
	capability(config, 0x50, PCI_CAP_ID_MSI, 0x40);
	assert_false(pci_msix_find(config, &m));
	capability(config, 0x40, PCI_CAP_ID_PM, 0x10); /* into the header */
	assert_false(pci_msix_find(config, &m));
	capability(config, 0x40, PCI_CAP_ID_PM, 0xfc);
	capability(config, 0xfc, PCI_CAP_ID_MSIX, 0); /* cut by the end */
	assert_false(pci_msix_find(config, &m));
	memset(config, 0xff, sizeof(config)); /* a device that has vanished */
	assert_false(pci_msix_find(config, &m));
}

/* --- processes --- */

static char root[] = "/tmp/vfio_test.XXXXXX";

static void folder(const char *path)
{
	char command[1024];

	snprintf(command, sizeof(command), "mkdir -p '%s/%s'", root, path);
	assert_int_equal(system(command), 0);
}

static void who_has_a_file_is_named(void **state)
{
	char path[512], text[64];
	FILE *comm;

	(void)state;
	folder("proc/self");
	folder("proc/1/fd");
	folder("proc/4194305/fd");
	snprintf(path, sizeof(path), "%s/proc/4194305/fd/3", root);
	assert_int_equal(symlink("/dev/vfio/7", path), 0);
	snprintf(path, sizeof(path), "%s/proc/4194305/comm", root);
	comm = fopen(path, "w");
	assert_non_null(comm);
	fputs("qemu-system-x86\n", comm);
	fclose(comm);
	snprintf(path, sizeof(path), "%s/proc", root);
	assert_string_equal(vfio_holder(path, "/dev/vfio/7", text, sizeof(text)),
			    "process 4194305 (qemu-system-x86)");
	assert_string_equal(vfio_holder(path, "/dev/vfio/8", text, sizeof(text)),
			    "another process");
	assert_string_equal(vfio_holder("/nowhere", "/dev/vfio/7", text, sizeof(text)),
			    "another process");
}

static int make_root(void **state)
{
	(void)state;
	return mkdtemp(root) ? 0 : -1;
}

static int remove_root(void **state)
{
	char command[64];

	(void)state;
	snprintf(command, sizeof(command), "rm -r '%s'", root);
	return system(command);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(usable_ranges_are_those_of_the_kernel),
		cmocka_unit_test(ranges_are_of_whole_pages_and_ascend),
		cmocka_unit_test(of_too_many_ranges_the_largest_are_kept),
		cmocka_unit_test(a_kernel_without_ranges_has_39_bits_less_the_msi_window),
		cmocka_unit_test(more_ranges_than_bytes),
		cmocka_unit_test(mappings_that_are_left),
		cmocka_unit_test(a_chain_that_loops_ends),
		cmocka_unit_test(a_region_is_mapped_as_far_as_the_kernel_lets_us),
		cmocka_unit_test(areas_that_make_no_sense_are_left_out),
		cmocka_unit_test(the_msix_table_is_found),
		cmocka_unit_test(chains_without_msix_end),
		cmocka_unit_test(who_has_a_file_is_named),
	};

	return cmocka_run_group_tests_name(__FILE__, tests, make_root, remove_root);
}
