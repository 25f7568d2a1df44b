/* Decodes a rectangle of a JPEG with libjpeg-turbo's transforms and colour conversion and with the caller's Huffman
 * decoder. libjpeg-turbo requests MCUs through a function pointer, which this file replaces.
 *
 * This file contains the parts that require C: the libjpeg structures, and setjmp for error handling. The callback never
 * calls libjpeg, so no longjmp crosses the caller's frames.
 */

#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "jpeglib.h"
#include "jerror.h"

/* The first fields of libjpeg-turbo's private struct in src/jpegint.h, which is the same in all releases of 3.0 and 3.1. */
#if LIBJPEG_TURBO_VERSION_NUMBER < 3000000 || LIBJPEG_TURBO_VERSION_NUMBER >= 3002000
#error "look at struct jpeg_entropy_decoder in src/jpegint.h of this libjpeg-turbo, then raise the version here"
#endif
struct jpeg_entropy_decoder {
  void (*start_pass)(j_decompress_ptr cinfo);
  boolean (*decode_mcu)(j_decompress_ptr cinfo, JBLOCKROW *blocks);
};

/* partial.rs declares the same struct. */
struct feedline_scan {
  uint32_t mcus_per_row;
  uint32_t mcu_rows;
  uint32_t blocks_per_mcu;
  uint32_t restart_interval;
  uint32_t column_width; /* pixels of an MCU column */
  uint32_t data_offset;  /* of the first byte of entropy-coded data */
  uint8_t component[D_MAX_BLOCKS_IN_MCU];
  uint8_t dc_table[D_MAX_BLOCKS_IN_MCU];
  uint8_t ac_table[D_MAX_BLOCKS_IN_MCU];
  /* bits[1..16]: number of codes of each length; values: symbols in the order of codes. Null without such a table. */
  const uint8_t *dc_bits[NUM_HUFF_TBLS], *dc_values[NUM_HUFF_TBLS];
  const uint8_t *ac_bits[NUM_HUFF_TBLS], *ac_values[NUM_HUFF_TBLS];
};

/* Decodes the next MCU into blocks, which are zero, or skips the MCU if blocks is null. Returns 0 for invalid data. */
typedef int (*feedline_mcu)(void *state, JBLOCKROW *blocks);

struct feedline_partial {
  struct jpeg_decompress_struct cinfo;
  struct jpeg_error_mgr errors;
  jmp_buf failed;
  feedline_mcu mcu;
  void *state;
  /* For feedline_partial_check: */
  struct jpeg_progress_mgr progress;
  int is_check;
  int may_lack_end;
  int max_scans;
};

static void fail(j_common_ptr cinfo)
{
  struct feedline_partial *self = cinfo->client_data;
  longjmp(self->failed, 1);
}

/* Whether a warning does not affect the pixels. handle.rs has the same list. A missing end marker loses nothing if decoding
 * reports all missing data with another warning. */
static int is_harmless(const struct feedline_partial *self)
{
  switch (self->errors.msg_code) {
  case JWRN_EXTRANEOUS_DATA:
  case JWRN_JFIF_MAJOR:
  case JWRN_ADOBE_XFORM:
  case JWRN_BOGUS_PROGRESSION:
    return 1;
  case JWRN_JPEG_EOF:
    return self->may_lack_end;
  default:
    return 0;
  }
}

/* Warnings are failures too: libjpeg-turbo's decoder must then decode the image. */
static void on_message(j_common_ptr cinfo, int level)
{
  struct feedline_partial *self = cinfo->client_data;
  if (level < 0 && !(self->is_check && is_harmless(self))) fail(cinfo);
}

static void on_progress(j_common_ptr cinfo)
{
  struct feedline_partial *self = cinfo->client_data;
  if (self->cinfo.input_scan_number > self->max_scans) fail(cinfo);
}

static void no_output(j_common_ptr cinfo)
{
  (void)cinfo;
}

static boolean decode_mcu(j_decompress_ptr cinfo, JBLOCKROW *blocks)
{
  struct feedline_partial *self = cinfo->client_data;
  return self->mcu(self->state, blocks) ? TRUE : FALSE;
}

static int create(struct feedline_partial *self)
{
  self->cinfo.err = jpeg_std_error(&self->errors);
  self->cinfo.client_data = self;
  self->errors.error_exit = fail;
  self->errors.emit_message = on_message;
  self->errors.output_message = no_output;
  if (setjmp(self->failed)) return 0;
  jpeg_create_decompress(&self->cinfo);
  return 1;
}

struct feedline_partial *feedline_partial_new(void)
{
  struct feedline_partial *self = calloc(1, sizeof(*self));
  if (self && !create(self)) {
    free(self);
    return NULL;
  }
  return self;
}

void feedline_partial_free(struct feedline_partial *self)
{
  if (!setjmp(self->failed)) jpeg_destroy_decompress(&self->cinfo);
  free(self);
}

/* Closes the image. Call this after feedline_partial_open returned 1. */
void feedline_partial_close(struct feedline_partial *self)
{
  if (!setjmp(self->failed)) jpeg_abort_decompress(&self->cinfo);
}

/* Reads the headers for decoding at 1/`reduction` (1 or 2) of the size. Returns 1 and sets `scan` if parts of the image can
 * be decoded, else 0. */
