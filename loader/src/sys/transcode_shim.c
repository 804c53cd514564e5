/* A JPEG's coefficients, written again as a baseline file with Huffman tables made for it and a restart marker at the
 * end of each row of MCUs; then read back from there and compared with the first ones.
 *
 * Symbols are counted here, since libjpeg's own count takes as long as everything else; the tables come from the caller.
 *
 * The reading halves are decoders of jpeg_shim.c. The writer reads the coefficients where the first of them left them, so
 * its memory manager is of the same make (jpeg_memory.c). Markers of applications and comments are not written here: the
 * caller puts those of the old file before the new tables.
 */
#include <stdlib.h>
#include <string.h>

#include "jpeg_shim.h"

#include <jerror.h>

/* Bytes that the writer takes for its tables: well below this. */
#define WRITER_MEMORY_MAX ((size_t)16 << 20)

/* Least bytes of the buffer that the file is written to. */
#define BUFFER_BYTES_MIN ((size_t)64 << 10)

/* Bytes of a buffer that is kept for the next file. */
#define BUFFER_BYTES_KEPT ((size_t)16 << 20)

/* Mirrored by `Read` in transcode.rs. */
struct feedline_transcoder_facts {
  /* Where the file ends: behind its end-of-image marker. */
  uint64_t end;
  /* What libjpeg found odd. */
  uint32_t warnings;
  /* Every bit of every coefficient of every component was there. */
  uint32_t is_complete;
};

/* How often each symbol occurs, by number of the table: of differences of DC coefficients, and of AC coefficients.
 * Mirrored by `Counts` in transcode.rs. */
struct feedline_transcoder_counts {
  uint32_t dc[2][256];
  uint32_t ac[2][256];
};

/* A table of codes as the file format has it: how many codes there are of each length, and the symbols in order of their
 * codes. Mirrored by `CodeTable` in transcode.rs. */
struct feedline_code_table {
  uint8_t counts[16];
  uint8_t symbols[256];
};

/* Mirrored by `CodeTables` in transcode.rs. */
struct feedline_code_tables {
  struct feedline_code_table dc[2];
  struct feedline_code_table ac[2];
};

struct feedline_transcoder {
  struct feedline_jpeg *old_file;
  struct feedline_jpeg *new_file;
  /* Of the old file, until its reset. */
  jvirt_barray_ptr *coefficients;
  struct jpeg_compress_struct writer;
  struct feedline_arena arena;
  struct jpeg_error_mgr errors;
  struct jpeg_destination_mgr destination;
  jmp_buf recovery;
  uint8_t *buffer;
  size_t capacity;
  /* For each byte of a mask in natural order, the bits that it sets in one in zigzag order. */
  uint64_t zigzag[8][256];
  /* Of what failed last. */
  char message[JMSG_LENGTH_MAX];
};

static void error_exit(j_common_ptr codec) {
  struct feedline_transcoder *self = codec->client_data;
  (*codec->err->format_message)(codec, self->message);
  longjmp(self->recovery, 1);
}

static void emit_message(j_common_ptr codec, int level) {
  (void)codec;
  (void)level;
}

static void output_message(j_common_ptr codec) { (void)codec; }

static void point_to(struct feedline_transcoder *self, size_t used) {
  self->destination.next_output_byte = self->buffer + used;
  self->destination.free_in_buffer = self->capacity - used;
}

static void init_destination(j_compress_ptr codec) { point_to(codec->client_data, 0); }

/* The buffer is full; libjpeg counts on its being used to the last byte. */
static boolean empty_output_buffer(j_compress_ptr codec) {
  struct feedline_transcoder *self = codec->client_data;
  size_t used = self->capacity;
  uint8_t *grown = realloc(self->buffer, 2 * used);
  if (grown == NULL)
    ERREXIT1(codec, JERR_OUT_OF_MEMORY, 23);
  self->buffer = grown;
  self->capacity = 2 * used;
  point_to(self, used);
  return TRUE;
}

static void term_destination(j_compress_ptr codec) { (void)codec; }

