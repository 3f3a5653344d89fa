/* IOVAs: where memory lands in a device's address space, and that translations follow it. */
#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "mem/iommu.h"
#include "mem/mem.h"
#include "util/unit.h"

#define PAGE ((size_t)4096)
#define MAPS 64

/* An IOMMU that remembers. */
struct book {
	struct iommu iommu;
	struct {
		char *vaddr;
		size_t len;
		iova_t iova;
	} map[MAPS];
	unsigned n, most; /* mappings, and how many it takes */
};

static int book_map(struct iommu *m, void *vaddr, size_t len, iova_t iova, struct err *e)
{
	struct book *b = container_of(m, struct book, iommu);

	if (b->n == b->most)
		return err_set(e, -ENOSPC, "no more mappings.");
	for (unsigned i = 0; i < b->n; i++)
		assert_true(iova >= b->map[i].iova + b->map[i].len || iova + len <= b->map[i].iova);
	b->map[b->n].vaddr = vaddr;
	b->map[b->n].len = len;
	b->map[b->n++].iova = iova;
	return 0;
}

static void book_unmap(struct iommu *m, iova_t iova, size_t len)
{
	struct book *b = container_of(m, struct book, iommu);

	for (unsigned i = 0; i < b->n; i++) {
		if (b->map[i].iova != iova)
			continue;
		assert_int_equal(b->map[i].len, len);
		b->map[i] = b->map[--b->n];
		return;
	}
	fail_msg("what was not mapped is unmapped");
}

static struct book book(iova_t first, iova_t last)
{
	return (struct book){ .iommu = { .map = book_map,
					 .unmap = book_unmap,
					 .page = PAGE,
					 .ranges_n = 1,
					 .usable = { { first, last } } },
			      .most = MAPS };
}

static void *zalloc(size_t len)
{
	struct err e = { 0 };
	void *p = NULL;

	assert_int_equal(dma_zalloc(len, PAGE, &p, &e), 0);
	return p;
}

static void test_identity(void **state)
{
	struct book b = book(0, UINT64_MAX / 2);
	struct iommu_hint h = { 0 };
	struct err e = { 0 };
	char *before = zalloc(PAGE), *after;

	(void)state;
	assert_true(iommu_iova(before, PAGE, &h) == IOVA_NONE);
	assert_int_equal(iommu_attach(&b.iommu, &e), 0);
	after = zalloc(3 * PAGE);
	assert_true(iommu_iova(before, PAGE, &h) == (uintptr_t)before);
	assert_true(iommu_iova(after + 5, 100, &h) == (uintptr_t)after + 5);
	assert_true(iommu_iova(after, 3 * PAGE, &h) == (uintptr_t)after);
	assert_true(iommu_iova(after, 3 * PAGE + 1, &h) == IOVA_NONE);
	assert_true(iommu_iova(after + 3 * PAGE - 1, 2, &h) == IOVA_NONE);
	assert_true(iommu_iova(&b, 1, &h) == IOVA_NONE);
	dma_free(after, 3 * PAGE);
	assert_true(iommu_iova(after, PAGE, &h) == IOVA_NONE);
	iommu_detach(&b.iommu);
	assert_int_equal(b.n, 0);
	assert_true(iommu_iova(before, PAGE, &h) == IOVA_NONE);
	dma_free(before, PAGE);
}

/* A virtual IOMMU of 39 bits: no address of ours fits. */
static void test_narrow(void **state)
{
	struct book b = book(0x1000, (UINT64_C(1) << 39) - 1);
	struct iommu_hint h = { 0 };
	struct err e = { 0 };
	char *p[8];

	(void)state;
	assert_int_equal(iommu_attach(&b.iommu, &e), 0);
	for (unsigned i = 0; i < 8; i++)
		p[i] = zalloc((i + 1) * PAGE);
	for (unsigned i = 0; i < 8; i++) {
		iova_t iova = iommu_iova(p[i], (i + 1) * PAGE, &h);

		assert_true(iova >= 2 << 20 && iova < UINT64_C(1) << 39);
		assert_int_equal(iova % (2 << 20), (uintptr_t)p[i] % (2 << 20));
		assert_true(iommu_iova(p[i] + 17, 1, &h) == iova + 17);
	}
	for (unsigned i = 0; i < 8; i++)
		dma_free(p[i], (i + 1) * PAGE);
	assert_int_equal(b.n, 0);
	iommu_detach(&b.iommu);
}

