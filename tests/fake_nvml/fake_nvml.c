/* Which answers would a driver give that answered so once?
 *
 * A stand-in for libnvidia-ml.so.1, for tests only. It answers from the recording that $WELLFED_FAKE_NVML names: one
 * call a line, `function arguments = answer` (src/wellfed/gpus/nvml_log.py describes the format, and reads the same
 * file). Of two lines for one call the later one holds, so a setter may answer by adding a line to the file, and the
 * change outlives the process as it does on a driver. A call without a line is NVML_ERROR_NOT_SUPPORTED.
 *
 *     #! delay nvmlDeviceGetUUID 200      each such call takes 200 ms
 *     #! crash nvmlDeviceGetUUID          each such call ends the process by SIGSEGV
 *     #! lost gpu0 5                      after five calls of one process that ask about it, it is off the bus
 *
 * Setters append to the file what the getters are to say, so root alone may call them, and one that sets what the GPU
 * does not have is refused as its getter is. Modes of ECC and MIG become pending, as they do until the next reset.
 *
 * $WELLFED_FAKE_NVML_LOG gets the name of every function called, one a line.
 *
 * Layouts and symbol versions are those of nvml.h; what a real library does with sizes too small is what nvml.h says:
 * texts are refused with NVML_ERROR_INSUFFICIENT_SIZE, sets are cut without a word.
 */
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, INSUFFICIENT_SIZE = 7,
       DRIVER_NOT_LOADED = 9, GPU_IS_LOST = 15, INSUFFICIENT_MEMORY = 20, UNKNOWN = 999 };
enum { TEXT_SIZE = 4096, NAME_SIZE = 64, MOST_DEVICES = 512 };

typedef int nvmlReturn_t;
typedef struct device { char name[NAME_SIZE]; unsigned int num_calls; } *nvmlDevice_t;
typedef struct {
    char busIdLegacy[16];
    unsigned int domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} nvmlPciInfo_t;
typedef struct { unsigned long long total, free, used; } nvmlMemory_t;
typedef struct { unsigned int version; unsigned long long total, reserved, free, used; } nvmlMemory_v2_t;
typedef struct { unsigned long long bar1Total, bar1Free, bar1Used; } nvmlBAR1Memory_t;
typedef struct { unsigned int gpu, memory; } nvmlUtilization_t;

static const char *const errors[] = {
    "SUCCESS", "UNINITIALIZED", "INVALID_ARGUMENT", "NOT_SUPPORTED", "NO_PERMISSION", "ALREADY_INITIALIZED",
    "NOT_FOUND", "INSUFFICIENT_SIZE", "INSUFFICIENT_POWER", "DRIVER_NOT_LOADED", "TIMEOUT", "IRQ_ISSUE",
    "LIBRARY_NOT_FOUND", "FUNCTION_NOT_FOUND", "CORRUPTED_INFOROM", "GPU_IS_LOST", "RESET_REQUIRED",
    "OPERATING_SYSTEM", "LIB_RM_VERSION_MISMATCH", "IN_USE", "MEMORY", "NO_DATA", "VGPU_ECC_NOT_SUPPORTED",
    "INSUFFICIENT_RESOURCES", "FREQ_NOT_SUPPORTED", "ARGUMENT_VERSION_MISMATCH", "DEPRECATED", "NOT_READY",
    "GPU_NOT_FOUND", "INVALID_STATE", "RESET_TYPE_NOT_SUPPORTED",
};
enum { NUM_ERRORS = sizeof errors / sizeof *errors };

static struct device devices[MOST_DEVICES];
static int num_devices, num_openings;

/* --- the recording ----------------------------------------------------------------------------------------------- */

static nvmlReturn_t error_number(const char *name)
{
    static const char prefix[] = "NVML_ERROR_";
    if (strncmp(name, prefix, sizeof prefix - 1))
        return UNKNOWN;
    name += sizeof prefix - 1;
    for (int number = 0; number < NUM_ERRORS; number++)
        if (!strcmp(errors[number], name))
            return number;
    return atoi(name) ? atoi(name) : UNKNOWN;
}

static void log_call(const char *function)
{
    const char *path = getenv("WELLFED_FAKE_NVML_LOG");
    FILE *log = path ? fopen(path, "a") : NULL;
    if (log) {
        fprintf(log, "%s\n", function);
        fclose(log);
    }
}

