/*
 * The bytes of NVMe as the fake controller knows them, written from the specification on its own:
 * nothing here comes from the driver's header, so that a mistake there meets a different opinion.
 *
 * NVM Express Base 2.0 (3.1 registers, 4.1 commands), NVM Command Set 1.0. The host is
 * little-endian.
 */
#ifndef FAKE_NVME_WIRE_H
#define FAKE_NVME_WIRE_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

/* ---- registers ---- */

enum {
	WIRE_REG_CAP = 0x00,
	WIRE_REG_VS = 0x08,
	WIRE_REG_INTMS = 0x0c,
	WIRE_REG_INTMC = 0x10,
	WIRE_REG_CC = 0x14,
	WIRE_REG_CSTS = 0x1c,
	WIRE_REG_NSSR = 0x20,
	WIRE_REG_AQA = 0x24,
	WIRE_REG_ASQ = 0x28,
	WIRE_REG_ACQ = 0x30,
	WIRE_REG_CMBLOC = 0x38,
	WIRE_REG_CMBSZ = 0x3c,
	WIRE_REG_CMBMSC = 0x50,
	WIRE_REG_CMBSTS = 0x58,
	WIRE_DOORBELLS = 0x1000
};

#define WIRE_CC_EN	   0x1u
#define WIRE_CC_CSS(cc)	   ((cc) >> 4 & 7u)
#define WIRE_CC_MPS(cc)	   ((cc) >> 7 & 15u)
#define WIRE_CC_AMS(cc)	   ((cc) >> 11 & 7u)
#define WIRE_CC_SHN(cc)	   ((cc) >> 14 & 3u)
#define WIRE_CC_IOSQES(cc) ((cc) >> 16 & 15u)
#define WIRE_CC_IOCQES(cc) ((cc) >> 20 & 15u)
#define WIRE_CC_FIXED	   0x3ff0u /* CSS, MPS, AMS: not to be changed while enabled */

#define WIRE_CSTS_RDY	    0x1u
#define WIRE_CSTS_CFS	    0x2u
#define WIRE_CSTS_SHST	    0xcu
#define WIRE_CSTS_SHST_BUSY 0x4u
#define WIRE_CSTS_SHST_DONE 0x8u

#define WIRE_CMBMSC_CRE 0x1ull
#define WIRE_CMBMSC_CME 0x2ull
#define WIRE_CMB_SQS	0x1u
#define WIRE_CMB_CQS	0x2u
#define WIRE_CMBSTS_BAD 0x1u

/* ---- queue entries ---- */

struct wire_sgl {
	uint64_t addr;
	uint32_t len;
	uint8_t rsvd[3];
	uint8_t type; /* 7:4 type, 3:0 subtype */
};

struct wire_sqe {
	uint8_t opc;
	uint8_t flags; /* 1:0 FUSE, 7:6 PSDT */
	uint16_t cid;
	uint32_t nsid;
	uint32_t cdw2, cdw3;
	uint64_t mptr;
	union {
		struct {
			uint64_t prp1, prp2;
		};
		struct wire_sgl sgl;
	};
	uint32_t cdw10, cdw11, cdw12, cdw13, cdw14, cdw15;
};

struct wire_cqe {
	uint32_t dw0, dw1;
	uint16_t sqhd, sqid, cid;
	uint16_t status; /* 0 phase, 8:1 SC, 11:9 SCT, 15 DNR */
};

static_assert(sizeof(struct wire_sgl) == 16, "");
static_assert(sizeof(struct wire_sqe) == 64 && offsetof(struct wire_sqe, cdw10) == 40, "");
static_assert(sizeof(struct wire_cqe) == 16 && offsetof(struct wire_cqe, cid) == 12, "");

enum { WIRE_SGL_DATA = 0, WIRE_SGL_BUCKET = 1, WIRE_SGL_SEGMENT = 2, WIRE_SGL_LAST = 3 };

/* ---- opcodes, features, logs ---- */

enum {
	WIRE_ADM_DELETE_SQ = 0x00,
	WIRE_ADM_CREATE_SQ = 0x01,
	WIRE_ADM_GET_LOG = 0x02,
	WIRE_ADM_DELETE_CQ = 0x04,
	WIRE_ADM_CREATE_CQ = 0x05,
	WIRE_ADM_IDENTIFY = 0x06,
	WIRE_ADM_ABORT = 0x08,
	WIRE_ADM_SET_FEATURES = 0x09,
	WIRE_ADM_GET_FEATURES = 0x0a,
	WIRE_ADM_AER = 0x0c,
	WIRE_ADM_KEEP_ALIVE = 0x18,
	WIRE_ADM_DBBUF = 0x7c,
	WIRE_ADM_FORMAT = 0x80
};