void feedline_transcoder_free(struct feedline_transcoder *self) {
  if (self->old_file != NULL)
    feedline_jpeg_free(self->old_file);
  if (self->new_file != NULL)
    feedline_jpeg_free(self->new_file);
  feedline_arena_remove(&self->arena, (j_common_ptr)&self->writer);
  jpeg_destroy_compress(&self->writer);
  free(self->buffer);
  free(self);
}

/* The place in the block of each coefficient in the order of the file. */
static const uint8_t natural_order[DCTSIZE2] = {
    0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33, 40, 48,
    41, 34, 27, 20, 13, 6,  7,  14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23,
    30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63,
};

static void fill_zigzag(struct feedline_transcoder *self) {
  for (int place = 0; place < DCTSIZE2; place++) {
    int natural = natural_order[place];
    for (int byte = 0; byte < 256; byte++)
      if (byte >> natural % 8 & 1)
        self->zigzag[natural / 8][byte] |= (uint64_t)1 << place;
  }
}

static int create(struct feedline_transcoder *self) {
  fill_zigzag(self);
  self->old_file = feedline_jpeg_new();
  self->new_file = feedline_jpeg_new();
  if (self->old_file == NULL || self->new_file == NULL)
    return TOO_LARGE;
  self->writer.err = jpeg_std_error(&self->errors);
  self->errors.error_exit = error_exit;
  self->errors.emit_message = emit_message;
  self->errors.output_message = output_message;
  self->writer.client_data = self;
  if (setjmp(self->recovery))
    return feedline_jpeg_fault_of(&self->errors);
  jpeg_create_compress(&self->writer);
  feedline_arena_install(&self->arena, (j_common_ptr)&self->writer);
  self->arena.limit = WRITER_MEMORY_MAX;
  self->destination.init_destination = init_destination;
  self->destination.empty_output_buffer = empty_output_buffer;
  self->destination.term_destination = term_destination;
  self->writer.dest = &self->destination;
  return OK;
}

struct feedline_transcoder *feedline_transcoder_new(void) {
  struct feedline_transcoder *self = calloc(1, sizeof *self);
  if (self != NULL && create(self) != OK) {
    feedline_transcoder_free(self);
    return NULL;
  }
  return self;
}

const char *feedline_transcoder_message(const struct feedline_transcoder *self) { return self->message; }

static void reset_writer(struct feedline_transcoder *self) {
  jpeg_abort_compress(&self->writer);
  /* Their memory was the image's; without them the state is that of a new writer. */
  self->writer.comp_info = NULL;
  for (int table = 0; table < NUM_QUANT_TBLS; table++)
    self->writer.quant_tbl_ptrs[table] = NULL;
  for (int table = 0; table < NUM_HUFF_TBLS; table++) {
    self->writer.dc_huff_tbl_ptrs[table] = NULL;
    self->writer.ac_huff_tbl_ptrs[table] = NULL;
  }
  if (self->capacity > BUFFER_BYTES_KEPT) {
    free(self->buffer);
    self->buffer = NULL;
    self->capacity = 0;
  }
}

/* Forgets the files and their memory. Cannot fail. */
void feedline_transcoder_reset(struct feedline_transcoder *self) {
  feedline_jpeg_reset(self->old_file);
  feedline_jpeg_reset(self->new_file);
  reset_writer(self);
  self->coefficients = NULL;
}

/* Whether every scan has come that there could be. What libjpeg decodes of a progressive file that lacks some is smoothed,
 * and of a component without any scan there are not even quantisation steps. */
static int is_complete(const struct jpeg_decompress_struct *codec) {
  for (int component = 0; component < codec->num_components; component++) {
    if (codec->comp_info[component].quant_table == NULL)
      return 0;
    for (int place = 0; codec->progressive_mode && place < DCTSIZE2; place++)
      if (codec->coef_bits[component][place] != 0)
        return 0;
  }
  return 1;
}

static int read_coefficients(struct feedline_jpeg *file, jvirt_barray_ptr **coefficients) {
  if (setjmp(file->recovery))
    return file->fault;
  *coefficients = jpeg_read_coefficients(&file->codec);
  return OK;
}