static void obey(const char *line, const char *function)
{
    char name[128];
    unsigned int milliseconds;
    if (sscanf(line, "#! delay %127s %u", name, &milliseconds) == 2 && !strcmp(name, function)) {
        struct timespec wait = {milliseconds / 1000, milliseconds % 1000 * 1000000L};
        nanosleep(&wait, NULL);
    }
    if (sscanf(line, "#! crash %127s", name) == 1 && !strcmp(name, function))
        raise(SIGSEGV);
}

/* Counts a call that asks about a device, and says whether it has fallen off the bus by now. */
static int is_lost(const char *line, const char *name, int counted)
{
    char lost[NAME_SIZE];
    unsigned int allowed;
    if (sscanf(line, "#! lost %63s %u", lost, &allowed) != 2 || strcmp(lost, name))
        return 0;
    for (int each = 0; each < num_devices; each++)
        if (!strcmp(devices[each].name, name))
            return (devices[each].num_calls += (unsigned int)counted) > allowed;
    return 0;
}

/* Finds what the recording answers to `function arguments`: its text, or the error that stands there. */
__attribute__((format(printf, 3, 4)))
static nvmlReturn_t look(char answer[TEXT_SIZE], const char *function, const char *format, ...)
{
    char inputs[256], question[512], *line = NULL;
    size_t size = 0;
    va_list arguments;
    va_start(arguments, format);
    int num_written = vsnprintf(inputs, sizeof inputs, format, arguments);
    va_end(arguments);

    log_call(function);
    if (!num_openings && strcmp(function, "nvmlInitWithFlags"))
        return UNINITIALIZED;
    if (num_written >= (int)sizeof inputs)
        return INVALID_ARGUMENT;
    size_t length = (size_t)snprintf(question, sizeof question, "%s %s%s= ", function, inputs, *inputs ? " " : "");
    const char *path = getenv("WELLFED_FAKE_NVML");
    FILE *recording = path ? fopen(path, "r") : NULL;
    if (!recording)
        return DRIVER_NOT_LOADED;
    char about[NAME_SIZE] = "";
    sscanf(inputs, "%63s", about);
    nvmlReturn_t found = NOT_SUPPORTED;
    int lost = 0;
    while (getline(&line, &size, recording) >= 0) {
        line[strcspn(line, "\r\n")] = 0;
        obey(line, function);
        lost |= is_lost(line, about, 1) || (found == SUCCESS && is_lost(line, answer, 0));
        if (!strncmp(line, question, length)) {
            snprintf(answer, TEXT_SIZE, "%s", line + length);
            found = *answer == '!' ? error_number(answer + 1) : SUCCESS;
        }
    }
    free(line);
    fclose(recording);
    return lost ? GPU_IS_LOST : found;
}

/* Writes down what a setter changed: `getter arguments = answer`. A line in the recording may refuse it beforehand. */
__attribute__((format(printf, 3, 4)))
static nvmlReturn_t change(const char *setter, nvmlDevice_t device, const char *format, ...)
{
    char answer[TEXT_SIZE];
    va_list arguments;
    nvmlReturn_t refused = look(answer, setter, "%s", device->name);
    if (refused && refused != NOT_SUPPORTED)
        return refused;
    if (geteuid() != 0)
        return NO_PERMISSION;
    FILE *recording = fopen(getenv("WELLFED_FAKE_NVML"), "a");
    if (!recording)
        return NO_PERMISSION;
    va_start(arguments, format);
    vfprintf(recording, format, arguments);
    va_end(arguments);
    return fclose(recording) ? UNKNOWN : SUCCESS;
}

/* --- answers ------------------------------------------------------------------------------------------------------ */

static nvmlReturn_t to_number(const char *answer, unsigned int *number)
{
    char *end;
    long long found = strtoll(answer, &end, 10);
    if (end == answer || *end)
        return UNKNOWN;
    *number = (unsigned int)found;
    return SUCCESS;
}

static nvmlReturn_t to_long(const char *answer, unsigned long long *number)
{
    char *end;
    unsigned long long found = strtoull(answer, &end, 10);
    if (end == answer || *end)
        return UNKNOWN;
    *number = found;
    return SUCCESS;
}

static nvmlReturn_t to_pair(const char *answer, unsigned int *first, unsigned int *second)
{
    return sscanf(answer, "[%u, %u]", first, second) == 2 ? SUCCESS : UNKNOWN;
}

