/* What the files of the virtqueue share: the life, the walk along a chain, the two formats. */
#ifndef VIRTIO_VIRTQ_INTERNAL_H
#define VIRTIO_VIRTQ_INTERNAL_H

#include "virtio/virtq.h"

/* virtq_chain.c. The n descriptors of table, of which first begins the chain, become c's iovec;
 * else c is malformed. */
void virtq_walk(struct virtq *vq, const struct virtq_desc *table, uint32_t n, uint16_t first,
		struct virtq_chain *c);
/* A copy of len bytes that may cross regions. false: not all of it is guest memory. */
bool virtq_gather(struct virtq *vq, uint64_t gpa, void *to, size_t len);

/* virtq.c. The next head to serve again after a crash; -1: no more. */
int virtq_next_resubmit(struct virtq *vq);
/* virtq_break() for who returns it. */
int virtq_fail(struct virtq *vq, const char *why);
/* The part of a flush that both formats have: the driver shall know of n ends. */
void virtq_tell(struct virtq *vq, unsigned n, bool interrupt);

/* virtq_split.c, virtq_packed.c: one function of each for what virtq.h promises. */
int virtq_split_begin(struct virtq *vq, uint32_t base, struct err *e);
int virtq_split_pop(struct virtq *vq, struct virtq_chain *c);
unsigned virtq_split_flush(struct virtq *vq);
bool virtq_split_enable_kick(struct virtq *vq);
void virtq_split_disable_kick(struct virtq *vq);

int virtq_packed_begin(struct virtq *vq, uint32_t base, struct err *e);
int virtq_packed_pop(struct virtq *vq, struct virtq_chain *c);
unsigned virtq_packed_flush(struct virtq *vq);
bool virtq_packed_enable_kick(struct virtq *vq);
void virtq_packed_disable_kick(struct virtq *vq);

#endif
