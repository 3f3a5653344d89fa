/*
 * vfio_probe: what src/pci/vfio.h promises, on an NVMe controller that is bound to vfio-pci.
 *
 *   vfio_probe BDF            all of it, in lines of TAP
 *   vfio_probe refused BDF    open it, which must fail; the sentence
 *   vfio_probe hold BDF       open it, say "open", and close it when the kernel wants it back
 *   vfio_probe together BDF.. open them all: they share one I/O address space
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "mem/iommu.h"
#include "mem/mem.h"
#include "pci/vfio.h"

#define REG_CAP	 0x00
#define REG_VS	 0x08
#define REG_CC	 0x14
#define REG_CSTS 0x1c
#define REG_AQA	 0x24
#define REG_ASQ	 0x28
#define REG_ACQ	 0x30
#define DOORBELL 0x1000

#define ENTRIES	 4
#define IDENTIFY 6

#define COMMAND_MASTER 4

static unsigned checks, failures;

static void check(bool good, const char *what, const char *why)
{
	checks++;
	failures += !good;
	printf("%sok %u - %s%s%s\n", good ? "" : "not ", checks, what, why && !good ? ": " : "",
	       why && !good ? why : "");
}

/* --- registers and the admin queue: as little of a driver as makes an interrupt --- */

struct nvme {
	struct vfio_device *d;
	volatile char *bar;
	char *mem; /* a page each: submission queue, completion queue, data */
	iova_t iova;
	int irq[2];
	unsigned tail;
};

static uint32_t get32(const struct nvme *n, unsigned at)
{
	return from_le32(*(volatile le32 *)(n->bar + at));
}

static void set32(const struct nvme *n, unsigned at, uint32_t value)
{
	*(volatile le32 *)(n->bar + at) = to_le32(value);
}

static void set64(const struct nvme *n, unsigned at, uint64_t value)
{
	set32(n, at, (uint32_t)value);
	set32(n, at + 4, (uint32_t)(value >> 32));
}

static bool ready_becomes(const struct nvme *n, uint32_t ready)
{
	for (int i = 0; i < 10000; i++) {
		if ((get32(n, REG_CSTS) & 1) == ready)
			return true;
		usleep(1000);
	}
	return false;
}

static bool enable(struct nvme *n)
{
	set32(n, REG_CC, 0);
	if (!ready_becomes(n, 0))
		return false;
	memset(n->mem, 0, 3 * 4096);
	n->tail = 0;
	set32(n, REG_AQA, (ENTRIES - 1) << 16 | (ENTRIES - 1));
	set64(n, REG_ASQ, n->iova);
	set64(n, REG_ACQ, n->iova + 4096);
	set32(n, REG_CC, 4 << 20 | 6 << 16 | 1); /* entries of 16 and 64 bytes */
	return ready_becomes(n, 1);
}

/* Identify Controller into the third page; its completion is not waited for. */
static void identify(struct nvme *n)
{
	uint32_t sqe[16] = { IDENTIFY };
	uint64_t prp = n->iova + 8192;

	memcpy(&sqe[6], &prp, sizeof(prp));
	sqe[10] = 1;
	memcpy(n->mem + n->tail * sizeof(sqe), sqe, sizeof(sqe));
	n->tail = (n->tail + 1) % ENTRIES;
	full_barrier(); /* the entry before its doorbell */
	set32(n, DOORBELL, n->tail);
}

static bool interrupted(int fd, int ms)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	uint64_t count;

	return poll(&p, 1, ms) == 1 && read(fd, &count, sizeof(count)) == sizeof(count);
}

/* --- checks --- */

static uint16_t command_register(struct vfio_device *d)
{
	le16 command = 0;

	check(vfio_config_read(d, 4, &command, sizeof(command)) == 0,
	      "the configuration space is read", NULL);
	return from_le16(command);
}

