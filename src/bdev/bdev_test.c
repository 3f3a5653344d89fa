/* bdev_submit() and the fitting of requests, against a RAM driver that is picky: every rule it is
 * promised, it checks. */
#include <errno.h>

#include "bdev/registry.h"
#include "util/iov.h"
#include "util/unit.h"

#define SIZE  (1u << 20)
#define BLOCK 4096u

struct picky_args {
	char *name;
	struct uuid uuid;
};

static const struct param picky_params[] = {
	PARAM_STRING(struct picky_args, name),
	PARAM_UUID(struct picky_args, uuid),
	{ 0 },
};

static struct picky {
	struct bdev bdev;
	uint8_t data[SIZE];
	unsigned requests, in_flight, most_in_flight;
	int fail_at; /* the request that fails, counted from 1 */
	uint8_t ops_seen;
} * picky;

static struct bdev_limits limits;

/* The driver's own room: completes in the next turn, so that several are in flight. */
struct picky_io {
	struct task later;
	int status;
};

static int picky_create(const void *args, struct bdev **out, struct err *e)
{
	(void)args;
	(void)e;
	picky = calloc(1, sizeof(*picky));
	picky->bdev.size = SIZE;
	picky->bdev.block_size = BLOCK;
	picky->bdev.ctx_size = sizeof(struct picky_io);
	picky->bdev.limits = limits;
	*out = &picky->bdev;
	return 0;
}

static void picky_destroy(struct bdev *b)
{
	free(container_of(b, struct picky, bdev));
}

static void check_promises(const struct bdev_queue *q, const struct bdev_io *io)
{
	assert_int_equal((io->offset | io->len) % BLOCK, 0);
	assert_true(io->offset + io->len <= SIZE);
	picky->ops_seen |= (uint8_t)(1u << io->op);
	if (io->op == BDEV_DISCARD)
		assert_true(io->len <= limits.max_discard);
	if (io->op == BDEV_WRITE_ZEROES)
		assert_true(io->len <= limits.max_zeroes);
	if (io->op > BDEV_WRITE)
		return;
	assert_true(io->len > 0 && io->len <= limits.max_len);
	assert_true(io->iovcnt <= limits.max_iov);
	assert_int_equal(iov_len(io->iov, io->iovcnt), io->len);
	assert_true(
		iov_aligned(io->iov, io->iovcnt, limits.buf_align, MAX(limits.buf_align, BLOCK)));
	assert_ptr_equal(q, io->q);
}

static void picky_later(struct task *t)
{
	struct picky_io *p = container_of(t, struct picky_io, later);

	picky->in_flight--;
	bdev_io_end(container_of((void *)p, struct bdev_io, ctx), p->status);
}

static void picky_submit(struct bdev_io *io)
{
	struct picky_io *p = (struct picky_io *)(void *)io->ctx;

	check_promises(io->q, io);
	picky->requests++;
	picky->in_flight++;
	picky->most_in_flight = MAX(picky->most_in_flight, picky->in_flight);
	p->status = (int)picky->requests == picky->fail_at ? -EIO : 0;
	if (io->op == BDEV_READ)
		iov_copy_in(io->iov, io->iovcnt, 0, picky->data + io->offset, io->len);
	else if (io->op == BDEV_WRITE)
		iov_copy_out(io->iov, io->iovcnt, 0, picky->data + io->offset, io->len);
	else if (io->op != BDEV_FLUSH)
		memset(picky->data + io->offset, 0, io->len);
	p->later.fn = picky_later;
	p->later.next = NULL;
	reactor_post(reactor_this(), &p->later);
}

static const struct bdev_driver picky_driver = {
	.name = "picky",
	.product_name = "picky",
	.params = picky_params,
	.args_size = sizeof(struct picky_args),
	.create = picky_create,
	.destroy = picky_destroy,
	.submit = picky_submit,
};

/* --- The user's side --- */

static struct reactor *reactor;
static struct bdev *bdev;
static struct bdev_queue *queue;
static uint8_t *memory;

static int make(void **state)
{
	struct picky_args *a = calloc(1, sizeof(*a));
	struct err e = { 0 };

	(void)state;
	limits = (struct bdev_limits){ .max_len = 64 * 1024,
				       .max_discard = 128 * 1024,
				       .max_zeroes = 128 * 1024,
				       .max_iov = 4,
				       .buf_align = 512 };
	a->name = strdup("P");
	assert_int_equal(reactor_create(&reactor), 0);
	assert_int_equal(bdev_create(&picky_driver, a, NULL, &e), 0);
	assert_int_equal(bdev_get("P", &bdev, &e), 0);
	assert_int_equal(bdev_queue_open(bdev, reactor, &queue, &e), 0);
	memory = aligned_alloc(4096, 2 * SIZE);
	for (size_t i = 0; i < SIZE; i++)
		picky->data[i] = (uint8_t)(i * 31 + i / 4096);
	return 0;
}

