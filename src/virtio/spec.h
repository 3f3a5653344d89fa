/*
 * Virtio 1.2, byte for byte: the split (2.7) and the packed virtqueue (2.8), feature bits (6) and
 * the block device (5.2). Little-endian everywhere.
 */
#ifndef VIRTIO_SPEC_H
#define VIRTIO_SPEC_H

#include <stddef.h>

#include "util/bytes.h"

/* --- 2.7 Split virtqueues --- */

#define VIRTQ_SIZE_MAX 32768

#define VIRTQ_DESC_F_NEXT     1
#define VIRTQ_DESC_F_WRITE    2
#define VIRTQ_DESC_F_INDIRECT 4

#define VIRTQ_AVAIL_F_NO_INTERRUPT 1
#define VIRTQ_USED_F_NO_NOTIFY	   1

struct virtq_desc {
	le64 addr;
	le32 len;
	le16 flags;
	le16 next;
};

struct virtq_avail {
	le16 flags;
	le16 idx;
	le16 ring[]; /* queue size; then le16 used_event */
};

struct virtq_used_elem {
	le32 id;
	le32 len;
};

struct virtq_used {
	le16 flags;
	le16 idx;
	struct virtq_used_elem ring[]; /* queue size; then le16 avail_event */
};

_Static_assert(sizeof(struct virtq_desc) == 16, "2.7.5");
_Static_assert(sizeof(struct virtq_used_elem) == 8, "2.7.8");

#define VIRTQ_DESC_ALIGN  16
#define VIRTQ_AVAIL_ALIGN 2
#define VIRTQ_USED_ALIGN  4

static inline uint64_t virtq_desc_size(unsigned n)
{
	return 16ull * n;
}

static inline uint64_t virtq_avail_size(unsigned n)
{
	return 6 + 2ull * n;
}

static inline uint64_t virtq_used_size(unsigned n)
{
	return 6 + 8ull * n;
}

/* --- 2.8 Packed virtqueues --- */

#define VIRTQ_DESC_F_AVAIL (1 << 7)
#define VIRTQ_DESC_F_USED  (1 << 15)

struct virtq_packed_desc {
	le64 addr;
	le32 len;
	le16 id; /* of the buffer; in the last descriptor of a chain */
	le16 flags;
};

/* Event suppression: what one side wants to be told of by the other. */
struct virtq_event {
	le16 off_wrap; /* slot, and the wrap counter in bit 15 */
	le16 flags;
};

#define VIRTQ_EVENT_ENABLE  0
#define VIRTQ_EVENT_DISABLE 1
#define VIRTQ_EVENT_DESC    2 /* only of the descriptor at off_wrap; with EVENT_IDX */
#define VIRTQ_EVENT_MASK    3

#define VIRTQ_WRAP (1 << 15) /* bit 15 of off_wrap, and of a packed ring's half of a vring base */

_Static_assert(sizeof(struct virtq_packed_desc) == 16, "2.8.13");
_Static_assert(sizeof(struct virtq_event) == 4, "2.8.14");

/* Sizes and alignments of a ring's parts as SET_VRING_ADDR names them: descriptors; avail ring, or
 * the driver's event suppression; used ring, or the device's. Descriptors are aligned to 16. */
struct virtq_layout {
	uint64_t desc, avail, used;
	unsigned avail_align, used_align;
};

static inline struct virtq_layout virtq_layout(unsigned n, bool packed)
{
	if (packed)
		return (struct virtq_layout){ 16ull * n, 4, 4, 4, 4 };
	return (struct virtq_layout){ virtq_desc_size(n), virtq_avail_size(n), virtq_used_size(n),
				      VIRTQ_AVAIL_ALIGN, VIRTQ_USED_ALIGN };
}

/* --- 6 Feature bits --- */

#define VHOST_F_LOG_ALL		       26
#define VIRTIO_F_ANY_LAYOUT	       27
#define VIRTIO_F_INDIRECT_DESC	       28
#define VIRTIO_F_EVENT_IDX	       29
#define VHOST_USER_F_PROTOCOL_FEATURES 30
#define VIRTIO_F_VERSION_1	       32
#define VIRTIO_F_RING_PACKED	       34

#define FEATURE(bit) (UINT64_C(1) << (bit))

/* --- 5.2 Block device --- */

#define VIRTIO_BLK_F_SEG_MAX	  2
#define VIRTIO_BLK_F_RO		  5
#define VIRTIO_BLK_F_BLK_SIZE	  6
#define VIRTIO_BLK_F_FLUSH	  9
#define VIRTIO_BLK_F_TOPOLOGY	  10
#define VIRTIO_BLK_F_CONFIG_WCE	  11
#define VIRTIO_BLK_F_MQ		  12
#define VIRTIO_BLK_F_DISCARD	  13
#define VIRTIO_BLK_F_WRITE_ZEROES 14

#define VIRTIO_BLK_SECTOR_SHIFT 9
#define VIRTIO_BLK_SECTOR_SIZE	512

struct virtio_blk_config {
	le64 capacity; /* sectors of 512 bytes */
	le32 size_max;
	le32 seg_max;
	struct {
		le16 cylinders;
		uint8_t heads;
		uint8_t sectors;
	} geometry;
	le32 blk_size;
	struct {
		uint8_t physical_block_exp;
		uint8_t alignment_offset;
		le16 min_io_size;
		le32 opt_io_size;
	} topology;
	uint8_t writeback;
	uint8_t unused0;
	le16 num_queues;
	le32 max_discard_sectors;
	le32 max_discard_seg;
	le32 discard_sector_alignment;
	le32 max_write_zeroes_sectors;
	le32 max_write_zeroes_seg;
	uint8_t write_zeroes_may_unmap;
	uint8_t unused1[3];
	le32 max_secure_erase_sectors;
	le32 max_secure_erase_seg;
	le32 secure_erase_sector_alignment;
};

_Static_assert(offsetof(struct virtio_blk_config, blk_size) == 20, "5.2.4");
_Static_assert(offsetof(struct virtio_blk_config, writeback) == 32, "5.2.4");
_Static_assert(offsetof(struct virtio_blk_config, num_queues) == 34, "5.2.4");
_Static_assert(offsetof(struct virtio_blk_config, write_zeroes_may_unmap) == 56, "5.2.4");

#define VIRTIO_BLK_T_IN		  0
#define VIRTIO_BLK_T_OUT	  1
#define VIRTIO_BLK_T_FLUSH	  4
#define VIRTIO_BLK_T_GET_ID	  8
#define VIRTIO_BLK_T_DISCARD	  11
#define VIRTIO_BLK_T_WRITE_ZEROES 13

#define VIRTIO_BLK_S_OK	    0
#define VIRTIO_BLK_S_IOERR  1
#define VIRTIO_BLK_S_UNSUPP 2

#define VIRTIO_BLK_ID_BYTES 20

struct virtio_blk_req_hdr {
	le32 type;
	le32 reserved;
	le64 sector;
};

#define VIRTIO_BLK_WRITE_ZEROES_F_UNMAP 1

struct virtio_blk_range {
	le64 sector;
	le32 num_sectors;
	le32 flags;
};

_Static_assert(sizeof(struct virtio_blk_req_hdr) == 16, "5.2.6");
_Static_assert(sizeof(struct virtio_blk_range) == 16, "5.2.6");

#endif
