// What a thread computes units of a convolution with the channels last in, with the Programs before and behind its sums.
#ifndef ONNXFUSE_NHWC_CONV_WORKER_H_
#define ONNXFUSE_NHWC_CONV_WORKER_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "convolution/conv_axis.h"
#include "kernels/kernels.h"
#include "nodes/nhwc_conv/nhwc_channel_rows.h"
#include "nodes/nhwc_conv/nhwc_conv_plan.h"
#include "nodes/nhwc_conv/nhwc_segments.h"
#include "runtime/workspace.h"

namespace onnxfuse {

// A run of a node: what its units read and write.
struct NhwcConvRun {
  const NhwcConv& node;
  const NhwcConvPlan& plan;
  const std::vector<const void*>& inputs;
  const std::vector<void*>& outputs;  // of the epilogue, or of the sums alone
  const float* x = nullptr;           // as X, or its copy
  const float* addends = nullptr;
  const float* single_weights = nullptr;  // of the convolution of single channels
  const float* single_addends = nullptr;
  const float* wide_addends = nullptr;    // of what is made for it
  Bounds bounds{};  // of results that go straight to the output
  Bounds single_bounds{};
  Bounds wide_bounds{};
};

// What a thread computes units in.
class NhwcConvWorker {
 public:
  explicit NhwcConvWorker(const NhwcConvRun& run)
      : run_(run),
        plan_(run.plan),
        g_(run.plan.geometry),
        memory_(plan_.bytes),
        results_(at<float>(plan_.results)),
        turned_(at<float>(plan_.turned)),
        joined_(at<float>(plan_.joined)),
        read_(at<float>(plan_.read)),
        wide_(at<float>(plan_.wide)),
        segments_(plan_, run.x, at<const float*>(plan_.segments_at), at<float>(plan_.zeros)),
        channel_rows_(plan_, run.single_weights, run.single_addends),
        operands_(at<const void*>(plan_.operands)) {
    std::fill_n(at<float>(plan_.zeros), plan_.zero_count, 0.0f);
  }

  void compute(int64_t unit);

 private:
  template <class T>
  T* at(size_t offset) const {
    return reinterpret_cast<T*>(static_cast<char*>(memory_.data()) + offset);
  }

  struct RowsAndColumns {
    ConvRange rows;
    ConvRange columns;
  };

  // Some filters for some pixels: those that follow one another, or all rows of some columns.
  void compute_filters(int64_t unit);

  // Puts the parts of X next to each other, pixel by pixel.
  void join(const NhwcPixels& pixels);

  // All filters for a part of some rows, whose pixels the convolution before makes.
  void compute_pair(int64_t unit);

  // Where a tensor is, or would be, of which as much is there as single channels read for some rows.
  const float* read_by_rows(int64_t image, const ConvRange& rows);

  // Makes what single channels read for some rows.  Returns where the whole tensor would be.
  const float* expand(int64_t image, const ConvRange& rows);
  void compute_channels(int64_t unit);

  // All filters for some rows.
  void compute_planes(int64_t unit);

  // Of the output; of a pair both convolutions have the same.
  RowsAndColumns rows_and_columns(int64_t unit) const;
  NhwcPixels pixels_of(int64_t image, const RowsAndColumns& part) const;

  // Where the epilogue puts results of pixels, from filter `filter` on.
  TileTarget output_target(const NhwcPixels& pixels, int64_t filter);

  // Where the prologue puts results, in rows of so many that follow one another.
  TileTarget prologue_target(int64_t row_pixels);

  TileTarget target(const ConvEpilogue& program, float* out, int64_t element, int64_t pixel_pitch, int64_t row_pitch,
                    int64_t row_pixels);
  ConvRange all_filters() const { return {0, g_.out_channels}; }

  // Sums of pixels whose segments are found, on their way to the output.
  void sum(const NhwcPixels& pixels, const ConvRange& filters);

  // Those that go to the memory for results.
  NhwcSums sums_of(int64_t count, const ConvRange& filters);

  // Whether this thread has summed up with other weights last, so that these are not in its core's caches.
  static bool is_new(const float* weights);

  // What the prologue makes of runs of elements, one after the other.  `from` is where element 0 of a tensor is, or would be if
  // the runs `follow` one another there too.
  void run_prologue(const void* from, bool follow, ElementRuns runs);

  void take_prologue_operands() { take_operands(run_.node.first_operand(), run_.node.prologue); }
  void take_epilogue_operands();

  // Those of a Program after its first input, which are the node's from `first` on.
  void take_operands(size_t first, const Program& program);

  // Makes the first operand one whose runs follow one another.
  void move_on(ElementRuns* runs) const;

  // Runs the epilogue on the results of some filters for pixels.  Whole rows follow one another in the output.
  void finish(const NhwcPixels& pixels, const ConvRange& filters);

  // The same for `count` pixels that follow one another: of one image, if its channels come first.
  void finish_run(int64_t first, int64_t count, const ConvRange& filters, const float* results);
  void finish_runs(const float* results, ElementRuns runs);

  const NhwcConvRun& run_;
  const NhwcConvPlan& plan_;
  const ConvGeometry& g_;
  const Workspace memory_;
  float* const results_;
  float* const turned_;
  float* const joined_;
  float* const read_;
  float* const wide_;
  const NhwcSegments segments_;
  const NhwcChannelRows channel_rows_;
  const void** const operands_;
  ChainLink links_[kMaxChainLinks];
};

}  // namespace onnxfuse

#endif  // ONNXFUSE_NHWC_CONV_WORKER_H_