static int drop(void **state)
{
	struct err e = { 0 };

	(void)state;
	bdev_queue_close(queue);
	assert_int_equal(bdev_delete(&picky_driver, "P", &e), -EBUSY);
	bdev_put(bdev);
	assert_int_equal(bdev_delete(&picky_driver, "P", &e), 0);
	reactor_destroy(reactor);
	free(memory);
	return 0;
}

struct request {
	bool done;
	int status;
	struct bdev_io io;
	uint8_t room[512];
};

static void request_done(struct task *t)
{
	struct request *r = container_of(t, struct request, io.task);

	assert_false(r->done);
	r->done = true;
	r->status = r->io.status;
}

static void submit(struct request *r, enum bdev_op op, uint64_t offset, uint32_t len,
		   const struct iovec *iov, int n)
{
	memset(r, 0, sizeof(*r));
	r->io = (struct bdev_io){ .task.fn = request_done,
				  .q = queue,
				  .op = (uint8_t)op,
				  .offset = offset,
				  .len = len,
				  .iov = iov,
				  .iovcnt = (uint16_t)n };
	bdev_submit(&r->io);
	assert_false(r->done); /* submit never completes */
}

static int finish(struct request *r)
{
	for (int i = 0; i < 10000 && !r->done; i++)
		reactor_turn(reactor);
	assert_true(r->done);
	return r->status;
}

static int run(enum bdev_op op, uint64_t offset, uint32_t len, const struct iovec *iov, int n)
{
	static struct request r;

	submit(&r, op, offset, len, iov, n);
	return finish(&r);
}

static void a_fitting_request_goes_straight(void **state)
{
	struct iovec iov = { memory, BLOCK };

	(void)state;
	assert_int_equal(run(BDEV_READ, BLOCK, BLOCK, &iov, 1), 0);
	assert_int_equal(picky->requests, 1);
	assert_memory_equal(memory, picky->data + BLOCK, BLOCK);
}

static void bad_requests_are_refused(void **state)
{
	struct iovec iov = { memory, BLOCK };

	(void)state;
	assert_int_equal(run(BDEV_READ, SIZE, BLOCK, &iov, 1), -ERANGE);
	assert_int_equal(run(BDEV_READ, UINT64_MAX - 511, BLOCK, &iov, 1), -ERANGE);
	assert_int_equal(run(BDEV_WRITE, 512, BLOCK, &iov, 1), -EINVAL);
	assert_int_equal(run(BDEV_WRITE, 0, 512, &iov, 1), -EINVAL);
	assert_int_equal(run(BDEV_DISCARD, SIZE - BLOCK, 2 * BLOCK, NULL, 0), -ERANGE);
	assert_int_equal(run(BDEV_OPS, 0, 0, NULL, 0), -EINVAL);
	assert_int_equal(run(BDEV_READ, 0, 0, NULL, 0), 0);
	assert_int_equal(picky->requests, 0);
}

static void a_long_request_is_split(void **state)
{
	struct iovec iov = { memory, SIZE };

	(void)state;
	assert_int_equal(run(BDEV_READ, 0, SIZE, &iov, 1), 0);
	assert_int_equal(picky->requests, SIZE / limits.max_len);
	assert_true(picky->most_in_flight > 1 && picky->most_in_flight <= 8);
	assert_memory_equal(memory, picky->data, SIZE);
}

static void random_shapes_keep_the_data(void **state)
{
	uint64_t seed = 42;

	(void)state;
	for (int round = 0; round < 400; round++) {
		struct iovec iov[41];
		uint32_t len = 0, n = 0;
		uint64_t offset;
		uint8_t *at = memory;
		bool write;

		seed = seed * 6364136223846793005ull + 1442695040888963407ull;
		write = seed >> 63;
		while (n < 40 && len < SIZE / 4) { /* pieces of odd sizes at odd addresses, now and
						      then none */
			uint32_t part = (uint32_t)(seed >> 40) % 9000;

			seed = seed * 6364136223846793005ull + 1442695040888963407ull;
			if (seed % 3 == 0)
				part = part / 512 * 512;
			at += seed % 5 == 0 ? (seed >> 32) % 700 : 0;
			iov[n++] = (struct iovec){ at, part };
			at += part;
			len += part;
		}
		if (write && len % BLOCK) { /* whole blocks to write */
			iov[n++] = (struct iovec){ at, BLOCK - len % BLOCK };
			len += BLOCK - len % BLOCK;
		}
		offset = (seed >> 20) % (SIZE - len);
		offset = write ? offset / BLOCK * BLOCK : offset / 512 * 512;
		if (write)
			memset(memory, round, 2 * SIZE);
		assert_int_equal(run(write ? BDEV_WRITE : BDEV_READ, offset, len, iov, (int)n), 0);
		for (uint32_t i = 0, b = 0; i < n; b += (uint32_t)iov[i++].iov_len)
			assert_memory_equal(iov[i].iov_base, picky->data + offset + b,
					    iov[i].iov_len);
	}
	assert_int_equal(picky->in_flight, 0);
}

