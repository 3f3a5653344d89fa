/*
 * The wire of NVMe: NVM Express Base 2.0 (registers, queues, admin commands), NVM Command Set 1.0
 * (I/O commands, Identify Namespace), PCIe Transport 1.0 (doorbells). Names and order are theirs.
 */
#ifndef NVME_SPEC_H
#define NVME_SPEC_H

#include <stddef.h>

#include "util/bytes.h"

/* --- controller registers (Base 3.1.3) --- */

#define NVME_REG_CAP	0x00 /* 8 bytes */
#define NVME_REG_VS	0x08
#define NVME_REG_CC	0x14
#define NVME_REG_CSTS	0x1c
#define NVME_REG_AQA	0x24
#define NVME_REG_ASQ	0x28 /* 8 bytes */
#define NVME_REG_ACQ	0x30 /* 8 bytes */
#define NVME_REG_CMBLOC 0x38
#define NVME_REG_CMBSZ	0x3c
#define NVME_REG_CMBMSC 0x50 /* 8 bytes */
#define NVME_DOORBELLS	0x1000

#define NVME_CAP_MQES(cap)   ((unsigned)((cap)&0xffff))	      /* 0-based */
#define NVME_CAP_TO(cap)     ((unsigned)((cap) >> 24 & 0xff)) /* 500 ms */
#define NVME_CAP_DSTRD(cap)  ((unsigned)((cap) >> 32 & 0xf))
#define NVME_CAP_CSS(cap)    ((unsigned)((cap) >> 37 & 0xff))
#define NVME_CAP_MPSMIN(cap) ((unsigned)((cap) >> 48 & 0xf))
#define NVME_CAP_MPSMAX(cap) ((unsigned)((cap) >> 52 & 0xf))
#define NVME_CAP_CMBS(cap)   ((cap) >> 57 & 1)

#define NVME_CSS_NVM	 0x01 /* CAP.CSS */
#define NVME_CSS_SEVERAL 0x40
#define NVME_CSS_NONE	 0x80

#define NVME_CC_EN	    0x1u
#define NVME_CC_CSS_ALL	    (6u << 4) /* all I/O command sets that the controller supports */
#define NVME_CC_CSS_ADMIN   (7u << 4)
#define NVME_CC_MPS_SHIFT   7
#define NVME_CC_SHN_NORMAL  (1u << 14)
#define NVME_CC_SHN_MASK    (3u << 14)
#define NVME_CC_ENTRY_SIZES (6u << 16 | 4u << 20)

#define NVME_CSTS_RDY	    0x1u
#define NVME_CSTS_CFS	    0x2u
#define NVME_CSTS_SHST_MASK (3u << 2)
#define NVME_CSTS_SHST_DONE (2u << 2)
#define NVME_GONE	    0xffffffffu /* what any register of a vanished device reads as */

#define NVME_CMBLOC_BIR(x)  ((x)&7)
#define NVME_CMBLOC_OFST(x) ((x) >> 12)
#define NVME_CMBSZ_SQS	    0x1u
#define NVME_CMBSZ_SZU(x)   ((x) >> 8 & 0xf) /* 4 KiB << 4 * SZU */
#define NVME_CMBSZ_SZ(x)    ((x) >> 12)
#define NVME_CMBMSC_CRE	    UINT64_C(1)
#define NVME_CMBMSC_CMSE    UINT64_C(2)

/* --- queue entries (Base 3.3.3) --- */

struct nvme_sgl { /* Base 4.1.2 */
	le64 addr;
	le32 length;
	uint8_t reserved[3];
	uint8_t type; /* type << 4 | subtype */
};

#define NVME_SGL_DATA	      0x00
#define NVME_SGL_SEGMENT      0x20
#define NVME_SGL_LAST_SEGMENT 0x30

struct nvme_sqe {
	union {
		struct {
			uint8_t opc;
			uint8_t flags; /* FUSE, PSDT */
			le16 cid;
			le32 nsid;
		};
		le64 head; /* the four above as one word */
	};
	le32 cdw2, cdw3;
	le64 mptr;
	union {
		struct {
			le64 prp1, prp2;
		};
		struct nvme_sgl sgl;
	};
	union {
		le32 cdw10;
		le64 slba; /* CDW10 and 11 of read, write, ... */
	} a;
	le32 cdw12, cdw13, cdw14, cdw15;
};