static bool check_registers(struct nvme *n)
{
	struct err e = { 0 };
	volatile void *bar;
	size_t len = 0;
	uint32_t vs;
	int rc = vfio_map_bar(n->d, 0, &bar, &len, &e);

	check(rc == 0 && len >= 0x2000, "BAR 0 is mapped", e.text);
	if (rc)
		return false;
	n->bar = bar;
	vs = get32(n, REG_VS);
	printf("# CAP 0x%08x%08x, version %u.%u, BAR 0 of %zu KiB, %u vectors\n",
	       get32(n, REG_CAP + 4), get32(n, REG_CAP), vs >> 16, vs >> 8 & 0xff, len >> 10,
	       vfio_vectors(n->d));
	check(vs >> 16 == 1 || vs >> 16 == 2, "the version register is one of NVMe", NULL);
	check((get32(n, REG_CAP) & 0xffff) > 0, "CAP.MQES", NULL);
	rc = vfio_map_bar(n->d, 5, &bar, &len, &e);
	check(rc == -ENODEV, "a BAR that there is not", e.text);
	rc = vfio_map_bar(n->d, 6, &bar, &len, &e);
	check(rc == -ENODEV, "BAR 6", NULL);
	check(command_register(n->d) & COMMAND_MASTER, "bus master is on", NULL);
	return true;
}

static bool check_memory(struct nvme *n)
{
	struct iommu_hint hint = { 0 };
	struct err e = { 0 };
	void *p;
	int rc = dma_zalloc(3 * 4096, 4096, &p, &e);

	check(rc == 0, "memory for devices", e.text);
	if (rc)
		return false;
	n->mem = p;
	n->iova = iommu_iova(p, 3 * 4096, &hint);
	printf("# %p has IOVA 0x%llx\n", p, (unsigned long long)n->iova);
	check(n->iova != IOVA_NONE, "it has an IOVA", NULL);
	return n->iova != IOVA_NONE;
}

/* Each time with another number of vectors: what is on cannot grow. */
static void check_interrupts(struct nvme *n)
{
	int none[2] = { -1, -1 };
	struct err e = { 0 };
	int rc;

	n->irq[0] = eventfd(0, EFD_NONBLOCK);
	n->irq[1] = eventfd(0, EFD_NONBLOCK);
	check(vfio_vectors(n->d) >= 2, "there are vectors", NULL);
	rc = vfio_set_vectors(n->d, n->irq, vfio_vectors(n->d) + 1, &e);
	check(rc == -EINVAL, "more vectors than there are", NULL);
	rc = vfio_set_vectors(n->d, n->irq, 1, &e);
	check(rc == 0, "one vector", e.text);
	rc = vfio_set_vectors(n->d, n->irq, 2, &e);
	check(rc == 0, "two vectors", e.text);
	check(enable(n), "the controller becomes ready", NULL);
	identify(n);
	check(interrupted(n->irq[0], 10000), "an interrupt comes", NULL);
	check(n->mem[8192] || n->mem[8193], "the device has written to our memory", NULL);
	rc = vfio_set_vectors(n->d, none, 2, &e);
	check(rc == 0, "vectors without eventfds", e.text);
	identify(n);
	check(!interrupted(n->irq[0], 300), "no interrupt without an eventfd", NULL);
	rc = vfio_set_vectors(n->d, NULL, 0, &e);
	check(rc == 0, "no vectors", e.text);
}

/* The mask bit of a vector: what came meanwhile is delivered when it is cleared. */
static void check_mask(struct nvme *n)
{
	volatile le32 *control = vfio_vector_control(n->d, 0);
	struct err e = { 0 };

	check(control != NULL, "the MSI-X table is in reach", NULL);
	check(!vfio_vector_control(n->d, 5000), "a vector that there is not", NULL);
	if (!control)
		return;
	check(vfio_set_vectors(n->d, n->irq, 2, &e) == 0 && enable(n), "on again", e.text);
	interrupted(n->irq[0], 500); /* of before, when there was no eventfd */
	*control = to_le32(from_le32(*control) | 1);
	identify(n);
	check(!interrupted(n->irq[0], 300), "a masked vector is silent", NULL);
	*control = to_le32(from_le32(*control) & ~1u);
	check(interrupted(n->irq[0], 10000), "and delivers when it is unmasked", NULL);
}

static void check_reset(struct nvme *n)
{
	struct err e = { 0 };

	check(get32(n, REG_CC) & 1, "the controller is enabled", NULL);
	check(vfio_reset(n->d, &e) == 0, "reset", e.text);
	check(!(get32(n, REG_CC) & 1), "the controller is disabled", NULL);
	check(command_register(n->d) & COMMAND_MASTER, "bus master is on again", NULL);
	check(enable(n), "and it can be used", NULL);
	identify(n);
	check(interrupted(n->irq[0], 10000), "with the interrupts of before", NULL);
}

