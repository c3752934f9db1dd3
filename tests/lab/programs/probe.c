// What does the kernel say of this job: masks, memory policies, and where its fresh pages lie? One line of JSON.
//
// It stands in for a training process and shares no code with wellfed: the same questions, asked by other means.
//
//   probe [--into FOLDER] [--hold SECONDS] [--mib N]
//
// Main thread, a second thread, and a forked child each report their mask, their policy, and the nodes of pages they
// have just touched. --into writes FOLDER/PID.json, else it goes to stdout; --hold stays afterwards until the time is
// over or a signal comes; --mib touches that much more (a node that cannot hold it spills, or kills).
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGES 64
#define MOST_NODES 1024
#define MOST_CPUS 8192
#define BITS (8 * (int)sizeof(unsigned long))

static char text[1 << 16];
static size_t length;

static void say(const char *format, ...)
{
	va_list rest;

	va_start(rest, format);
	length += (size_t)vsnprintf(text + length, sizeof text - length, format, rest);
	va_end(rest);
}

static void say_list(int (*has)(int, const void *), const void *set, int size)
{
	const char *comma = "";

	say("\"");
	for (int first = 0; first < size; first++) {
		int last = first;

		if (!has(first, set))
			continue;
		while (last + 1 < size && has(last + 1, set))
			last++;
		if (first == last)
			say("%s%d", comma, first);
		else
			say("%s%d-%d", comma, first, last);
		comma = ",";
		first = last;
	}
	say("\"");
}

static int has_cpu(int cpu, const void *set)
{
	return CPU_ISSET_S(cpu, CPU_ALLOC_SIZE(MOST_CPUS), (const cpu_set_t *)set) != 0;
}

static int has_node(int node, const void *set)
{
	return (((const unsigned long *)set)[node / BITS] >> node % BITS) & 1;
}

static void say_mask(pid_t tid)
{
	cpu_set_t *mask = CPU_ALLOC(MOST_CPUS);

	say("\"cpus\": ");
	if (sched_getaffinity(tid, CPU_ALLOC_SIZE(MOST_CPUS), mask))
		say("\"%s\"", strerror(errno));
	else
		say_list(has_cpu, mask, MOST_CPUS);
	CPU_FREE(mask);
}

// Names and flags of include/uapi/linux/mempolicy.h.
static void say_policy(void)
{
	static const char *const names[] = {"default", "preferred", "bind", "interleave", "local", "preferred-many", "weighted"};
	unsigned long nodes[MOST_NODES / BITS] = {0};
	int mode = 0;

	if (syscall(SYS_get_mempolicy, &mode, nodes, (unsigned long)MOST_NODES, NULL, 0UL)) {
		say("\"policy\": \"%s\"", strerror(errno));
		return;
	}
	int kind = mode & 0x1fff;

	say("\"policy\": \"%s\", ", kind < (int)(sizeof names / sizeof *names) ? names[kind] : "unknown");
	say("\"static\": %s, \"policy_nodes\": ", mode & (1 << 15) ? "true" : "false");
	say_list(has_node, nodes, MOST_NODES);
}

static char *touched(size_t pages, size_t size)
{
	char *area = mmap(NULL, pages * size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (area == MAP_FAILED)
		return NULL;
	madvise(area, pages * size, MADV_NOHUGEPAGE);
	for (size_t page = 0; page < pages; page++)
		area[page * size] = 1;
	return area;
}

// move_pages() without targets only tells where pages are.
static void say_pages(void)
{
	size_t size = (size_t)sysconf(_SC_PAGESIZE);
	char *area = touched(PAGES, size);
	void *pages[PAGES];
	int nodes[PAGES];
	const char *comma = "";

	say("\"pages\": {");
	for (size_t page = 0; area && page < PAGES; page++)
		pages[page] = area + page * size;
	if (area && !syscall(SYS_move_pages, 0, (unsigned long)PAGES, pages, NULL, nodes, 0)) {
		for (int node = -200; node < MOST_NODES; node++) {
			int count = 0;

			for (int page = 0; page < PAGES; page++)
				count += nodes[page] == node;
			if (count) {
				say("%s\"%d\": %d", comma, node, count);
				comma = ", ";
			}
		}
	}
	say("}");
	if (area)
		munmap(area, PAGES * size);
}

static void *report(void *name)
{
	say("\"%s\": {", (const char *)name);
	say_mask(0);
	say(", ");
	say_policy();
	say(", ");
	say_pages();
	say("}, ");
	return NULL;
}

static void report_child(void)
{
	int ends[2];
	ssize_t got = 0;

	if (pipe(ends))
		return;
	pid_t child = fork();

	if (!child) {
		length = 0;
		report("child");
		got = write(ends[1], text, length);
		_exit(got < 0);
	}
	close(ends[1]);
	while ((got = read(ends[0], text + length, sizeof text - length - 1)) > 0)
		length += (size_t)got;
	close(ends[0]);
	waitpid(child, NULL, 0);
}

static void say_variable(const char *name)
{
	const char *value = getenv(name);

	if (!value)
		return;
	say("\"%s\": \"", name);
	for (; *value; value++)
		say(*value == '"' || *value == '\\' ? "\\%c" : "%c", *value);
	say("\", ");
}

// The first line of /proc/self/cgroup that speaks of cgroup v2.
static void say_cgroup(void)
{
	char line[4096] = "";
	FILE *file = fopen("/proc/self/cgroup", "r");

	while (file && fgets(line, sizeof line, file))
		if (!strncmp(line, "0::", 3))
			break;
	if (file)
		fclose(file);
	line[strcspn(line, "\n")] = 0;
	say("\"cgroup\": \"%s\"", strncmp(line, "0::", 3) ? "" : line + 3);
}

static const char *option(int count, char **words, const char *name)
{
	for (int word = 1; word + 1 < count; word++)
		if (!strcmp(words[word], name))
			return words[word + 1];
	return NULL;
}

static int write_report(const char *folder)
{
	char unfinished[4096], path[4096];
	FILE *file = stdout;

	if (folder) {
		snprintf(unfinished, sizeof unfinished, "%s/%d.unfinished", folder, getpid());
		snprintf(path, sizeof path, "%s/%d.json", folder, getpid());
		file = fopen(unfinished, "w");
	}
	if (!file || fwrite(text, 1, length, file) != length || fflush(file))
		return 1;
	return folder ? fclose(file) || rename(unfinished, path) : 0;
}

int main(int count, char **words)
{
	static const char *const variables[] = {
		"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES",
		"OMP_NUM_THREADS", "SLURM_PROCID", "SLURM_LOCALID", "SLURMD_NODENAME", "SLURM_STEP_TASKS_PER_NODE",
	};
	const char *hold = option(count, words, "--hold"), *mib = option(count, words, "--mib");
	pthread_t thread;

	say("{");
	report("main");
	if (pthread_create(&thread, NULL, report, "thread") || pthread_join(thread, NULL))
		return 1;
	report_child();
	say("\"pid\": %d, \"ppid\": %d, \"environment\": {", getpid(), getppid());
	for (size_t each = 0; each < sizeof variables / sizeof *variables; each++)
		say_variable(variables[each]);
	// A comma too many is no JSON: the last one always is there.
	say("\"\": \"\"}, ");
	say_cgroup();
	say("}\n");
	if (write_report(option(count, words, "--into")))
		return 1;
	if (mib && !touched((size_t)atol(mib) << 20 >> 12, 4096))
		return 1;
	if (hold)
		usleep((useconds_t)(atof(hold) * 1e6));
	return 0;
}
