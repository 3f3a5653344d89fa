/*
 * Inside the fake NVMe controller; for test/fake/fake_nvme*.c alone.
 *
 * One recursive mutex guards everything. Functions named fake_nvme_* are the public ones and take
 * it; all others are called with it held.
 */
#ifndef FAKE_NVME_INTERNAL_H
#define FAKE_NVME_INTERNAL_H

#include <pthread.h>

#include "fake/fake_nvme.h"
#include "fake/nvme_store.h"
#include "fake/nvme_wire.h"
#include "util/list.h"

/* What a doorbell register holds when nobody has written it since the last look. */
#define DOORBELL_RESTS 0x5ee0db00u
#define FAULTS_KEPT    16
#define EVENTS_MAX     16
#define CHANGED_MAX    1024
#define BAR_PAGE       4096u

/* A turn and a time: passed when both have come. */
struct delay {
	uint64_t turn, ns;
};

enum cmd_state {
	CMD_NEW,      /* being dealt with */
	CMD_DELAYED,  /* until turn `due` */
	CMD_HELD,     /* until fake_nvme_release() */
	CMD_GATHERED, /* until enough of them are there to be reordered */
	CMD_DROPPED,  /* for ever */
	CMD_AER,      /* until there is an event */
	CMD_ENDED     /* queued for its CQ */
};

/* A command between fetching and posting. */
struct cmd {
	struct list link;    /* fake_nvme.parked, or cq.ended */
	struct list sq_link; /* sq.outstanding */
	struct sq *sq;
	struct wire_sqe sqe;
	enum cmd_state state;
	bool adrift;	  /* its SQ was deleted */
	int action;	  /* enum fake_nvme_action of its rule; -1: none */
	unsigned n;	  /* the rule's */
	bool deaf, again; /* Abort does not find it; one of its two CQEs was posted */
	struct delay due;

	/* the completion */
	uint32_t dw0, dw1;
	uint16_t status;
};

struct cq {
	bool exists, ien, full;
	unsigned qid, size, head, tail, vector;
	uint16_t phase;
	uint64_t base;
	struct list ended; /* commands that wait for room */
};

struct sq {
	bool exists;
	unsigned qid, size, head, tail;
	unsigned idle; /* turns without a command, with a shadow doorbell */
	bool awake;    /* is the shadow doorbell watched? */
	struct cq *cq;
	uint64_t base;
	unsigned outstanding_n;
	struct list outstanding;
};

struct ns {
	struct fake_nvme_ns_config c;
	bool exists;
	struct nvme_store data, meta;
};

struct event {
	bool used, pending, masked;
	uint8_t type, info, lid;
};

struct rule {
	struct fake_nvme_rule r;
	unsigned matched, hits;
	struct rule *next;
};

struct vector {
	int fd;
	volatile le32 control; /* bit 0 masks */
	bool pending;
};

enum life { LIFE_OFF, LIFE_STARTING, LIFE_READY, LIFE_STOPPING };
enum gone { GONE_NOT, GONE_ONES, GONE_TRUNCATED };

struct fake_nvme {
	struct nvme_hw hw;
	struct fake_nvme_config c;
	char serial[21], model[41], firmware[9];
	pthread_mutex_t lock;
	unsigned waiting; /* threads that want the lock: the turning one steps aside */
	pthread_t thread;
	bool threaded, stop;

	/* registers */
	uint8_t *bar;
	size_t bar_len;
	int bar_fd;
	enum gone gone;
	enum life life;
	bool never_ready, never_disabled;
	bool shutting, shut; /* CC.SHN asked for it; it is done */
	uint32_t cc, csts;   /* as last seen, as last shown */
	struct delay life_due, shut_due;
	size_t page; /* 4096 << CC.MPS */
	uint8_t *cmb;
	bool cmb_on;
	uint64_t cmb_base;

	/* queues; number 0 is the admin queue */
	struct sq sq[FAKE_NVME_QUEUES_MAX + 1];
	struct cq cq[FAKE_NVME_QUEUES_MAX + 1];
	struct vector vector[FAKE_NVME_VECTORS];
	struct list parked;
	uint64_t shadow, eventidx; /* addresses; 0: MMIO only */

	/* admin */
	uint32_t feature[256];
	uint64_t timestamp;
	struct event event[EVENTS_MAX];
	uint32_t changed[CHANGED_MAX];
	unsigned changed_n;
	bool changed_overflow;
	uint8_t errlog[64][64];
	uint64_t error_count;
	struct wire_hmb_desc *hmb;
	unsigned hmb_n;

	struct ns ns[FAKE_NVME_NS_MAX];

	/* script and looking */
	struct rule *rules;
	struct fake_nvme_stats stats;
	struct fake_nvme_seen seen[FAKE_NVME_SEEN];
	uint64_t seen_n;
	char fault[FAULTS_KEPT][FAKE_NVME_TEXT];
};

/* fake_nvme.c */
void fake_lock(struct fake_nvme *f);
void fake_unlock(struct fake_nvme *f);
void fault(struct fake_nvme *f, const char *fmt, ...) printf_like(2, 3);
void vectors_drop(struct fake_nvme *f);

