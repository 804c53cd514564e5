// A stand-in for libcuda.so.1: registers nothing, but says what a driver may say, and writes down what was asked. The device's memory
// is the host's.
//
// STUB_LOG: file that calls are appended to. STUB_REGISTER: code that registering returns. STUB_LIMIT: bytes after which
// it returns 2. STUB_HOLD: calls after work on a stream wait for stub_finish().
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static long total, waiting_count;
static struct {
    void (*call)(void *);
    void *data;
} waiting[4096];

static void note(const char *call, unsigned long number) {
    FILE *log = fopen(getenv("STUB_LOG"), "a");
    fprintf(log, "%s %d %lu\n", call, (int)getpid(), number);
    fclose(log);
}

static long setting(const char *name) { return getenv(name) ? atol(getenv(name)) : 0; }

int cuInit(unsigned flags) { return 0; }
int cuDeviceGet(int *device, int ordinal) { return *device = ordinal, 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { return *context = &total, 0; }
int cuDevicePrimaryCtxRelease_v2(int device) { return 0; }
int cuCtxPushCurrent_v2(void *context) { return 0; }
int cuCtxPopCurrent_v2(void **context) { return 0; }
int cuStreamCreate(void **stream, unsigned flags) { return *stream = &total, 0; }
int cuStreamDestroy_v2(void *stream) { return 0; }
int cuStreamWaitEvent(void *stream, void *event, unsigned flags) { return 0; }
int cuEventCreate(void **event, unsigned flags) { return *event = &total, 0; }
int cuEventDestroy_v2(void *event) { return 0; }
int cuEventRecord(void *event, void *stream) { return note("record", (unsigned long)stream), 0; }

int cuMemcpyHtoDAsync_v2(unsigned long long target, const void *source, size_t bytes, void *stream) {
    return memcpy((void *)target, source, bytes), 0;
}

int cuMemHostRegister_v2(volatile char *start, size_t bytes, unsigned flags) {
    note("register", bytes);
    if (setting("STUB_REGISTER")) return (int)setting("STUB_REGISTER");
    if (setting("STUB_LIMIT") && total + (long)bytes > setting("STUB_LIMIT")) return 2;
    total += (long)bytes;
    return 0;
}

int cuMemHostUnregister(volatile char *start) {
    // Faults where the memory is gone already.
    note("unregister", (unsigned long)(unsigned char)*start);
    return 0;
}

int cuLaunchHostFunc(void *stream, void (*call)(void *), void *data) {
    if (!setting("STUB_HOLD")) return call(data), 0;
    waiting[waiting_count].call = call;
    waiting[waiting_count++].data = data;
    return 0;
}

long stub_finish(void) {
    long count = waiting_count;
    for (long each = 0; each < count; each++) waiting[each].call(waiting[each].data);
    return waiting_count = 0, count;
}