/* A JSON text, in which only \" and \\ are escaped: more than that no name of a GPU needs. */
static nvmlReturn_t to_text(const char *answer, char *text, size_t size)
{
    size_t length = 0;
    if (*answer++ != '"')
        return UNKNOWN;
    for (; *answer && *answer != '"'; answer++) {
        if (*answer == '\\')
            answer++;
        if (length + 1 >= size)
            return INSUFFICIENT_SIZE;
        text[length++] = *answer;
    }
    text[length] = 0;
    return *answer == '"' ? SUCCESS : UNKNOWN;
}

/* A set as the kernel writes it, "0-23,48-71", into words of 64 bits. */
static nvmlReturn_t to_set(const char *answer, unsigned int num_words, unsigned long *words)
{
    char text[TEXT_SIZE], *next = text;
    nvmlReturn_t wrong = to_text(answer, text, sizeof text);
    if (wrong)
        return wrong;
    memset(words, 0, num_words * sizeof *words);
    while (*next) {
        unsigned long low = strtoul(next, &next, 10), high = low;
        if (*next == '-')
            high = strtoul(next + 1, &next, 10);
        for (; low <= high; low++)
            if (low / 64 < num_words)
                words[low / 64] |= 1UL << low % 64;
        if (*next == ',')
            next++;
    }
    return SUCCESS;
}

/* The value behind one field of a flat JSON object. */
static const char *field(const char *answer, const char *name)
{
    char quoted[NAME_SIZE];
    int length = snprintf(quoted, sizeof quoted, "\"%s\": ", name);
    const char *found = strstr(answer, quoted);
    return found ? found + length : "";
}

static unsigned int number_field(const char *answer, const char *name)
{
    return (unsigned int)strtoul(field(answer, name), NULL, 10);
}

static unsigned long long long_field(const char *answer, const char *name)
{
    return strtoull(field(answer, name), NULL, 10);
}

static nvmlReturn_t to_device(const char *answer, nvmlDevice_t *device)
{
    for (int each = 0; each < num_devices; each++)
        if (!strcmp(devices[each].name, answer)) {
            *device = &devices[each];
            return SUCCESS;
        }
    if (num_devices == MOST_DEVICES)
        return INSUFFICIENT_MEMORY;
    snprintf(devices[num_devices].name, NAME_SIZE, "%s", answer);
    *device = &devices[num_devices++];
    return SUCCESS;
}

/* --- the library -------------------------------------------------------------------------------------------------- */

#define ANSWER(...)                                             \
    char answer[TEXT_SIZE];                                     \
    nvmlReturn_t refused = look(answer, __func__, __VA_ARGS__); \
    if (refused)                                                \
        return refused

#define NUMBER_OF_DEVICE(function)                                   \
    nvmlReturn_t function(nvmlDevice_t device, unsigned int *number) \
    {                                                                \
        ANSWER("%s", device->name);                                  \
        return to_number(answer, number);                            \
    }

#define NUMBER_OF_DEVICE_AND(function)                                                  \
    nvmlReturn_t function(nvmlDevice_t device, unsigned int which, unsigned int *number) \
    {                                                                                   \
        ANSWER("%s %u", device->name, which);                                           \
        return to_number(answer, number);                                               \
    }

#define LONG_OF_DEVICE(function)                                           \
    nvmlReturn_t function(nvmlDevice_t device, unsigned long long *number) \
    {                                                                      \
        ANSWER("%s", device->name);                                        \
        return to_long(answer, number);                                    \
    }

#define LONG_OF_DEVICE_AND_TWO(function)                                                                      \
    nvmlReturn_t function(nvmlDevice_t device, unsigned int one, unsigned int two, unsigned long long *number) \
    {                                                                                                         \
        ANSWER("%s %u %u", device->name, one, two);                                                           \
        return to_long(answer, number);                                                                       \
    }

#define PAIR_OF_DEVICE(function)                                                            \
    nvmlReturn_t function(nvmlDevice_t device, unsigned int *first, unsigned int *second)   \
    {                                                                                       \
        ANSWER("%s", device->name);                                                         \
        return to_pair(answer, first, second);                                              \
    }

#define NUMBER_OF_TWO(function)                                                                \
    nvmlReturn_t function(nvmlDevice_t device, nvmlDevice_t other, unsigned int *number)       \
    {                                                                                          \
        ANSWER("%s %s", device->name, other->name);                                            \
        return to_number(answer, number);                                                      \
    }

#define TEXT_OF_DEVICE(function)                                              \
    nvmlReturn_t function(nvmlDevice_t device, char *text, unsigned int size) \
    {                                                                         \
        ANSWER("%s", device->name);                                           \
        return to_text(answer, text, size);                                   \
    }