static int open_and_read(struct feedline_transcoder *self, struct feedline_jpeg *file, const uint8_t *bytes,
                         size_t length, size_t memory_max, jvirt_barray_ptr **coefficients) {
  struct feedline_jpeg_header header;
  int status = feedline_jpeg_open(file, bytes, length, memory_max, &header);
  if (status == OK)
    status = read_coefficients(file, coefficients);
  if (status != OK)
    memcpy(self->message, file->message, sizeof self->message);
  return status;
}

/* Reads all coefficients of `bytes`, which must stay in place until the next reset. They may take up to `memory_max`
 * bytes. */
int feedline_transcoder_read(struct feedline_transcoder *self, const uint8_t *bytes, size_t length, size_t memory_max,
                             struct feedline_transcoder_facts *facts) {
  struct feedline_jpeg *file = self->old_file;
  feedline_transcoder_reset(self);
  int status = open_and_read(self, file, bytes, length, memory_max, &self->coefficients);
  if (status != OK)
    return status;
  facts->end = length - file->source.bytes_in_buffer;
  facts->warnings = file->warnings;
  facts->is_complete = (uint32_t)is_complete(&file->codec);
  return OK;
}

static int differs(struct feedline_transcoder *self, const char *what) {
  snprintf(self->message, sizeof self->message, "%s", what);
  return CORRUPT;
}

static int bits_of(int value) {
  unsigned magnitude = value < 0 ? 0u - (unsigned)value : (unsigned)value;
  return magnitude == 0 ? 0 : 32 - __builtin_clz(magnitude);
}

/* Which coefficients of the block are not zero: a bit each, in the order of the file. */
static uint64_t nonzero(const struct feedline_transcoder *self, const JCOEF *block) {
  uint8_t flags[DCTSIZE2];
  uint64_t mask = 0;
  /* The compiler makes vectors of this loop; branches on single coefficients would mostly be guessed wrong. */
  for (int place = 0; place < DCTSIZE2; place++)
    flags[place] = block[place] != 0;
  for (int row = 0; row < 8; row++) {
    uint64_t eight;
    memcpy(&eight, flags + 8 * row, sizeof eight);
    /* Moves the lowest bit of byte i, on machines of little endian, to bit 56 + i. */
    mask |= self->zigzag[row][eight * UINT64_C(0x0102040810204080) >> 56];
  }
  return mask;
}

/* Counts the AC symbols of a block; false if a coefficient is too large for baseline. */
static int count_ac(const struct feedline_transcoder *self, const JCOEF *block, uint32_t (*counts)[256]) {
  uint64_t left = nonzero(self, block) & ~(uint64_t)1;
  int before = 0;
  unsigned all = 0;
  while (left != 0) {
    int place = __builtin_ctzll(left);
    int run = place - before - 1;
    int value = block[natural_order[place]];
    unsigned magnitude = (unsigned)((value ^ (value >> 31)) - (value >> 31));
    all |= magnitude;
    if (__builtin_expect(run > 15, 0)) {
      counts[0][0xf0] += (uint32_t)run >> 4;
      run &= 15;
    }
    /* Two counts in turn: one that was just written is slow to be read again. */
    counts[place & 1][(run << 4 | (32 - __builtin_clz(magnitude))) & 0xff]++;
    before = place;
    left &= left - 1;
  }
  counts[0][0] += before != DCTSIZE2 - 1;
  return all < 1 << 10;
}

/* Counts the symbols of a component's row of MCUs, which begins after a restart. `across` and `down` are its blocks of an
 * MCU. Blocks outside the image repeat the DC coefficient before them. */
