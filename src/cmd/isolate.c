#include "cmd/isolate.h"

#include <stdio.h>
#include <string.h>

#include "reactor/reactor.h"
#include "util/cpumask.h"
#include "util/log.h"
#include "util/ticker.h"

#define LOOK_S	 10
#define MANY	 100 /* evictions in that time that are worth a line */
#define LIST_MAX 1024

/* CPUs that the scheduler leaves alone (isolcpus=). */
static void isolated_cpus(cpu_set_t *set)
{
	char list[LIST_MAX] = "";
	struct err e = { 0 };
	FILE *file = fopen("/sys/devices/system/cpu/isolated", "re");

	CPU_ZERO(set);
	if (!file)
		return;
	if (fgets(list + 1, sizeof(list) - 2, file)) {
		list[0] = '[';
		list[strcspn(list, "\n")] = ']';
		if (cpumask_parse(list, set, &e))
			CPU_ZERO(set);
	}
	fclose(file);
}

static void warn_of_shared_cpus(void)
{
	cpu_set_t reactors, isolated;
	char text[256];

	reactors_cpus(&reactors);
	isolated_cpus(&isolated);
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, &isolated))
			CPU_CLR(cpu, &reactors);
	if (CPU_COUNT(&reactors) == 0)
		return;
	cpumask_format_list(&reactors, text, sizeof(text));
	log_warn(
		"isolate: the scheduler may put other threads on CPUs %s. Boot with isolcpus=%s, or "
		"keep others away with cpusets.",
		text, text);
}

/* How often others have taken the CPU from a thread. */
static unsigned long evictions(int tid)
{
	static const char key[] = "nonvoluntary_ctxt_switches:";
	char path[64], line[256];
	unsigned long n = 0;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/self/task/%d/status", tid);
	file = fopen(path, "re");
	while (file && fgets(line, sizeof(line), file))
		if (strncmp(line, key, sizeof(key) - 1) == 0)
			sscanf(line + sizeof(key) - 1, "%lu", &n);
	if (file)
		fclose(file);
	return n;
}

static unsigned long seen[CPU_SETSIZE]; /* by reactor */

static unsigned long more_evictions(int i)
{
	unsigned long now = evictions(reactor_tid(reactors_at(i))),
		      more = now > seen[i] ? now - seen[i] : 0;

	seen[i] = now;
	return more;
}

static void look(void)
{
	for (int i = 0; i < reactors_count(); i++) {
		unsigned long more = more_evictions(i);

		if (more >= MANY)
			log_warn("isolate: other threads took CPU %d from its reactor %lu times in "
				 "%d s",
				 reactor_cpu(reactors_at(i)), more, LOOK_S);
	}
}

static struct ticker ticker = { .fn = look, .seconds = LOOK_S, .name = "isolate" };

int isolate_start(struct err *e)
{
	warn_of_shared_cpus();
	for (int i = 0; i < reactors_count(); i++)
		more_evictions(i);
	return ticker_start(&ticker, e);
}

void isolate_stop(void)
{
	ticker_stop(&ticker);
}
