/*
 * The dirty log of a migration: what the device writes must be copied again, its own part of the
 * ring included. vhost-user, "Migration".
 */
#define _GNU_SOURCE 1
#include "ring/ring.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE	  4096u
#define SIZE	  1024u /* of the ring: 4 pages of packed descriptors, 2 of used elements */
#define LOG_BYTES ((GUEST_BASE + (8u << 20)) / PAGE / 8)
#define ADDR_LOG  1u /* VHOST_VRING_F_LOG */

struct dirty {
	struct ring_test *t;
	struct guest *g;
	struct guest_queue *q;
	struct guest_req req;
	uint8_t *bits;
};

static bool is_dirty(const struct dirty *d, uint64_t gpa)
{
	uint64_t page = gpa / PAGE;

	return __atomic_load_n(&d->bits[page / 8], __ATOMIC_ACQUIRE) >> page % 8 & 1;
}

static int log_base(struct dirty *d)
{
	struct vhost_msg m = { .request = VHOST_SET_LOG_BASE, .size = sizeof(struct vhost_log) };
	int fd = memfd_create("log", MFD_CLOEXEC), rc;

	if (fd < 0 || ftruncate(fd, LOG_BYTES))
		return -errno;
	d->bits = mmap(NULL, LOG_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (d->bits == MAP_FAILED)
		d->bits = NULL;
	m.u.log.size = LOG_BYTES;
	rc = d->bits ? vhost_send(d->g->sock, &m, &fd, 1, GUEST_DEADLINE_MS) : -ENOMEM;
	close(fd);
	return rc ? rc : vhost_recv(d->g->sock, &m, GUEST_DEADLINE_MS);
}

/* As QEMU begins a migration of a running guest: the log, the feature, the address of each ring. */
static int log_on(struct dirty *d)
{
	struct vhost_msg m = { .request = VHOST_SET_FEATURES, .size = sizeof(uint64_t) };
	int rc = log_base(d);

	if (rc)
		return rc;
	m.u.u64 = d->g->acked | VHOST_LOG_ALL;
	rc = vhost_command(d->g->sock, &m, NULL, 0, true, GUEST_DEADLINE_MS);
	if (rc)
		return rc;
	m = (struct vhost_msg){ .request = VHOST_SET_VRING_ADDR,
				.size = sizeof(struct vhost_vring_addr) };
	m.u.addr = (struct vhost_vring_addr){ .flags = ADDR_LOG,
					      .desc = (uintptr_t)guest_ptr(d->g, d->q->desc_gpa),
					      .used = (uintptr_t)guest_ptr(d->g, d->q->used_gpa),
					      .avail = (uintptr_t)guest_ptr(d->g, d->q->avail_gpa),
					      .log = d->q->used_gpa };
	return vhost_command(d->g->sock, &m, NULL, 0, true, GUEST_DEADLINE_MS);
}

/* Every part of the ring on pages of its own. */
static int open_guest(struct dirty *d, bool event_idx)
{
	struct guest *g = d->g;
	uint64_t features = GUEST_FEATURES | VIRTIO_INDIRECT_DESC | VHOST_LOG_ALL;
	uint64_t desc, avail, used;
	int rc;

	features |= d->t->packed ? VIRTIO_RING_PACKED : 0;
	features |= event_idx ? VIRTIO_EVENT_IDX : 0;
	rc = guest_negotiate(g, features & ~VHOST_LOG_ALL,
			     GUEST_PROTOCOL | VHOST_PROTOCOL_LOG_SHMFD);
	if (!rc && !(g->protocol & VHOST_PROTOCOL_LOG_SHMFD && g->offered & VHOST_LOG_ALL))
		return -ENOTSUP;
	if (!rc)
		rc = guest_mem_add(g, GUEST_BASE, 8u << 20, false);
	if (!rc)
		rc = guest_mem_share(g);
	if (rc)
		return rc;
	desc = guest_alloc(g, 16 * SIZE, PAGE);
	avail = guest_alloc(g, PAGE, PAGE);
	used = guest_alloc(g, 16 * SIZE, PAGE);
	rc = guest_queue_setup_at(g, 0, SIZE, desc, avail, used, &d->q);
	if (!rc)
		rc = guest_queue_start(d->q, guest_queue_first(d->q));
	if (!rc)
		rc = guest_req_init(g, &d->req, 0);
	d->req.data = guest_alloc(g, 4 * PAGE, PAGE);
	d->req.status = guest_alloc(g, PAGE, PAGE);
	return rc;
}

/* Where the device writes the next used element. */
static uint64_t used_at(const struct dirty *d)
{
	if (d->q->packed)
		return d->q->desc_gpa + 16ull * d->q->used_idx;
	return d->q->used_gpa + 4 + 8ull * (d->q->used_idx % SIZE);
}

static bool dirty_once(struct dirty *d, unsigned i)
{
	struct ring_test *t = d->t;
	uint8_t before[PAGE], *area = guest_ptr(d->g, d->q->used_gpa);
	uint64_t used = used_at(d);
	int rc;

	memset(d->bits, 0, LOG_BYTES);
	memcpy(before, area, PAGE);
	rc = guest_io(d->q, &d->req, BLK_IN, i * 8, 2 * PAGE, GUEST_DEADLINE_MS);
	REQUIRE_TRUE(t, rc == BLK_OK, "read %u: %d", i, rc);
	if (i % 100 == 0)
		usleep(2000); /* it goes to sleep, and asks for a kick */
	REQUIRE_TRUE(t, is_dirty(d, d->req.data) && is_dirty(d, d->req.data + PAGE),
		     "read %u: its data are not in the log", i);
	REQUIRE_TRUE(t, is_dirty(d, d->req.status), "read %u: its status is not in the log", i);
	REQUIRE_TRUE(t, is_dirty(d, used),
		     "read %u: the used descriptor at 0x%llx is not in the log", i,
		     (unsigned long long)used);
	REQUIRE_TRUE(t, !is_dirty(d, d->req.data + 3 * PAGE),
		     "read %u: a page that nobody wrote is in the log", i);
	REQUIRE_TRUE(t, !memcmp(before, area, PAGE) || is_dirty(d, d->q->used_gpa),
		     "read %u: the device wrote its %s, which is not in the log", i,
		     d->q->packed ? "event area" : "used ring");
	return true;
}

static void dirty(struct ring_test *t, bool event_idx)
{
	struct dirty d = { .t = t };
	char path[256];
	unsigned i;
	int rc;

	daemon_socket(&t->env->daemon, RING_DISK, path, sizeof(path));
	rc = guest_connect(path, &d.g);
	REQUIRE(t, !rc, "connect: %s", strerror(-rc));
	ring_keep(t, d.g);
	rc = open_guest(&d, event_idx);
	REQUIRE(t, !rc, "cannot set up a guest: %s", strerror(-rc));
	rc = log_on(&d);
	if (rc)
		ring_fail(t, "cannot begin a migration: %s", strerror(-rc));
	for (i = 0; !rc && i < 900; i++) {
		d.req.how = i % 3 ? GUEST_INDIRECT : GUEST_DIRECT;
		if (!dirty_once(&d, i))
			break;
	}
	if (d.bits)
		munmap(d.bits, LOG_BYTES);
	ring_close(t, d.g);
}

static void case_log(struct ring_test *t)
{
	dirty(t, false);
	if (!t->failed)
		dirty(t, true);
}

const struct ring_case ring_log_cases[] = {
	{ "the log of a migration has all that the device writes", case_log, false, true },
	{ 0 },
};
