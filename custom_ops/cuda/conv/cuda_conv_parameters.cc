#include "cuda/conv/cuda_conv_parameters.h"

#include <algorithm>
#include <array>

#include "cuda/launch/cuda_divider.h"
#include "figures/convolution.h"
#include "figures/cuda_conv.h"

namespace onnxfuse::cuda {
namespace {

template <class Index, class Divider>
struct PackedShape {
  Index batch;
  Index in[kMaxSpatialRank];
  Index out[kMaxSpatialRank];
  Index pad[kMaxSpatialRank];
  Index splits;
  Divider width;
  Divider height;
  Divider positions;
};

using Shape32 = PackedShape<uint32_t, Divider32>;
using Shape64 = PackedShape<uint64_t, Divider64>;

template <class Index, class Divider>
std::vector<unsigned char> pack(const ConvKernel& kernel, const ConvLayout& layout) {
  const ConvGeometry& g = layout.geometry;
  const size_t pointers = 2 + layout.operands.size() + layout.output_sizes.size() + 1;
  std::vector<unsigned char> block(pointers * sizeof(CUdeviceptr));
  const auto add = [&](const auto& value) {
    const auto* bytes = reinterpret_cast<const unsigned char*>(&value);
    block.insert(block.end(), bytes, bytes + sizeof(value));
  };
  PackedShape<Index, Divider> shape{};
  shape.batch = static_cast<Index>(g.batch);
  for (size_t d = 0; d < kMaxSpatialRank; ++d) {
    shape.in[d] = static_cast<Index>(g.in[d]);
    shape.out[d] = static_cast<Index>(g.out[d]);
    shape.pad[d] = static_cast<Index>(g.pads[d]);
  }
  shape.splits = 1;
  shape.width = Divider::of(g.out[2]);
  shape.height = Divider::of(g.out[1]);
  shape.positions = Divider::of(layout.positions);
  add(shape);
  for (size_t k = 0; k < layout.operands.size(); ++k) {
    if (kernel.access[k] != 'g') continue;
    for (const int64_t step : layout.operands[k].steps) add(static_cast<Index>(step));
  }
  return block;
}

}  // namespace

ConvParameters conv_parameters(const ConvKernel& kernel, const ConvOperandCounts& counts) {
  ConvParameters result;
  const auto add = [&](size_t bytes) {
    result.each.push_back({result.bytes, bytes});
    result.bytes += bytes;
  };
  const bool wide = kernel.index == 64;
  for (size_t p = 0; p < 2 + counts.prologue + counts.epilogue + counts.outputs; ++p) add(sizeof(CUdeviceptr));
  result.workspace = result.bytes;
  add(sizeof(CUdeviceptr));
  result.splits = result.bytes + (wide ? offsetof(Shape64, splits) : offsetof(Shape32, splits));
  add(wide ? sizeof(Shape64) : sizeof(Shape32));
  const size_t steps = std::tuple_size<ConvSteps>::value * (wide ? sizeof(uint64_t) : sizeof(uint32_t));
  for (auto strided = std::count(kernel.access.begin(), kernel.access.end(), 'g'); strided > 0; --strided) add(steps);
  return result;
}

std::vector<unsigned char> pack_conv_parameters(const ConvKernel& kernel, const ConvLayout& layout) {
  if (kernel.index == 32) return pack<uint32_t, Divider32>(kernel, layout);
  return pack<uint64_t, Divider64>(kernel, layout);
}

std::vector<KernelSignature> signatures(const ConvRecipe& recipe, const ConvOperandCounts& counts) {
  std::vector<KernelSignature> functions;
  for (const ConvKernel& kernel : recipe.kernels) {
    const std::vector<Parameter> parameters = conv_parameters(kernel, counts).each;
    functions.push_back({kernel.name, kernel.block, parameters});
    if (kernel.split > 1) functions.push_back({kernel.sum_name(), kConvSumBlock, parameters});
  }
  return functions;
}

}  // namespace onnxfuse::cuda
