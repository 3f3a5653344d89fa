/*
 * file: a disk on a regular file or a block device, under SPDK's two names for it (aio, uring).
 *
 * Reads and writes go through the reactor's io_uring with O_DIRECT, one io_uring_enter per turn for
 * all of them. What blocks - fdatasync for FLUSH, fallocate and BLKDISCARD - is done by one worker
 * thread per disk; all FLUSHes that wait there share one fdatasync. FUA is RWF_DSYNC on the write
 * itself.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/falloc.h>
#include <linux/fs.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "backend/file.h"
#include "backend/file_lock.h"
#include "backend/list.h"
#include "reactor/uring.h"
#include "reactor/worker.h"
#include "util/log.h"

#define MAX_LEN	  (4u << 20)
#define MAX_RANGE (1u << 30)
#define MAX_IOV	  1024 /* IOV_MAX */

struct file_args {
	char *name, *filename;
	uint64_t block_size;
	bool readonly, fallocate, nowait;
	struct uuid uuid;
};

static const struct param file_params[] = {
	PARAM_STRING(struct file_args, filename, .required = true, .positional = true, .min = 1,
		     .help = "path of a regular file or block device"),
	PARAM_STRING(struct file_args, name, .required = true, .min = 1, .max = 255,
		     .help = "name of the new disk"),
	PARAM_UINT(
		struct file_args, block_size, .max = 65536,
		.help = "logical block size in bytes, a power of 2 (default: what the file takes)"),
	PARAM_BOOL(struct file_args, readonly, .help = "open read-only"),
	PARAM_UUID(struct file_args, uuid, .help = "UUID (default: random)"),
	PARAM_BOOL(struct file_args, fallocate, .obsolete = true),
	PARAM_BOOL(struct file_args, nowait, .obsolete = true),
	{ 0 }
};

struct file_bdev {
	struct bdev bdev;
	int fd;
	bool is_device;
	struct file_lock *lock;
	struct worker worker;
};

struct file_queue {
	struct bdev_queue *q;
	struct worker_door door;
	int fd; /* of the disk, or its place among the ring's files */
	uint8_t sqe_flags;
};

/* The room of a request: an io_uring operation or a job for the worker. */
struct file_io {
	union {
		struct uring_op op;
		struct job job;
	};
};

static struct file_bdev *to_file(struct bdev *b)
{
	return container_of(b, struct file_bdev, bdev);
}

static struct bdev_io *io_of(struct file_io *f)
{
	return container_of((void *)f, struct bdev_io, ctx);
}

/* --- the worker's side --- */

static int discard(const struct file_bdev *f, const struct bdev_io *io)
{
	uint64_t range[2] = { io->offset, io->len };

	if (f->is_device)
		return ioctl(f->fd, BLKDISCARD, range) < 0 ? -errno : 0;
	return fallocate(f->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)io->offset,
			 io->len) < 0
		       ? -errno
		       : 0;
}

static int write_zeroes(const struct file_bdev *f, const struct bdev_io *io)
{
	int mode = FALLOC_FL_KEEP_SIZE;

	/* A hole in a file reads as zeroes; a device zeroes and keeps or drops its blocks as it
	 * likes. */
	mode |= f->is_device || io->flags & BDEV_NO_UNMAP ? FALLOC_FL_ZERO_RANGE
							  : FALLOC_FL_PUNCH_HOLE;
	if (fallocate(f->fd, mode, (off_t)io->offset, io->len) < 0)
		return -errno;
	return io->flags & BDEV_FUA && fdatasync(f->fd) < 0 ? -errno : 0;
}

static void file_work(struct worker *w, struct job *jobs)
{
	struct file_bdev *f = container_of(w, struct file_bdev, worker);
	bool flush = false;
	int flush_rc = 0;

	for (struct job *j = jobs; j; j = job_next(j)) {
		struct bdev_io *io = io_of(container_of(j, struct file_io, job));

		if (io->op == BDEV_FLUSH)
			flush = true;
		else
			j->rc = io->op == BDEV_DISCARD ? discard(f, io) : write_zeroes(f, io);
	}
	if (flush)
		flush_rc = fdatasync(f->fd) < 0 ? -errno : 0;
	for (struct job *j = jobs; flush && j; j = job_next(j))
		if (io_of(container_of(j, struct file_io, job))->op == BDEV_FLUSH)
			j->rc = flush_rc;
}

