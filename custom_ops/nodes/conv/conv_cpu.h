// Convolutions with an epilogue on the CPU: a channel's results are still in the caches when the epilogue reads them.
#ifndef ONNXFUSE_CONV_CPU_H_
#define ONNXFUSE_CONV_CPU_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "convolution/conv_epilogue.h"
#include "convolution/conv_node.h"
#include "nodes/conv/conv_lanes.h"
#include "nodes/conv/conv_rows.h"
#include "nodes/conv/conv_strips.h"
#include "plan/plan.h"
#include "program/dtype.h"
#include "runtime/executor.h"

namespace onnxfuse {

// Where a thread has what in its memory: in bytes from its begin, where the copy of what it reads lies.
struct ConvThreadMemory {
  size_t results = 0;
  size_t rounded = 0;   // the same results in 16 bits
  size_t scratch = 0;   // for ConvStrips::sum
  size_t planes = 0;    // of a strip
  size_t parts = 0;     // likewise
  size_t operands = 0;  // pointers to what the epilogue reads
  size_t bytes = 0;
};

// How a convolution is computed: single channels in rows or a channel a lane, or any in strips.
enum class ConvWay : uint8_t { Rows, Lanes, Strips };

// How a node runs on inputs of certain shapes.
struct ConvCpuPlan {
  // Throws Error if a part of the convolution needs too much memory.
  ConvCpuPlan(const PlanKey& key, const ConvGeometry& geometry, DType type, ConvEpilogue epilogue);

  PlanKey key;  // of the node's inputs
  ConvGeometry geometry;
  DType type;  // of X, W and the result
  ConvWay way = ConvWay::Strips;
  // The one of that way; the others are null.
  std::unique_ptr<const ConvRows> rows;
  std::unique_ptr<const ConvLanes> lanes;
  std::unique_ptr<const ConvStrips> strips;
  ConvEpilogue epilogue;
  ProgramNumbers numbers;
  const Program* prologue = nullptr;  // that strips compute from X as they read it
  std::shared_ptr<const Plan> prologue_plan;
  // Of the Programs' inputs, where they run by themselves: the prologue before the convolution, the epilogue after it.
  PlanKey prologue_key;
  PlanKey epilogue_key;

  // Units of work for threads: some filters of some groups, on one strip of one image.
  int64_t strip_count = 1;
  int64_t groups_at_once = 1;
  int64_t filters_at_once = 1;
  int64_t group_units = 1;   // of all groups
  int64_t filter_units = 1;  // of a group's filters
  int64_t units = 1;         // of all images
  bool alone = false;        // so little to do that other threads are left alone

  int64_t channel_size;   // elements of a channel of the output
  bool fetches = false;   // the first output's memory is fetched while sums are computed: it is of floats, and large
  bool collects = false;  // the epilogue runs on several channels at once, whose results follow one another
  int64_t capacity = 1;   // channels whose results a thread has in memory, at most
  ConvThreadMemory memory;

 private:
  void divide_work();
  void lay_out_memory();
};

// The Programs, of which `prologue` may be null, outlive the plan.  Null if the result has no elements.  The plan has
// no epilogue if that computes values of several shapes, and no prologue unless it is cheaper than to compute that
// first.
std::shared_ptr<const ConvCpuPlan> make_conv_cpu_plan(const ConvNode& node, DType type, const Program* prologue,
                                                      const Program& epilogue, const PlanKey& key,
                                                      const ConvShapes& shapes);

// What computes a product [.., K] · [K, N]: a convolution whose filters are the rows, of an image of K channels and N
// positions.
ConvGeometry image_of_product(const ConvGeometry& product);

struct ConvTensors {
  const void* x;
  const void* weights;
  const void* const* prologue;  // X and its other operands
  const void* const* epilogue;  // anything for the convolution's result, and its other operands
  void* const* outputs;
  bool denormals;  // whether the Programs compute with some (ProgramNumbers)
};

// Runs a plan.  Without an epilogue the one output is the convolution's result.
void run_conv_cpu(const ConvCpuPlan& plan, const ConvTensors& tensors, const Host& host);

}  // namespace onnxfuse

#endif  // ONNXFUSE_CONV_CPU_H_