enum {
	WIRE_IO_FLUSH = 0x00,
	WIRE_IO_WRITE = 0x01,
	WIRE_IO_READ = 0x02,
	WIRE_IO_COMPARE = 0x05,
	WIRE_IO_WRITE_ZEROES = 0x08,
	WIRE_IO_DSM = 0x09,
	WIRE_IO_VERIFY = 0x0c
};

enum {
	WIRE_FEAT_ARBITRATION = 0x01,
	WIRE_FEAT_POWER = 0x02,
	WIRE_FEAT_TEMPERATURE = 0x04,
	WIRE_FEAT_ERROR_RECOVERY = 0x05,
	WIRE_FEAT_VWC = 0x06,
	WIRE_FEAT_QUEUES = 0x07,
	WIRE_FEAT_COALESCING = 0x08,
	WIRE_FEAT_VECTOR = 0x09,
	WIRE_FEAT_ATOMICITY = 0x0a,
	WIRE_FEAT_AER = 0x0b,
	WIRE_FEAT_HMB = 0x0d,
	WIRE_FEAT_TIMESTAMP = 0x0e,
	WIRE_FEAT_KATO = 0x0f
};

enum { WIRE_LOG_ERROR = 1, WIRE_LOG_SMART = 2, WIRE_LOG_FIRMWARE = 3, WIRE_LOG_NS_CHANGED = 4 };

enum { WIRE_EVENT_ERROR = 0, WIRE_EVENT_SMART = 1, WIRE_EVENT_NOTICE = 2 };

#define WIRE_OACS_FORMAT    (1u << 1)
#define WIRE_OACS_DBBUF	    (1u << 8)
#define WIRE_ONCS_COMPARE   (1u << 0)
#define WIRE_ONCS_DSM	    (1u << 2)
#define WIRE_ONCS_ZEROES    (1u << 3)
#define WIRE_ONCS_VERIFY    (1u << 7)
#define WIRE_OAES_NS	    (1u << 8)
#define WIRE_SGLS_BUCKET    (1u << 16)
#define WIRE_SGLS_LONGER    (1u << 18)
#define WIRE_CTRATT_MEM	    (1u << 16) /* MDTS does not count metadata */
#define WIRE_NSATTR_PROTECT 1u
#define WIRE_FUA	    (1u << 30) /* CDW12 */
#define WIRE_DEAC	    (1u << 25) /* CDW12 of Write Zeroes */

/* ---- status: SCT << 8 | SC ---- */

enum {
	WIRE_OK = 0x000,
	WIRE_BAD_OPCODE = 0x001,
	WIRE_BAD_FIELD = 0x002,
	WIRE_CID_CONFLICT = 0x003,
	WIRE_DATA_TRANSFER = 0x004,
	WIRE_INTERNAL = 0x006,
	WIRE_ABORTED = 0x007,
	WIRE_SQ_DELETED = 0x008,
	WIRE_BAD_NS = 0x00b,
	WIRE_SEQUENCE = 0x00c,
	WIRE_SGL_SEGMENT_BAD = 0x00d,
	WIRE_SGL_COUNT_BAD = 0x00e,
	WIRE_SGL_LENGTH_BAD = 0x00f,
	WIRE_SGL_META_BAD = 0x010,
	WIRE_SGL_TYPE_BAD = 0x011,
	WIRE_CMB_BAD = 0x012,
	WIRE_PRP_OFFSET = 0x013,
	WIRE_LBA_RANGE = 0x080,
	WIRE_NS_NOT_READY = 0x082,
	WIRE_CQ_INVALID = 0x100,
	WIRE_QID_INVALID = 0x101,
	WIRE_QUEUE_SIZE = 0x102,
	WIRE_ABORT_LIMIT = 0x103,
	WIRE_AER_LIMIT = 0x105,
	WIRE_VECTOR_INVALID = 0x108,
	WIRE_BAD_LOG = 0x109,
	WIRE_BAD_FORMAT = 0x10a,
	WIRE_QUEUE_DELETION = 0x10c,
	WIRE_NOT_SAVEABLE = 0x10d,
	WIRE_NOT_CHANGEABLE = 0x10e,
	WIRE_NOT_PER_NS = 0x10f,
	WIRE_READ_ONLY = 0x182,
	WIRE_COMPARE_FAILED = 0x285
};

