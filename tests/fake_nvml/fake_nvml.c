/* Which answers would a driver give that answered so once?
 *
 * A stand-in for libnvidia-ml.so.1, for tests only. It answers from the recording that $WELLFED_FAKE_NVML names: one
 * call a line, `function arguments = answer` (src/wellfed/gpus/nvml_log.py describes the format, and reads the same
 * file). Of two lines for one call the later one holds, so a setter may answer by adding a line to the file, and the
 * change outlives the process as it does on a driver. A call without a line is NVML_ERROR_NOT_SUPPORTED.
 *
 *     #! delay nvmlDeviceGetUUID 200      each such call takes 200 ms
 *     #! crash nvmlDeviceGetUUID          each such call ends the process by SIGSEGV
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

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7,
       DRIVER_NOT_LOADED = 9, INSUFFICIENT_MEMORY = 20, UNKNOWN = 999 };
enum { TEXT_SIZE = 4096, NAME_SIZE = 64, MOST_DEVICES = 512 };

typedef int nvmlReturn_t;
typedef struct device { char name[NAME_SIZE]; } *nvmlDevice_t;
typedef struct {
    char busIdLegacy[16];
    unsigned int domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} nvmlPciInfo_t;

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
    nvmlReturn_t found = NOT_SUPPORTED;
    while (getline(&line, &size, recording) >= 0) {
        line[strcspn(line, "\r\n")] = 0;
        obey(line, function);
        if (!strncmp(line, question, length)) {
            snprintf(answer, TEXT_SIZE, "%s", line + length);
            found = *answer == '!' ? error_number(answer + 1) : SUCCESS;
        }
    }
    free(line);
    fclose(recording);
    return found;
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

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    ANSWER("%s", device->name);
    memset(pci, 0, sizeof *pci);
    pci->domain = number_field(answer, "domain");
    pci->bus = number_field(answer, "bus");
    pci->device = number_field(answer, "device");
    pci->pciDeviceId = number_field(answer, "pciDeviceId");
    pci->pciSubSystemId = number_field(answer, "pciSubSystemId");
    refused = to_text(field(answer, "busIdLegacy"), pci->busIdLegacy, sizeof pci->busIdLegacy);
    return refused ? refused : to_text(field(answer, "busId"), pci->busId, sizeof pci->busId);
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending)
{
    ANSWER("%s", device->name);
    return to_pair(answer, current, pending);
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
