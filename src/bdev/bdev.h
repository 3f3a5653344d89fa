/*
 * bdev: the contract between those who use block devices (exports, filters, tools) and those who
 * make them (backends, filters).
 *
 * A bdev is created by a driver and lives in the registry (registry.c). Whoever does I/O opens a
 * bdev_queue on one reactor and submits requests there; a queue and all its requests belong to that
 * reactor's thread. Submit never fails and never completes: every outcome arrives in io->task,
 * later. Nothing is allocated per request: the user's request ends in a struct bdev_io with
 * bdev->ctx_size bytes behind it, which are the room of the driver and of all drivers below.
 *
 * The life of a request: bdev_submit() checks range, alignment and permission, has requests that
 * the driver could not take reshaped (fit.c), and calls the driver; the driver calls bdev_io_end()
 * on the same reactor exactly once.
 *
 * Offsets and lengths are bytes. A driver sees only requests inside the device, whole blocks,
 * within its limits.
 */
#ifndef BDEV_BDEV_H
#define BDEV_BDEV_H

#include <stdalign.h>
#include <stdint.h>
#include <sys/uio.h>

#include "reactor/reactor.h"
#include "util/err.h"
#include "util/list.h"
#include "util/param.h"
#include "util/uuid.h"

enum bdev_op { BDEV_READ, BDEV_WRITE, BDEV_FLUSH, BDEV_DISCARD, BDEV_WRITE_ZEROES, BDEV_OPS };

/* bdev_io.flags */
#define BDEV_FUA      0x01 /* write: durable before it completes */
#define BDEV_NO_UNMAP 0x02 /* write zeroes: keep the blocks allocated */
#define BDEV_PIECE    0x80 /* fit.c's: part of another request, not counted */

struct bdev_io {
	struct task task; /* task.fn: the submitter's completion */
	struct bdev_queue *q;
	const struct iovec *iov; /* stays valid and unmoved until completion */
	uint64_t offset;
	uint32_t len;
	int32_t status; /* 0 or -errno */
	union {
		struct {
			uint16_t iovcnt;
			uint8_t op, flags;
		};
		uint32_t shape; /* the three as one word: BDEV_SHAPE() */
	};
	uint16_t nvme_status; /* SCT/SC if an NVMe device said so */
	uint16_t driver;      /* the driver's own */
	uint64_t start;	      /* ticks of the turn in which it was submitted */
	alignas(16) uint8_t ctx[];
};

_Static_assert(sizeof(struct bdev_io) == 64, "one cache line");

/* Of a request with one buffer and no flags. */
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define BDEV_SHAPE(op) (1u | (uint32_t)(op) << 16)
#else
#define BDEV_SHAPE(op) (1u << 16 | (uint32_t)(op) << 8)
#endif
/* The bits in which those of reads and writes differ. */
#define BDEV_SHAPE_RW (BDEV_SHAPE(BDEV_READ) ^ BDEV_SHAPE(BDEV_WRITE))

/* What a driver can take in one request. Larger or otherwise shaped requests are reshaped before it
 * sees them. */
struct bdev_limits {
	uint32_t max_len;     /* read, write: bytes */
	uint32_t max_discard; /* bytes; 0: DISCARD is not supported */
	uint32_t max_zeroes;  /* bytes; 0: done by writing zeroes */
	uint16_t max_iov;
	uint32_t buf_align; /* power of 2; buffers start and end at multiples of it. 1: anywhere */
	uint32_t
		boundary; /* bytes, whole blocks: no read or write crosses a multiple. 0: any may */
	bool no_zeroes;	  /* WRITE_ZEROES is not supported: nothing that is written reads back */
	bool zeroes_unmap_only; /* WRITE_ZEROES with BDEV_NO_UNMAP is done by writing zeroes */
};

struct bdev_op_stats {
	uint64_t ops, bytes, errors;
	uint64_t ticks, max_ticks, min_ticks; /* latency, at the resolution of a turn */
	uint64_t pad[2];		      /* found by a shift */
};

struct bdev_stats {
	struct bdev_op_stats op[BDEV_OPS];
	uint64_t doorbells, interrupts; /* where bdev.has_doorbells: what it took to tell of
					   requests and of their ends */
};

/* Who wants to know of a bdev's new size, which b->size already is. Called with the registry
 * locked: note it, and do the rest later. */
struct bdev_watcher {
	void (*resized)(struct bdev_watcher *w);
	struct list node;
};

struct bdev_driver;

struct bdev {
	/* Set by the driver's create(); constant afterwards. */
	uint64_t size;	     /* bytes, a multiple of block_size */
	uint32_t block_size; /* power of 2, >= 512 */
	uint32_t physical_block_size;
	uint32_t ctx_size; /* room a request needs behind struct bdev_io */
	bool readonly;
	bool page_cache;     /* I/O goes through the kernel's page cache, for want of O_DIRECT */
	bool kernel_io;	     /* requests go through the reactor's io_uring */
	bool has_doorbells;  /* its queues count what they ring, and what rings them */
	bool shared_buffers; /* copies what is not in memory of dma_zalloc_shared() */
	bool has_numa_node;
	int numa_node; /* of the device, when it is known */
	struct bdev_limits limits;

