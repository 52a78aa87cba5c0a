// Kernels, compiled once for each instruction set (kernels.inc), and the run-time choice between them.
#ifndef ONNXFUSE_KERNELS_H_
#define ONNXFUSE_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "kernels/chain_links.h"
#include "program/dtype.h"

namespace onnxfuse {

// Computes `n` elements.  An operand is a vector of `n` elements or one scalar, as the kernel was chosen; `out` may be
// exactly an operand of the same element size, and overlaps nothing otherwise.
using Kernel = void (*)(void* out, const void* const* in, size_t n);

// How a chain stores its result.
enum class Stores : uint8_t {
  Plain,
  Apart,     // `out` and the operands to keep are not memory that the chain reads
  Fetched,   // likewise, and the memory of results further on is fetched
  Streamed,  // likewise, and the result bypasses the caches
};

// Runs a chain over `n` elements: out = ...(link 1(link 0(in))).
using ChainKernel = void (*)(void* out, const void* in, const ChainLink* links, size_t count, size_t n, Stores stores);

// Rows of `bytes`, one behind the other in `out`: each is copies of the element of `size` bytes at `from`, which is `step`
// bytes further for the next row.
struct RepeatedElements {
  size_t size;
  const char* from;
  int64_t step;
  char* out;
  size_t bytes;
  int64_t rows;
};

// What follows is for convolutions.  Vectors are read and written whole: up to kMaxFloats - 1 elements beyond what is
// wanted of each row.  Rows of results are written from right to left, and one after the other, so that a row may begin
// where the one before ends.  Products are added with one rounding where the instruction set has it.

// The most floats of a vector.
constexpr size_t kMaxFloats = 16;

// A block of results: out[r * pitch + i] = addends[r] + sum over k of weights[r * row_stride + k] * input[offsets[k] + i],
// without addends where these are null.
struct ConvBlock {
  const float* addends;
  const float* weights;
  size_t row_stride;
  const float* input;
  const ptrdiff_t* offsets;
  size_t depth;
  float* out;
  size_t pitch;
  size_t rows;
  size_t columns;
  // Whether offsets are so near each other that what a few columns read of many products lies in few cache lines.
  bool dense = false;
  // Where the results go in the end, `target_pitch` apart: memory that is fetched while they are computed.
  const float* target = nullptr;
  size_t target_pitch = 0;
  // Whether the input lies in memory that no one has read shortly before: it is fetched some columns ahead.
  bool fetches = false;
};

// Products of rows with a few others: out[r * row_pitch + i * column_pitch] = sum over k of weights[r * weight_pitch + k] *
// input[i * input_pitch + k].  Nothing is read or written beyond it.
struct ConvDots {
  const float* weights;
  size_t weight_pitch;
  const float* input;
  size_t input_pitch;
  size_t depth;
  float* out;
  size_t row_pitch;
  size_t column_pitch;
  size_t rows;
  size_t columns;
};

// Taps of a convolution that meet consecutive rows of a plane: the first meets element 0 of row 0 at `offset`, and has
// weight `first`; those of the others are each `step` further.
struct ConvColumn {
  ptrdiff_t offset;
  ptrdiff_t first;
  ptrdiff_t step;
  int height;  // up to kMaxColumnHeight
};
constexpr int kMaxColumnHeight = 5;

// Rows of results of one channel: out[r * pitch + i] = sum over all taps of weight * input[offset + r * input_pitch + i].
struct ConvPlane {
  const float* weights;
  const ConvColumn* columns;
  size_t count;
  const float* input;
  size_t input_pitch;
  float* out;
  size_t pitch;
  size_t rows;
  size_t width;
};

// Some rows of results of channels whose input is read where it lies: for each, out[r * out_width + i] = addend + sum over h
// and w of weights[h * kernel_width + w] * input[(first_row + r) * stride - pad_top + h][i * column_stride - pad_left + w *
// dilation], where what lies outside of the input is 0, and is not read.  A vector, and a row, behind the results may be
// written.
struct ConvRowsBlock {
  const float* weights;  // of the first channel, as all that follows
  ptrdiff_t kernel_height;  // up to kMostTaps
  ptrdiff_t kernel_width;   // likewise
  ptrdiff_t stride;         // of rows: 1 or 2
  ptrdiff_t column_stride;  // 1, or 2 where that of rows is
  ptrdiff_t dilation;       // of columns
  ptrdiff_t pad_top;
  ptrdiff_t pad_left;
  const float* input;
  ptrdiff_t height;
  ptrdiff_t width;
  const float* zeros;    // a row of them
  const float* addends;  // one for each channel; null for 0
  float* out;
  ptrdiff_t out_width;
  ptrdiff_t first_row;
  ptrdiff_t rows;
  ptrdiff_t channels;
  bool fetches;           // whether the input is so large that the next rows of it are fetched
  const float* target;    // where the results go in the end, as in ConvBlock, row after row; null if that does not matter
  ptrdiff_t target_pitch;  // from channel to channel
};
constexpr int kMostTaps = 32;

// to[r * pitch + i] = from[r * from_pitch + i * stride] for i < width, and `gap` zeros between rows.  Nothing is read at
// or beyond `end`.
struct ConvCopy {
  float* to;
  size_t pitch;
  const float* from;
  ptrdiff_t from_pitch;
  const float* end;
  size_t stride;
  size_t rows;
  size_t width;
  size_t gap;
  ptrdiff_t ahead;  // from what is read to what will be read next: that is fetched meanwhile
};

// A row of results of one channel in each lane: out[i][l] = sum over t of weights[t][l] * input[offsets[t] + i * step + l],
// for i < columns, with vectors one after the other.
struct ConvLanesRow {
  const float* weights;
  const ptrdiff_t* offsets;
  size_t taps;
  const float* input;
  size_t step;
  float* out;
  size_t columns;
};

// Rows of scores become exp(score * scale + mask - the largest such of the row), and `factors` what makes each add up to 1.
// Where a choice, true or false, is `fills`, `fill` takes the place of score * scale.  With `nan_as_zero` a row of which
// that makes no numbers becomes zeros, and with `masked_as_zero` one whose scores all are filled, or have a mask that is at
// most the least number.  Rows are `pitch` apart, of n > 0 elements and whole vectors of memory.
struct SoftmaxRows {
  float* scores;
  size_t pitch;
  size_t rows;
  size_t n;
  float scale;
  const float* mask;  // null for none
  size_t mask_pitch;
  bool one_mask;  // one element for all of a row
  const uint8_t* choices;  // null for none
  size_t choice_pitch;
  bool one_choice;
  bool fills;
  float fill;
  bool nan_as_zero;
  bool masked_as_zero;
  float* factors;
};

// Rows of n elements to write, `out_pitch` apart, each row of `rows` times its factor.
struct ScaledRows {
  float* out;
  size_t out_pitch;
  const float* rows;
  size_t pitch;
  const float* factors;
  size_t count;
  size_t n;
};

// Rows to reduce, `pitch` elements apart: out[r] is what in[r * pitch + i] come to over i < n; of none it is the reduction's
// identity.
struct ReducedRows {
  const void* in;
  size_t rows;
  size_t pitch;
  size_t n;
  void* out;
};

// By how many bytes the operands of a link are further on for the next row, and whether they begin anew with a group of rows.
struct OperandSteps {
  ptrdiff_t operand;
  ptrdiff_t operand2;
  bool restarts;
  bool restarts2;
};

// Memory that is fetched into the caches while something else is computed: `step` bytes for so many elements of that.
constexpr size_t kFetchElements = 64;
struct FetchedRange {
  const char* begin;
  const char* at;
  const char* end;
  size_t step;
};

// A chain over rows of floats; and what that makes of each reduced, unless `results` is null: results[r] is what row r comes to.
// Or what it makes of all rows, unless `columns` is null: columns[i] is what their elements i come to, one row after the other.
struct RowPass {
  const float* in;
  ptrdiff_t in_step;  // bytes from one row to the next
  float* out;         // where the chain's results go, row behind row; null where they are only reduced
  ChainLink* links;   // whose operands move on with the rows
  const OperandSteps* steps;
  size_t count;  // of links; none where the input is reduced as it is
  Op combine;
  Mapped map;
  float* results;
  float* squares;  // the sums of squares, beside plain sums; null where nobody asks for them
  float* columns;
  bool mean;       // results, and squares, are divided by the number of elements
  bool mean_squares;
  bool streams;    // the chain's results go past the caches, where rows begin at whole vectors
  bool of_values;  // of one value of each row, which lie side by side, as those that operands step through do
  bool in_restarts;  // as an operand
  bool out_restarts;
};

// Rows of n > 0 floats, some at a time, which go through all passes one after the other.
struct ChainedRows {
  RowPass* passes;
  size_t pass_count;
  size_t rows;
  size_t group;
  size_t n;
  FetchedRange* fetched;  // for each group those of another, one after the other
  size_t fetched_count;
};

// Columns to reduce: out[i], for i < n, is what in[r * pitch + i] come to over r < rows, and what was in out[i] unless it
// `begins`.  Several calls, each but the last of a multiple of kReducedRows rows, give the same as one.
struct ReducedColumns {
  const void* in;
  size_t rows;
  size_t pitch;
  size_t n;
  void* out;
  bool begins;
};
constexpr int64_t kReducedRows = 4;

struct ReduceKernels {
  void (*rows)(const ReducedRows& block);
  void (*columns)(const ReducedColumns& block);
};

// Where the results of tiles go, pixels in rows, and the chain that they go through on the way.  Its operands that are
// vectors are tensors laid out as the one that results go to.
struct TileTarget {
  float* out;  // of the first pixel and channel
  size_t pixel_pitch;
  size_t row_pitch;
  size_t row_pixels;
  const ChainLink* links;
  size_t count;  // of links, not 0
};

// Whether results become no less than `low` and no more than `high`, which are numbers; a NaN stays.
struct Bounds {
  bool any;
  float low;
  float high;
};

// How many pixels are computed for so many: there is no kernel for seven.
constexpr size_t whole_nhwc_pixels(size_t pixels) {
  return pixels == 7 ? 8 : pixels;
}

// Sums over all channels for pixels, each with its filters in a row: out[p * out_pitch + m] = addends[m] + sum over s and i
// of input[s * pixels + p][i] * weights[m / kNhwcBlock * block_pitch + (s * length + i) * kNhwcBlock + m % kNhwcBlock].
// Addends are whole vectors.  Of filters that are not, up to a vector behind a pixel's results is written, but for the last
// pixel's where there is a vector of them at least.
struct NhwcSums {
  const float* const* input;  // where a pixel's segments begin
  size_t pixels;              // as whole_nhwc_pixels gives
  size_t segments;
  size_t length;
  const float* weights;
  size_t block_pitch;
  const float* addends;
  float* out;
  size_t out_pitch;  // `filters`, if these are no whole vectors
  size_t filters;
  // If not null, results go there, filters being whole vectors, and `out` is room for those of a tile.
  const TileTarget* target;
  Bounds bounds;
  bool fetches;  // whether weights have not been read shortly before
  // Of a convolution of groups, else 0: the filters of a group, which read `length` channels of their own from where a
  // segment begins, kLeastGroup or more; and which of all its filters the first one is.
  size_t group_filters;
  size_t first_filter;
  size_t all_filters;
};

// The same for pixels of a row, kPlanePixels of them or more, of what has its columns last: out[p * out_pitch + m] = addends[m] +
// sum over k < products of input[offsets[k] + p * stride] * weights[m / kNhwcBlock * block_pitch + k * kNhwcBlock + m %
// kNhwcBlock].
constexpr size_t kPlanePixels = 12;
constexpr size_t kMostPlaneProducts = 256;
struct NhwcPlanes {
  const float* input;
  const ptrdiff_t* offsets;
  size_t products;  // kMostPlaneProducts at most
  size_t stride;    // 1, 2 or 4
  size_t pixels;
  const float* weights;
  size_t block_pitch;
  const float* addends;
  float* out;
  size_t out_pitch;
  size_t filters;
  // As of NhwcSums; the first pixel goes to that pixel.
  const TileTarget* target;
  size_t target_pixel;
  Bounds bounds;
};

// Sums of channels by themselves, from `first` to `last`, for pixels of a row: out[p * channels + c] = addends[c] + sum over h
// and w of weights[h * weight_pitch + w * channels + c] * input[h * row_pitch + column * channels + c], where column is begin +
// p * stride + w * dilation, and for columns that there are not the sum has nothing.  Others next to them may be computed too.
struct NhwcChannels {
  const float* input;
  ptrdiff_t row_pitch;
  ptrdiff_t columns;  // that there are, from 0 on
  ptrdiff_t begin;
  ptrdiff_t stride;
  ptrdiff_t dilation;
  size_t height;
  size_t width;
  const float* weights;
  size_t weight_pitch;
  const float* addends;
  float* out;
  size_t pixels;
  size_t channels;  // of a pixel
  size_t first;
  size_t last;
  // If not null, results go there and not to `out`, the first pixel to that pixel; channels are a vector at least.
  const TileTarget* target;
  size_t target_pixel;
  Bounds bounds;
};

// Windows of a tensor whose channels come last, for pixels `pixel_pitch` apart: those of input[p * pixel_pitch + h *
// row_pitch + w * column_pitch + c] over h and w, for out[p * channels + c].  Nothing is read or written beyond them.
struct NhwcWindows {
  const float* input;
  ptrdiff_t pixel_pitch;
  ptrdiff_t row_pitch;
  ptrdiff_t column_pitch;
  size_t height;  // 0, as the width, where nothing is read
  size_t width;
  float divisor;  // of the sum, for a mean
  float* out;
  size_t pixels;
  size_t channels;
};

struct KernelTable {
  const char* name;  // "baseline", "avx2", "avx512", "neon"
  // An operator's kernel for a compute type, with bit i of `scalars` set if operand i is one; null where there is none.
  Kernel (*find_op)(Op op, DType type, unsigned scalars);
  Kernel (*find_cast)(DType from, DType to);  // between the compute types of any two
  Kernel loads[kDTypeCount];                  // storage -> compute; null where they are the same
  Kernel stores[kDTypeCount];                 // compute -> storage; null where they are the same
  ChainKernel chains[kDTypeCount];         // f32 and f64
  bool second_value;                       // chains have registers for Save
  bool fused_multiply_add;                 // there is an instruction for it
  void (*stream)(void* out, const void* in, size_t bytes);  // a copy that bypasses the caches
  void (*repeat_elements)(const RepeatedElements& elements);
  size_t floats;                                            // of a vector
  int64_t filters;                                          // rows that a block of conv_sums should have
  void (*conv_sums)(const ConvBlock& block);
  void (*conv_dots)(const ConvDots& dots);
  void (*conv_plane)(const ConvPlane& plane);
  void (*conv_rows)(const ConvRowsBlock& block);
  void (*take_rows)(const ConvCopy& copy);
  // rows[r * pitch + i] += addends[r] for r < count and i < n
  void (*add_to_rows)(float* rows, size_t pitch, const float* addends, size_t count, size_t n);
  void (*conv_lanes)(const ConvLanesRow& row);
  // to[i][l] = from[l * pitch + i] for i < n and l < lanes.  Nothing is read at or beyond `end`; up to a vector of vectors
  // is written.
  void (*take_lanes)(float* to, const float* from, size_t pitch, size_t lanes, size_t n, const float* end);
  // to[i * to_pitch + l] = from[l * pitch + i] for i < n and l < lanes, which are a vector at most.  Nothing is read at or
  // beyond `end`; up to a vector of vectors is written.
  void (*take_columns)(float* to, size_t to_pitch, const float* from, size_t pitch, size_t lanes, size_t n,
                       const float* end);
  // to[l * pitch + i] = from[i][l] for i < n and all lanes, one after the other; up to a vector of vectors is read.
  void (*put_lanes)(float* to, size_t pitch, const float* from, size_t n);
  // means[r] = the mean of rows[r * n + i] over i < n, for r < count and n > 0
  void (*row_means)(float* means, const float* rows, size_t count, size_t n);
  void (*softmax_rows)(const SoftmaxRows& block);
  void (*scale_rows)(const ScaledRows& block);
  // By the operator that joins two elements, for a compute type; null where there is none.
  ReduceKernels (*find_reduction)(Op combine, DType type, Mapped map);
  void (*chain_rows)(const ChainedRows& block);
  void (*nhwc_sums)(const NhwcSums& block);
  void (*nhwc_planes)(const NhwcPlanes& block);
  void (*nhwc_channels)(const NhwcChannels& block);
  // The greatest element of each window, -inf of none; NaN where one is.
  void (*nhwc_greatest)(const NhwcWindows& block);
  void (*nhwc_means)(const NhwcWindows& block);
  // to[c * to_pitch + r] = from[r * from_pitch + c] for r < rows and c < columns
  void (*transpose_rows)(float* to, size_t to_pitch, const float* from, size_t from_pitch, size_t rows, size_t columns);
  // to[r * pitch + i] = from[r * n + i] for r < count and i < n
  void (*place_runs)(float* to, size_t pitch, const float* from, size_t n, size_t count);
  // sums[i] += the sum of rows[r * pitch + i] over r < count, for i < n
  void (*add_rows)(float* sums, const float* rows, size_t pitch, size_t count, size_t n);
  // out[i * stride + s] = in[s][i] for i < n
  void (*interleave)(float* out, const float* const* in, size_t n, size_t stride);
};

// The table for this machine, chosen once.  The environment variable ONNXFUSE_ISA (baseline, avx2, avx512) asks for
// a smaller instruction set than the machine has.
const KernelTable& kernels();

}  // namespace onnxfuse

#endif  // ONNXFUSE_KERNELS_H_