#define TEXT_OF_SYSTEM(function)                         \
    nvmlReturn_t function(char *text, unsigned int size) \
    {                                                    \
        ANSWER("%s", "");                                \
        return to_text(answer, text, size);              \
    }

nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
    ANSWER("%u", flags);
    num_openings++;
    return SUCCESS;
}

nvmlReturn_t nvmlShutdown(void)
{
    log_call(__func__);
    if (!num_openings)
        return UNINITIALIZED;
    num_openings--;
    return SUCCESS;
}

const char *nvmlErrorString(nvmlReturn_t number)
{
    return number >= 0 && number < NUM_ERRORS ? errors[number] : "UNKNOWN";
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    ANSWER("%u", index);
    return to_device(answer, device);
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    ANSWER("\"%s\"", uuid);
    return to_device(answer, device);
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *address, nvmlDevice_t *device)
{
    ANSWER("\"%s\"", address);
    return to_device(answer, device);
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *instance)
{
    ANSWER("%s %u", device->name, index);
    return to_device(answer, instance);
}

nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t instance, nvmlDevice_t *device)
{
    ANSWER("%s", instance->name);
    return to_device(answer, device);
}

static nvmlReturn_t to_pci(const char *answer, nvmlPciInfo_t *pci)
{
    memset(pci, 0, sizeof *pci);
    pci->domain = number_field(answer, "domain");
    pci->bus = number_field(answer, "bus");
    pci->device = number_field(answer, "device");
    pci->pciDeviceId = number_field(answer, "pciDeviceId");
    pci->pciSubSystemId = number_field(answer, "pciSubSystemId");
    nvmlReturn_t wrong = to_text(field(answer, "busIdLegacy"), pci->busIdLegacy, sizeof pci->busIdLegacy);
    return wrong ? wrong : to_text(field(answer, "busId"), pci->busId, sizeof pci->busId);
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    ANSWER("%s", device->name);
    return to_pci(answer, pci);
}

nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned int link, nvmlPciInfo_t *pci)
{
    ANSWER("%s %u", device->name, link);
    return to_pci(answer, pci);
}

nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *corrected, unsigned int *uncorrected,
                                       unsigned int *pending, unsigned int *failed)
{
    ANSWER("%s", device->name);
    return sscanf(answer, "[%u, %u, %u, %u]", corrected, uncorrected, pending, failed) == 4 ? SUCCESS : UNKNOWN;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    ANSWER("%s", device->name);
    memory->total = long_field(answer, "total");
    memory->free = long_field(answer, "free");
    memory->used = long_field(answer, "used");
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    ANSWER("%s", device->name);
    memory->total = long_field(answer, "total");
    memory->reserved = long_field(answer, "reserved");
    memory->free = long_field(answer, "free");
    memory->used = long_field(answer, "used");
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *memory)
{
    ANSWER("%s", device->name);
    memory->bar1Total = long_field(answer, "bar1Total");
    memory->bar1Free = long_field(answer, "bar1Free");
    memory->bar1Used = long_field(answer, "bar1Used");
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates)
{
    ANSWER("%s", device->name);
    rates->gpu = number_field(answer, "gpu");
    rates->memory = number_field(answer, "memory");
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, unsigned int type, unsigned int counter,
                                             unsigned int location, unsigned long long *number)
{
    ANSWER("%s %u %u %u", device->name, type, counter, location);
    return to_long(answer, number);
}

nvmlReturn_t nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice_t device, unsigned int num_words, unsigned long *cpus,
                                                 unsigned int scope)
{
    ANSWER("%s %u", device->name, scope);
    return to_set(answer, num_words, cpus);
}

nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned int num_words, unsigned long *cpus)
{
    ANSWER("%s", device->name);
    return to_set(answer, num_words, cpus);
}

nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned int num_words, unsigned long *nodes,
                                         unsigned int scope)
{
    ANSWER("%s %u", device->name, scope);
    return to_set(answer, num_words, nodes);
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *number)
{
    ANSWER("%s", "");
    return to_number(answer, number);
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *number)
{
    ANSWER("%s", "");
    return to_number(answer, (unsigned int *)number);
}

