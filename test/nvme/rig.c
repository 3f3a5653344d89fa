#include "nvme/rig.h"

#include <stdlib.h>
#include <time.h>

#include "mem/mem.h"

static uint64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

struct fake_nvme_config rig_config(struct rig *r)
{
	struct fake_nvme_config c = fake_nvme_defaults();

	memset(r, 0, sizeof(*r));
	r->iommu = fake_iommu_create(0x1000, (UINT64_C(1) << 39) - 1);
	assert_non_null(r->iommu);
	c.iommu = r->iommu;
	return c;
}

void rig_timeout_ms(unsigned ms)
{
	struct nvme_settings s = nvme_settings_get();
	struct err e;

	s.timeout_us = ms * UINT64_C(1000);
	s.timeout_admin_us = 5000000;
	assert_int_equal(nvme_settings_set(&s, &e), 0);
}

/* As pci/ does it with a real one. */
static void bar_open(struct nvme_hw *hw)
{
	assert_int_equal(mem_register((void *)(uintptr_t)hw->bar, ROUND_UP(hw->bar_len, 4096),
				      MEM_BAR),
			 0);
}

static void hw_close(struct nvme_hw *hw)
{
	mem_unregister((void *)(uintptr_t)hw->bar);
}

static struct nvme_attach_args *attach_args(void)
{
	struct nvme_attach_args *a = calloc(1, sizeof(*a));

	param_defaults(nvme_attach_params, a);
	a->name = strdup("N");
	a->trtype = strdup("PCIe");
	a->traddr = strdup("0000:00:00.0");
	a->num_io_queues = 4;
	return a;
}

static void submit_done(struct task *t)
{
	struct bdev_io *io = container_of(t, struct bdev_io, task);
	struct rig_io *ri;

	memcpy(&ri, (char *)io - sizeof(ri), sizeof(ri));
	ri->status = io->status;
	ri->done = true;
	ri->completions++;
}

/* A pointer back lies before each request. */
static void alloc_io(struct rig *r, unsigned i)
{
	size_t size = CACHE_LINE + sizeof(struct bdev_io) + r->bdev->ctx_size;
	char *memory = aligned_alloc(CACHE_LINE, ROUND_UP(size, CACHE_LINE));
	struct rig_io *ri = &r->io[i];

	memset(memory, 0, size);
	ri->io = (struct bdev_io *)(void *)(memory + CACHE_LINE);
	memcpy(memory + CACHE_LINE - sizeof(ri), &ri, sizeof(ri));
	ri->io->task.fn = submit_done;
	ri->io->q = r->q;
	ri->done = true;
}

void rig_open(struct rig *r, const struct fake_nvme_config *c)
{
	struct err e = { 0 };
	int rc;

	assert_int_equal(iommu_attach(fake_iommu_hw(r->iommu), &e), 0);
	assert_int_equal(mem_guard_sigbus(), 0);
	r->fake = fake_nvme_create(c);
	assert_non_null(r->fake);
	assert_int_equal(fake_nvme_start(r->fake), 0);
	assert_int_equal(reactor_create(&r->reactor), 0);
	bar_open(fake_nvme_hw(r->fake));
	rc = nvme_attach_hw(attach_args(), fake_nvme_hw(r->fake), hw_close, -1, &r->names,
			    &r->names_n, &e);
	if (rc)
		fail_msg("attach: %s", e.text);
	assert_int_equal(dma_zalloc(RIG_BUFFER, 4096, (void **)&r->data, &e), 0);
	if (r->names_n == 0)
		return;
	assert_int_equal(bdev_get(r->names[0], &r->bdev, &e), 0);
	rc = bdev_queue_open(r->bdev, r->reactor, &r->q, &e);
	if (rc)
		fail_msg("queue: %s", e.text);
	for (unsigned i = 0; i < RIG_IO_MAX; i++)
		alloc_io(r, i);
}

void rig_close(struct rig *r)
{
	struct err e = { 0 };

	for (unsigned i = 0; r->q && i < RIG_IO_MAX; i++) {
		assert_true(r->io[i].done);
		assert_true(r->io[i].completions <= 1);
		free((char *)r->io[i].io - CACHE_LINE);
	}
	if (r->q) {
		bdev_queue_close(r->q);
		bdev_put(r->bdev);
	}
	if (nvme_detach("N", &e))
		fail_msg("detach: %s", e.text);
	for (unsigned i = 0; i < r->names_n; i++)
		free(r->names[i]);
	free(r->names);
	dma_free(r->data, RIG_BUFFER);
	reactor_destroy(r->reactor);
	if (fake_nvme_faults(r->fake))
		fail_msg("the controller says: %s", fake_nvme_fault(r->fake, 0));
	fake_nvme_destroy(r->fake);
	iommu_detach(fake_iommu_hw(r->iommu));
	assert_int_equal(fake_iommu_mistakes(r->iommu), 0);
	assert_int_equal(fake_iommu_mappings(r->iommu), 0);
	fake_iommu_destroy(r->iommu);
}

void rig_submit(struct rig *r, unsigned i, enum bdev_op op, uint64_t offset, void *buf,
		uint32_t len, uint8_t flags)
{
	struct rig_io *ri = &r->io[i];
	struct bdev_io *io = ri->io;

	assert_true(ri->done);
	ri->done = false;
	ri->completions = 0;
	ri->iov[0] = (struct iovec){ buf, len };
	io->op = (uint8_t)op;
	io->flags = flags;
	io->offset = offset;
	io->len = len;
	io->iov = ri->iov;
	io->iovcnt = buf ? 1 : 0;
	bdev_submit(io);
}

int rig_wait(struct rig *r, unsigned i)
{
	uint64_t end = now_ms() + RIG_WAIT_MS;

	while (!r->io[i].done && now_ms() < end)
		reactor_turn(r->reactor);
	if (!r->io[i].done)
		fail_msg("request %u does not end", i);
	return r->io[i].status;
}

int rig_run(struct rig *r, enum bdev_op op, uint64_t offset, void *buf, uint32_t len, uint8_t flags)
{
	rig_submit(r, 0, op, offset, buf, len, flags);
	return rig_wait(r, 0);
}

bool rig_until(struct rig *r, bool (*condition)(struct rig *r))
{
	uint64_t end = now_ms() + RIG_WAIT_MS;

	while (!condition(r)) {
		if (now_ms() > end)
			return false;
		reactor_turn(r->reactor);
	}
	return true;
}

void rig_turn_ms(struct rig *r, unsigned ms)
{
	uint64_t end = now_ms() + ms;

	while (now_ms() < end)
		reactor_turn(r->reactor);
}

struct fake_nvme_stats rig_stats(struct rig *r)
{
	struct fake_nvme_stats s;

	fake_nvme_stats(r->fake, &s);
	return s;
}

struct mends_view {
	struct nvme_mends mends;
	enum nvme_state state;
	const struct nvme_ctrl *ctrl;
};

static int view(const struct nvme_info *i, void *arg)
{
	struct mends_view *v = arg;

	v->mends = i->mends;
	v->state = i->state;
	v->ctrl = i->ctrl;
	return 0;
}

struct nvme_mends rig_mends(enum nvme_state *state)
{
	struct mends_view v = { 0 };
	struct err e;

	assert_int_equal(nvme_for_each("N", view, &v, &e), 0);
	if (state)
		*state = v.state;
	return v.mends;
}

const struct nvme_ctrl *rig_ctrl(void)
{
	struct mends_view v = { 0 };
	struct err e;

	assert_int_equal(nvme_for_each("N", view, &v, &e), 0);
	return v.ctrl;
}
