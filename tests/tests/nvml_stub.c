// A stand-in for libnvidia-ml.so.1: two GPUs, and a driver that may say, or not say, what the file beside this library tells.
//
// `settings`, in the folder of the library, is read anew at each call: words that are lines of `name=value`. init: what starting
// returns. lost: GPU whose calls return 15 (from 1). hang: call that does not come back while it is named. absent: calls, by a
// comma each, that are not supported. mig: the first GPU is in parts. util, memory, power, reasons, clock, graphics, sm: figures.
// nan: counters are read too soon. xid: an event of the first GPU.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef struct { int number; } Device;
static Device devices[3] = {{1}, {2}, {3}};
static int is_here;
static const char *uuids[] = {"GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", "GPU-1a2b3c4d-d72c-4106-c12f-20bd9faed9f6",
                              "MIG-11112222-3333-4444-5555-666677778888"};

static int setting(const char *name, char *value, size_t bytes) {
    static char path[4096];
    if (!path[0]) {
        Dl_info info;
        dladdr(&is_here, &info);
        snprintf(path, sizeof path, "%.*s/settings", (int)(strrchr(info.dli_fname, '/') - info.dli_fname), info.dli_fname);
    }
    FILE *file = fopen(path, "r");
    char line[256];
    int found = 0;
    size_t length = strlen(name);
    while (file && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        if (!strncmp(line, name, length) && line[length] == '=') found = 1, snprintf(value, bytes, "%s", line + length + 1);
    }
    if (file) fclose(file);
    return found;
}

static long number(const char *name, long otherwise) {
    char value[256];
    return setting(name, value, sizeof value) ? atol(value) : otherwise;
}

// What a call of that name returns before it does anything.
static int enter(const char *name, const Device *device) {
    char value[256];
    while (setting("hang", value, sizeof value) && !strcmp(value, name)) usleep(5000);
    if (device && number("lost", 0) == device->number) return 15;
    if (setting("absent", value, sizeof value)) {
        for (char *each = strtok(value, ","); each; each = strtok(NULL, ","))
            if (!strcmp(each, name)) return 3;
    }
    return 0;
}

#define ENTER(name, device) do { int code = enter(name, device); if (code) return code; } while (0)

int nvmlInit_v2(void) { return (int)number("init", enter("init", NULL)); }
int nvmlShutdown(void) { return 0; }
int nvmlSystemGetDriverVersion(char *out, unsigned bytes) { return snprintf(out, bytes, "580.1"), 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { return *count = 2, 0; }
// In the reverse of the order in which a user would count.
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **out) { return *out = &devices[1 - index], 0; }
int nvmlDeviceGetHandleByUUID(const char *uuid, Device **out) {
    for (int each = 0; each < 3; each++)
        if (!strcmp(uuids[each], uuid)) return *out = &devices[each], enter("handle", &devices[each]);
    return 6;
}
int nvmlDeviceGetName(Device *device, char *out, unsigned bytes) { return snprintf(out, bytes, "Stub %d", device->number), 0; }
int nvmlDeviceGetUUID(Device *device, char *out, unsigned bytes) { ENTER("uuid", device); return snprintf(out, bytes, "%s", uuids[device->number - 1]), 0; }

typedef struct { char legacy[16]; unsigned domain, bus, device, id, system; char bus_id[32]; } Pci;
int nvmlDeviceGetPciInfo_v3(Device *device, Pci *out) {
    memset(out, 0, sizeof *out);
    out->bus = device->number == 1 ? 0x3b : 0xaf;
    snprintf(out->legacy, sizeof out->legacy, "0000:%02X:00.0", out->bus);
    snprintf(out->bus_id, sizeof out->bus_id, "00000000:%02X:00.0", out->bus);
    return 0;
}

int nvmlDeviceGetMaxMigDeviceCount(Device *device, unsigned *count) { return *count = number("mig", 0) && device->number == 1, 0; }
int nvmlDeviceGetMigDeviceHandleByIndex(Device *device, unsigned index, Device **out) { return *out = &devices[2], index ? 6 : 0; }
int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Device *device, Device **out) { return *out = &devices[0], device->number == 3 ? 0 : 2; }
int nvmlDeviceGetGpuInstanceId(Device *device, unsigned *out) { return *out = 7, device->number == 3 ? 0 : 3; }