_Static_assert(sizeof(struct nvme_sqe) == 64, "SQE");
_Static_assert(offsetof(struct nvme_sqe, prp1) == 24, "DPTR");
_Static_assert(offsetof(struct nvme_sqe, cdw12) == 48, "CDW12");

#define NVME_PSDT_SGL 0x40 /* sqe.flags; the metadata pointer is an address */

struct nvme_cqe {
	le32 dw0, dw1;
	union {
		struct {
			le16 sqhd, sqid;
			le16 cid;
			le16 status; /* bit 0: phase */
		};
		le64 end; /* the four above as one word */
	};
};

_Static_assert(sizeof(struct nvme_cqe) == 16, "CQE");

/* Of nvme_cqe.end. The status is without its phase bit. */
#define NVME_END(sqhd, sqid, cid, status_and_phase)                          \
	((uint64_t)(sqhd) | (uint64_t)(sqid) << 16 | (uint64_t)(cid) << 32 | \
	 (uint64_t)(status_and_phase) << 48)
#define NVME_END_PHASE	     (UINT64_C(1) << 48)
#define NVME_END_SQHD(end)   ((uint16_t)(end))
#define NVME_END_CID(end)    ((uint16_t)((end) >> 32))
#define NVME_END_STATUS(end) ((uint16_t)((end) >> 49))

/* --- status (Base 3.3.3.2.1), without the phase bit: DNR 14, M 13, CRD 12:11, SCT 10:8, SC 7:0 ---
 */

#define NVME_STATUS(sct, sc) ((sct) << 8 | (sc))
#define NVME_SCT_SC(status)  ((status)&0x7ff)
#define NVME_SC(status)	     ((status)&0xff)
#define NVME_SCT(status)     ((status) >> 8 & 7)
#define NVME_DNR	     0x4000

#define NVME_SC_OPCODE		NVME_STATUS(0, 0x01)
#define NVME_SC_FIELD		NVME_STATUS(0, 0x02)
#define NVME_SC_ABORTED		NVME_STATUS(0, 0x07)
#define NVME_SC_SQ_DELETED	NVME_STATUS(0, 0x08)
#define NVME_SC_NAMESPACE	NVME_STATUS(0, 0x0b)
#define NVME_SC_WRITE_PROTECTED NVME_STATUS(0, 0x20)
#define NVME_SC_INTERRUPTED	NVME_STATUS(0, 0x21)
#define NVME_SC_LBA_RANGE	NVME_STATUS(0, 0x80)
#define NVME_SC_CAPACITY	NVME_STATUS(0, 0x81)
#define NVME_SC_READ_ONLY	NVME_STATUS(1, 0x82)

/* --- admin commands (Base 5) --- */

enum nvme_admin_opcode {
	NVME_DELETE_SQ = 0x00,
	NVME_CREATE_SQ = 0x01,
	NVME_GET_LOG = 0x02,
	NVME_DELETE_CQ = 0x04,
	NVME_CREATE_CQ = 0x05,
	NVME_IDENTIFY = 0x06,
	NVME_ABORT = 0x08,
	NVME_SET_FEATURES = 0x09,
	NVME_GET_FEATURES = 0x0a,
	NVME_ASYNC_EVENT = 0x0c,
	NVME_DOORBELL_BUFFER = 0x7c,
	NVME_FORMAT = 0x80,
};

enum nvme_cns {
	NVME_CNS_NS = 0x00,
	NVME_CNS_CTRL = 0x01,
	NVME_CNS_ACTIVE_NS = 0x02,
	NVME_CNS_NS_DESCRIPTORS = 0x03,
};

enum nvme_log {
	NVME_LOG_ERROR = 0x01,
	NVME_LOG_SMART = 0x02,
	NVME_LOG_FIRMWARE = 0x03,
	NVME_LOG_CHANGED_NS = 0x04,
};

enum nvme_feature {
	NVME_FEATURE_WRITE_CACHE = 0x06,
	NVME_FEATURE_QUEUES = 0x07,
	NVME_FEATURE_EVENTS = 0x0b,
	NVME_FEATURE_HMB = 0x0d,
};

#define NVME_CREATE_PC	    0x1u /* Create SQ/CQ, CDW11: physically contiguous */
#define NVME_CREATE_CQ_IEN  0x2u
#define NVME_LOG_RAE	    0x8000u /* Get Log Page, CDW10 */
#define NVME_PAGE	    4096    /* Identify data, PRP lists of the least page size */
#define NVME_NSID_ALL	    0xffffffffu
#define NVME_NSIDS_PER_LIST 1024

