/* The libjpeg calls that Feedline makes, each guarded by setjmp: libjpeg reports errors by not returning, and a
 * longjmp must never cross a Rust frame. Every function returns one of enum feedline_jpeg_status; the text of the
 * last error stays in `message`. One object decodes many images, one after the other. libjpeg would keep the tables of
 * earlier images, and a file that lacks one would be decoded by whatever came before: here they are forgotten with
 * everything else of an image, and so is their memory (jpeg_memory.c).
 *
 * A sample that ends too early stops here with TRUNCATED, as Pillow does, unless the caller asks for what there is: then
 * it gets the fake end marker (and grey pixels) of libjpeg's own memory source. Warnings are counted and otherwise
 * ignored, as Pillow does.
 */
#include <stdlib.h>
#include <string.h>

#include "jpeg_shim.h"

#include <jerror.h>

/* Scans after which a progressive file is refused: honest ones have about ten, and each scan of a forged one costs a
 * pass over all coefficients. libjpeg-turbo's own tools propose this limit. */
#define SCANS_MAX 500

/* Mirrored by `Settings` in jpeg.rs. */
struct feedline_jpeg_settings {
  /* Pixels of the file that become one in each direction: 1, 2, 4 or 8. */
  uint32_t reduction;
  /* The fast inverse transform, and colours that are repeated instead of interpolated. */
  uint32_t fast;
};

static void leave(struct feedline_jpeg *self, enum feedline_jpeg_status fault) {
  self->fault = fault;
  longjmp(self->recovery, 1);
}

enum feedline_jpeg_status feedline_jpeg_fault_of(const struct jpeg_error_mgr *errors) {
  switch (errors->msg_code) {
  case JERR_SOF_UNSUPPORTED:
  case JERR_BAD_PRECISION:
  case JERR_COMPONENT_COUNT:
  case JERR_CONVERSION_NOTIMPL:
  case JERR_FRACT_SAMPLE_NOTIMPL:
  case JERR_CCIR601_NOTIMPL:
  case JERR_ARITH_NOTIMPL:
  case JERR_NOT_COMPILED:
  case JERR_NOTIMPL:
    return UNSUPPORTED;
  case JERR_IMAGE_TOO_BIG:
  case JERR_WIDTH_OVERFLOW:
  case JERR_OUT_OF_MEMORY:
    return TOO_LARGE;
  default:
    return CORRUPT;
  }
}

static void error_exit(j_common_ptr codec) {
  struct feedline_jpeg *self = codec->client_data;
  (*codec->err->format_message)(codec, self->message);
  /* What libjpeg makes of our own end marker is not the file's contradiction. */
  if (self->ended)
    leave(self, TRUNCATED);
  leave(self, feedline_jpeg_fault_of(codec->err));
}

static void emit_message(j_common_ptr codec, int level) {
  struct feedline_jpeg *self = codec->client_data;
  if (level < 0)
    self->warnings++;
}

static void output_message(j_common_ptr codec) { (void)codec; }

static void init_source(j_decompress_ptr codec) { (void)codec; }

static void term_source(j_decompress_ptr codec) { (void)codec; }

static boolean fill_input_buffer(j_decompress_ptr codec) {
  static const JOCTET end_marker[] = {0xff, JPEG_EOI};
  struct feedline_jpeg *self = codec->client_data;
  if (!self->lenient) {
    snprintf(self->message, sizeof self->message, "the data end before the image does");
    leave(self, TRUNCATED);
  }
  self->ended = 1;
  codec->src->next_input_byte = end_marker;
  codec->src->bytes_in_buffer = sizeof end_marker;
  return TRUE;
}

static void skip_input_data(j_decompress_ptr codec, long count) {
  if (count <= 0)
    return;
  if ((size_t)count > codec->src->bytes_in_buffer) {
    fill_input_buffer(codec);
    return;
  }
  codec->src->next_input_byte += count;
  codec->src->bytes_in_buffer -= (size_t)count;
}

static void progress_monitor(j_common_ptr common) {
  struct feedline_jpeg *self = common->client_data;
  if (common->is_decompressor && self->codec.input_scan_number > SCANS_MAX) {
    snprintf(self->message, sizeof self->message, "more than %d scans", SCANS_MAX);
    leave(self, CORRUPT);
  }
}

static int create(struct feedline_jpeg *self) {
  self->codec.err = jpeg_std_error(&self->errors);
  self->errors.error_exit = error_exit;
  self->errors.emit_message = emit_message;
  self->errors.output_message = output_message;
  self->codec.client_data = self;
  if (setjmp(self->recovery))
    return self->fault;
  jpeg_create_decompress(&self->codec);
  feedline_arena_install(&self->arena, (j_common_ptr)&self->codec);
  self->source.init_source = init_source;
  self->source.fill_input_buffer = fill_input_buffer;
  self->source.skip_input_data = skip_input_data;
  self->source.resync_to_restart = jpeg_resync_to_restart;
  self->source.term_source = term_source;
  self->codec.src = &self->source;
  self->progress.progress_monitor = progress_monitor;
  self->codec.progress = &self->progress;
  return OK;
}