#define WIRE_DNR 0x4000u /* in a status as above, before the phase bit is shifted in */

/* ---- Identify ---- */

struct wire_id_ctrl {
	uint16_t vid, ssvid;
	char sn[20], mn[40], fr[8];
	uint8_t rab, ieee[3], cmic, mdts;
	uint16_t cntlid;
	uint32_t ver, rtd3r, rtd3e, oaes, ctratt;
	uint8_t rsvd100[11], cntrltype, fguid[16];
	uint8_t rsvd128[128];
	uint16_t oacs;
	uint8_t acl, aerl, frmw, lpa, elpe, npss, avscc, apsta;
	uint16_t wctemp, cctemp, mtfa;
	uint32_t hmpre, hmmin;
	uint8_t rsvd280[40];
	uint16_t kas;
	uint8_t rsvd322[10];
	uint32_t hmminds;
	uint16_t hmmaxd;
	uint8_t rsvd338[174];
	uint8_t sqes, cqes;
	uint16_t maxcmd;
	uint32_t nn;
	uint16_t oncs, fuses;
	uint8_t fna, vwc;
	uint16_t awun, awupf;
	uint8_t icsvscc, nwpc;
	uint16_t acwu, rsvd534;
	uint32_t sgls, mnan;
	uint8_t rsvd544[224];
	char subnqn[256];
	uint8_t rsvd1024[1024];
	uint8_t psd[32][32];
	uint8_t vendor[1024];
};

static_assert(sizeof(struct wire_id_ctrl) == 4096, "");
static_assert(offsetof(struct wire_id_ctrl, mdts) == 77, "");
static_assert(offsetof(struct wire_id_ctrl, cntrltype) == 111, "");
static_assert(offsetof(struct wire_id_ctrl, oacs) == 256, "");
static_assert(offsetof(struct wire_id_ctrl, hmpre) == 272, "");
static_assert(offsetof(struct wire_id_ctrl, kas) == 320, "");
static_assert(offsetof(struct wire_id_ctrl, hmminds) == 332, "");
static_assert(offsetof(struct wire_id_ctrl, sqes) == 512, "");
static_assert(offsetof(struct wire_id_ctrl, vwc) == 525, "");
static_assert(offsetof(struct wire_id_ctrl, sgls) == 536, "");
static_assert(offsetof(struct wire_id_ctrl, subnqn) == 768, "");
static_assert(offsetof(struct wire_id_ctrl, psd) == 2048, "");

struct wire_lbaf {
	uint16_t ms;
	uint8_t lbads, rp;
};

struct wire_id_ns {
	uint64_t nsze, ncap, nuse;
	uint8_t nsfeat, nlbaf, flbas, mc, dpc, dps, nmic, rescap, fpi, dlfeat;
	uint16_t nawun, nawupf, nacwu, nabsn, nabo, nabspf, noiob;
	uint8_t nvmcap[16];
	uint16_t npwg, npwa, npdg, npda, nows, mssrl;
	uint32_t mcl;
	uint8_t msrc, rsvd81[11];
	uint32_t anagrpid;
	uint8_t rsvd96[3], nsattr;
	uint16_t nvmsetid, endgid;
	uint8_t nguid[16], eui64[8];
	struct wire_lbaf lbaf[64];
	uint8_t vendor[3712];
};

static_assert(sizeof(struct wire_id_ns) == 4096, "");
static_assert(offsetof(struct wire_id_ns, dlfeat) == 33, "");
static_assert(offsetof(struct wire_id_ns, noiob) == 46, "");
static_assert(offsetof(struct wire_id_ns, npwg) == 64, "");
static_assert(offsetof(struct wire_id_ns, nsattr) == 99, "");
static_assert(offsetof(struct wire_id_ns, nguid) == 104, "");
static_assert(offsetof(struct wire_id_ns, lbaf) == 128, "");

struct wire_dsm_range {
	uint32_t attr, blocks; /* not 0-based */
	uint64_t slba;
};

struct wire_hmb_desc {
	uint64_t addr;
	uint32_t pages, rsvd;
};

#endif
