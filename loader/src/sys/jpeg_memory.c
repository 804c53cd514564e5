/* A memory manager for libjpeg that is a stack of bytes: an image takes from it, the end of the image empties it, and
 * the bytes stay for the next one. In steady state decoding so takes nothing from the system. Tables, which libjpeg
 * would keep from image to image, are the image's too.
 *
 * Rows are aligned and padded as libjpeg-turbo's own manager does it: its vector code reads and writes past their ends.
 */
#include <stdlib.h>
#include <string.h>

#include "jpeg_memory.h"

#include <jerror.h>

/* Alignment of every object, and the multiple to which rows are padded. */
#define ALIGNMENT 64

/* Least bytes of a chunk: enough for most photos that are decoded row by row. */
#define CHUNK_BYTES_MIN ((size_t)512 << 10)

/* Most bytes kept between images. Progressive files of many megapixels take more, and give it back. */
#define KEPT_BYTES_MAX ((size_t)64 << 20)

struct feedline_chunk {
  struct feedline_chunk *next;
  size_t size;
  size_t used;
};

/* libjpeg leaves these two to its memory manager. Both hold all their rows. */
struct jvirt_sarray_control {
  JSAMPARRAY rows;
  JDIMENSION count;
};

struct jvirt_barray_control {
  JBLOCKARRAY rows;
  JDIMENSION count;
};

static struct feedline_arena *arena_of(j_common_ptr codec) { return (struct feedline_arena *)codec->mem; }

static void refuse(j_common_ptr codec, int reason) { ERREXIT1(codec, JERR_OUT_OF_MEMORY, reason); }

static size_t padded(size_t bytes) { return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }

static void add_chunk(j_common_ptr codec, size_t bytes) {
  struct feedline_arena *arena = arena_of(codec);
  size_t size = padded(sizeof(struct feedline_chunk)) + bytes;
  size_t least = arena->wanted > CHUNK_BYTES_MIN ? arena->wanted : CHUNK_BYTES_MIN;
  if (size < least)
    size = padded(least);
  struct feedline_chunk *chunk = aligned_alloc(ALIGNMENT, size);
  if (chunk == NULL)
    refuse(codec, 21);
  chunk->next = arena->chunks;
  chunk->size = size;
  chunk->used = padded(sizeof *chunk);
  arena->chunks = chunk;
  arena->total += size;
  arena->wanted = 0;
  arena->taken++;
}

static void *take(j_common_ptr codec, int pool, size_t bytes) {
  struct feedline_arena *arena = arena_of(codec);
  (void)pool;
  /* What the image asked for counts, not what was kept: a refusal must not depend on the images before. */
  if (bytes > arena->limit - arena->asked)
    refuse(codec, 20);
  bytes = padded(bytes);
  /* Vector code may read past the last object, too. */
  if (arena->chunks == NULL || arena->chunks->size - arena->chunks->used < bytes + ALIGNMENT)
    add_chunk(codec, bytes + ALIGNMENT);
  arena->asked = bytes < arena->limit - arena->asked ? arena->asked + bytes : arena->limit;
  void *object = (char *)arena->chunks + arena->chunks->used;
  arena->chunks->used += bytes;
  return object;
}

/* `count` rows of `bytes` each, and the pointers to them. */
static void **take_rows(j_common_ptr codec, int pool, size_t bytes, JDIMENSION count) {
  bytes = padded(bytes);
  if (count > 0 && bytes > arena_of(codec)->limit / count)
    refuse(codec, 22);
  void **rows = take(codec, pool, (size_t)count * sizeof *rows);
  char *space = take(codec, pool, (size_t)count * bytes);
  for (JDIMENSION row = 0; row < count; row++)
    rows[row] = space + (size_t)row * bytes;
  return rows;
}

static JSAMPARRAY take_samples(j_common_ptr codec, int pool, JDIMENSION samples, JDIMENSION rows) {
  size_t sample = ((j_decompress_ptr)codec)->data_precision > 8 ? 2 : 1;
  return (JSAMPARRAY)take_rows(codec, pool, samples * sample, rows);
}