int feedline_partial_open(struct feedline_partial *self, const uint8_t *jpeg, size_t length, uint32_t reduction,
                          struct feedline_scan *scan)
{
  struct jpeg_decompress_struct *cinfo = &self->cinfo;
  int block, table, supported;
  if (setjmp(self->failed)) {
    feedline_partial_close(self);
    return 0;
  }
  jpeg_mem_src(cinfo, jpeg, length);
  if (jpeg_read_header(cinfo, TRUE) != JPEG_HEADER_OK) goto unsupported;
  /* Supported: one interleaved scan with Huffman codes, 8 bits per sample, grey, YCbCr or RGB. */
  supported = !cinfo->progressive_mode && !cinfo->arith_code && cinfo->data_precision == 8 &&
           cinfo->comps_in_scan == cinfo->num_components && cinfo->Ss == 0 && cinfo->Se == DCTSIZE2 - 1 &&
           cinfo->Ah == 0 && cinfo->Al == 0 &&
           ((cinfo->num_components == 1 && cinfo->jpeg_color_space == JCS_GRAYSCALE) ||
            (cinfo->num_components == 3 &&
             (cinfo->jpeg_color_space == JCS_YCbCr || cinfo->jpeg_color_space == JCS_RGB)));
  if (!supported) goto unsupported;
  cinfo->out_color_space = JCS_RGB;
  cinfo->scale_num = 1;
  cinfo->scale_denom = reduction;
  jpeg_start_decompress(cinfo);
  cinfo->entropy->decode_mcu = decode_mcu;
  memset(scan, 0, sizeof(*scan));
  scan->mcus_per_row = cinfo->MCUs_per_row;
  scan->mcu_rows = cinfo->MCU_rows_in_scan;
  scan->blocks_per_mcu = (uint32_t)cinfo->blocks_in_MCU;
  scan->restart_interval = cinfo->restart_interval;
  scan->column_width = DCTSIZE * (uint32_t)(cinfo->num_components == 1 ? 1 : cinfo->max_h_samp_factor);
  scan->data_offset = (uint32_t)(cinfo->src->next_input_byte - jpeg);
  for (block = 0; block < cinfo->blocks_in_MCU; block++) {
    int component = cinfo->MCU_membership[block];
    scan->component[block] = (uint8_t)component;
    scan->dc_table[block] = (uint8_t)cinfo->cur_comp_info[component]->dc_tbl_no;
    scan->ac_table[block] = (uint8_t)cinfo->cur_comp_info[component]->ac_tbl_no;
  }
  for (table = 0; table < NUM_HUFF_TBLS; table++) {
    const JHUFF_TBL *dc = cinfo->dc_huff_tbl_ptrs[table], *ac = cinfo->ac_huff_tbl_ptrs[table];
    scan->dc_bits[table] = dc ? dc->bits : NULL;
    scan->dc_values[table] = dc ? dc->huffval : NULL;
    scan->ac_bits[table] = ac ? ac->bits : NULL;
    scan->ac_values[table] = ac ? ac->huffval : NULL;
  }
  return 1;
unsupported:
  feedline_partial_close(self);
  return 0;
}

/* Decodes a rectangle, in pixels of the reduced image, into RGB rows of `pitch` bytes. Calls `mcu` for the MCUs in order,
 * from the first MCU of the image to the last required one. `x` must be a multiple of the reduced column width. Returns 1
 * on success. */
int feedline_partial_read(struct feedline_partial *self, uint32_t x, uint32_t y, uint32_t width, uint32_t height,
                          uint8_t *out, size_t pitch, feedline_mcu mcu, void *state)
{
  struct jpeg_decompress_struct *cinfo = &self->cinfo;
  JDIMENSION first = x, columns = width;
  if (setjmp(self->failed)) return 0;
  self->mcu = mcu;
  self->state = state;
  jpeg_crop_scanline(cinfo, &first, &columns);
  if (first != x || columns != width || cinfo->output_components != 3 || y + height > cinfo->output_height) return 0;
  if (y > 0 && (jpeg_skip_scanlines(cinfo, y) != y || cinfo->output_scanline != y)) return 0;
  while (cinfo->output_scanline < y + height) {
    JSAMPROW rows[16];
    JDIMENSION left = y + height - cinfo->output_scanline, row;
    if (left > 16) left = 16;
    for (row = 0; row < left; row++) rows[row] = out + (cinfo->output_scanline - y + row) * pitch;
    if (jpeg_read_scanlines(cinfo, rows, left) == 0) return 0;
  }
  return 1;
}

/* Reads all data of an image of any kind. Returns 1 if it causes no error and no harmful warning. Decodes only one column if
 * libjpeg-turbo can crop the image. */
int feedline_partial_check(struct feedline_partial *self, const uint8_t *jpeg, size_t length, int may_lack_end,
                           int max_scans, uint32_t column_width)
{
  struct jpeg_decompress_struct *cinfo = &self->cinfo;
  uint8_t *volatile row = NULL;
  volatile int is_complete = 0;
  if (setjmp(self->failed)) goto done;
  self->is_check = 1;
  self->may_lack_end = may_lack_end;
  self->max_scans = max_scans;
  self->progress.progress_monitor = on_progress;
  cinfo->progress = &self->progress;
  jpeg_mem_src(cinfo, jpeg, length);
  if (jpeg_read_header(cinfo, TRUE) != JPEG_HEADER_OK) goto done;
  cinfo->do_fancy_upsampling = FALSE;
  jpeg_start_decompress(cinfo);
  if (column_width > 0 && column_width < cinfo->output_width) {
    JDIMENSION first = 0, columns = column_width;
    jpeg_crop_scanline(cinfo, &first, &columns);
  }
  row = malloc((size_t)cinfo->output_width * (size_t)cinfo->output_components);
  if (!row) goto done;
  while (cinfo->output_scanline < cinfo->output_height) {
    JSAMPROW rows[1] = { row };
    if (jpeg_read_scanlines(cinfo, rows, 1) == 0) goto done;
  }
  is_complete = jpeg_finish_decompress(cinfo) ? 1 : 0;
done:
  free(row);
  self->is_check = 0;
  cinfo->progress = NULL;
  feedline_partial_close(self);
  return is_complete;
}
