/*
 * A fake NVMe controller in plain memory, with scripted faults: the other side of src/nvme.
 *
 * Theory of operation. A struct fake_nvme is one PCIe function. Its BAR is shared memory which the
 * driver writes as it would a real one; the fake looks at it once per turn, and does in that turn
 * what hardware would: it changes state, fetches commands, runs them, posts completions, signals
 * vectors. A doorbell register is exchanged for a resting value when it was read, so that every
 * write is noticed, the same value again included, unless two of them fall between two turns.
 *
 * Turns are taken by hand (fake_nvme_turn(), deterministic) or by a thread (fake_nvme_start()),
 * which a driver needs whose bring-up blocks. All functions here may be called from any thread,
 *with the controller's thread running or not.
 *
 * The controller knows only memory that is mapped in its struct fake_iommu. Anything that a real
 * one would choke on, or that the specification forbids the host, is a *fault*: it is counted, the
 * sentences of the first ones are kept (fake_nvme_fault()), and the command gets the status that
 * the specification names. A test of a correct driver ends with fake_nvme_faults(f) == 0.
 *
 * The life of a command: fetched (its CID is outstanding, it is noted in the log of commands seen)
 *-> perhaps parked by a rule of the script -> run -> queued for its CQ -> posted when the CQ has
 *room.
 *
 * With shadow doorbells (Doorbell Buffer Config) the controller is lazy, and hangs a driver that
 * cheats: it looks at the shadow tail of a queue only after a write to that queue's doorbell, for
 * as long as it finds commands and a few turns more; then it sets EventIdx, looks once more and
 * sleeps.
 *
 * What is written lies in a volatile cache until FLUSH or FUA when the configuration has one;
 * fake_nvme_power_off() loses what lies there.
 *
 * Example:
 *	struct fake_nvme_config c = fake_nvme_defaults();
 *	struct fake_nvme_rule lose = { .queue = FAKE_IO, .opcode = 2, .skip = 10, .times = 1,
 *				       .action = FAKE_DROP };
 *
 *	c.iommu = fake_iommu_create(0x1000, UINT64_MAX >> 16);
 *	c.mqes = 14;
 *	f = fake_nvme_create(&c);
 *	fake_nvme_script(f, &lose);
 *	fake_nvme_start(f);
 *	... drive fake_nvme_hw(f): the 11th read is never answered ...
 *	fake_nvme_destroy(f);
 *	fake_iommu_destroy(c.iommu);
 *
 * NVM Express Base 2.0, NVM Command Set 1.0, PCIe Transport 1.0.
 */
#ifndef FAKE_NVME_H
#define FAKE_NVME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fake/fake_iommu.h"
#include "nvme/hw.h"

#define FAKE_NVME_NS_MAX     16
#define FAKE_NVME_QUEUES_MAX 128 /* I/O queues of each kind */
#define FAKE_NVME_VECTORS    64
#define FAKE_NVME_SEEN	     256
#define FAKE_NVME_TEXT	     192

/* ---- configuration ---- */

struct fake_nvme_ns_config {
	uint32_t nsid;
	uint64_t blocks;
	uint8_t lbads;	   /* log2 of the block size: 9, 12 */
	uint8_t lbaf;	   /* index of the format in use; the others are decoys */
	uint16_t ms;	   /* metadata bytes per block */
	bool extended;	   /* metadata follows each block in the data buffer; else: in MPTR's */
	bool read_only;	   /* writes get SCT 1 SC 82, and NSATTR says so */
	uint16_t noiob;	   /* blocks; commands that cross a boundary are counted */
	uint8_t dlfeat;	   /* 1: deallocated blocks read 00, 2: ff, 0: as they were */
	uint8_t nguid[16]; /* all zero: there is none */
	uint8_t eui64[8];
	uint8_t uuid[16];
	uint8_t csi; /* command set; told since 2.0. 0: NVM, 2: zoned */
};

