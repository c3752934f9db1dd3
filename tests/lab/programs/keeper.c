// Keeps an island: processes, network, mounts and host name of its own, for as long as standard input stays open.
//
//   keeper NAME
//
// Prints the process number of its first process; others join it with nsenter. When standard input ends, or this
// process does, the kernel kills everything in the island.
#define _GNU_SOURCE
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static void die(const char *what)
{
	perror(what);
	_exit(1);
}

static void bring_up_loopback(void)
{
	struct ifreq request = {.ifr_name = "lo", .ifr_flags = IFF_UP};
	int any = socket(AF_INET, SOCK_DGRAM, 0);

	if (any < 0 || ioctl(any, SIOCSIFFLAGS, &request))
		die("lo");
	close(any);
}

// Process 1 of the island: it does nothing but bury the orphans.
static void be_first(const char *name, int ready)
{
	sigset_t all;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL))
		die("mount namespace");
	if (mount("proc", "/proc", "proc", 0, NULL))
		die("/proc");
	if (mount("tmpfs", "/run", "tmpfs", 0, "mode=755"))
		die("/run");
	if (sethostname(name, strlen(name)))
		die("host name");
	bring_up_loopback();
	sigfillset(&all);
	sigprocmask(SIG_BLOCK, &all, NULL);
	if (write(ready, "", 1) != 1)
		die("ready");
	close(ready);
	close(0);
	close(1);
	for (;;) {
		sigwaitinfo(&all, NULL);
		while (waitpid(-1, NULL, WNOHANG) > 0)
			;
	}
}

int main(int count, char **words)
{
	char buffer[64];
	int ends[2];

	if (count != 2)
		return 2;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (unshare(CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWUTS | CLONE_NEWIPC))
		die("unshare");
	if (pipe(ends))
		die("pipe");
	pid_t first = fork();

	if (first < 0)
		die("fork");
	if (!first) {
		close(ends[0]);
		be_first(words[1], ends[1]);
	}
	close(ends[1]);
	if (read(ends[0], buffer, 1) != 1)
		return 1;
	printf("%d\n", first);
	fflush(stdout);
	while (read(0, buffer, sizeof buffer) > 0)
		;
	kill(first, SIGKILL);
	waitpid(first, NULL, 0);
	return 0;
}