static void file_job_done(struct job *j)
{
	bdev_io_end(io_of(container_of(j, struct file_io, job)), j->rc);
}

/* --- the reactor's side --- */

static void file_rw_done(struct uring_op *op, int32_t res)
{
	struct bdev_io *io = io_of(container_of(op, struct file_io, op));

	/* Short: the file ends earlier than it did, or the file system is full. */
	if (likely(res == (int32_t)io->len))
		res = 0;
	else if (res >= 0)
		res = -EIO;
	bdev_io_end(io, res);
}

/* hot */
static void file_rw(struct file_queue *fq, struct bdev_io *io)
{
	struct file_io *fio = (struct file_io *)(void *)io->ctx;
	struct io_uring_sqe *sqe = uring_sqe(fq->q->reactor);

	fio->op.done = file_rw_done;
	uring_prep_rw(fq->q->reactor, sqe, io->op == BDEV_WRITE, fq->fd, io->iov, io->iovcnt,
		      io->offset);
	sqe->flags |= fq->sqe_flags;
	if (io->flags & BDEV_FUA)
		sqe->rw_flags = RWF_DSYNC;
	uring_tag(sqe, &fio->op);
}

/* hot */
static void file_submit(struct bdev_io *io)
{
	struct file_queue *fq = io->q->priv;

	if (likely(io->op <= BDEV_WRITE)) {
		file_rw(fq, io);
	} else {
		struct file_io *fio = (struct file_io *)(void *)io->ctx;

		fio->job.done = file_job_done;
		worker_submit(&fq->door, &fio->job);
	}
}

static int no_uring(const struct reactor *r, struct err *e)
{
	return err_set(e, -EOPNOTSUPP, "File disks need io_uring, and %s.", uring_why_not(r));
}

/* Said when the disk is made, not when a guest comes. */
static int check_uring(struct err *e)
{
	for (int i = 0; i < reactors_count(); i++)
		if (!uring_usable(reactors_at(i)))
			return no_uring(reactors_at(i), e);
	return 0;
}

static int file_add_here(void *arg)
{
	struct file_queue *fq = arg;

	fq->fd = uring_file_add(fq->q->reactor, to_file(fq->q->bdev)->fd);
	fq->sqe_flags = IOSQE_FIXED_FILE;
	if (fq->fd < 0) {
		fq->fd = to_file(fq->q->bdev)->fd;
		fq->sqe_flags = 0;
	}
	return 0;
}

static int file_remove_here(void *arg)
{
	struct file_queue *fq = arg;

	if (fq->sqe_flags)
		uring_file_remove(fq->q->reactor, fq->fd);
	return 0;
}

static int file_queue_open(struct bdev_queue *q, struct err *e)
{
	struct file_queue *fq;

	if (!uring_usable(q->reactor))
		return no_uring(q->reactor, e);
	fq = calloc(1, sizeof(*fq));
	if (!fq)
		return err_set(e, -ENOMEM, "Out of memory.");
	fq->q = q;
	reactor_call(q->reactor, file_add_here, fq);
	worker_door_init(&fq->door, &to_file(q->bdev)->worker);
	q->priv = fq;
	return 0;
}

static void file_queue_close(struct bdev_queue *q)
{
	struct file_queue *fq = q->priv;

	reactor_call(q->reactor, file_remove_here, fq);
	free(fq);
}

/* --- life --- */

static int set_block_size(const struct file_args *a, const struct file_facts *facts, struct bdev *b,
			  struct err *e)
{
	char given[32], smallest[32];

