#include "cuda/conv/cuda_conv_layout.h"

#include <algorithm>

#include "cuda/driver/cuda_kernels.h"
#include "figures/convolution.h"
#include "figures/cuda.h"

namespace onnxfuse::cuda {
namespace {


int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

// `shape` broadcasts to a space of `rank` dimensions.
ConvOperand make_operand(DType type, const Shape& shape, int rank, bool channels_last) {
  ConvOperand operand{storage_size(type), {}};
  int64_t inner = 1;
  for (int d = 0; d < rank; ++d) {
    const int64_t size = shape.from_back(d);
    // Spatial dimensions lie at the end, N and C before them; or C at the end, and N, D, H, W before it.
    const auto from_end = static_cast<size_t>(d);
    const size_t last = operand.steps.size() - 1;
    size_t to = d < rank - 2 ? last - from_end : d == rank - 2 ? 1 : 0;
    if (channels_last) to = d == 0 ? 1 : from_end < last ? last + 1 - from_end : 0;
    operand.steps[to] = size == 1 ? 0 : inner;
    inner *= size;
  }
  return operand;
}

// False for g, which stands for any.
bool letter_steps(char letter, const ConvSteps& space, bool channels_last, ConvSteps* steps) {
  *steps = {};
  if (letter == 'g') return false;
  if (letter == 'c') (*steps)[1] = 1;
  if (letter == 'o') *steps = {space[1], 1, 0, 0, 0};
  if (letter == 'l' && channels_last) {
    const int64_t row = space[4] * space[1];
    *steps = {space[2] * space[3] * row, 1, space[3] * row, row, space[1]};
  } else if (letter == 'l') {
    const int64_t plane = space[3] * space[4];
    *steps = {space[1] * space[2] * plane, space[2] * plane, plane, space[4], 1};
  }
  return true;
}

bool letter_accepts(char letter, const ConvOperand& operand, const ConvSteps& space, bool channels_last) {
  ConvSteps wanted{};
  if (!letter_steps(letter, space, channels_last, &wanted)) return true;
  for (size_t d = 0; d < space.size(); ++d) {
    if (space[d] != 1 && operand.steps[d] != wanted[d]) return false;
  }
  return true;
}

bool fits_32_bits(const ConvKernel& kernel, const ConvLayout& layout) {
  const ConvGeometry& g = layout.geometry;
  int64_t inputs = 0;
  const Shape input{5, {g.batch, g.in_channels, g.in[0], g.in[1], g.in[2]}};
  if (!element_count(input, &inputs) || inputs > kMaxCount32 || layout.count > kMaxCount32) return false;
  for (size_t k = 0; k < layout.operands.size(); ++k) {
    if (kernel.access[k] != 'g') continue;
    const ConvSteps space = layout.space(k);
    int64_t reach = 0;
    for (size_t d = 0; d < space.size(); ++d) reach += (space[d] - 1) * layout.operands[k].steps[d];
    if (reach >= kLimit32) return false;
  }
  for (size_t d = 0; d < kMaxSpatialRank; ++d) {
    int64_t reach = 0;
    if (__builtin_mul_overflow(std::max(g.in[d], g.out[d]) + g.pads[d] + 1, g.strides[d], &reach)) return false;
    if (__builtin_add_overflow(reach, g.dilations[d] * g.kernel[d], &reach) || reach >= kLimit32) return false;
  }
  return true;
}

// What a vector reads and writes at once is of one piece.
bool vectors_fit(const ConvKernel& kernel, const ConvLayout& layout) {
  const int64_t vector = kernel.vector;
  const ConvGeometry& g = layout.geometry;
  if (kernel.family == ConvFamily::Gemm) return (g.channels_last ? g.out_channels : layout.positions) % vector == 0;
  return layout.geometry.in[2] % vector == 0 && layout.geometry.out[2] % vector == 0;
}

void find_alignment(const ConvKernel& kernel, const ConvLayout& layout, std::vector<uintptr_t>* misaligned) {
  const size_t operands = layout.operands.size();
  misaligned->assign(2 + operands + layout.output_sizes.size(), 0);
  const bool reads_weights_in_pieces = kernel.family == ConvFamily::Gemm || kernel.family == ConvFamily::Direct;
  if (reads_weights_in_pieces) (*misaligned)[1] = kWidestAccess - 1;
  if (kernel.vector == 1) return;
  const auto bits = [&](size_t element_size) { return std::min(kernel.vector * element_size, kWidestAccess) - 1; };
  (*misaligned)[0] = bits(layout.element_size);
  for (size_t k = 0; k < operands; ++k) {
    const char letter = kernel.access[k];
    const bool along_channels = layout.geometry.channels_last && (letter == 'c' || letter == 'o');
    if (letter == 'l' || along_channels) (*misaligned)[2 + k] = bits(layout.operands[k].element_size);
  }
  for (size_t o = 0; o < layout.output_sizes.size(); ++o) {
    (*misaligned)[2 + operands + o] = bits(layout.output_sizes[o]);
  }
}

}  // namespace

ConvSteps ConvLayout::space(size_t k) const {
  const bool of_input = k < prologue;
  const ConvGeometry::Sizes& sizes = of_input ? geometry.in : geometry.out;
  return {geometry.batch, of_input ? geometry.in_channels : geometry.out_channels, sizes[0], sizes[1], sizes[2]};
}

ConvLayout make_conv_layout(const ConvNode& node, const ConvShapes& shapes) {
  ConvLayout layout;
  layout.geometry = shapes.geometry;
  layout.element_size = storage_size(node.type);
  element_count(shapes.geometry.output, &layout.count);
  for (const int64_t size : shapes.geometry.out) layout.positions *= size;
  layout.prologue = shapes.prologue.size();
  const int rank = shapes.geometry.output.rank;
  const bool last = shapes.geometry.channels_last;
  for (size_t i = 0; i < shapes.prologue.size(); ++i) {
    layout.operands.push_back(make_operand(node.prologue.values[i + 1].type, shapes.prologue[i], rank, last));
  }
  for (size_t i = 0; i < shapes.epilogue.size(); ++i) {
    layout.operands.push_back(make_operand(node.epilogue.values[i + 1].type, shapes.epilogue[i], rank, last));
  }
  for (const uint16_t output : node.epilogue.outputs) {
    layout.output_sizes.push_back(storage_size(node.epilogue.values[output].type));
  }
  return layout;
}

bool accepts(const ConvKernel& kernel, const ConvLayout& layout, std::vector<uintptr_t>* misaligned) {
  if (kernel.index == 32 && !fits_32_bits(kernel, layout)) return false;
  for (size_t k = 0; k < layout.operands.size(); ++k) {
    const bool last = layout.geometry.channels_last;
    if (!letter_accepts(kernel.access[k], layout.operands[k], layout.space(k), last)) return false;
  }
  if (kernel.vector > 1 && !vectors_fit(kernel, layout)) return false;
  if (kernel.family != ConvFamily::Any && conv_blocks(kernel, layout) > kMaxBlocks / kernel.split) return false;
  find_alignment(kernel, layout, misaligned);
  return true;
}

int64_t conv_blocks(const ConvKernel& kernel, const ConvLayout& layout) {
  const ConvGeometry& g = layout.geometry;
  const auto& tile = kernel.tile;
  if (kernel.family == ConvFamily::Any) return ceil_div(layout.count, kernel.block);
  if (kernel.family == ConvFamily::Gemm && g.channels_last) {
    return ceil_div(g.batch * layout.positions, tile[0]) * ceil_div(g.out_channels, tile[1]);
  }
  if (kernel.family == ConvFamily::Gemm) {
    return g.group * ceil_div(g.out_channels / g.group, tile[0]) * ceil_div(g.batch * layout.positions, tile[1]);
  }
  const int64_t tiles = g.out[0] * ceil_div(g.out[1], tile[1]) * ceil_div(g.out[2], tile[2]);
  if (kernel.family == ConvFamily::Depthwise) return ceil_div(g.batch * g.out_channels, tile[0]) * tiles;
  return g.batch * ceil_div(g.out_channels, tile[0]) * tiles;
}

}  // namespace onnxfuse::cuda
