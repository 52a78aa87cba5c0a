// Fuzzing of what the CUDA operator for convolutions reads from a model, and of the launches that it plans.
//
//   fuzz_conv [runs] [seed]
// Every run makes the attributes of a node, shapes and a recipe, some of them spoilt.  What comes out of them is held
// against counting: the places where a window fits, broadcasting, and the blocks that cover a result.
#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "convolution/conv_node.h"
#include "cuda/conv/cuda_conv_launch.h"
#include "cuda/conv/cuda_conv_layout.h"
#include "cuda/conv/cuda_conv_parameters.h"
#include "figures/convolution.h"
#include "tests/cuda/contract_decoder.h"
#include "tests/fuzz/fuzz_conv_nodes.h"

namespace {

using namespace onnxfuse;
using fuzz::Attributes;
using fuzz::below;
using fuzz::expect;
using fuzz::g_random;
using cuda::ConvCandidate;
using cuda::ConvFamily;
using cuda::ConvKernel;
using cuda::ConvOperandCounts;
using cuda::ConvPlan;
using cuda::ConvRecipe;

// --------------------------------------------------------------------------------------------------------- recipes

std::string letters_of(size_t count) {
  std::string letters;
  while (letters.size() < count) letters += "lscog"[below(5)];
  return letters;
}

std::string random_recipe(const Attributes& node) {
  std::string text = "onnxfuse-conv 1\nsource " + std::string(64, 'a') + "\n";
  const size_t kernels = below(6);
  for (size_t k = 0; k < kernels; ++k) {
    static const char* const kFamilies[] = {"depthwise", "gemm", "gemm", "direct", "any"};
    const std::string family = kFamilies[below(5)];
    const bool any = family == "any";
    const bool wide = below(3) == 0;
    const auto edge = [&] { return std::to_string(any ? 1 : 1 + below(below(4) == 0 ? 4096 : 64)); };
    text += "kernel k" + std::to_string(k) + " family " + family + " tile " + edge() + "x" + edge() + "x" + edge();
    text += " block " + std::to_string(32 * (1 + below(32)));
    text += " split " + std::to_string(family == "gemm" ? 1 + below(64) : 1);
    text += " vector " + std::to_string(any || wide ? 1 : 1 << below(4)) + (wide ? " index 64" : " index 32");
    text += " access " + letters_of(node.operands[0]) + ";" + letters_of(node.operands[1]) + "\n";
  }
  return text + "kernel any family any tile 1x1x1 block 32 split 1 vector 1 index 64 access " +
         std::string(node.operands[0], 'g') + ";" + std::string(node.operands[1], 'g') + "\n";
}

// ----------------------------------------------------------------------------------------------------------- checks

// The output's size along a dimension by counting.
void check_size(const ConvAttributes& attributes, size_t d, int64_t in, int64_t out, int64_t pad_begin) {
  const int64_t window = attributes.dilations[d] * (attributes.kernel[d] - 1) + 1;
  const int64_t stride = attributes.strides[d];
  if (in > 2000 || window > 2000) return;
  const int64_t given = attributes.pads[d] + attributes.pads[d + attributes.spatial_rank()];
  const bool same = attributes.auto_pad == AutoPad::SameUpper || attributes.auto_pad == AutoPad::SameLower;
  expect(same || pad_begin == attributes.pads[d], "another padding than the attribute's");
  int64_t counted = 0;
  if (attributes.transposed) {
    // What all windows cover, each a stride behind the one before, without the padding.
    const int64_t covered = (in - 1) * stride + window + attributes.output_padding[d];
    counted = same ? std::min(covered, in * stride) : covered - given;
  } else if (same) {
    for (int64_t at = 0; at < in; at += stride) ++counted;
    expect(pad_begin < window, "a window that sees nothing but padding");
  } else {
    for (int64_t at = 0; at + window <= in + given; at += stride) ++counted;
  }
  expect(counted == out, "another number of outputs than windows");
}

// The element of an operand of shape `own` at a place of `space`, by broadcasting.
int64_t broadcast_index(const Shape& own, const std::vector<int64_t>& place) {
  int64_t index = 0;
  int64_t step = 1;
  for (int d = 0; d < own.rank; ++d) {
    const int64_t size = own.from_back(d);
    if (size != 1) index += place[place.size() - 1 - static_cast<size_t>(d)] * step;
    step *= size;
  }
  return index;
}

struct Decoded {
  uint64_t numbers[11];
  std::vector<std::array<uint64_t, 5>> steps;  // of operands with letter g