/* Asynchronous events (Base 5.2): CQE DW0, and the bits of feature 0Bh and of OAES. */
#define NVME_EVENT_TYPE(dw0) ((dw0)&7)
#define NVME_EVENT_INFO(dw0) ((dw0) >> 8 & 0xff)
#define NVME_EVENT_LOG(dw0)  ((dw0) >> 16 & 0xff)
#define NVME_EVENT_ERROR     0
#define NVME_EVENT_SMART     1
#define NVME_EVENT_NOTICE    2
#define NVME_NOTICE_NS	     0
#define NVME_OAES_NS	     (1u << 8)
#define NVME_EVENTS_SMART    0x1fu

struct nvme_id_power_state {
	uint8_t bytes[32];
};

struct nvme_id_ctrl { /* Base 5.17.2.1, figure 275 */
	le16 vid, ssvid;
	char sn[20], mn[40], fr[8];
	uint8_t rab, ieee[3], cmic, mdts;
	le16 cntlid;
	le32 ver, rtd3r, rtd3e, oaes, ctratt;
	le16 rrls;
	uint8_t reserved102[9], cntrltype, fguid[16];
	le16 crdt[3];
	uint8_t reserved134[122];
	le16 oacs; /* 256 */
	uint8_t acl, aerl, frmw, lpa, elpe, npss, avscc, apsta;
	le16 wctemp, cctemp, mtfa;
	le32 hmpre, hmmin;
	uint8_t tnvmcap[16], unvmcap[16];
	le32 rpmbs;
	le16 edstt;
	uint8_t dsto, fwug;
	le16 kas, hctma, mntmt, mxtmt;
	le32 sanicap, hmminds;
	le16 hmmaxd;
	uint8_t reserved338[174];
	uint8_t sqes, cqes; /* 512 */
	le16 maxcmd;
	le32 nn;
	le16 oncs, fuses;
	uint8_t fna, vwc;
	le16 awun, awupf;
	uint8_t icsvscc, nwpc;
	le16 acwu, cdfs;
	le32 sgls, mnan;
	uint8_t reserved544[224];
	char subnqn[256]; /* 768 */
	uint8_t reserved1024[1024];
	struct nvme_id_power_state psd[32]; /* 2048 */
	uint8_t vs[1024];
};

_Static_assert(sizeof(struct nvme_id_ctrl) == 4096, "Identify Controller");
_Static_assert(offsetof(struct nvme_id_ctrl, oaes) == 92, "OAES");
_Static_assert(offsetof(struct nvme_id_ctrl, cntrltype) == 111, "CNTRLTYPE");
_Static_assert(offsetof(struct nvme_id_ctrl, oacs) == 256, "OACS");
_Static_assert(offsetof(struct nvme_id_ctrl, hmpre) == 272, "HMPRE");
_Static_assert(offsetof(struct nvme_id_ctrl, kas) == 320, "KAS");
_Static_assert(offsetof(struct nvme_id_ctrl, hmminds) == 332, "HMMINDS");
_Static_assert(offsetof(struct nvme_id_ctrl, sqes) == 512, "SQES");
_Static_assert(offsetof(struct nvme_id_ctrl, oncs) == 520, "ONCS");
_Static_assert(offsetof(struct nvme_id_ctrl, sgls) == 536, "SGLS");
_Static_assert(offsetof(struct nvme_id_ctrl, subnqn) == 768, "SUBNQN");
_Static_assert(offsetof(struct nvme_id_ctrl, psd) == 2048, "PSD");

#define NVME_OACS_FORMAT   0x0002
#define NVME_OACS_FIRMWARE 0x0004
#define NVME_OACS_NS	   0x0008
#define NVME_OACS_DBBUF	   0x0100
#define NVME_ONCS_COMPARE  0x0001
#define NVME_ONCS_DSM	   0x0004
#define NVME_ONCS_ZEROES   0x0008
#define NVME_VWC_PRESENT   0x01
#define NVME_SGLS_ANY	   1 /* bits 1:0: no alignment asked for */
#define NVME_SGLS_DWORD	   2
#define NVME_CNTRLTYPE_IO  1

struct nvme_lbaf {
	le16 ms;
	uint8_t lbads, rp;
};

