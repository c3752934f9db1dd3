// Test only, for the lab's guest: a cpufreq driver without a clock, so that scaling_governor and its
// neighbours are the real kernel's own files.
#include <linux/cpufreq.h>
#include <linux/module.h>

static struct cpufreq_frequency_table speeds_khz[] = {
	{ .frequency = 800000 },
	{ .frequency = 2000000 },
	{ .frequency = 3500000 },
	{ .frequency = CPUFREQ_TABLE_END },
};
static DEFINE_PER_CPU(unsigned int, speed_khz) = 2000000;

static int start(struct cpufreq_policy *policy)
{
	policy->freq_table = speeds_khz;
	policy->cpuinfo.transition_latency = 10000;
	return 0;
}

static int choose(struct cpufreq_policy *policy, unsigned int index)
{
	per_cpu(speed_khz, policy->cpu) = speeds_khz[index].frequency;
	return 0;
}

static unsigned int current_speed(unsigned int cpu)
{
	return per_cpu(speed_khz, cpu);
}

static struct cpufreq_driver fakecpu = {
	.name = "fakecpu",
	.init = start,
	.verify = cpufreq_generic_frequency_table_verify,
	.target_index = choose,
	.get = current_speed,
	.attr = cpufreq_generic_attr,
};

static int __init fakecpu_init(void)
{
	return cpufreq_register_driver(&fakecpu);
}

static void __exit fakecpu_exit(void)
{
	cpufreq_unregister_driver(&fakecpu);
}

module_init(fakecpu_init);
module_exit(fakecpu_exit);
MODULE_DESCRIPTION("Test only: a cpufreq driver without a clock");
MODULE_LICENSE("Dual MIT/GPL");