  Decoded(const ConvKernel& kernel, const ConvOperandCounts& counts, const std::vector<unsigned char>& block) {
    const size_t word = kernel.index / 8;
    contract::Reader reader{block.data()};
    for (size_t p = 0; p < 3 + counts.prologue + counts.epilogue + counts.outputs; ++p) {
      expect(reader.take(8) == 0, "a pointer before there is a run");
    }
    for (uint64_t& number : numbers) number = reader.take(word);
    const contract::Divider width(&reader, word == 8);
    const contract::Divider height(&reader, word == 8);
    const contract::Divider positions(&reader, word == 8);
    const uint64_t plane = numbers[4] * numbers[5] * numbers[6];
    const uint64_t count = numbers[0] * plane;
    for (int probe = 0; probe < 8; ++probe) {
      const uint64_t i = probe == 0 ? 0 : probe == 1 ? count - 1 : g_random() % count;
      expect(width.divide(i) == i / numbers[6] && height.divide(i) == i / numbers[5], "a divider is wrong");
      expect(positions.divide(i) == i / plane, "the divider of the positions is wrong");
    }
    for (const char letter : kernel.access) {
      if (letter != 'g') continue;
      steps.emplace_back();
      for (uint64_t& step : steps.back()) step = reader.take(word);
    }
    expect(reader.next == block.data() + block.size(), "parameters of another size");
  }
};

// Random places of an operand's space are read where broadcasting says.
void check_operand(char letter, const std::array<uint64_t, 5>* steps, const Shape& own, const ConvGeometry& g,
                   bool of_input, bool narrow) {
  const ConvGeometry::Sizes& sizes = of_input ? g.in : g.out;
  const int64_t channels = of_input ? g.in_channels : g.out_channels;
  for (const int64_t size : sizes) {
    if (size == 0) return;
  }
  for (int probe = 0; probe < 6; ++probe) {
    std::vector<int64_t> place{g.batch, channels, sizes[0], sizes[1], sizes[2]};
    for (int64_t& at : place) at = probe == 0 ? at - 1 : static_cast<int64_t>(below(static_cast<size_t>(at)));
    const int64_t channel = place[0] * channels + place[1];
    int64_t linear = ((channel * sizes[0] + place[2]) * sizes[1] + place[3]) * sizes[2] + place[4];
    if (g.channels_last) {
      const int64_t row = ((place[0] * sizes[0] + place[2]) * sizes[1] + place[3]) * sizes[2] + place[4];
      linear = row * channels + place[1];
    }
    int64_t read = 0;
    switch (letter) {
      case 'l': read = linear; break;
      case 'c': read = place[1]; break;
      case 'o': read = channel; break;
      case 'g':
        for (size_t d = 0; d < 5; ++d) read += place[d] * static_cast<int64_t>((*steps)[d]);
        break;
      default: break;
    }
    // The operand's own rank is that of the tensors, which have the last of these spatial dimensions; of a product's, the
    // last of those before the channels.
    if (g.channels_last) std::rotate(place.begin() + 1, place.begin() + 2, place.end());
    const auto first = place.begin() + (g.channels_last ? 0 : 2);
    place.erase(first, first + (5 - g.output.rank));
    expect(read == broadcast_index(own, place), "another element than broadcasting says");
    expect(!narrow || read < int64_t{1} << 31, "an index beyond 32 bits");
  }
}

// The blocks cover the result, and no block is without a part of it.
void check_blocks(const ConvKernel& kernel, const ConvGeometry& g, int64_t count, int64_t blocks) {
  const auto covers = [](int64_t number, int64_t size, int64_t whole) {
    return number * size >= whole && (number - 1) * size < whole;
  };
  if (kernel.family == ConvFamily::Any) {
    expect(covers(blocks, kernel.block, count), "blocks that do not cover the result");
    return;
  }
  const auto& tile = kernel.tile;
  const auto parts = [](int64_t whole, int64_t size) { return (whole + size - 1) / size; };
  if (g.channels_last && kernel.family == ConvFamily::Gemm) {
    const int64_t positions = g.batch * g.out[0] * g.out[1] * g.out[2];
    expect(blocks == parts(positions, tile[0]) * parts(g.out_channels, tile[1]), "another number of blocks than tiles");
    return;
  }
  const int64_t rows = kernel.family == ConvFamily::Direct      ? g.batch * parts(g.out_channels, tile[0])
                       : kernel.family == ConvFamily::Depthwise ? parts(g.batch * g.out_channels, tile[0])
                                                                : g.group * parts(g.out_channels / g.group, tile[0]);
  const int64_t columns = kernel.family == ConvFamily::Gemm
                              ? parts(g.batch * g.out[0] * g.out[1] * g.out[2], tile[1])
                              : g.out[0] * parts(g.out[1], tile[1]) * parts(g.out[2], tile[2]);
  expect(blocks == rows * columns, "another number of blocks than tiles");
  expect(blocks * kernel.split < int64_t{1} << 31, "more blocks than a launch can have");
  for (const int64_t multiprocessors : {1, 10, 132}) {
    const int64_t splits = cuda::conv_splits(kernel, blocks, multiprocessors);
    expect(splits >= 1 && splits <= kernel.split, "more splits than the recipe allows");
    expect(splits == 1 || splits * blocks <= 2 * multiprocessors, "splits of what fills the device already");
  }
}

void check_candidate(const ConvNode& node, const ConvRecipe& recipe, const ConvShapes& shapes, const ConvPlan& plan,
                     const ConvCandidate& candidate) {
  const ConvKernel& kernel = recipe.kernels[candidate.kernel];
  const ConvGeometry& g = shapes.geometry;
  const ConvOperandCounts counts{node.prologue_operands(), node.epilogue_operands(), node.epilogue.outputs.size()};
  const Decoded decoded(kernel, counts, candidate.parameters);
  const std::array<int64_t, 11> numbers{g.batch,  g.in[0],   g.in[1],   g.in[2],   g.out[0], g.out[1],
                                        g.out[2], g.pads[0], g.pads[1], g.pads[2], 1};
  for (size_t i = 0; i < numbers.size(); ++i) {
    expect(decoded.numbers[i] == static_cast<uint64_t>(numbers[i]), "a size of the launch is wrong");
  }
  check_blocks(kernel, g, plan.count, candidate.blocks);
  if (kernel.index == 32) expect(plan.count < int64_t{1} << 31, "a result beyond 32 bits");
  size_t strided = 0;
  for (size_t k = 0; k < kernel.access.size(); ++k) {
    const bool of_input = k < counts.prologue;
    const Shape& own = of_input ? shapes.prologue[k] : shapes.epilogue[k - counts.prologue];
    const auto* steps = kernel.access[k] == 'g' ? &decoded.steps[strided++] : nullptr;
    check_operand(kernel.access[k], steps, own, g, of_input, kernel.index == 32);
  }
  if (kernel.vector == 1) return;
  const bool gemm = kernel.family == ConvFamily::Gemm;
  const int64_t run = !gemm ? g.out[2] : g.channels_last ? g.out_channels : g.out[0] * g.out[1] * g.out[2];
  expect(run % kernel.vector == 0 && (gemm || g.in[2] % kernel.vector == 0), "a vector is not of one row");
  expect(candidate.misaligned[0] == std::min<uintptr_t>(16, 4 * kernel.vector) - 1, "the alignment is not asked for");
}

void check_plan(const ConvNode& node, const ConvRecipe& recipe) {
  const std::vector<Shape> inputs = fuzz::random_shapes(node);
  std::string error;
  const auto plan = cuda::make_conv_plan(node, recipe, {inputs}, &error);
  ConvShapes shapes;
  if (plan == nullptr) {
    expect(!error.empty(), "refused without a reason");
    return;
  }
  expect(resolve_conv_node(node, inputs, &shapes, &error), "a plan for shapes that do not fit");
  expect(plan->output == shapes.geometry.output, "an output of another shape");
  const ConvAttributes& attributes = node.attributes;
  for (size_t d = 0; d < attributes.spatial_rank(); ++d) {
    const size_t at = kMaxSpatialRank - attributes.spatial_rank() + d;
    const ConvGeometry& g = shapes.geometry;
    check_size(attributes, d, g.in[at], g.out[at], g.pads[at]);
    if (conv_keeps_size(attributes, d)) expect(g.in[at] == g.out[at], "a size that is not kept");
  }
  if (plan->count == 0) return;
  expect(!plan->candidates.empty(), "no kernel takes everything");
  for (const uintptr_t bits : plan->candidates.back().misaligned) expect(bits == 0, "the last asks for alignment");
  for (const ConvCandidate& candidate : plan->candidates) check_candidate(node, recipe, shapes, *plan, candidate);
}

void check_node() {
  const Attributes attributes = below(4) == 0 ? fuzz::product_attributes() : fuzz::random_attributes();
  const size_t inputs = 2 + attributes.operands[0] + attributes.operands[1];
  ConvNode node;
  std::string error;
  if (!read_conv_node(attributes.source(), inputs, &node, &error)) {
    expect(!error.empty(), "refused without a reason");
    // Kernels of great size may have too many elements.
    expect(attributes.spoilt || error.find("weight_shape has no elements") != std::string::npos, error.c_str());
    return;
  }
  std::string text = random_recipe(attributes);
  const bool spoilt = below(3) == 0;
  if (spoilt) fuzz::spoil_text(&text);
  const ConvOperandCounts counts{node.prologue_operands(), node.epilogue_operands(), node.epilogue.outputs.size()};
  ConvRecipe recipe;
  if (!cuda::parse_conv_recipe(text, counts, &recipe, &error)) {
    expect((spoilt || attributes.spoilt) && !error.empty(), "a good recipe is refused");
    return;
  }
  check_plan(node, recipe);
}

}  // namespace

int main(int argc, char** argv) { return fuzz::run(argc, argv, check_node); }