/* With its memory off the registers are gone, as they are when the device is pulled. */
static void check_vanishing(struct nvme *n)
{
	le16 command = to_le16(0);

	check(vfio_config_write(n->d, 4, &command, sizeof(command)) == 0, "memory off", NULL);
	check(get32(n, REG_VS) == UINT32_MAX, "registers that have vanished are all ones", NULL);
	check(mem_lost((void *)n->bar), "and mem knows", NULL);
	set32(n, REG_CC, 0);
	check(get32(n, REG_CC) == 0 || get32(n, REG_CC) == UINT32_MAX, "writes are harmless", NULL);
}

/* Memory beyond RLIMIT_MEMLOCK: the process must not be privileged for that. */
static void check_limit(void)
{
	struct rlimit limit = { 64 << 10, 64 << 10 };
	struct err e = { 0 };
	void *p;
	int rc;

	if (setrlimit(RLIMIT_MEMLOCK, &limit) || setuid(65534))
		return check(false, "become nobody", strerror(errno));
	rc = dma_zalloc(2 << 20, 4096, &p, &e);
	printf("# %s\n", e.text);
	check(rc == -ENOMEM && strstr(e.text, "LimitMEMLOCK") && strstr(e.text, "64 KiB"),
	      "too much memory to lock: a sentence with the limit", e.text);
}

static int probe(const char *bdf)
{
	struct vfio_device *again;
	struct nvme n = { 0 };
	struct err e = { 0 };
	int rc = vfio_open(bdf, false, &n.d, &e);

	check(rc == 0, "open", e.text);
	if (rc)
		goto out;
	rc = vfio_open(bdf, false, &again, &e);
	check(rc == -EBUSY, "a second time: refused", NULL);
	check(vfio_request_fd(n.d) >= 0, "there is a request fd", NULL);
	if (check_registers(&n) && check_memory(&n)) {
		check_interrupts(&n);
		check_mask(&n);
		check_reset(&n);
		check_vanishing(&n);
		dma_free(n.mem, 3 * 4096);
	}
	vfio_close(n.d);
	rc = vfio_open(bdf, false, &n.d, &e);
	check(rc == 0, "closed, and open again", e.text);
	if (rc)
		goto out;
	check_limit();
	vfio_close(n.d);
out:
	printf("1..%u\n", checks);
	return failures > 0;
}

static int refused(const char *bdf)
{
	struct vfio_device *d;
	struct err e = { 0 };
	int rc = vfio_open(bdf, false, &d, &e);

	printf("%d %s\n", rc, rc ? e.text : "opened");
	return rc == 0;
}

static int hold(const char *bdf)
{
	struct vfio_device *d;
	struct err e = { 0 };
	int rc = vfio_open(bdf, false, &d, &e);

	printf("%s\n", rc ? e.text : "open");
	fflush(stdout);
	if (rc)
		return 1;
	rc = interrupted(vfio_request_fd(d), 60000) ? 0 : 1;
	printf("%s\n", rc ? "nobody wants it back" : "wanted back");
	vfio_close(d);
	return rc;
}

/* Identify to each of them, with memory that is mapped once. */
static int together(char **bdf, int n)
{
	struct nvme all[8] = { 0 };
	struct err e = { 0 };
	int i, rc = 0;

	for (i = 0; rc == 0 && i < n && i < 8; i++) {
		rc = vfio_open(bdf[i], false, &all[i].d, &e);
		check(rc == 0, bdf[i], e.text);
		if (rc)
			return 1;
		if (check_registers(&all[i]) && check_memory(&all[i])) {
			check(enable(&all[i]), "it becomes ready", NULL);
			identify(&all[i]);
		}
	}
	usleep(500000);
	while (i-- > 0) {
		check(all[i].mem && all[i].mem[8192], "it has written to our memory", NULL);
		dma_free(all[i].mem, 3 * 4096);
		vfio_close(all[i].d);
	}
	return failures > 0;
}

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	mem_guard_sigbus();
	if (argc == 2)
		return probe(argv[1]);
	if (argc == 3 && !strcmp(argv[1], "refused"))
		return refused(argv[2]);
	if (argc == 3 && !strcmp(argv[1], "hold"))
		return hold(argv[2]);
	if (argc > 2 && !strcmp(argv[1], "together"))
		return together(argv + 2, argc - 2);
	fprintf(stderr, "usage: vfio_probe [refused|hold|together] BDF..\n");
	return 2;
}