struct nvme_id_ns { /* NVM Command Set 4.1.5.1 */
	le64 nsze, ncap, nuse;
	uint8_t nsfeat, nlbaf, flbas, mc, dpc, dps, nmic, rescap, fpi, dlfeat;
	le16 nawun, nawupf, nacwu, nabsn, nabo, nabspf, noiob;
	uint8_t nvmcap[16];
	le16 npwg, npwa, npdg, npda, nows, mssrl;
	le32 mcl;
	uint8_t msrc, reserved81[11];
	le32 anagrpid;
	uint8_t reserved96[3], nsattr;
	le16 nvmsetid, endgid;
	uint8_t nguid[16], eui64[8];
	struct nvme_lbaf lbaf[64]; /* 128 */
	uint8_t vs[3712];
};

_Static_assert(sizeof(struct nvme_id_ns) == 4096, "Identify Namespace");
_Static_assert(offsetof(struct nvme_id_ns, noiob) == 46, "NOIOB");
_Static_assert(offsetof(struct nvme_id_ns, npwg) == 64, "NPWG");
_Static_assert(offsetof(struct nvme_id_ns, nsattr) == 99, "NSATTR");
_Static_assert(offsetof(struct nvme_id_ns, nguid) == 104, "NGUID");
_Static_assert(offsetof(struct nvme_id_ns, lbaf) == 128, "LBAF");

#define NVME_FLBAS_INDEX(x)   (((x)&0xf) | ((x) >> 1 & 0x30))
#define NVME_FLBAS_EXTENDED   0x10
#define NVME_NSATTR_PROTECTED 0x01
#define NVME_DLFEAT_ZEROES    1 /* bits 2:0 */
#define NVME_DLFEAT_DEAC      0x08
#define NVME_NSFEAT_OPTPERF   0x10

struct nvme_ns_descriptor {
	uint8_t nidt, nidl, reserved[2]; /* it may lie at any address */
	uint8_t nid[];
};

#define NVME_NIDT_EUI64 1
#define NVME_NIDT_NGUID 2
#define NVME_NIDT_UUID	3
#define NVME_NIDT_CSI	4

struct nvme_smart_log { /* Base 5.16.1.3 */
	uint8_t critical_warning;
	uint8_t composite_temperature[2]; /* kelvins; at an odd place */
	uint8_t available_spare, available_spare_threshold, percentage_used, egcws, reserved7[25];
	uint8_t data_units_read[16], data_units_written[16];
	uint8_t host_read_commands[16], host_write_commands[16];
	uint8_t controller_busy_time[16], power_cycles[16], power_on_hours[16],
		unsafe_shutdowns[16];
	uint8_t media_errors[16], error_log_entries[16];
	le32 warning_temp_time, critical_temp_time;
	le16 temp_sensor[8];
	le32 tmt_transitions[2], tmt_time[2];
	uint8_t reserved232[280];
};

_Static_assert(sizeof(struct nvme_smart_log) == 512, "SMART log");
_Static_assert(offsetof(struct nvme_smart_log, warning_temp_time) == 192, "SMART log");

struct nvme_error_entry { /* Base 5.16.1.2 */
	le64 error_count;
	le16 sqid, cid, status, location;
	le64 lba;
	le32 nsid;
	uint8_t vs, trtype, reserved30[2];
	le64 cs;
	le16 ttsi;
	uint8_t reserved42[22];
};

_Static_assert(sizeof(struct nvme_error_entry) == 64, "error log");

struct nvme_firmware_log { /* Base 5.16.1.4 */
	uint8_t afi, reserved1[7];
	char frs[7][8];
	uint8_t reserved64[448];
};

_Static_assert(sizeof(struct nvme_firmware_log) == 512, "firmware log");

/* --- I/O commands (NVM Command Set 3) --- */

enum nvme_io_opcode {
	NVME_FLUSH = 0x00,
	NVME_WRITE = 0x01,
	NVME_READ = 0x02,
	NVME_COMPARE = 0x05,
	NVME_WRITE_ZEROES = 0x08,
	NVME_DSM = 0x09,
};

#define NVME_RW_FUA	    (1u << 30) /* CDW12 */
#define NVME_ZEROES_DEAC    (1u << 25)
#define NVME_DSM_DEALLOCATE 0x4u /* CDW11 */

struct nvme_dsm_range {
	le32 attributes;
	le32 length; /* blocks, not 0-based */
	le64 slba;
};

#endif
