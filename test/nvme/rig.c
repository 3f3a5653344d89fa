#include "nvme/rig.h"

#include <stdlib.h>
#include <time.h>

#include "mem/mem.h"

uint64_t rig_now_ms(void)
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

static struct nvme_attach_args *attach_args(const struct rig *r, const char *name,
					    const char *traddr)
{
	struct nvme_attach_args *a = calloc(1, sizeof(*a));

	param_defaults(nvme_attach_params, a);
	a->name = strdup(name);
	a->trtype = strdup("PCIe");
	a->traddr = strdup(traddr);
	a->num_io_queues = r->queues ? r->queues : 4;
	a->io_queue_entries = r->entries;
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
void rig_io_alloc(struct rig_io *ri, struct bdev_queue *q)
{
	size_t size = CACHE_LINE + sizeof(struct bdev_io) + q->bdev->ctx_size;
	char *memory = aligned_alloc(CACHE_LINE, ROUND_UP(size, CACHE_LINE));

	memset(memory, 0, size);
	memset(ri, 0, sizeof(*ri));
	ri->io = (struct bdev_io *)(void *)(memory + CACHE_LINE);
	memcpy(memory + CACHE_LINE - sizeof(ri), &ri, sizeof(ri));
	ri->io->task.fn = submit_done;
	ri->io->q = q;
	ri->done = true;
}

void rig_io_free(struct rig_io *ri)
{
	assert_true(ri->done);
	assert_true(ri->completions <= 1);
	free((char *)ri->io - CACHE_LINE);
}

void rig_power(struct rig *r, const struct fake_nvme_config *c)
{
	struct err e = { 0 };

	assert_int_equal(iommu_attach(fake_iommu_hw(r->iommu), &e), 0);
	assert_int_equal(mem_guard_sigbus(), 0);
	r->fake = fake_nvme_create(c);
	assert_non_null(r->fake);
	assert_int_equal(fake_nvme_start(r->fake), 0);
	assert_int_equal(reactor_create(&r->reactor), 0);
}

int rig_attach(struct rig *r, struct err *e)
{
	return rig_attach_as(r, r->fake, "N", "0000:00:00.0", e);
}

int rig_attach_as(struct rig *r, struct fake_nvme *fake, const char *name, const char *traddr,
		  struct err *e)
{
	char **names = NULL;
	unsigned n = 0;
	int rc;

	bar_open(fake_nvme_hw(fake));
	rc = nvme_attach_hw(attach_args(r, name, traddr), fake_nvme_hw(fake), hw_close, -1, &names,
			    &n, e);
	if (rc == 0 && fake == r->fake) {
		r->names = names;
		r->names_n = n;
		return 0;
	}
	for (unsigned i = 0; i < n; i++)
		free(names[i]);
	free(names);
	return rc;
}

void rig_use(struct rig *r)
{
	struct err e = { 0 };
	int rc;

	assert_int_equal(dma_zalloc(RIG_BUFFER, 4096, (void **)&r->data, &e), 0);
	if (r->names_n == 0)
		return;
	assert_int_equal(bdev_get(r->names[0], &r->bdev, &e), 0);
	rc = bdev_queue_open(r->bdev, r->reactor, &r->q, &e);
	if (rc)
		fail_msg("queue: %s", e.text);
	for (unsigned i = 0; i < RIG_IO_MAX; i++)
		rig_io_alloc(&r->io[i], r->q);
}

void rig_open(struct rig *r, const struct fake_nvme_config *c)
{
	struct err e = { 0 };

	rig_power(r, c);
	if (rig_attach(r, &e))
		fail_msg("attach: %s", e.text);
	rig_use(r);
}

void rig_unuse(struct rig *r)
{
	for (unsigned i = 0; r->q && i < RIG_IO_MAX; i++)
		rig_io_free(&r->io[i]);
	if (r->q) {
		bdev_queue_close(r->q);
		bdev_put(r->bdev);
	}
	r->q = NULL;
	dma_free(r->data, RIG_BUFFER);
	r->data = NULL;
}

void rig_detach(struct rig *r)
{
	struct err e = { 0 };

	if (nvme_detach("N", &e))
		fail_msg("detach: %s", e.text);
	for (unsigned i = 0; i < r->names_n; i++)
		free(r->names[i]);
	free(r->names);
	r->names = NULL;
	r->names_n = 0;
}

void rig_dark(struct rig *r)
{
	reactor_destroy(r->reactor);
	if (fake_nvme_faults(r->fake))
		fail_msg("the controller says: %s", fake_nvme_fault(r->fake, 0));
	fake_nvme_destroy(r->fake);
	assert_int_equal(fake_iommu_mappings(r->iommu), 0); /* all has been given back */
	iommu_detach(fake_iommu_hw(r->iommu));
	assert_int_equal(fake_iommu_mistakes(r->iommu), 0);
	fake_iommu_destroy(r->iommu);
}

void rig_close(struct rig *r)
{
	rig_unuse(r);
	rig_detach(r);
	rig_dark(r);
}

void rig_start(struct rig_io *ri, enum bdev_op op, uint64_t offset, const struct iovec *iov,
	       unsigned n, uint32_t len, uint8_t flags)
{
	struct bdev_io *io = ri->io;

	assert_true(ri->done);
	ri->done = false;
	ri->completions = 0;
	io->op = (uint8_t)op;
	io->flags = flags;
	io->offset = offset;
	io->len = len;
	io->iov = iov;
	io->iovcnt = (uint16_t)n;
	bdev_submit(io);
}

void rig_submit(struct rig *r, unsigned i, enum bdev_op op, uint64_t offset, void *buf,
		uint32_t len, uint8_t flags)
{
	struct rig_io *ri = &r->io[i];

	ri->iov[0] = (struct iovec){ buf, len };
	rig_start(ri, op, offset, ri->iov, buf ? 1 : 0, len, flags);
}

int rig_wait(struct rig *r, unsigned i)
{
	uint64_t end = rig_now_ms() + RIG_WAIT_MS;

	while (!r->io[i].done && rig_now_ms() < end)
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
	uint64_t end = rig_now_ms() + RIG_WAIT_MS;

	while (!condition(r)) {
		if (rig_now_ms() > end)
			return false;
		reactor_turn(r->reactor);
	}
	return true;
}

void rig_turn_ms(struct rig *r, unsigned ms)
{
	uint64_t end = rig_now_ms() + ms;

	while (rig_now_ms() < end)
		reactor_turn(r->reactor);
}

static void *reset_it(void *arg)
{
	struct rig *r = arg;
	struct err e = { 0 };

	r->reset_rc = nvme_reset("N", &e);
	r->resetting = false;
	return NULL;
}

void rig_reset(struct rig *r)
{
	r->resetting = true;
	assert_int_equal(pthread_create(&r->resetter, NULL, reset_it, r), 0);
}

int rig_reset_wait(struct rig *r)
{
	while (r->resetting)
		reactor_turn(r->reactor);
	pthread_join(r->resetter, NULL);
	return r->reset_rc;
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

void rig_works(struct rig *r, uint32_t len)
{
	uint8_t *out = r->data + 4, *in = r->data + (2u << 20) + 0xffc;

	for (uint32_t i = 0; i < len; i++)
		out[i] = (uint8_t)(i * 7 + (i >> 8) + 1);
	memset(in, 0, len);
	assert_int_equal(rig_run(r, BDEV_WRITE, 4096, out, len, 0), 0);
	assert_int_equal(rig_run(r, BDEV_READ, 4096, in, len, 0), 0);
	assert_memory_equal(in, out, len);
}