enum fake_nvme_birth {
	FAKE_BORN_DISABLED,
	FAKE_BORN_READY,    /* EN=1, RDY=1: somebody left it running */
	FAKE_BORN_STARTING, /* EN=1, RDY=0, and RDY=1 after the ready delay */
	FAKE_BORN_FATAL	    /* EN=1, RDY=0, CFS=1, and RDY never comes */
};

struct fake_nvme_config {
	struct fake_iommu *iommu; /* shared by several controllers; outlives them */

	/* CAP and VS */
	uint16_t mqes;	/* 0-based */
	uint8_t to;	/* 500 ms */
	uint8_t dstrd;	/* doorbells are 4 << dstrd bytes apart */
	uint8_t css;	/* CAP.CSS: 0x01 NVM, 0x40 by CC.CSS = 110b */
	uint8_t mpsmin; /* pages of 4096 << n */
	uint8_t mpsmax;
	uint32_t vs;

	/* Identify Controller */
	const char *serial, *model, *firmware;
	uint8_t mdts;
	uint8_t acl, aerl; /* 0-based */
	uint8_t elpe;
	uint8_t sqes, cqes; /* log2 of entry sizes: most << 4 | least */
	uint8_t cntrltype;
	bool vwc; /* a volatile write cache, on after every reset */
	bool mdts_excludes_metadata;
	uint16_t oacs, oncs; /* Doorbell Buffer Config is offered when bit 8 of OACS is set */
	uint32_t oaes, sgls, ctratt;
	uint32_t nn;
	uint32_t hmpre, hmmin; /* 4 KiB units */

	/* queues */
	unsigned vectors;
	unsigned io_sqs, io_cqs; /* granted whatever is asked for; at most FAKE_NVME_QUEUES_MAX */
	bool admin_whole_pages;	 /* fatal unless AQA's queues fill whole pages */
	unsigned fetch_most;	 /* commands per SQ and turn; 0: all there are */
	unsigned dbbuf_patience; /* turns that an SQ with a shadow doorbell is watched in vain */

	/* controller memory buffer, in BAR 2 */
	size_t cmb_size;  /* a multiple of 4096; 0: none */
	uint32_t cmb_for; /* CMBSZ 4:0: SQs, CQs, lists, reads, writes */

	/* life */
	enum fake_nvme_birth birth;
	unsigned ready_turns, ready_ms; /* from EN=1 to RDY=1: both must have passed */
	unsigned disable_turns, disable_ms;
	unsigned shutdown_turns, shutdown_ms;
	bool no_vector_control; /* the MSI-X table is out of reach */
	bool no_reset;		/* hw->reset() says -EOPNOTSUPP */

	struct fake_nvme_ns_config ns[FAKE_NVME_NS_MAX];
	unsigned ns_n;
};

/* A drive with MQES 1023, MDTS 5, a write cache, eight I/O queues and one namespace of 16 MiB in
 * blocks of 512. Only iommu is to be filled in. */
struct fake_nvme_config fake_nvme_defaults(void);

/* ---- life ---- */

struct fake_nvme;

/* NULL: no memory. */
struct fake_nvme *fake_nvme_create(const struct fake_nvme_config *c);
/* Stops the thread too. The driver no longer touches the BAR. */
void fake_nvme_destroy(struct fake_nvme *f);

/* What the driver is given. */
struct nvme_hw *fake_nvme_hw(struct fake_nvme *f);

/* One turn; how many things were done in it. */
unsigned fake_nvme_turn(struct fake_nvme *f);
/* Turns until one does nothing (of at most 1000); how many things were done. */
unsigned fake_nvme_settle(struct fake_nvme *f);
/* A thread that takes turns. Errors: -EAGAIN. */
int fake_nvme_start(struct fake_nvme *f);
void fake_nvme_stop(struct fake_nvme *f);

/* ---- the script ---- */

