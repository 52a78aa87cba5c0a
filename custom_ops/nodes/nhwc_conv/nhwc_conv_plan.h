// How convolutions with the channels last run on the CPU.
//
// The sums of all filters for some pixels stay in registers, and read the channels of each pixel where they lie: for
// taps outside of the image, zeros.  No copy of the input is made (the indirect convolution algorithm: Dukhan, 2019,
// arXiv:1907.02129) unless its channels come first.  Single channels read zeros for taps outside of a row, and leave rows of
// taps outside out.
#ifndef ONNXFUSE_NHWC_CONV_PLAN_H_
#define ONNXFUSE_NHWC_CONV_PLAN_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "convolution/conv_epilogue.h"
#include "kernels/kernels.h"
#include "nodes/nhwc_conv/nhwc_conv.h"
#include "plan/plan.h"
#include "runtime/executor.h"

namespace onnxfuse {

// Single channels that are computed at once.
constexpr int64_t kNhwcChannelsAtOnce = 32;
static_assert(kNhwcChannelsAtOnce % kMaxFloats == 0, "whole vectors of these would be more of them");

// What the sums of a pixel read.
enum class Taps : uint8_t {
  Own,     // the one pixel at the same place: a product
  Each,    // pixels, or zeros outside of the image, each a segment
  Joined,  // rows of pixels, each a segment: no tap meets padding
  Padded,  // likewise, of a copy of X with the padding, which has few channels
  Planes,  // of X with few channels that come first, copies of the rows that a row of results reads, with the padding: of
           // each row of the kernel for each channel
};

// How results get through a Program to where they go.
enum class Route : uint8_t {
  Memory,    // it runs on results in memory
  Straight,  // it does no more than to bound them, and the kernel does that
  Tiles,     // it runs on the results of tiles, before these are in memory
};

// How a node runs on inputs of certain shapes.
struct NhwcConvPlan {
  PlanKey key;  // of the node's inputs
  ConvGeometry geometry;
  ConvGeometry single;  // of the convolution of single channels: the node's, or the one before
  ConvGeometry expansion;  // of the product before that
  Shape output;
  int64_t out_pixels = 0;  // of an image
  int64_t in_pixels = 0;

  // Where the Programs do not run on parts of tensors, they run on whole ones, by the second plan of each.
  ConvEpilogue epilogue;
  std::shared_ptr<const Plan> whole_epilogue;
  ConvEpilogue prologue;
  std::shared_ptr<const Plan> whole_prologue;
  ConvEpilogue expanded;
  ProgramNumbers numbers;
  Route epilogue_route = Route::Memory;
  Route prologue_route = Route::Memory;  // of what single channels make for a product
  Route expanded_route = Route::Memory;  // of what is made for single channels

  // What is read: X itself if its channels come last, else a copy.
  Taps taps = Taps::Each;
  bool copies = false;
  int64_t rows = 0;     // of what is read
  int64_t columns = 0;
  int64_t pad_top = 0;   // that what is read does not have
  int64_t pad_left = 0;
  int64_t reach = 0;       // columns from the first tap to the last
  int64_t segments = 1;    // of what a pixel's sums read
  int64_t length = 0;      // elements of a segment
  std::vector<ptrdiff_t> offsets;  // where segments begin, from the first
  int64_t zero_count = 0;  // that taps outside of the image read
  int64_t plane_columns = 0;  // of a row that is copied; `offsets` are where products read these

  // Units of work for threads: some pixels of an image, or of all images if results have the channels last, and some
  // filters; for single channels, some rows or a part of one.  Threads get neighbouring units: with `by_columns` those of
  // all rows of some columns, so that a thread finds what kernels read beside them where it has written it itself.
  int64_t images = 1;
  int64_t pixels = 0;        // of each
  int64_t pixels_at_once = 0;
  int64_t filters_at_once = 0;
  bool by_columns = false;
  int64_t rows_at_once = 1;
  int64_t columns_at_once = 0;
  int64_t tile_columns = 0;  // of a unit, that single channels compute at once
  int64_t pixel_units = 1;   // of an image
  int64_t filter_units = 1;
  bool alone = false;        // so little to do that other threads are left alone
  int64_t wide_pixels = 0;  // of what is made for single channels, the most in a unit

  // Where a thread has what in its memory, in bytes.
  size_t results = 0;
  size_t turned = 0;    // the same with the channels first
  size_t joined = 0;    // the parts of X
  size_t read = 0;      // what the prologue makes
  size_t segments_at = 0;  // pointers to segments
  size_t zeros = 0;
  size_t plane_rows = 0;
  size_t wide = 0;  // what is made for single channels
  size_t wide_sums = 0;  // before its Program
  size_t wide_segments = 0;
  size_t operands = 0;  // pointers to what a Program reads
  size_t bytes = 0;
};

// False if the shapes do not fit the node; then `error` says why.
bool make_nhwc_conv_plan(const NhwcConv& node, const PlanKey& key, NhwcConvPlan* plan, std::string* error);

// The same where the shapes have been resolved, and fit.
bool plan_nhwc_conv(const NhwcConv& node, const NhwcShapes& shapes, const PlanKey& key, NhwcConvPlan* plan,
                    std::string* error);

// Throws Error if there is no memory.
void run_nhwc_conv(const NhwcConv& node, const NhwcConvPlan& plan, const std::vector<const void*>& inputs,
                   const std::vector<void*>& outputs, const Host& host);

}  // namespace onnxfuse

#endif  // ONNXFUSE_NHWC_CONV_PLAN_H_
