/* Reads batches of a Feedline ring by its name alone, as loader/RINGS.md describes.   cc -O2 named_reader.c
   named_reader NAME BATCHES [cut]   prints epoch, batch, rows, sum of labels and Adler-32 of the images of each batch;
   with "cut" it then shortens the ring's memory to nothing, as no reader should. */
#include <fcntl.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
static void fail(const char *why) { fprintf(stderr, "%s\n", why); exit(1); }
static char *attach(const char *ring, const char *part, int *fd) {
    char name[256]; struct stat found;
    snprintf(name, sizeof name, "%s.%s", ring, part);
    if ((*fd = shm_open(name, O_RDWR, 0)) < 0 || fstat(*fd, &found)) fail("no such ring");
    char *memory = mmap(NULL, found.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
    return memory == MAP_FAILED ? NULL : memory;
}
static uint64_t number(const char *json, const char *name) { /* the number behind "name": */
    const char *place = json ? strstr(json, name) : NULL;
    if (!place) fail("the description lacks a number");
    return strtoull(place + strlen(name), NULL, 10);
}
int main(int count, char **words) {
    int control_fd, slots_fd; struct timespec turn = {0, 100000000};
    char *control = attach(words[1], "control", &control_fd), *slots = attach(words[1], "slots", &slots_fd);
    _Atomic uint32_t *u32 = (void *)control; _Atomic uint64_t *u64 = (void *)control; uint32_t nobody = 0;
    if (memcmp(control, "FEEDLINE", 8) || u32[2] != 3) fail("not a ring of version 3");
    if (!atomic_compare_exchange_strong(&u32[34], &nobody, getpid())) fail("another process takes its batches");
    char *json = calloc(u32[7] + 1, 1); memcpy(json, control + u32[6], u32[7]);
    uint64_t labels = number(strstr(json, "\"name\":\"label\""), "\"offset\":");
    uint64_t images = number(strstr(json, "\"name\":\"image\""), "\"offset\":");
    uint64_t row_bytes = number(strstr(json, "\"name\":\"image\""), "\"row_bytes\":");
    for (int left = atoi(words[2]); left > 0;) {
        uint32_t seen = u32[16], generation = u32[19], ended = u32[18], taken = u32[3];
        uint64_t next = u64[18] >> 32 == generation ? u64[18] : (uint64_t)generation << 32;
        uint64_t ready = next >> 32 << 36 | (next & 0xffffffff) << 4 | 3;
        for (uint32_t slot = 0; slot < u32[3]; slot++) {
            uint64_t word = u64[24 + 16 * slot];
            if (word == ready && atomic_compare_exchange_strong(&u64[24 + 16 * slot], &word, ready + 1)) taken = slot;
            else if ((word & 15) == 3 && word >> 36 < generation) atomic_compare_exchange_strong(&u64[24 + 16 * slot], &word, 1);
        }
        if (taken == u32[3]) {
            if (ended || flock(control_fd, LOCK_SH | LOCK_NB) == 0) fail("the stream has ended");
            syscall(SYS_futex, &u32[16], FUTEX_WAIT, seen, &turn, NULL, 0);
            continue;
        }
        u64[18] = next + 1;
        const char *slot = slots + taken * u64[2]; uint32_t record = 48 + 32 * taken, rows = u32[record + 24], a = 1, b = 0;
        int64_t sum = 0, label;
        for (uint32_t row = 0; row < rows; row++) memcpy(&label, slot + labels + 8 * row, 8), sum += label;
        for (uint64_t byte = 0; byte < rows * row_bytes; byte++)
            a = (a + (uint8_t)slot[images + byte]) % 65521, b = (b + a) % 65521;
        printf("%lu %lu %u %ld %u\n", (long)u64[24 + 16 * taken + 8], (long)u64[24 + 16 * taken + 9], rows, (long)sum, b << 16 | a);
        fflush(stdout);
        uint64_t held = ready + 1;
        if (!atomic_compare_exchange_strong(&u64[24 + 16 * taken], &held, 1)) fail("a held slot was touched");
        atomic_fetch_add(&u32[33], 1);
        syscall(SYS_futex, &u32[33], FUTEX_WAKE, 1, NULL, NULL, 0);
        left--;
    }
    return count > 3 && ftruncate(slots_fd, 0);
}