enum fake_nvme_queue { FAKE_ANY_QUEUE, FAKE_ADMIN, FAKE_IO };

enum fake_nvme_action {
	FAKE_DELAY,   /* runs n turns later */
	FAKE_HOLD,    /* runs when fake_nvme_release() is called */
	FAKE_DROP,    /* never; Abort ends it with 0/07, unless deaf */
	FAKE_STATUS,  /* is not run and ends with status sct/sc */
	FAKE_REORDER, /* waits until n of the queue wait (0: all of a turn), which end last first */
	FAKE_BAD_CID, /* run; its CQE has CID n (0: the size of the SQ). Then as FAKE_DROP */
	FAKE_IDLE_CID,	     /* run; its CQE has a CID that is not outstanding. Then as FAKE_DROP */
	FAKE_TWICE,	     /* run; two equal CQEs */
	FAKE_BAD_SQHD,	     /* run; SQHD is n (0: the size of the SQ) */
	FAKE_BAD_PHASE,	     /* garbage with the old phase lies where its CQE comes n turns later */
	FAKE_LOSE_INTERRUPT, /* its CQE alone signals no vector */
	FAKE_CFS,	     /* CSTS.CFS; nothing is done any more */
	FAKE_VANISH,	     /* the device is gone, as by fake_nvme_vanish() */
	FAKE_TRUNCATE	     /* the same, as by fake_nvme_truncate_bar() */
};

/* Which commands, and what to do with them. The first rule that matches counts. */
struct fake_nvme_rule {
	enum fake_nvme_queue queue;
	int opcode;	     /* -1: all but Asynchronous Event Request */
	uint32_t nsid;	     /* 0: any */
	int qid;	     /* -1 or 0: any of those */
	uint64_t lba, lba_n; /* commands that touch these blocks; lba_n 0: any */
	unsigned skip;	     /* this many matches go through first */
	unsigned times;	     /* and this many are dealt with; 0: all */

	enum fake_nvme_action action;
	unsigned n;  /* turns, a CID, ... */
	unsigned ms; /* what waits for turns waits for so long, too */
	uint8_t sct, sc;
	bool dnr;
	bool deaf; /* Abort does not find it */
};

/* Adds a rule behind those there are; its number, or -ENOMEM. */
int fake_nvme_script(struct fake_nvme *f, const struct fake_nvme_rule *r);
/* How often a rule was applied. */
unsigned fake_nvme_script_hits(struct fake_nvme *f, int rule);
/* Forgets all rules. What they parked stays so. */
void fake_nvme_script_clear(struct fake_nvme *f);
/* Commands that FAKE_HOLD holds now. */
unsigned fake_nvme_held(struct fake_nvme *f);
/* They are run in the next turn. */
void fake_nvme_release(struct fake_nvme *f);

/* ---- mischief ---- */

/* Controller fatal status, until the host disables it. */
void fake_nvme_set_cfs(struct fake_nvme *f);
/* RDY does not come when the host enables it (or does again). */
void fake_nvme_never_ready(struct fake_nvme *f, bool never);
/* RDY does not go when the host disables it (or does again). */
void fake_nvme_never_disabled(struct fake_nvme *f, bool never);
/* Pulled out: the BAR reads all ones, nothing is done any more, outstanding commands are lost. */
void fake_nvme_vanish(struct fake_nvme *f);
/* The same, and an access to the BAR raises SIGBUS. */
void fake_nvme_truncate_bar(struct fake_nvme *f);
/* There again, at the same place, as after power-on. Its namespaces are what they were. */
void fake_nvme_return(struct fake_nvme *f);
/* vanish, and what was not flushed has been lost; return. */
void fake_nvme_power_off(struct fake_nvme *f);
void fake_nvme_power_on(struct fake_nvme *f);

/* Namespaces come, go and change. Each makes an entry in the log of changed namespaces and an
 * asynchronous event, if Feature 0B enables it. False: no such nsid, there is one, no room. */