static int count_row(const struct feedline_transcoder *self, int component, JDIMENSION mcu_row, JDIMENSION mcus,
                     int across, int down, uint32_t *dc, uint32_t (*ac)[256]) {
  j_common_ptr codec = (j_common_ptr)&self->writer;
  const jpeg_component_info *info = &self->old_file->codec.comp_info[component];
  JDIMENSION top = mcu_row * (JDIMENSION)down;
  JDIMENSION rows = info->height_in_blocks - top < (JDIMENSION)down ? info->height_in_blocks - top : (JDIMENSION)down;
  JBLOCKARRAY blocks = (*codec->mem->access_virt_barray)(codec, self->coefficients[component], top, rows, FALSE);
  int before = 0;
  for (JDIMENSION mcu = 0; mcu < mcus; mcu++) {
    for (int y = 0; y < down; y++) {
      for (int x = 0; x < across; x++) {
        JDIMENSION column = mcu * (JDIMENSION)across + (JDIMENSION)x;
        if ((JDIMENSION)y >= rows || column >= info->width_in_blocks) {
          dc[0]++;
          ac[0][0]++;
          continue;
        }
        const JCOEF *block = blocks[y][column];
        int bits = bits_of(block[0] - before);
        if (bits > 11 || !count_ac(self, block, ac))
          return 0;
        dc[bits]++;
        before = block[0];
      }
    }
  }
  return 1;
}

/* Prepares the writer for the coefficients that were read, and counts the symbols that their file will have. */
int feedline_transcoder_count(struct feedline_transcoder *self, struct feedline_transcoder_counts *counts) {
  const struct jpeg_decompress_struct *old = &self->old_file->codec;
  struct jpeg_compress_struct *writer = &self->writer;
  reset_writer(self);
  if (setjmp(self->recovery))
    return feedline_jpeg_fault_of(&self->errors);
  jpeg_copy_critical_parameters(&self->old_file->codec, writer);
  memset(counts, 0, sizeof *counts);
  for (int component = 0; component < old->num_components; component++) {
    const jpeg_component_info *info = &old->comp_info[component];
    int is_alone = old->num_components == 1;
    int across = is_alone ? 1 : info->h_samp_factor;
    int down = is_alone ? 1 : info->v_samp_factor;
    JDIMENSION mcus = (info->width_in_blocks + (JDIMENSION)across - 1) / (JDIMENSION)across;
    JDIMENSION mcu_rows = (info->height_in_blocks + (JDIMENSION)down - 1) / (JDIMENSION)down;
    uint32_t *dc = counts->dc[writer->comp_info[component].dc_tbl_no & 1];
    uint32_t *ac = counts->ac[writer->comp_info[component].ac_tbl_no & 1];
    uint32_t halves[2][256] = {{0}};
    for (JDIMENSION row = 0; row < mcu_rows; row++)
      if (!count_row(self, component, row, mcus, across, down, dc, halves))
        return differs(self, "a coefficient that baseline has no code for");
    for (int symbol = 0; symbol < 256; symbol++)
      ac[symbol] += halves[0][symbol] + halves[1][symbol];
  }
  return OK;
}

static void take_table(JHUFF_TBL *table, const struct feedline_code_table *given) {
  memcpy(table->bits + 1, given->counts, sizeof given->counts);
  memcpy(table->huffval, given->symbols, sizeof given->symbols);
  table->sent_table = FALSE;
}

/* Writes the file anew, after a count. Its bytes stay where they are until the next reset. */
int feedline_transcoder_write(struct feedline_transcoder *self, const struct feedline_code_tables *tables,
                              const uint8_t **bytes, size_t *length) {
  struct jpeg_compress_struct *writer = &self->writer;
  if (self->buffer == NULL) {
    self->buffer = malloc(BUFFER_BYTES_MIN);
    self->capacity = self->buffer == NULL ? 0 : BUFFER_BYTES_MIN;
  }
  if (self->buffer == NULL) {
    snprintf(self->message, sizeof self->message, "no memory for the new file");
    return TOO_LARGE;
  }
  if (setjmp(self->recovery))
    return feedline_jpeg_fault_of(&self->errors);
  for (int table = 0; table < 2; table++) {
    take_table(writer->dc_huff_tbl_ptrs[table], &tables->dc[table]);
    take_table(writer->ac_huff_tbl_ptrs[table], &tables->ac[table]);
  }
  writer->restart_in_rows = 1;
  /* Those of the old file are put in front. */
  writer->write_JFIF_header = FALSE;
  writer->write_Adobe_marker = FALSE;
  jpeg_write_coefficients(writer, self->coefficients);
  jpeg_finish_compress(writer);
  *bytes = self->buffer;
  *length = self->capacity - self->destination.free_in_buffer;
  return OK;
}

