/* One libjpeg decoder with its faults, its source in memory and its arena: what jpeg_shim.c decodes with, and what
 * transcode_shim.c reads coefficients with. */
#ifndef FEEDLINE_JPEG_SHIM_H
#define FEEDLINE_JPEG_SHIM_H

#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <jpeglib.h>

#include "jpeg_memory.h"

/* Mirrored by `class_of` in jpeg.rs. */
enum feedline_jpeg_status { OK = 0, TRUNCATED = 1, CORRUPT = 2, UNSUPPORTED = 3, TOO_LARGE = 4 };

/* Mirrored by `Header` in jpeg.rs. */
struct feedline_jpeg_header {
  uint32_t width;
  uint32_t height;
  uint32_t components;
  uint32_t precision;
  /* Largest horizontal sampling factor: pixels that one subsampled column can cover. */
  uint32_t sampling_max;
  /* Whether all coefficients are read before the first row comes out. */
  uint32_t multiple_scans;
  /* Where the entropy-coded data of the first scan start. */
  uint64_t scan_offset;
};

struct feedline_jpeg {
  struct jpeg_decompress_struct codec;
  struct feedline_arena arena;
  struct jpeg_error_mgr errors;
  struct jpeg_source_mgr source;
  struct jpeg_progress_mgr progress;
  jmp_buf recovery;
  enum feedline_jpeg_status fault;
  /* Data that end too early are ended by us. */
  uint32_t lenient;
  /* They did. */
  uint32_t ended;
  uint32_t warnings;
  char message[JMSG_LENGTH_MAX];
};

/* What kind of fault libjpeg's error is. */
enum feedline_jpeg_status feedline_jpeg_fault_of(const struct jpeg_error_mgr *errors);

struct feedline_jpeg *feedline_jpeg_new(void);

void feedline_jpeg_free(struct feedline_jpeg *self);

/* Forgets the image being decoded, wherever it stands, and its memory. Cannot fail. */
void feedline_jpeg_reset(struct feedline_jpeg *self);

/* Reads the header of `bytes`, which must stay in place until the next reset. Decoding may take up to `memory_max`
 * bytes. */
int feedline_jpeg_open(struct feedline_jpeg *self, const uint8_t *bytes, size_t length, size_t memory_max,
                       struct feedline_jpeg_header *header);

#endif