bool fake_nvme_ns_add(struct fake_nvme *f, const struct fake_nvme_ns_config *c);
bool fake_nvme_ns_remove(struct fake_nvme *f, uint32_t nsid);
bool fake_nvme_ns_resize(struct fake_nvme *f, uint32_t nsid, uint64_t blocks);
bool fake_nvme_ns_protect(struct fake_nvme *f, uint32_t nsid, bool read_only);
/* The event and this entry alone; 0xffffffff: the log says that it has overflown. */
void fake_nvme_ns_changed(struct fake_nvme *f, uint32_t nsid);
/* Any event: its type, information and log page, as in the completion of an AER. */
void fake_nvme_event(struct fake_nvme *f, uint8_t type, uint8_t info, uint8_t lid);

/* ---- looking ---- */

struct fake_nvme_stats {
	uint64_t turns;
	uint64_t admin[256], io[256]; /* commands fetched, by opcode */
	uint64_t completions;	      /* CQEs posted */
	uint64_t errors;	      /* commands that ended with a status other than 0 */
	uint64_t bytes_read, bytes_written;
	uint64_t sq_doorbells, cq_doorbells; /* writes seen, of I/O queues */
	uint64_t admin_doorbells;
	uint64_t interrupts;			/* added to eventfds */
	uint64_t interrupts_masked;		/* kept pending */
	uint64_t interrupts_lost;		/* by the script */
	uint64_t crossings;			/* commands across a NOIOB boundary */
	uint64_t events;			/* asynchronous events told */
	unsigned outstanding, most_outstanding; /* I/O commands fetched and not posted */
	unsigned aers;				/* AER commands outstanding */
	unsigned sqs, cqs;			/* I/O queues there are */
	unsigned enables, disables, shutdowns, resets;
	unsigned faults;
	bool enabled, ready, fatal, gone, shadow;
};

void fake_nvme_stats(struct fake_nvme *f, struct fake_nvme_stats *out);

/* What the driver did wrong: how often, and the sentence of one of the first 16; "": none. */
unsigned fake_nvme_faults(struct fake_nvme *f);
const char *fake_nvme_fault(struct fake_nvme *f, unsigned i);
void fake_nvme_faults_clear(struct fake_nvme *f);

/* A command as it was fetched. */
struct fake_nvme_seen {
	uint64_t number; /* of all commands, from 1 */
	uint16_t qid, cid;
	uint8_t opcode;
	uint8_t psdt;
	uint32_t nsid;
	uint64_t slba; /* reads, writes and their like */
	uint32_t blocks;
	bool fua;
	uint64_t dptr[2], mptr;
	uint32_t cdw[16]; /* all of it */
};

/* The i-th last command; false: it has not been, or is forgotten. */
bool fake_nvme_seen(struct fake_nvme *f, unsigned i, struct fake_nvme_seen *out);

/* CDW11 of the last Set Features of that feature (or its default). */
uint32_t fake_nvme_feature(struct fake_nvme *f, uint8_t fid);
/* The size and the vector of an I/O queue; 0 and -1: there is none. */
unsigned fake_nvme_sq_size(struct fake_nvme *f, unsigned qid);
unsigned fake_nvme_cq_size(struct fake_nvme *f, unsigned qid);
int fake_nvme_cq_vector(struct fake_nvme *f, unsigned qid);

/* What is stored, past all caches; blocks as they lie, with their metadata when it is extended.
 * False: not there. */
bool fake_nvme_peek(struct fake_nvme *f, uint32_t nsid, uint64_t offset, void *to, size_t len);
bool fake_nvme_poke(struct fake_nvme *f, uint32_t nsid, uint64_t offset, const void *from,
		    size_t len);
/* Is there something that only the volatile cache holds? */
bool fake_nvme_dirty(struct fake_nvme *f);

#endif
