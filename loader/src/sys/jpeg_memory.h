/* Memory for one image at a time, kept from image to image: what libjpeg asks for while it decodes comes from here. */
#ifndef FEEDLINE_JPEG_MEMORY_H
#define FEEDLINE_JPEG_MEMORY_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <jpeglib.h>

struct feedline_chunk;

struct feedline_arena {
  /* First, so that libjpeg's pointer to it is a pointer to the arena. */
  struct jpeg_memory_mgr methods;
  /* libjpeg's own manager, which has what lives as long as the decoder. */
  struct jpeg_memory_mgr *before;
  /* The chunk in use, then those that are full. */
  struct feedline_chunk *chunks;
  /* Bytes of the chunks. */
  size_t total;
  /* Bytes that the next first chunk shall have. */
  size_t wanted;
  /* Bytes that this image has asked for, and the most that it may. */
  size_t asked;
  size_t limit;
  /* Chunks taken from the system since the start. */
  uint64_t taken;
};

/* Makes `codec`, just created, take the memory of its images from `arena`. */
void feedline_arena_install(struct feedline_arena *arena, j_common_ptr codec);

/* Takes `arena` away from `codec` and gives its memory back. */
void feedline_arena_remove(struct feedline_arena *arena, j_common_ptr codec);

#endif