	/* The registry's. Guarded by its lock. */
	const struct bdev_driver *driver;
	void *args; /* as decoded from the parameter table: the saved configuration */
	char *name;
	struct uuid uuid;
	unsigned users; /* exports and filters that hold it */
	bool gone;	/* its device has: nobody else may hold it, and all its requests fail */
	struct list node, queues, watchers;
	struct bdev_stats closed; /* of queues that are gone */
};

struct bdev_queue {
	/* hot */
	void (*submit_one)(struct bdev_io *io);
	uint32_t one_mask, one_shape; /* what goes there: a shape that is one_shape in these bits */
	uint64_t size;
	uint32_t block_mask;
	uint32_t max_len; /* also not more than size */
	uint32_t inflight;
	uint32_t align_mask;
	void (*submit)(struct bdev_io *io);
	uint32_t boundary;
	uint16_t max_iov;
	bool readonly;
	bool picky; /* about where buffers lie, or where requests do */
	struct bdev_fit *fit;
	struct bdev_stats stats;

	/* cold */
	struct bdev *bdev;
	struct reactor *reactor;
	void *priv; /* the driver's */
	struct list node;
};

struct bdev_driver {
	const char *name; /* "malloc": gives bdev_malloc_create, bdev_malloc_delete */
	const char *create_method, *delete_method; /* where SPDK's names differ; else NULL */
	bool lists_names;	    /* the create method returns a list of names, not a name */
	const char *product_name;   /* "Malloc disk": what bdev_get_bdevs says, SPDK's words */
	const char *help;	    /* one line */
	const struct param *params; /* has at least "name" and "uuid" */
	size_t args_size;

	/* Control thread; may block. *out embeds in the driver's own object. */
	int (*create)(const void *args, struct bdev **out, struct err *e);
	void (*destroy)(struct bdev *b);
	/* Optional. Control thread; may block; q is not live yet / nothing is in flight any more.
	 */
	int (*queue_open)(struct bdev_queue *q, struct err *e);
	void (*queue_close)(struct bdev_queue *q);
	/* hot; on io->q's reactor */
	void (*submit)(struct bdev_io *io);
	/* Optional. hot. The same for what most requests are: a read or write of one buffer,
	 * without flags. */
	void (*submit_one)(struct bdev_io *io);
	/*
	 * Optional: does the device reach buffers where they lie? Only asked when a request is
	 * taken apart; what is out of reach is copied through buffers of dma_zalloc(). submit gives
	 * requests that are out of reach to bdev_refit().
	 */
	bool (*reaches)(struct bdev_queue *q, const struct iovec *iov, int n);
};

/*
 * hot; on io->q's reactor. The caller has set task.fn, q, op, flags, offset, len, iov and iovcnt
 * (iov only for reads and writes: its entries sum up to len). io must not be touched until its task
 * runs. Outcomes in io->status: 0; -EIO; -EINVAL (not whole blocks, or a bad op); -ERANGE (past the
 * end); -EROFS; -EOPNOTSUPP; whatever the device said.
 */
void bdev_submit(struct bdev_io *io);

/*
 * A driver whose device does not reach io's buffers hands it back from its submit, untouched; it
 * comes again in pieces whose buffers are in reach.
 */
void bdev_refit(struct bdev_io *io);

/* hot; the driver's only way up, on the queue's reactor. */
void bdev_io_end(struct bdev_io *io, int status);

/* What bdev_io_end_well() does not do. */
noinline void bdev_io_end_oddly(struct bdev_io *io);

/* hot */
static always_inline void bdev_count(struct bdev_queue *q, const struct bdev_io *io, uint64_t took)
{
	size_t at = io->op * sizeof(struct bdev_op_stats);
	struct bdev_op_stats *s;

	keep_in_register(at); /* the fields lie at q + at + a constant: no more to work out */
	s = (void *)((char *)q->stats.op + at);
	counter_add(&s->ops, 1);
	counter_add(&s->bytes, io->len);
	counter_add(&s->ticks, took);
	if (unlikely(took > s->max_ticks))
		WRITE_ONCE(s->max_ticks, took);
	if (unlikely(took < s->min_ticks))
		WRITE_ONCE(s->min_ticks, took);
}

/* hot. bdev_io_end(io, 0) in place, for drivers that end many requests in a turn. turn: this_turn.
 */
static always_inline void bdev_io_end_well(struct bdev_io *io, struct turn *turn)
{
	struct bdev_queue *q = io->q;

	io->status = 0;
	if (unlikely(io->flags & BDEV_PIECE)) {
		bdev_io_end_oddly(io);
		return;
	}
	bdev_count(q, io, turn->now - io->start);
	q->inflight--;
	turn_soon(turn, &io->task);
}

/* Control threads. q belongs to r from now on. Errors: -ENOMEM, the driver's. */
int bdev_queue_open(struct bdev *b, struct reactor *r, struct bdev_queue **out, struct err *e);
/* Nothing is in flight. */
void bdev_queue_close(struct bdev_queue *q);

static inline bool bdev_can(const struct bdev *b, enum bdev_op op)
{
	switch (op) {
	case BDEV_DISCARD:
		return !b->readonly && b->limits.max_discard > 0;
	case BDEV_WRITE_ZEROES:
		return !b->readonly && !b->limits.no_zeroes;
	case BDEV_WRITE:
		return !b->readonly;
	default:
		return true;
	}
}

#endif
