/* The session and the memory of a fake guest. */
#define _GNU_SOURCE 1
#include "fake/guest.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define HUGE_PAGE   (2ull << 20)
#define MFD_HUGE_2M (21u << 26)

int guest_create(struct guest **out)
{
	struct guest *g = calloc(1, sizeof(*g));
	int rc;

	if (!g)
		return -ENOMEM;
	g->sock = -1;
	g->inflight_fd = -1;
	g->reserved = mmap(NULL, GUEST_WINDOW + HUGE_PAGE, PROT_NONE,
			   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (g->reserved == MAP_FAILED) {
		rc = -errno;
		free(g);
		return rc;
	}
	*out = g;
	return 0;
}

int guest_connect(const char *path, struct guest **out)
{
	struct guest *g;
	int rc = guest_create(&g);

	if (rc)
		return rc;
	rc = vhost_connect(path, GUEST_DEADLINE_MS, &g->sock);
	if (rc) {
		guest_close(g);
		return rc;
	}
	*out = g;
	return 0;
}

static int get_u64(struct guest *g, uint32_t request, uint64_t *value)
{
	struct vhost_msg m = { .request = request };
	int rc = vhost_call(g->sock, &m, GUEST_DEADLINE_MS);

	if (rc)
		return rc;
	if (m.size != sizeof(uint64_t))
		return -EPROTO;
	*value = m.u.u64;
	return 0;
}

static int set_u64(struct guest *g, uint32_t request, uint64_t value)
{
	struct vhost_msg m = { .request = request, .size = sizeof(uint64_t) };

	m.u.u64 = value;
	return vhost_send(g->sock, &m, NULL, 0, GUEST_DEADLINE_MS);
}

int guest_config_read(struct guest *g, uint32_t offset, uint32_t size, void *buf)
{
	struct vhost_msg m = { .request = VHOST_GET_CONFIG, .size = 12 + size };
	int rc;

	if (size > VHOST_CONFIG_MAX)
		return -EINVAL;
	m.u.config.offset = offset;
	m.u.config.size = size;
	rc = vhost_call(g->sock, &m, GUEST_DEADLINE_MS);
	if (rc)
		return rc;
	if (m.size != 12 + size)
		return -EIO;
	memcpy(buf, m.u.config.data, size);
	return 0;
}

int guest_negotiate(struct guest *g, uint64_t features, uint64_t protocol)
{
	struct vhost_msg owner = { .request = VHOST_SET_OWNER };
	int rc;

	rc = get_u64(g, VHOST_GET_FEATURES, &g->offered);
	if (rc)
		return rc;
	if (g->offered & features & VHOST_USER_PROTOCOL) {
		rc = get_u64(g, VHOST_GET_PROTOCOL_FEATURES, &g->protocol_offered);
		if (rc)
			return rc;
		g->protocol = g->protocol_offered & protocol;
		rc = set_u64(g, VHOST_SET_PROTOCOL_FEATURES, g->protocol);
		if (rc)
			return rc;
	}
	rc = vhost_send(g->sock, &owner, NULL, 0, GUEST_DEADLINE_MS);
	if (rc)
		return rc;
	if (g->protocol & VHOST_PROTOCOL_CONFIG) {
		rc = guest_config_read(g, 0, 60, &g->config);
		if (rc)
			return rc;
	}
	g->acked = g->offered & features;
	return set_u64(g, VHOST_SET_FEATURES, g->acked);
}

/* The window begins so that gpa and pointer agree modulo a huge page. */
static void window_place(struct guest *g, uint64_t gpa)
{
	g->window = (uint8_t *)(((uintptr_t)g->reserved + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1));
	g->window_gpa = gpa & ~(HUGE_PAGE - 1);
	g->alloc_next = gpa;
}

int guest_mem_add_fd(struct guest *g, uint64_t gpa, uint64_t size, int fd, uint64_t offset)
{
	struct guest_region *r;
	void *p;

	if (g->nregions == VHOST_MAX_REGIONS)
		return -ENOSPC;
	if (!g->nregions) {
		window_place(g, gpa);
		g->alloc_end = gpa + size;
	}
	if (gpa < g->window_gpa || gpa + size > g->window_gpa + GUEST_WINDOW)
		return -ERANGE;
	p = mmap(guest_ptr(g, gpa), size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd,
		 (off_t)offset);
	if (p == MAP_FAILED)
		return -errno;
	r = &g->region[g->nregions++];
	*r = (struct guest_region){ .gpa = gpa, .size = size, .offset = offset };
	r->fd = dup(fd);
	return r->fd < 0 ? -errno : 0;
}

int guest_mem_add(struct guest *g, uint64_t gpa, uint64_t size, bool huge)
{
	int fd, rc;

	fd = memfd_create("guest", MFD_CLOEXEC | (huge ? MFD_HUGETLB | MFD_HUGE_2M : 0));
	if (fd < 0)
		return -errno;
	rc = ftruncate(fd, (off_t)size) ? -errno : guest_mem_add_fd(g, gpa, size, fd, 0);
	close(fd);
	return rc;
}

int guest_mem_share(struct guest *g)
{
	struct vhost_msg m = { .request = VHOST_SET_MEM_TABLE };
	int fds[VHOST_MAX_REGIONS];
	unsigned i;

	m.size = 8 + g->nregions * (uint32_t)sizeof(struct vhost_region);
	m.u.memtable.nregions = g->nregions;
	for (i = 0; i < g->nregions; i++) {
		m.u.memtable.region[i] = (struct vhost_region){
			.gpa = g->region[i].gpa,
			.size = g->region[i].size,
			.user_addr = (uintptr_t)guest_ptr(g, g->region[i].gpa),
			.mmap_offset = g->region[i].offset,
		};
		fds[i] = g->region[i].fd;
	}
	return vhost_command(g->sock, &m, fds, (int)g->nregions,
			     !!(g->protocol & VHOST_PROTOCOL_REPLY_ACK), GUEST_DEADLINE_MS);
}

uint64_t guest_alloc(struct guest *g, uint64_t len, uint64_t align)
{
	uint64_t gpa = (g->alloc_next + align - 1) / align * align;

	if (gpa + len > g->alloc_end)
		return 0;
	g->alloc_next = gpa + len;
	return gpa;
}

int guest_inflight_get(struct guest *g, unsigned queues, unsigned queue_size)
{
	struct vhost_msg m = { .request = VHOST_GET_INFLIGHT_FD,
			       .size = sizeof(struct vhost_inflight) };
	int rc;

	if (!(g->protocol & VHOST_PROTOCOL_INFLIGHT))
		return -ENOTSUP;
	m.u.inflight = (struct vhost_inflight){ .num_queues = (uint16_t)queues,
						.queue_size = (uint16_t)queue_size };
	rc = vhost_call_fd(g->sock, &m, &g->inflight_fd, GUEST_DEADLINE_MS);
	if (rc)
		return rc;
	if (m.size != sizeof(struct vhost_inflight) || g->inflight_fd < 0)
		return -EPROTO;
	g->inflight = m.u.inflight;
	return 0;
}

int guest_inflight_set(struct guest *g)
{
	struct vhost_msg m = { .request = VHOST_SET_INFLIGHT_FD,
			       .size = sizeof(struct vhost_inflight) };

	m.u.inflight = g->inflight;
	return vhost_command(g->sock, &m, &g->inflight_fd, 1,
			     !!(g->protocol & VHOST_PROTOCOL_REPLY_ACK), GUEST_DEADLINE_MS);
}

int guest_reconnect(struct guest *g, const char *path)
{
	uint64_t acked = g->acked;
	int rc;

	if (g->sock >= 0)
		close(g->sock);
	g->sock = -1;
	rc = vhost_connect(path, GUEST_DEADLINE_MS, &g->sock);
	if (rc)
		return rc;
	rc = guest_negotiate(g, acked, g->protocol);
	if (rc)
		return rc;
	if (g->acked != acked)
		return -ENOTSUP;
	if (g->inflight_fd >= 0)
		rc = guest_inflight_set(g);
	return rc ? rc : guest_mem_share(g);
}

static int open_queues(struct guest *g, const struct guest_params *p)
{
	unsigned queues = p->queues ? p->queues : 1;
	unsigned size = p->queue_size ? p->queue_size : 128;
	unsigned i;
	int rc;

	if (p->inflight) {
		rc = guest_inflight_get(g, queues, size);
		if (!rc)
			rc = guest_inflight_set(g);
		if (rc)
			return rc;
	}
	for (i = 0; i < queues; i++) {
		rc = guest_queue_setup(g, i, size, NULL);
		if (rc)
			return rc;
		rc = guest_queue_start(g->queue[i], guest_queue_first(g->queue[i]));
		if (rc)
			return rc;
	}
	return 0;
}

int guest_open(const struct guest_params *p, struct guest **out)
{
	uint64_t protocol = GUEST_PROTOCOL | (p->inflight ? VHOST_PROTOCOL_INFLIGHT : 0);
	uint64_t features = GUEST_FEATURES;
	struct guest *g;
	int rc;

	if (p->indirect)
		features |= VIRTIO_INDIRECT_DESC;
	if (p->event_idx)
		features |= VIRTIO_EVENT_IDX;
	if (p->packed)
		features |= VIRTIO_RING_PACKED;
	rc = guest_connect(p->path, &g);
	if (rc)
		return rc;
	rc = guest_negotiate(g, features & ~p->without, protocol);
	if (!rc && p->packed && !(g->acked & VIRTIO_RING_PACKED))
		rc = -ENOTSUP;
	if (rc)
		goto out_close;
	rc = guest_mem_add(g, GUEST_BASE, p->mem_size ? p->mem_size : 8u << 20, p->huge);
	if (rc)
		goto out_close;
	rc = guest_mem_share(g);
	if (rc)
		goto out_close;
	rc = open_queues(g, p);
	if (rc)
		goto out_close;
	*out = g;
	return 0;

out_close:
	guest_close(g);
	return rc;
}

void guest_close(struct guest *g)
{
	unsigned i;

	if (!g)
		return;
	if (g->sock >= 0)
		close(g->sock);
	if (g->inflight_fd >= 0)
		close(g->inflight_fd);
	for (i = 0; i < GUEST_MAX_QUEUES; i++)
		guest_queue_free(g->queue[i]);
	for (i = 0; i < g->nregions; i++)
		close(g->region[i].fd);
	munmap(g->reserved, GUEST_WINDOW + HUGE_PAGE);
	free(g);
}
