/*
 * The smallest driver of a virtio-blk ring, for benchmarks: one split ring, indirect tables of
 * three that are built once, polled. One thread, one ring per process.
 */
#ifndef BENCH_DRIVER_H
#define BENCH_DRIVER_H

#include <stdalign.h>
#include <stdbool.h>
#include <stdint.h>

#include "util/compiler.h"
#include "virtio/vhost_front.h"
#include "virtio/vring.h"

#define DRIVER_NUM 256

/* What a request needs besides its data; header and status share a line, as in Linux's driver. */
struct driver_slot {
	alignas(CACHE_LINE) struct virtio_blk_req_hdr hdr;
	uint8_t status;
	alignas(CACHE_LINE) struct virtq_desc table[3];
};

struct driver_shared {
	struct driver_slot slot[DRIVER_NUM];
	alignas(4096) char data[DRIVER_NUM][4096];
};

struct driver {
	struct driver_shared *shared;
	struct vring ring;
	uint64_t sectors; /* of the disk; after driver_init() 1 GiB */
	uint64_t seed;
	int kick; /* -1: nobody is kicked */
	int fd;	  /* of the memory, which begins with the ring, and its size */
	size_t size;
	struct vhost_front front;
};

_Noreturn void driver_die(const char *why);

/* Memory and ring; nothing is connected. */
void driver_init(struct driver *d);
/* Connect to a vhost-user-blk socket and start the ring. */
void driver_open(struct driver *d, const char *path);
void driver_close(struct driver *d);

/* Pin the calling thread to the first or the last CPU that the process may use. */
void driver_pin(bool first);

/* Stage a 4 KiB random read with this head. */
void driver_send(struct driver *d, uint16_t head);
/* Publish what is staged; kick if the device wants that. Returns whether it did. */
bool driver_publish(struct driver *d);
/* The head of the next request that has ended well; the caller has looked that there is one. */
uint16_t driver_take(struct driver *d);

#endif
