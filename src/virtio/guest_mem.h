/*
 * Guest memory: what the front-end's memory table says lies where, mapped into this process.
 *
 * A struct guest_mem is an immutable table of regions, sorted by guest physical address. A change
 * makes a new table, which shares the regions that stay; the rings switch to it on their own
 * threads, and the old one is unmapped when the last request that holds pointers into it has ended
 * (guest_mem_idle): changing memory never waits for storage.
 *
 * Owner: the session's thread. Reactors read the table of their ring, and count the requests that
 * hold it in their own counter.
 */
#ifndef VIRTIO_GUEST_MEM_H
#define VIRTIO_GUEST_MEM_H

#include <stdalign.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "util/compiler.h"
#include "util/err.h"
#include "util/list.h"

#define GUEST_REGIONS_MAX 512 /* memory slots offered to the front-end */

/* As in the vhost-user messages. */
struct guest_range {
	uint64_t gpa, size, user_addr, offset;
};

struct guest_region {
	uint64_t gpa, size;
	char *host; /* of gpa */
	uint64_t user_addr;
	void *map; /* what was mapped: host rounded down to the fd's page size */
	size_t map_len;
	unsigned refs;
};

struct guest_mem;

/* Requests in flight that hold a table, one counter per ring, each on a line of its own reactor. */
struct guest_mem_use {
	alignas(CACHE_LINE) uint32_t inflight;
	const struct guest_mem *mem;
};

struct guest_mem {
	unsigned n;
	struct guest_region **region;
	struct guest_mem_use *use; /* one per ring */
	unsigned rings;
	struct list node; /* on the session's list of retired tables */
};

/* An empty table for so many rings. Errors: -ENOMEM. */
int guest_mem_create(unsigned rings, struct guest_mem **out);
void guest_mem_destroy(struct guest_mem *m); /* unmaps regions that no other table shares */

/*
 * A table of the n ranges, mapped from fds[i] (which stay the caller's). Everything is checked:
 * sizes, wrapping, overlap in either address space, the file's size. Errors: -EINVAL, the kernel's,
 * with a sentence.
 */
int guest_mem_map(const struct guest_range *ranges, const int *fds, unsigned n, unsigned rings,
		  struct guest_mem **out, struct err *e);

/* A copy of m with one range more, or one less (found by gpa, size and user_addr). Errors: as
 * above; -ENOENT. */
int guest_mem_add(const struct guest_mem *m, const struct guest_range *range, int fd,
		  struct guest_mem **out, struct err *e);
int guest_mem_remove(const struct guest_mem *m, const struct guest_range *range,
		     struct guest_mem **out, struct err *e);

/* True when no request holds the table any more. */
bool guest_mem_idle(const struct guest_mem *m);

/* The region that holds gpa, or NULL. */
const struct guest_region *guest_mem_find(const struct guest_mem *m, uint64_t gpa);

/* Host address of [user_addr, user_addr + len), which must lie in one region; NULL otherwise. */
void *guest_mem_from_user(const struct guest_mem *m, uint64_t user_addr, uint64_t len);

/* Guest physical address of a host address inside the table; UINT64_MAX otherwise. */
uint64_t guest_mem_to_gpa(const struct guest_mem *m, const void *host);

#endif