static JBLOCKARRAY take_blocks(j_common_ptr codec, int pool, JDIMENSION blocks, JDIMENSION rows) {
  return (JBLOCKARRAY)take_rows(codec, pool, blocks * sizeof(JBLOCK), rows);
}

static jvirt_sarray_ptr request_samples(j_common_ptr codec, int pool, boolean zero, JDIMENSION samples, JDIMENSION rows,
                                        JDIMENSION rows_at_once) {
  jvirt_sarray_ptr array = take(codec, pool, sizeof *array);
  (void)rows_at_once;
  array->rows = take_samples(codec, pool, samples, rows);
  array->count = rows;
  for (JDIMENSION row = 0; zero && row < rows; row++)
    memset(array->rows[row], 0, samples);
  return array;
}

static jvirt_barray_ptr request_blocks(j_common_ptr codec, int pool, boolean zero, JDIMENSION blocks, JDIMENSION rows,
                                       JDIMENSION rows_at_once) {
  jvirt_barray_ptr array = take(codec, pool, sizeof *array);
  (void)rows_at_once;
  array->rows = take_blocks(codec, pool, blocks, rows);
  array->count = rows;
  for (JDIMENSION row = 0; zero && row < rows; row++)
    memset(array->rows[row], 0, blocks * sizeof(JBLOCK));
  return array;
}

/* They are real since they were requested. */
static void realize(j_common_ptr codec) { (void)codec; }

static void check_access(j_common_ptr codec, JDIMENSION count, JDIMENSION start, JDIMENSION rows) {
  if (start > count || rows > count - start)
    ERREXIT(codec, JERR_BAD_VIRTUAL_ACCESS);
}

static JSAMPARRAY access_samples(j_common_ptr codec, jvirt_sarray_ptr array, JDIMENSION start, JDIMENSION rows,
                                 boolean writable) {
  (void)writable;
  check_access(codec, array->count, start, rows);
  return array->rows + start;
}

static JBLOCKARRAY access_blocks(j_common_ptr codec, jvirt_barray_ptr array, JDIMENSION start, JDIMENSION rows,
                                 boolean writable) {
  (void)writable;
  check_access(codec, array->count, start, rows);
  return array->rows + start;
}

static void give_back(struct feedline_arena *arena) {
  while (arena->chunks != NULL) {
    struct feedline_chunk *next = arena->chunks->next;
    free(arena->chunks);
    arena->chunks = next;
  }
  arena->total = 0;
}

/* The image is over. Several chunks become one that would have held it all, when next there is need. */
static void empty(j_common_ptr codec, int pool) {
  struct feedline_arena *arena = arena_of(codec);
  (void)pool;
  arena->asked = 0;
  if (arena->chunks == NULL)
    return;
  if (arena->chunks->next == NULL && arena->total <= KEPT_BYTES_MAX) {
    arena->chunks->used = padded(sizeof *arena->chunks);
    return;
  }
  arena->wanted = arena->total <= KEPT_BYTES_MAX ? arena->total : 0;
  give_back(arena);
}

void feedline_arena_install(struct feedline_arena *arena, j_common_ptr codec) {
  arena->before = codec->mem;
  arena->methods = (struct jpeg_memory_mgr){
      .alloc_small = take,
      .alloc_large = take,
      .alloc_sarray = take_samples,
      .alloc_barray = take_blocks,
      .request_virt_sarray = request_samples,
      .request_virt_barray = request_blocks,
      .realize_virt_arrays = realize,
      .access_virt_sarray = access_samples,
      .access_virt_barray = access_blocks,
      .free_pool = empty,
      .self_destruct = codec->mem->self_destruct,
      .max_memory_to_use = codec->mem->max_memory_to_use,
      .max_alloc_chunk = codec->mem->max_alloc_chunk,
  };
  codec->mem = &arena->methods;
}

void feedline_arena_remove(struct feedline_arena *arena, j_common_ptr codec) {
  if (arena->before != NULL)
    codec->mem = arena->before;
  arena->before = NULL;
  give_back(arena);
}
