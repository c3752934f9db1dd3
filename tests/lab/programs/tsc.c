// How fast does this machine's time stamp counter count? Prints kHz.
//
// A guest under TCG reads this very counter, and measures its speed against emulated timers while it boots: on a busy
// host it may be wrong by a factor of two, and every time-out in the guest with it. So it is told.
#include <stdint.h>
#include <stdio.h>
#include <time.h>
#include <x86intrin.h>

static double seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC_RAW, &now);
	return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

int main(void)
{
	double best_khz = 0, shortest = 1e9;

	// A sample during which this process lost its CPU between the two readings is off: the tightest one is kept.
	for (int sample = 0; sample < 5; sample++) {
		double before = seconds();
		uint64_t first = __rdtsc();
		double begun = seconds();

		while (seconds() - begun < 0.01)
			;
		double ended = seconds();
		uint64_t last = __rdtsc();
		double after = seconds();
		double slack = begun - before + (after - ended);

		if (slack < shortest) {
			shortest = slack;
			best_khz = (double)(last - first) / ((begun - before) / 2 + (ended - begun) + (after - ended) / 2) / 1e3;
		}
	}
	printf("%.0f\n", best_khz);
	return 0;
}
