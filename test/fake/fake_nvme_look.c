/* Looking into a fake controller. */
#include "fake/fake_nvme_internal.h"

void fake_nvme_stats(struct fake_nvme *f, struct fake_nvme_stats *out)
{
	fake_lock(f);
	*out = f->stats;
	out->enabled = f->cc & WIRE_CC_EN;
	out->ready = f->csts & WIRE_CSTS_RDY;
	out->fatal = f->csts & WIRE_CSTS_CFS;
	out->gone = f->gone;
	out->shadow = f->shadow;
	fake_unlock(f);
}

unsigned fake_nvme_faults(struct fake_nvme *f)
{
	unsigned n;

	fake_lock(f);
	n = f->stats.faults;
	fake_unlock(f);
	return n;
}

const char *fake_nvme_fault(struct fake_nvme *f, unsigned i)
{
	const char *text;

	fake_lock(f);
	text = i < FAULTS_KEPT && i < f->stats.faults ? f->fault[i] : "";
	fake_unlock(f);
	return text;
}

void fake_nvme_faults_clear(struct fake_nvme *f)
{
	fake_lock(f);
	f->stats.faults = 0;
	fake_unlock(f);
}

bool fake_nvme_seen(struct fake_nvme *f, unsigned i, struct fake_nvme_seen *out)
{
	bool ok;

	fake_lock(f);
	ok = i < f->seen_n && i < FAKE_NVME_SEEN;
	if (ok)
		*out = f->seen[(f->seen_n - 1 - i) % FAKE_NVME_SEEN];
	fake_unlock(f);
	return ok;
}

uint32_t fake_nvme_feature(struct fake_nvme *f, uint8_t fid)
{
	uint32_t v;

	fake_lock(f);
	v = f->feature[fid];
	fake_unlock(f);
	return v;
}

unsigned fake_nvme_sq_size(struct fake_nvme *f, unsigned qid)
{
	unsigned size;

	fake_lock(f);
	size = qid <= FAKE_NVME_QUEUES_MAX && f->sq[qid].exists ? f->sq[qid].size : 0;
	fake_unlock(f);
	return size;
}

unsigned fake_nvme_cq_size(struct fake_nvme *f, unsigned qid)
{
	unsigned size;

	fake_lock(f);
	size = qid <= FAKE_NVME_QUEUES_MAX && f->cq[qid].exists ? f->cq[qid].size : 0;
	fake_unlock(f);
	return size;
}

int fake_nvme_cq_vector(struct fake_nvme *f, unsigned qid)
{
	int vector = -1;

	fake_lock(f);
	if (qid <= FAKE_NVME_QUEUES_MAX && f->cq[qid].exists && f->cq[qid].ien)
		vector = (int)f->cq[qid].vector;
	fake_unlock(f);
	return vector;
}
