/*
 * A fake NVMe controller, attached as the daemon would attach a real one, and one bdev_queue of its
 * first namespace on a reactor that the test turns itself. Everything lies in an I/O address space
 * of 39 bits, so that no IOVA is an address.
 */
#ifndef NVME_RIG_H
#define NVME_RIG_H

#include "backend/nvme.h"
#include "bdev/registry.h"
#include "fake/fake_nvme.h"
#include "util/unit.h"

#define RIG_IO_MAX  64
#define RIG_BUFFER  (6u << 20)
#define RIG_WAIT_MS 20000

struct rig_io {
	bool done;
	int status;
	unsigned completions; /* must become 1 */
	struct iovec iov[64];
	struct bdev_io *io;
};

struct rig {
	struct fake_iommu *iommu;
	struct fake_nvme *fake;
	struct reactor *reactor;
	struct bdev *bdev;
	struct bdev_queue *q;
	struct rig_io io[RIG_IO_MAX];
	uint8_t *data; /* RIG_BUFFER that devices reach */
	char **names;
	unsigned names_n;
	pthread_t resetter;
	_Atomic bool resetting;
	int reset_rc;
	unsigned queues, entries; /* to ask for; 0: 4 queues, as the settings say */
};

/* Defaults, to be changed before rig_open(); r->iommu is made. */
struct fake_nvme_config rig_config(struct rig *r);
/* I/O may take so long; settings for the next rig_open(). */
void rig_timeout_ms(unsigned ms);
void rig_open(struct rig *r, const struct fake_nvme_config *c);
/* rig_open() in steps: the hardware; the driver, which may refuse it (its errors); its first bdev.
 */
void rig_power(struct rig *r, const struct fake_nvme_config *c);
int rig_attach(struct rig *r, struct err *e);
void rig_use(struct rig *r);
/* One more controller in the rig's address space; its bdevs are NAMEnNSID. */
int rig_attach_as(struct rig *r, struct fake_nvme *fake, const char *name, const char *traddr,
		  struct err *e);

/* Fails the test when the controller has found fault with the driver. */
void rig_close(struct rig *r);
/* The same in steps. rig_dark() wants everything that the driver had given back. */
void rig_unuse(struct rig *r);
void rig_detach(struct rig *r);
void rig_dark(struct rig *r);

/* A request of q, for rig_start(); ri stays where it is. */
void rig_io_alloc(struct rig_io *ri, struct bdev_queue *q);
/* It must have ended, and once. */
void rig_io_free(struct rig_io *ri);
/* Submit it with n pieces that stay where they are. */
void rig_start(struct rig_io *ri, enum bdev_op op, uint64_t offset, const struct iovec *iov,
	       unsigned n, uint32_t len, uint8_t flags);

/* Submit request i of the rig with one buffer; rig_wait() for it, or for all that were submitted.
 */
void rig_submit(struct rig *r, unsigned i, enum bdev_op op, uint64_t offset, void *buf,
		uint32_t len, uint8_t flags);
int rig_wait(struct rig *r, unsigned i);
/* Both; the status. */
int rig_run(struct rig *r, enum bdev_op op, uint64_t offset, void *buf, uint32_t len,
	    uint8_t flags);
/* Turn the reactor until condition(arg) or RIG_WAIT_MS have passed. */
bool rig_until(struct rig *r, bool (*condition)(struct rig *r));
/* Turn it for so long. */
void rig_turn_ms(struct rig *r, unsigned ms);

/* nvme_reset() on another thread; its result, when it is over. The reactor turns meanwhile. */
void rig_reset(struct rig *r);
int rig_reset_wait(struct rig *r);

struct fake_nvme_stats rig_stats(struct rig *r);
/* What bdev_nvme_get_controllers would say. */
struct nvme_mends rig_mends(enum nvme_state *state);

/* The controller, as the driver has it. */
const struct nvme_ctrl *rig_ctrl(void);

/* Write and read back len bytes, in buffers that begin 4 bytes into and 4 before the end of a page.
 */
void rig_works(struct rig *r, uint32_t len);
/* Milliseconds of a clock that only goes forward. */
uint64_t rig_now_ms(void);

#endif