void feedline_jpeg_free(struct feedline_jpeg *self) {
  feedline_arena_remove(&self->arena, (j_common_ptr)&self->codec);
  jpeg_destroy_decompress(&self->codec);
  free(self);
}

struct feedline_jpeg *feedline_jpeg_new(void) {
  struct feedline_jpeg *self = calloc(1, sizeof *self);
  if (self != NULL && create(self) != OK) {
    feedline_jpeg_free(self);
    return NULL;
  }
  return self;
}

/* The library, by name and version. */
const char *feedline_jpeg_library(void) {
#define TEXT_OF(version) #version
#define TEXT(version) TEXT_OF(version)
  return "libjpeg-turbo " TEXT(LIBJPEG_TURBO_VERSION);
}

/* How often memory for images was taken from the system. */
uint64_t feedline_jpeg_allocations(const struct feedline_jpeg *self) { return self->arena.taken; }

const char *feedline_jpeg_message(const struct feedline_jpeg *self) { return self->message; }

uint32_t feedline_jpeg_warnings(const struct feedline_jpeg *self) { return self->warnings; }

void feedline_jpeg_reset(struct feedline_jpeg *self) {
  jpeg_abort_decompress(&self->codec);
  /* Their memory was the image's; without them the state is that of a new decoder. */
  for (int table = 0; table < NUM_QUANT_TBLS; table++)
    self->codec.quant_tbl_ptrs[table] = NULL;
  for (int table = 0; table < NUM_HUFF_TBLS; table++) {
    self->codec.dc_huff_tbl_ptrs[table] = NULL;
    self->codec.ac_huff_tbl_ptrs[table] = NULL;
  }
  self->source.next_input_byte = NULL;
  self->source.bytes_in_buffer = 0;
}

int feedline_jpeg_open(struct feedline_jpeg *self, const uint8_t *bytes, size_t length, size_t memory_max,
                       struct feedline_jpeg_header *header) {
  /* An image that could not be opened may have left something. */
  feedline_jpeg_reset(self);
  self->arena.limit = memory_max;
  self->lenient = 0;
  self->ended = 0;
  self->warnings = 0;
  self->message[0] = 0;
  self->source.next_input_byte = bytes;
  self->source.bytes_in_buffer = length;
  if (setjmp(self->recovery))
    return self->fault;
  jpeg_read_header(&self->codec, TRUE);
  header->width = self->codec.image_width;
  header->height = self->codec.image_height;
  header->components = (uint32_t)self->codec.num_components;
  header->precision = (uint32_t)self->codec.data_precision;
  header->sampling_max = (uint32_t)self->codec.max_h_samp_factor;
  header->multiple_scans = (uint32_t)jpeg_has_multiple_scans(&self->codec);
  header->scan_offset = length - self->source.bytes_in_buffer;
  return OK;
}

/* From here on data that end too early are no fault. */
void feedline_jpeg_allow_end(struct feedline_jpeg *self) { self->lenient = 1; }

/* Starts decoding: rows will hold the columns from *left (moved left to a block border) over *width (grown by as
 * much), and the first row will be `top`, all counted in reduced pixels. RGB, or CMYK where the file has four
 * components. */
int feedline_jpeg_start(struct feedline_jpeg *self, const struct feedline_jpeg_settings *settings, uint32_t *left,
                        uint32_t *width, uint32_t top) {
  JDIMENSION crop_left = *left;
  JDIMENSION crop_width = *width;
  if (setjmp(self->recovery))
    return self->fault;
  self->codec.out_color_space = self->codec.num_components == 4 ? JCS_CMYK : JCS_RGB;
  self->codec.dct_method = settings->fast ? JDCT_IFAST : JDCT_ISLOW;
  self->codec.do_fancy_upsampling = !settings->fast;
  self->codec.scale_num = 1;
  self->codec.scale_denom = settings->reduction;
  jpeg_start_decompress(&self->codec);
  if (crop_width < self->codec.output_width) {
    jpeg_crop_scanline(&self->codec, &crop_left, &crop_width);
    *left = crop_left;
    *width = crop_width;
  }
  if (top > 0)
    jpeg_skip_scanlines(&self->codec, top);
  return OK;
}

/* Decodes `count` rows into `rows`, `stride` bytes apart. The caller never asks for rows below the image. */
int feedline_jpeg_rows(struct feedline_jpeg *self, uint8_t *rows, size_t stride, uint32_t count) {
  /* More than one row at a time, since libjpeg emits as many as the vertical sampling factor. */
  JSAMPROW pointers[4];
  /* Volatile, because it is changed between setjmp and longjmp. */
  volatile uint32_t done = 0;
  if (setjmp(self->recovery))
    return self->fault;
  while (done < count) {
    JDIMENSION ask = count - done < 4 ? count - done : 4;
    for (JDIMENSION row = 0; row < ask; row++)
      pointers[row] = rows + (size_t)(done + row) * stride;
    JDIMENSION got = jpeg_read_scanlines(&self->codec, pointers, ask);
    if (got == 0) {
      snprintf(self->message, sizeof self->message, "the decoder stopped at row %u of %u",
               (unsigned)self->codec.output_scanline, (unsigned)self->codec.output_height);
      return CORRUPT;
    }
    done += got;
  }
  return OK;
}