int nvmlDeviceGetUtilizationRates(Device *device, unsigned *out) {
    ENTER("util", device);
    if (device->number == 3 || (device->number == 1 && number("mig", 0))) return 3;
    out[0] = (unsigned)number("util", 97);
    out[1] = (unsigned)number("memory", 40);
    return 0;
}
int nvmlDeviceGetPowerUsage(Device *device, unsigned *out) { ENTER("power", device); return *out = (unsigned)number("power", 500000), 0; }
int nvmlDeviceGetEnforcedPowerLimit(Device *device, unsigned *out) { ENTER("limit", device); return *out = 700000, 0; }
int nvmlDeviceGetClockInfo(Device *device, int kind, unsigned *out) { ENTER("clock", device); return *out = kind == 2 ? 2619 : (unsigned)number("clock", 1980), 0; }
int nvmlDeviceGetMaxClockInfo(Device *device, int kind, unsigned *out) { ENTER("max_clock", device); return *out = 1980, 0; }
int nvmlDeviceGetCurrentClocksThrottleReasons(Device *device, unsigned long long *out) { ENTER("reasons", device); return *out = (unsigned long long)number("reasons", 0), 0; }
int nvmlDeviceGetTemperature(Device *device, int sensor, unsigned *out) { ENTER("temperature", device); return *out = 55, 0; }
int nvmlDeviceGetJpgUtilization(Device *device, unsigned *out, unsigned *period) { ENTER("jpg", device); return *out = 12, *period = 1000, 0; }
int nvmlDeviceGetDecoderUtilization(Device *device, unsigned *out, unsigned *period) { ENTER("dec", device); return *out = 3, *period = 1000, 0; }
int nvmlDeviceGetCurrPcieLinkGeneration(Device *device, unsigned *out) { ENTER("pcie", device); return *out = 5, 0; }
int nvmlDeviceGetMaxPcieLinkGeneration(Device *device, unsigned *out) { ENTER("pcie", device); return *out = 5, 0; }
int nvmlDeviceGetCurrPcieLinkWidth(Device *device, unsigned *out) { ENTER("pcie", device); return *out = 16, 0; }
int nvmlDeviceGetMaxPcieLinkWidth(Device *device, unsigned *out) { ENTER("pcie", device); return *out = 16, 0; }
int nvmlDeviceGetPcieReplayCounter(Device *device, unsigned *out) { ENTER("replay", device); return *out = 2, 0; }
int nvmlDeviceGetPcieThroughput(Device *device, int counter, unsigned *out) {
    ENTER("throughput", device);
    usleep(20000);
    return *out = counter ? 700000 : 9000, 0;
}
int nvmlDeviceGetTotalEccErrors(Device *device, int kind, int counter, unsigned long long *out) { ENTER("ecc", device); return *out = kind ? 0 : 4, 0; }

typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory;
int nvmlDeviceGetMemoryInfo_v2(Device *device, Memory *out) {
    ENTER("memory_info", device);
    return out->total = 150ull << 30, out->used = 16ull << 30, out->free = out->total - out->used, out->reserved = 0, 0;
}

typedef struct { unsigned pid; unsigned long long bytes; unsigned gpu, compute; } Process;
int nvmlDeviceGetComputeRunningProcesses_v3(Device *device, unsigned *count, Process *out) {
    ENTER("processes", device);
    Process both[2] = {{645400, 1 << 30, ~0u, ~0u}, {(unsigned)getpid(), 2u << 30, ~0u, ~0u}};
    if (*count < 2) return *count = 2, 7;
    return *count = 2, memcpy(out, both, sizeof both), 0;
}

typedef struct { Device *device; unsigned long long kind, data; unsigned gpu, compute; } Event;
int nvmlEventSetCreate(void **set) { ENTER("events", NULL); return *set = devices, 0; }
int nvmlEventSetFree(void *set) { return 0; }
int nvmlDeviceRegisterEvents(Device *device, unsigned long long kinds, void *set) { ENTER("events", device); return 0; }
int nvmlEventSetWait_v2(void *set, Event *out, unsigned timeout_ms) {
    static long last;
    long code = number("xid", 0);
    if (code == last) return usleep(timeout_ms * 1000), 10;
    last = code;
    return out->device = &devices[0], out->kind = 8, out->data = (unsigned long long)code, 0;
}

typedef struct { unsigned version, is_supported; } Support;
typedef struct { struct timespec at; } Sample;
typedef struct { unsigned metric, code; double value; char *names[3]; } Metric;
typedef struct { unsigned version, count; Sample *first, *second; Metric metrics[210]; } Metrics;
int nvmlGpmQueryDeviceSupport(Device *device, Support *out) { ENTER("gpm", device); return out->is_supported = 1, 0; }
int nvmlGpmSampleAlloc(Sample **out) { return *out = calloc(1, sizeof(Sample)), 0; }
int nvmlGpmSampleFree(Sample *sample) { return free(sample), 0; }
int nvmlGpmSampleGet(Device *device, Sample *out) { ENTER("gpm_sample", device); return clock_gettime(CLOCK_MONOTONIC, &out->at), 0; }
int nvmlGpmMigSampleGet(Device *device, unsigned part, Sample *out) { return part == 7 && device->number == 1 ? nvmlGpmSampleGet(device, out) : 2; }
int nvmlGpmMetricsGet(Metrics *out) {
    int is_void = (int)number("nan", 0);
    for (unsigned each = 0; each < out->count; each++) {
        Metric *metric = &out->metrics[each];
        double share = metric->metric == 1 ? (double)number("graphics", 96) : metric->metric == 2 ? (double)number("sm", 88) : 20.0;
        metric->value = is_void ? (metric->metric == 10 ? NAN : 0.0) : share;
        // FP16's pipes have no counter here.
        metric->code = metric->metric == 13 ? 3 : 0;
    }
    return 0;
}