/* Compares what is in the headers, and what decoders conclude from it. */
static int compare_headers(struct feedline_transcoder *self) {
  const struct jpeg_decompress_struct *old = &self->old_file->codec;
  const struct jpeg_decompress_struct *new = &self->new_file->codec;
  if (new->image_width != old->image_width || new->image_height != old->image_height)
    return differs(self, "the size differs");
  if (new->data_precision != old->data_precision || new->num_components != old->num_components)
    return differs(self, "the components differ");
  if (new->jpeg_color_space != old->jpeg_color_space || new->out_color_space != old->out_color_space ||
      new->saw_JFIF_marker != old->saw_JFIF_marker || new->saw_Adobe_marker != old->saw_Adobe_marker ||
      new->Adobe_transform != old->Adobe_transform)
    return differs(self, "the colours are meant differently");
  if (new->density_unit != old->density_unit || new->X_density != old->X_density || new->Y_density != old->Y_density)
    return differs(self, "the density differs");
  if (new->progressive_mode || new->arith_code || new->restart_interval != new->MCUs_per_row)
    return differs(self, "the new file has no restart marker per row");
  for (int component = 0; component < old->num_components; component++) {
    const jpeg_component_info *before = &old->comp_info[component];
    const jpeg_component_info *after = &new->comp_info[component];
    if (after->component_id != before->component_id || after->h_samp_factor != before->h_samp_factor ||
        after->v_samp_factor != before->v_samp_factor || after->width_in_blocks != before->width_in_blocks ||
        after->height_in_blocks != before->height_in_blocks)
      return differs(self, "a component's sampling differs");
    if (before->quant_table == NULL || after->quant_table == NULL ||
        memcmp(before->quant_table->quantval, after->quant_table->quantval, sizeof before->quant_table->quantval) != 0)
      return differs(self, "quantisation differs");
  }
  return OK;
}

static int compare_coefficients(struct feedline_transcoder *self, jvirt_barray_ptr *found) {
  j_common_ptr codec = (j_common_ptr)&self->new_file->codec;
  if (setjmp(self->new_file->recovery)) {
    memcpy(self->message, self->new_file->message, sizeof self->message);
    return CORRUPT;
  }
  for (int component = 0; component < self->old_file->codec.num_components; component++) {
    const jpeg_component_info *info = &self->old_file->codec.comp_info[component];
    /* What lies right of and below these blocks pads the last MCUs, and is no part of the image. */
    for (JDIMENSION row = 0; row < info->height_in_blocks; row++) {
      JBLOCKARRAY before = (*codec->mem->access_virt_barray)(codec, self->coefficients[component], row, 1, FALSE);
      JBLOCKARRAY after = (*codec->mem->access_virt_barray)(codec, found[component], row, 1, FALSE);
      if (memcmp(before[0], after[0], info->width_in_blocks * sizeof(JBLOCK)) != 0)
        return differs(self, "coefficients differ");
    }
  }
  return OK;
}

/* Reads the new file and compares it with the old one: OK when every coefficient, quantisation step and fact of the header
 * is the same, and nothing in it is odd. `bytes` must stay in place until the next reset. */
int feedline_transcoder_check(struct feedline_transcoder *self, const uint8_t *bytes, size_t length, size_t memory_max) {
  jvirt_barray_ptr *found = NULL;
  int status = open_and_read(self, self->new_file, bytes, length, memory_max, &found);
  if (status != OK)
    return status;
  if (self->new_file->warnings != 0)
    return differs(self, "the new file is odd");
  status = compare_headers(self);
  return status == OK ? compare_coefficients(self, found) : status;
}