TEXT_OF_SYSTEM(nvmlSystemGetDriverVersion)
TEXT_OF_SYSTEM(nvmlSystemGetNVMLVersion)
TEXT_OF_DEVICE(nvmlDeviceGetName)
TEXT_OF_DEVICE(nvmlDeviceGetUUID)
NUMBER_OF_DEVICE(nvmlDeviceGetGpuInstanceId)
NUMBER_OF_DEVICE(nvmlDeviceGetComputeInstanceId)
NUMBER_OF_DEVICE(nvmlDeviceGetMaxMigDeviceCount)
NUMBER_OF_DEVICE(nvmlDeviceGetMinorNumber)
NUMBER_OF_DEVICE(nvmlDeviceGetNumaNodeId)
NUMBER_OF_DEVICE(nvmlDeviceGetIndex)
NUMBER_OF_DEVICE(nvmlDeviceGetPersistenceMode)
NUMBER_OF_DEVICE(nvmlDeviceGetComputeMode)
NUMBER_OF_DEVICE(nvmlDeviceGetPerformanceState)
NUMBER_OF_DEVICE(nvmlDeviceGetPowerUsage)
NUMBER_OF_DEVICE(nvmlDeviceGetPowerManagementLimit)
NUMBER_OF_DEVICE(nvmlDeviceGetPowerManagementDefaultLimit)
NUMBER_OF_DEVICE(nvmlDeviceGetEnforcedPowerLimit)
NUMBER_OF_DEVICE(nvmlDeviceGetCurrPcieLinkGeneration)
NUMBER_OF_DEVICE(nvmlDeviceGetCurrPcieLinkWidth)
NUMBER_OF_DEVICE(nvmlDeviceGetMaxPcieLinkGeneration)
NUMBER_OF_DEVICE(nvmlDeviceGetMaxPcieLinkWidth)
NUMBER_OF_DEVICE(nvmlDeviceGetPcieReplayCounter)
NUMBER_OF_DEVICE_AND(nvmlDeviceGetClockInfo)
NUMBER_OF_DEVICE_AND(nvmlDeviceGetMaxClockInfo)
NUMBER_OF_DEVICE_AND(nvmlDeviceGetApplicationsClock)
NUMBER_OF_DEVICE_AND(nvmlDeviceGetDefaultApplicationsClock)
NUMBER_OF_DEVICE_AND(nvmlDeviceGetTemperature)
NUMBER_OF_DEVICE_AND(nvmlDeviceGetTemperatureThreshold)
NUMBER_OF_DEVICE_AND(nvmlDeviceGetNvLinkState)
NUMBER_OF_DEVICE_AND(nvmlDeviceGetNvLinkVersion)
LONG_OF_DEVICE(nvmlDeviceGetCurrentClocksEventReasons)
LONG_OF_DEVICE(nvmlDeviceGetCurrentClocksThrottleReasons)
LONG_OF_DEVICE(nvmlDeviceGetSupportedClocksEventReasons)
LONG_OF_DEVICE(nvmlDeviceGetSupportedClocksThrottleReasons)
LONG_OF_DEVICE_AND_TWO(nvmlDeviceGetTotalEccErrors)
LONG_OF_DEVICE_AND_TWO(nvmlDeviceGetNvLinkErrorCounter)
PAIR_OF_DEVICE(nvmlDeviceGetEccMode)
PAIR_OF_DEVICE(nvmlDeviceGetMigMode)
PAIR_OF_DEVICE(nvmlDeviceGetPowerManagementLimitConstraints)
NUMBER_OF_TWO(nvmlDeviceGetTopologyCommonAncestor)

/* --- what can be changed ------------------------------------------------------------------------------------------ */

static nvmlReturn_t set_number(const char *setter, const char *getter, nvmlDevice_t device, unsigned int value,
                               unsigned int largest)
{
    char before[TEXT_SIZE];
    nvmlReturn_t refused = look(before, getter, "%s", device->name);
    if (refused)
        return refused;
    return value > largest ? INVALID_ARGUMENT
                           : change(setter, device, "%s %s = %u\n", getter, device->name, value);
}

/* Sets the pending half of a mode that a reset makes the current one. */
static nvmlReturn_t set_pending(const char *setter, const char *getter, nvmlDevice_t device, unsigned int value)
{
    char before[TEXT_SIZE];
    unsigned int current, pending;
    nvmlReturn_t refused = look(before, getter, "%s", device->name);
    if (refused)
        return refused;
    if (to_pair(before, &current, &pending))
        return UNKNOWN;
    return value > 1 ? INVALID_ARGUMENT
                     : change(setter, device, "%s %s = [%u, %u]\n", getter, device->name, current, value);
}