/* Two devices' ranges with a hole between them, and one range that is too small. */
static void test_places(void **state)
{
	struct book b = book(0x1000, 0x3fffff);
	struct err e = { 0 };
	iova_t one, two, three;
	void *p = NULL;

	(void)state;
	b.iommu.ranges_n = 2;
	b.iommu.usable[1] = (struct iova_range){ 0x10000000, 0x103fffff };
	assert_int_equal(iommu_reserve(PAGE, &one, &e), -ENOSPC);
	assert_int_equal(iommu_attach(&b.iommu, &e), 0);
	assert_int_equal(iommu_attach(&b.iommu, &e), -EBUSY);
	assert_int_equal(iommu_reserve(2 << 20, &one, &e), 0);
	assert_int_equal(iommu_reserve(2 << 20, &two, &e), 0);
	assert_true(one == 2 << 20 && two == 0x10000000);
	assert_int_equal(iommu_reserve(4 << 20, &three, &e), -ENOSPC);
	iommu_release(one);
	assert_int_equal(iommu_reserve(PAGE, &three, &e), 0);
	assert_true(three == one);
	assert_int_equal(dma_zalloc(8 << 20, PAGE, &p, &e), -ENOSPC);
	assert_non_null(strstr(e.text, "no room"));
	iommu_release(two);
	iommu_release(three);
	iommu_detach(&b.iommu);
}

/* What the IOMMU does not take is registered all the same; devices do not reach it. */
static void test_full(void **state)
{
	struct book b = book(0, UINT64_MAX / 2);
	struct iommu_hint h = { 0 };
	struct err e = { 0 };
	void *guest = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0),
	     *p;

	(void)state;
	b.most = 0;
	assert_int_equal(iommu_attach(&b.iommu, &e), 0);
	assert_int_equal(dma_zalloc(PAGE, PAGE, &p, &e), -ENOSPC);
	assert_int_equal(mem_register(guest, PAGE, MEM_DMA), 0);
	assert_true(iommu_iova(guest, 1, &h) == IOVA_NONE);
	assert_int_equal(mem_register(guest, PAGE, MEM_DMA), -EEXIST);
	mem_unregister(guest);
	munmap(guest, PAGE);
	iommu_detach(&b.iommu);
}

/* A device that is pulled: its registers read as all ones. */
static void test_vanished_bar(void **state)
{
	int fd = memfd_create("bar", MFD_CLOEXEC);
	volatile uint32_t *bar;

	(void)state;
	assert_int_equal(mem_guard_sigbus(), 0);
	assert_int_equal(ftruncate(fd, (off_t)(2 * PAGE)), 0);
	bar = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	assert_int_equal(mem_register((void *)(uintptr_t)bar, 2 * PAGE, MEM_BAR), 0);
	assert_int_equal(bar[7], 0);
	assert_int_equal(ftruncate(fd, 0), 0);
	assert_int_equal(bar[7], UINT32_MAX);
	bar[1030] = 5; /* a doorbell: goes nowhere */
	assert_int_equal(bar[1031], UINT32_MAX);
	assert_true(mem_lost((void *)(uintptr_t)bar));
	mem_unregister((void *)(uintptr_t)bar);
	munmap((void *)(uintptr_t)bar, 2 * PAGE);
	close(fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_identity),     cmocka_unit_test(test_narrow),
		cmocka_unit_test(test_places),	     cmocka_unit_test(test_full),
		cmocka_unit_test(test_vanished_bar),
	};

	return RUN_TESTS(tests);
}