static void many_wait_in_line(void **state)
{
	enum { N = 32 };
	struct request *r = calloc(N, sizeof(*r));
	struct iovec iov[N];

	(void)state;
	for (int i = 0; i < N; i++) {
		iov[i] = (struct iovec){ memory + i * 32 * 1024 + 1, 32 * 1024 };
		submit(&r[i], BDEV_READ, (uint64_t)i * 32 * 1024, 32 * 1024, &iov[i], 1);
	}
	for (int i = 0; i < N; i++) {
		assert_int_equal(finish(&r[i]), 0);
		assert_memory_equal(iov[i].iov_base, picky->data + i * 32 * 1024, 32 * 1024);
	}
	free(r);
}

static void the_first_error_ends_the_whole_once(void **state)
{
	struct iovec iov = { memory, SIZE };

	(void)state;
	picky->fail_at = 3;
	assert_int_equal(run(BDEV_READ, 0, SIZE, &iov, 1), -EIO);
	assert_true(picky->requests < SIZE / limits.max_len); /* it made no more pieces */
	picky->fail_at = 0;
	assert_int_equal(run(BDEV_READ, 0, SIZE, &iov, 1), 0);
}

static void ranges_are_split(void **state)
{
	(void)state;
	memset(picky->data, 1, SIZE);
	assert_int_equal(run(BDEV_DISCARD, BLOCK, SIZE - 2 * BLOCK, NULL, 0), 0);
	assert_int_equal(picky->data[BLOCK - 1], 1);
	assert_int_equal(picky->data[BLOCK], 0);
	assert_int_equal(picky->data[SIZE - BLOCK - 1], 0);
	assert_int_equal(picky->data[SIZE - BLOCK], 1);
}

static void zeroes_are_written_where_the_driver_cannot(void **state)
{
	(void)state;
	limits.max_zeroes = 0;
	picky->bdev.limits = limits;
	memset(picky->data, 1, SIZE);
	assert_int_equal(run(BDEV_WRITE_ZEROES, BLOCK, SIZE - BLOCK, NULL, 0), 0);
	assert_int_equal(picky->ops_seen, 1 << BDEV_WRITE);
	for (size_t i = 0; i < SIZE; i++)
		assert_int_equal(picky->data[i], i < BLOCK);
}

static void names_are_taken_once(void **state)
{
	struct picky_args *a = calloc(1, sizeof(*a));
	struct picky *mine = picky;
	struct err e = { 0 };

	(void)state;
	a->name = strdup("P");
	assert_int_equal(bdev_create(&picky_driver, a, NULL, &e), -EEXIST);
	assert_string_equal(e.field, "name");
	assert_ptr_equal(picky, mine);
	assert_int_equal(bdev_get("Q", &bdev, &e), -ENODEV);
	assert_int_equal(bdev_delete(&picky_driver, "Q", &e), -ENODEV);
}

static void what_was_done_is_counted(void **state)
{
	struct iovec iov = { memory, SIZE };
	struct bdev_stats s;

	(void)state;
	assert_int_equal(run(BDEV_READ, 0, SIZE, &iov, 1), 0);
	assert_int_equal(run(BDEV_READ, SIZE, BLOCK, &iov, 1), -ERANGE);
	assert_int_equal(run(BDEV_FLUSH, 0, 0, NULL, 0), 0);
	registry_lock();
	bdev_get_stats(bdev, &s);
	registry_unlock();
	assert_int_equal(s.op[BDEV_READ].ops, 1); /* the pieces are not counted */
	assert_int_equal(s.op[BDEV_READ].bytes, SIZE);
	assert_int_equal(s.op[BDEV_READ].errors, 1);
	assert_int_equal(s.op[BDEV_FLUSH].ops, 1);
	assert_int_equal(queue->inflight, 0);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, make, drop)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_fitting_request_goes_straight),
		TEST(bad_requests_are_refused),
		TEST(a_long_request_is_split),
		TEST(random_shapes_keep_the_data),
		TEST(many_wait_in_line),
		TEST(the_first_error_ends_the_whole_once),
		TEST(ranges_are_split),
		TEST(zeroes_are_written_where_the_driver_cannot),
		TEST(names_are_taken_once),
		TEST(what_was_done_is_counted),
	};

	return RUN_TESTS(tests);
}