nvmlReturn_t nvmlDeviceSetPersistenceMode(nvmlDevice_t device, unsigned int mode)
{
    return set_number(__func__, "nvmlDeviceGetPersistenceMode", device, mode, 1);
}

nvmlReturn_t nvmlDeviceSetComputeMode(nvmlDevice_t device, unsigned int mode)
{
    return set_number(__func__, "nvmlDeviceGetComputeMode", device, mode, 3);
}

nvmlReturn_t nvmlDeviceSetEccMode(nvmlDevice_t device, unsigned int mode)
{
    return set_pending(__func__, "nvmlDeviceGetEccMode", device, mode);
}

nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t device, unsigned int mode, nvmlReturn_t *activation)
{
    *activation = SUCCESS;
    return set_pending(__func__, "nvmlDeviceGetMigMode", device, mode);
}

nvmlReturn_t nvmlDeviceSetPowerManagementLimit(nvmlDevice_t device, unsigned int milliwatts)
{
    char range[TEXT_SIZE];
    unsigned int least, most;
    nvmlReturn_t refused = look(range, "nvmlDeviceGetPowerManagementLimitConstraints", "%s", device->name);
    if (refused)
        return refused;
    if (to_pair(range, &least, &most) || milliwatts < least)
        return INVALID_ARGUMENT;
    return set_number(__func__, "nvmlDeviceGetPowerManagementLimit", device, milliwatts, most);
}

/* Clocks: 0 is graphics, 2 is memory, as nvmlClockType_t counts. */
static nvmlReturn_t largest_clock(nvmlDevice_t device, unsigned int type, unsigned int *mhz)
{
    char answer[TEXT_SIZE];
    nvmlReturn_t refused = look(answer, "nvmlDeviceGetMaxClockInfo", "%s %u", device->name, type);
    return refused ? refused : to_number(answer, mhz);
}

/* NVML has no getter for locked clocks: the last of these lines is what a test reads. */
static nvmlReturn_t lock(const char *setter, nvmlDevice_t device, unsigned int type, unsigned int low, unsigned int high)
{
    unsigned int largest;
    nvmlReturn_t refused = largest_clock(device, type, &largest);
    if (refused)
        return refused;
    if (low > high || high > largest)
        return INVALID_ARGUMENT;
    return change(setter, device, "# locked %s %u = [%u, %u]\n", device->name, type, low, high);
}

nvmlReturn_t nvmlDeviceSetGpuLockedClocks(nvmlDevice_t device, unsigned int low, unsigned int high)
{
    return lock(__func__, device, 0, low, high);
}

nvmlReturn_t nvmlDeviceSetMemoryLockedClocks(nvmlDevice_t device, unsigned int low, unsigned int high)
{
    return lock(__func__, device, 2, low, high);
}

nvmlReturn_t nvmlDeviceResetGpuLockedClocks(nvmlDevice_t device)
{
    return change(__func__, device, "# locked %s 0 = none\n", device->name);
}

nvmlReturn_t nvmlDeviceResetMemoryLockedClocks(nvmlDevice_t device)
{
    return change(__func__, device, "# locked %s 2 = none\n", device->name);
}

nvmlReturn_t nvmlDeviceSetApplicationsClocks(nvmlDevice_t device, unsigned int memory, unsigned int graphics)
{
    unsigned int largest_memory, largest_graphics;
    nvmlReturn_t refused = largest_clock(device, 2, &largest_memory);
    if (!refused)
        refused = largest_clock(device, 0, &largest_graphics);
    if (refused)
        return refused;
    if (memory > largest_memory || graphics > largest_graphics)
        return INVALID_ARGUMENT;
    return change(__func__, device, "nvmlDeviceGetApplicationsClock %s 0 = %u\nnvmlDeviceGetApplicationsClock %s 2 = %u\n",
                  device->name, graphics, device->name, memory);
}

nvmlReturn_t nvmlDeviceResetApplicationsClocks(nvmlDevice_t device)
{
    char graphics[TEXT_SIZE], memory[TEXT_SIZE];
    nvmlReturn_t refused = look(graphics, "nvmlDeviceGetDefaultApplicationsClock", "%s 0", device->name);
    if (!refused)
        refused = look(memory, "nvmlDeviceGetDefaultApplicationsClock", "%s 2", device->name);
    if (refused)
        return refused;
    return change(__func__, device, "nvmlDeviceGetApplicationsClock %s 0 = %s\nnvmlDeviceGetApplicationsClock %s 2 = %s\n",
                  device->name, graphics, device->name, memory);
}
