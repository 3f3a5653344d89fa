#include "util/cpumask.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One "N" or "N-M" at *text; moves *text behind it. */
static bool parse_range(const char **text, cpu_set_t *set)
{
	unsigned long first, last;
	char *end;

	if (!isdigit((unsigned char)**text))
		return false;
	first = last = strtoul(*text, &end, 10);
	if (*end == '-') {
		if (!isdigit((unsigned char)end[1]))
			return false;
		last = strtoul(end + 1, &end, 10);
	}
	if (last < first || last >= CPU_SETSIZE)
		return false;
	for (unsigned long i = first; i <= last; i++)
		CPU_SET(i, set);
	*text = end;
	return true;
}

static bool parse_list(const char *text, cpu_set_t *set)
{
	bool bracket = *text == '[';

	text += bracket;
	for (;;) {
		if (!parse_range(&text, set))
			return false;
		if (*text != ',')
			break;
		do
			text++;
		while (*text == ' ');
	}
	if (bracket)
		return strcmp(text, "]") == 0;
	return *text == '\0';
}

static bool parse_mask(const char *text, cpu_set_t *set)
{
	size_t n;

	if (strncasecmp(text, "0x", 2) == 0)
		text += 2;
	n = strlen(text);
	if (n == 0 || n > CPU_SETSIZE / 4)
		return false;
	for (size_t i = 0; i < n; i++) {
		unsigned c = (unsigned char)text[n - 1 - i], nibble;

		if (!isxdigit((int)c))
			return false;
		nibble = isdigit((int)c) ? c - '0' : (unsigned)tolower((int)c) - 'a' + 10;
		for (unsigned bit = 0; bit < 4; bit++)
			if (nibble & 1u << bit)
				CPU_SET(i * 4 + bit, set);
	}
	return true;
}

int cpumask_parse(const char *text, cpu_set_t *set, struct err *e)
{
	cpu_set_t parsed;
	bool list = text[0] == '[' || strpbrk(text, ",-"), ok;

	CPU_ZERO(&parsed);
	ok = list ? parse_list(text, &parsed) : parse_mask(text, &parsed);
	if (ok && CPU_COUNT(&parsed) == 0)
		return err_field(e, -EINVAL, "cpumask", text, "at least one CPU",
				 "'%.80s' names no CPU.", text);
	if (!ok)
		return err_field(
			e, -EINVAL, "cpumask", text, "a mask like 0x3 or a list like [0,2-4]",
			"'%.80s' is not a set of CPUs. Give a mask like 0x3 or a list like [0,2-4], of "
			"CPUs 0 to %d.",
			text, CPU_SETSIZE - 1);
	*set = parsed;
	return 0;
}

char *cpumask_format(const cpu_set_t *set, char *buf, size_t size)
{
	int top = CPU_SETSIZE / 4 - 1;
	size_t n;

	while (top > 0 && !CPU_ISSET(top * 4, set) && !CPU_ISSET(top * 4 + 1, set) &&
	       !CPU_ISSET(top * 4 + 2, set) && !CPU_ISSET(top * 4 + 3, set))
		top--;
	n = (size_t)snprintf(buf, size, "0x");
	for (; top >= 0 && n < size; top--) {
		unsigned nibble = 0;

		for (int bit = 0; bit < 4; bit++)
			nibble |= (unsigned)!!CPU_ISSET(top * 4 + bit, set) << bit;
		n += (size_t)snprintf(buf + n, size - n, "%x", nibble);
	}
	return buf;
}

char *cpumask_format_list(const cpu_set_t *set, char *buf, size_t size)
{
	size_t n = 0;

	buf[0] = '\0';
	for (int i = 0; i < CPU_SETSIZE && n < size; i++) {
		int last = i;

		if (!CPU_ISSET(i, set))
			continue;
		while (last + 1 < CPU_SETSIZE && CPU_ISSET(last + 1, set))
			last++;
		n += (size_t)snprintf(buf + n, size - n, last > i ? "%s%d-%d" : "%s%d",
				      n ? "," : "", i, last);
		i = last;
	}
	return buf;
}

int cpu_numa_node(int cpu)
{
	char path[64];
	struct dirent *d;
	int node = -1;
	DIR *dir;

	snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu%d", cpu);
	dir = opendir(path);
	if (!dir)
		return -1;
	while (node < 0 && (d = readdir(dir)))
		if (sscanf(d->d_name, "node%d", &node) != 1)
			node = -1;
	closedir(dir);
	return node;
}