	b->block_size = a->block_size ? (uint32_t)a->block_size : facts->block_size;
	snprintf(given, sizeof(given), "%" PRIu64, a->block_size);
	snprintf(smallest, sizeof(smallest), "%u", facts->block_size);
	if (b->block_size < facts->block_size || !IS_POWER_OF_2(b->block_size))
		return err_field(
			e, -EINVAL, "block_size", given, smallest,
			"'%.120s' cannot have blocks of %s bytes: a power of 2 from %s on is needed.",
			a->filename, given, smallest);
	b->physical_block_size = MAX(b->block_size, facts->physical_block_size);
	b->size = facts->size / b->block_size * b->block_size;
	if (b->size == 0)
		return err_field(e, -EINVAL, "filename", a->filename, NULL,
				 "'%.120s' holds %" PRIu64
				 " bytes, less than one block of %u. Make it larger "
				 "(truncate -s SIZE FILE).",
				 a->filename, facts->size, b->block_size);
	if (b->size != facts->size)
		log_warn("%s: the last %" PRIu64 " bytes are less than a block and are not used",
			 a->filename, facts->size - b->size);
	return 0;
}

static void set_abilities(struct bdev *b, const struct file_facts *facts)
{
	b->readonly = facts->readonly;
	b->page_cache = !facts->direct;
	b->kernel_io = true;
	b->has_numa_node = facts->has_numa_node;
	b->numa_node = facts->numa_node;
	b->ctx_size = sizeof(struct file_io);
	b->limits = (struct bdev_limits){
		.max_len = MAX_LEN,
		.max_iov = MAX_IOV,
		.buf_align = facts->buf_align,
		.max_discard = facts->can_punch ? MAX_RANGE : 0,
		.max_zeroes = facts->can_punch || facts->can_zero_range ? MAX_RANGE : 0,
		.zeroes_unmap_only = !facts->can_zero_range,
	};
	if (!facts->is_device && !facts->can_punch)
		b->limits.max_zeroes = 0;
}

static int file_create(const void *args, struct bdev **out, struct err *e)
{
	const struct file_args *a = args;
	struct file_facts facts;
	struct file_bdev *f;
	int rc = check_uring(e);

	if (rc == 0)
		rc = file_open(a->filename, a->readonly, &facts, e);
	if (rc)
		return rc;
	f = calloc(1, sizeof(*f));
	if (!f) {
		rc = err_set(e, -ENOMEM, "Out of memory.");
		goto out_close;
	}
	f->fd = facts.fd;
	f->is_device = facts.is_device;
	rc = set_block_size(a, &facts, &f->bdev, e);
	if (rc)
		goto out_free;
	set_abilities(&f->bdev, &facts);
	if (!facts.readonly)
		rc = file_lock_take(f->fd, a->filename, &f->lock, e);
	if (rc)
		goto out_free;
	f->worker.run = file_work;
	rc = worker_start(&f->worker, "file");
	if (rc) {
		err_set(e, rc, "Cannot start a thread for '%.120s': %s.", a->filename,
			err_words(rc));
		goto out_unlock;
	}
	*out = &f->bdev;
	return 0;
out_unlock:
	file_lock_drop(f->lock);
out_free:
	free(f);
out_close:
	close(facts.fd);
	return rc;
}

static void file_destroy(struct bdev *b)
{
	struct file_bdev *f = to_file(b);

	worker_stop(&f->worker);
	file_lock_drop(f->lock);
	close(f->fd);
	free(f);
}

/* SPDK has two drivers for files, by what they use of the kernel. Here they differ in their names.
 */
#define FILE_DRIVER(name_, product_name_)                                          \
	{                                                                          \
		.name = name_, .product_name = product_name_,                      \
		.help = "a disk on a file or block device", .params = file_params, \
		.args_size = sizeof(struct file_args), .create = file_create,      \
		.destroy = file_destroy, .queue_open = file_queue_open,            \
		.queue_close = file_queue_close, .submit = file_submit,            \
	}

const struct bdev_driver aio_driver = FILE_DRIVER("aio", "AIO disk");
const struct bdev_driver uring_driver = FILE_DRIVER("uring", "URING bdev");