/* fake_nvme_regs.c */
uint32_t reg_get(struct fake_nvme *f, unsigned off);
void reg_set(struct fake_nvme *f, unsigned off, uint32_t v);
uint64_t reg_get64(struct fake_nvme *f, unsigned off);
void regs_power_on(struct fake_nvme *f);
void regs_be_born(struct fake_nvme *f);
unsigned regs_turn(struct fake_nvme *f);
struct delay delay_from_now(const struct fake_nvme *f, unsigned turns, unsigned ms);
bool has_passed(const struct fake_nvme *f, const struct delay *d);
bool is_running(const struct fake_nvme *f);
void become_fatal(struct fake_nvme *f);
void go_away(struct fake_nvme *f, enum gone how);

/* fake_nvme_queue.c */
void queues_init(struct fake_nvme *f);
unsigned last_qid(const struct fake_nvme *f);
void queues_vanish(struct fake_nvme *f);
void cq_open(struct fake_nvme *f, unsigned qid, unsigned size, uint64_t base, bool ien,
	     unsigned vector);
void sq_open(struct fake_nvme *f, unsigned qid, unsigned size, uint64_t base, unsigned cqid);
void cq_close(struct fake_nvme *f, struct cq *cq);
void sq_close(struct fake_nvme *f, struct sq *sq);
void cmd_free(struct fake_nvme *f, struct cmd *cmd);
/* Takes the command off its list and queues its completion. status: SCT << 8 | SC. */
void cmd_end(struct fake_nvme *f, struct cmd *cmd, uint16_t status, uint32_t dw0);
void cmd_run(struct fake_nvme *f, struct cmd *cmd);
void cmd_park(struct fake_nvme *f, struct cmd *cmd, enum cmd_state state);
bool cq_has_room(struct fake_nvme *f, struct cq *cq);
struct cmd *sq_find(struct sq *sq, uint16_t cid);
void doorbells_rest(struct fake_nvme *f);
unsigned doorbells_turn(struct fake_nvme *f);
unsigned fetch_turn(struct fake_nvme *f);
void shadow_set(struct fake_nvme *f, uint64_t shadow, uint64_t eventidx);

/* fake_nvme_post.c */
void post_garbage(struct fake_nvme *f, struct cq *cq);
unsigned post_turn(struct fake_nvme *f);
unsigned vectors_turn(struct fake_nvme *f);

/* fake_nvme_script.c */
/* Does what the first rule says. True: the command has been dealt with. */
bool script_apply(struct fake_nvme *f, struct cmd *cmd);
unsigned script_turn(struct fake_nvme *f);
void script_free(struct fake_nvme *f);

/* fake_nvme_dma.c: false is a fault, and was noted */
bool is_in_cmb(const struct fake_nvme *f, uint64_t iova);
bool dma_read(struct fake_nvme *f, void *to, uint64_t iova, size_t len, const char *what);
bool dma_write(struct fake_nvme *f, uint64_t iova, const void *from, size_t len, const char *what);
bool dma_store64(struct fake_nvme *f, uint64_t iova, uint64_t v, const char *what);
bool dma_store32(struct fake_nvme *f, uint64_t iova, uint32_t v, const char *what);
bool dma_load32(struct fake_nvme *f, uint64_t iova, uint32_t *out, const char *what);
/* All of a command's data, from or to the host; a status. */
uint16_t data_get(struct fake_nvme *f, const struct cmd *cmd, void *to, size_t len);
uint16_t data_put(struct fake_nvme *f, const struct cmd *cmd, const void *from, size_t len);
/* Its separate metadata. */
uint16_t meta_get(struct fake_nvme *f, const struct cmd *cmd, void *to, size_t len);
uint16_t meta_put(struct fake_nvme *f, const struct cmd *cmd, const void *from, size_t len);

/* The rest: what runs commands, and ends or parks them. */
void admin_run(struct fake_nvme *f, struct cmd *cmd); /* fake_nvme_admin.c */
void admin_reset(struct fake_nvme *f);
void features_reset(struct fake_nvme *f); /* fake_nvme_feature.c */
uint16_t set_features(struct fake_nvme *f, struct cmd *cmd, uint32_t *dw0);
uint16_t get_features(struct fake_nvme *f, struct cmd *cmd, uint32_t *dw0);
unsigned hmb_turn(struct fake_nvme *f);
uint16_t identify(struct fake_nvme *f, struct cmd *cmd); /* fake_nvme_identify.c */
uint16_t get_log(struct fake_nvme *f, struct cmd *cmd);	 /* fake_nvme_log.c */
void note_error(struct fake_nvme *f, const struct cmd *cmd);
void post_event(struct fake_nvme *f, uint8_t type, uint8_t info, uint8_t lid);
unsigned events_turn(struct fake_nvme *f);
void events_reset(struct fake_nvme *f);
void io_run(struct fake_nvme *f, struct cmd *cmd); /* fake_nvme_io.c */

/* fake_nvme_ns.c */
struct ns *ns_find(struct fake_nvme *f, uint32_t nsid);
/* The existing one with the smallest nsid above that. */
struct ns *ns_next(struct fake_nvme *f, uint32_t nsid);
bool ns_open(struct fake_nvme *f, const struct fake_nvme_ns_config *c);
void ns_close(struct ns *ns);
size_t ns_stride(const struct ns *ns); /* bytes of a block in the data buffer */
void ns_flush(struct ns *ns);
bool cache_is_on(const struct fake_nvme *f);
void cache_flush(struct fake_nvme *f);
void cache_lose(struct fake_nvme *f);

#endif
