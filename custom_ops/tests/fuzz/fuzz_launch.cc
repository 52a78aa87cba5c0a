// Fuzzing of what the CUDA operator reads from a model, recipes and machine code, and of the launches that it plans.
//
//   fuzz_launch [runs] [seed]
// Every run makes a program, shapes and a recipe, some of them spoilt.  Each launch that comes out of them is decoded
// as a kernel would, and its indices are compared with NumPy's rules of slices, transposes, broadcasting and joining, at the
// ends and in between.  Nodes of several parts are launched on a driver that takes down what it is given.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "cuda/driver/cuda_image.h"
#include "cuda/elementwise/cuda_node_launch.h"
#include "cuda/elementwise/cuda_node_recipe.h"
#include "cuda/launch/cuda_access.h"
#include "cuda/launch/cuda_launch.h"
#include "cuda/launch/cuda_parameters.h"
#include "cuda/launch/cuda_recipe.h"
#include "program/program.h"
#include "program/program_shapes.h"
#include "tests/cuda/contract_decoder.h"
#include "tests/fuzz/fuzz_parts.h"
#include "tests/fuzz/fuzz_random.h"

namespace {

using namespace onnxfuse;
using fuzz::below;
using fuzz::expect;
using fuzz::g_random;
using cuda::LaunchCandidate;
using cuda::LaunchPlan;
using cuda::Recipe;
using cuda::RecipeKernel;
using fuzz::random_word;

void spoil(std::string* text) { fuzz::spoil(text, "0123456789, \n:sliocgtwpjn"); }

std::string random_recipe(size_t inputs, size_t outputs) {
  std::string text = "onnxfuse-cuda 2\nsource " + std::string(64, 'a') + "\n";
  for (size_t kernels = below(6); kernels > 0; --kernels) {
    const size_t vector = size_t{1} << below(5);
    if (inputs > 0 && below(3) == 0) {
      std::string letters = random_word("gts", inputs);
      letters[below(inputs)] = 't';
      text += "kernel k vector " + std::to_string(vector) + " block 256 index 32 access " + letters + ":" +
              std::string(outputs, 'l') + " tile " + (below(2) == 0 ? "32" : "64") + "\n";
      continue;
    }
    text += "kernel k vector " + std::to_string(vector) + " block " + std::to_string(32 * (1 + below(32))) + " index " +
            (below(2) == 0 ? "32" : "64") + " access " + random_word("sliocg", inputs) + ":" +
            random_word(vector == 1 ? "lw" : "l", outputs) + "\n";
  }
  return text + "kernel any vector 1 block 32 index 64 access " + std::string(inputs, 'g') + ":" +
         std::string(outputs, 'w') + "\n";
}

// How an operand lies in its tensor, of which the Program reads or writes another shape.
struct Lie {
  std::string text;
  Shape tensor;
  std::vector<int> order;  // the tensor's axes in the order read, if they are permuted
  int64_t start = 0;       // along the last axis that is read, the first element of what is left
  int64_t step = 1;        // and how far the next one is
  bool swaps = false;      // whether the halves of that axis change places
  int joined = 0;          // the axis, counted from the back, along which the tensor has several parts; 0 if it has one
  int64_t before = 0;      // elements along that axis that are before this part

  // The element of the tensor that has place `at`, from the first axis on, of what is read, which has this shape.
  int64_t element(std::vector<int64_t> at, const Shape& read) const {
    if (text.find(" axis") == 0) return std::accumulate(at.begin(), at.end(), int64_t{0});
    if (!at.empty()) {
      const int64_t size = read.from_back(0);
      at.back() = start + step * (swaps ? (at.back() + size / 2) % size : at.back());
    }
    if (joined != 0) at[at.size() - static_cast<size_t>(joined)] += before;
    std::vector<int64_t> own = at;
    for (size_t d = 0; d < order.size(); ++d) own[static_cast<size_t>(order[d])] = at[d];
    int64_t index = 0;
    for (size_t d = 0; d < own.size(); ++d) index = index * tensor.dims[d] + own[d];
    return index;
  }
};

// A way in which a tensor may have what an input of this text reads, of this shape.
Lie random_lie(const std::string& text, const Shape& read) {
  Lie lie;
  lie.text = text;
  lie.tensor = read;
  const int rank = read.rank;
  int64_t elements = 0;
  const bool is_whole = text != " broadcast" || rank == 0 || below(2) == 0;
  if (is_whole || !element_count(read, &elements) || elements > int64_t{1} << 40) return lie;
  const int64_t size = read.from_back(0);
  lie.swaps = size % 2 == 0 && below(4) == 0;
  std::vector<std::string> steps;
  if (below(2) == 0 && size > 0 && size < 1 << 20) {
    static constexpr int64_t kStarts[] = {0, 1, 4, 16};
    lie.start = kStarts[below(4)];
    lie.step = lie.swaps || below(2) == 0 ? 1 : 2;
    const int64_t end = lie.start + (size - 1) * lie.step + 1;
    lie.tensor.dims[static_cast<size_t>(rank - 1)] = end + static_cast<int64_t>(below(5));
    steps.push_back("-1:" + std::to_string(lie.start) + ":" + std::to_string(end) + ":" + std::to_string(lie.step));
  }
  if (lie.swaps) {
    lie.text = steps.empty() ? " halves" : " slice " + steps[0] + " halves";
    return lie;
  }
  for (std::string& step : steps) step = "slice:" + step;
  if (rank > 1 && below(2) == 0) {
    for (int d = 0; d < rank; ++d) lie.order.push_back(d);
    std::shuffle(lie.order.begin(), lie.order.end(), g_random);
    const Shape before = lie.tensor;
    std::string order = "permute:";
    for (size_t d = 0; d < lie.order.size(); ++d) {
      lie.tensor.dims[static_cast<size_t>(lie.order[d])] = before.dims[d];
      order += (d == 0 ? "" : ".") + std::to_string(lie.order[d]);
    }
    steps.insert(steps.begin(), order);
  }
  if (steps.empty()) return lie;
  lie.text = " view " + steps[0] + (steps.size() > 1 ? "," + steps[1] : "");
  return lie;
}

// A Program's tensors, inputs before outputs, as NumPy's rules of broadcasting have them.
struct Operands {
  Shape space;
  std::vector<Shape> reads;  // what is read of each, or computed
  std::vector<Lie> lies;
  size_t inputs = 0;
  size_t element_size = 1;
};

// What an input's line says behind its type.
std::vector<std::string> random_inputs(size_t inputs) {
  std::vector<std::string> found;
  while (found.size() < inputs) {
    found.push_back(below(5) == 0 ? " axis " + std::to_string(static_cast<int>(below(5)) - 3) : " broadcast");
  }
  return found;
}

std::string random_program(const std::vector<std::string>& inputs, size_t outputs) {
  static const struct {
    const char* name;
    size_t size;
  } kTypes[] = {{"f32", 4}, {"f16", 2}, {"u8", 1}, {"f64", 8}};
  const auto& [name, size] = kTypes[below(4)];
  const std::string type = name;
  std::string text = "onnxfuse 2\n";
  for (const std::string& input : inputs) text += "input " + type + input + "\n";
  text += "const " + type + " " + std::string(2 * size, '0') + "\n";
  size_t values = inputs.size() + 1;
  for (; values < inputs.size() + 6; ++values) {
    text += "add " + type + " " + std::to_string(below(values)) + " " + std::to_string(below(values)) + "\n";
  }
  for (size_t o = 0; o < outputs; ++o) text += "output " + std::to_string(below(values)) + "\n";
  return text;
}

// Shapes of what is read that mostly broadcast with each other; sometimes of more elements than fit 32 bits, or 64.
std::vector<Shape> random_shapes(const std::vector<std::string>& inputs) {
  static constexpr int64_t kSizes[] = {1, 2, 3, 4, 8, 16, 20, 48, 0};
  static constexpr int64_t kLarge[] = {1 << 12, 1 << 16, INT32_MAX, int64_t{3} << 30, int64_t{1} << 40};
  Shape space;
  space.rank = static_cast<int>(below(below(8) == 0 ? 17 : 5));
  const bool large = below(4) == 0;
  for (int d = 0; d < space.rank; ++d) {
    int64_t& size = space.dims[static_cast<size_t>(d)];
    size = large && below(2) == 0 ? kLarge[below(5)] : kSizes[below(below(6) == 0 ? 9 : 8)];
  }
  std::vector<Shape> shapes;
  for (const std::string& input : inputs) {
    Shape shape;
    if (input.find(" axis ") == 0 && below(8) != 0) {
      const int given = std::stoi(input.substr(6));
      const int axis = given < 0 ? given + space.rank : given;
      shape.rank = 1;
      shape.dims[0] = axis >= 0 && axis < space.rank ? space.dims[static_cast<size_t>(axis)] : 1;
    } else {
      shape.rank = below(3) == 0 ? static_cast<int>(below(static_cast<size_t>(space.rank) + 1)) : space.rank;
      for (int d = 0; d < shape.rank; ++d) {
        const int64_t size = space.dims[static_cast<size_t>(d + space.rank - shape.rank)];
        shape.dims[static_cast<size_t>(d)] = below(4) == 0 ? 1 : below(60) == 0 ? size + 1 : size;
      }
    }
    shapes.push_back(shape);
  }
  return shapes;
}

// The place in what has shape `own`, from its first axis on, that broadcasting puts at element i of `space`.
std::vector<int64_t> broadcast_place(const Shape& space, const Shape& own, uint64_t i, bool* first) {
  std::vector<int64_t> place(static_cast<size_t>(own.rank));
  for (int d = 0; d < space.rank; ++d) {
    const auto size = static_cast<uint64_t>(space.from_back(d));
    const uint64_t coordinate = i % size;
    i /= size;
    if (own.from_back(d) == 1) {
      *first = *first && coordinate == 0;
    } else {
      place[static_cast<size_t>(own.rank - 1 - d)] = static_cast<int64_t>(coordinate);
    }
  }
  return place;
}

void check_element(const contract::Decoder& decoder, const LaunchPlan& plan, const Operands& operands, uint64_t i) {
  // What turns tiles counts the space in another order, which its dense outputs tell.
  const uint64_t number = decoder.transposes() ? static_cast<uint64_t>(decoder.index(operands.inputs, i)) : i;
  expect(number < decoder.count(), "an element that there is not");
  for (size_t k = 0; k < operands.reads.size(); ++k) {
    bool first = true;
    const std::vector<int64_t> place = broadcast_place(operands.space, operands.reads[k], number, &first);
    const auto offset = static_cast<int64_t>(plan.offsets[k] / operands.element_size);
    expect(offset + decoder.index(k, i) == operands.lies[k].element(place, operands.reads[k]),
           "another element than broadcasting says");
    if (k >= operands.inputs) expect(decoder.writes(k, i) == first, "an output is not written once");
  }
}

void check_vector(const contract::Decoder& decoder, const LaunchCandidate& candidate, size_t k, uint64_t i,
                  uint64_t vector) {
  const int64_t begin = decoder.index(k, i);
  const bool contiguous = decoder.contiguous(k);
  for (uint64_t v = 1; v < vector; ++v) {
    const int64_t next = decoder.index(k, i + v * decoder.step(k));
    expect(next == (contiguous ? begin + static_cast<int64_t>(v) : begin), "a vector is not of one piece");
  }
  if (!contiguous) return;
  expect(begin % static_cast<int64_t>(vector) == 0, "a vector is not aligned to itself");
  expect(candidate.misaligned[k] != 0, "the alignment of a vector is not asked for");
}

void check_candidate(const RecipeKernel& kernel, const LaunchPlan& plan, const LaunchCandidate& candidate,
                     const Operands& operands) {
  expect(candidate.parameters.size() == cuda::parameter_layout(kernel).block.size(), "parameters of another size");
  const auto& block = candidate.parameters;
  const contract::Decoder decoder(kernel.access, kernel.index == 64, block.data(), block.size());
  const auto count = static_cast<uint64_t>(plan.elements);
  expect(decoder.complete() && decoder.count() == count, "the parameters are not as they should be");
  const auto per_block = static_cast<int64_t>(kernel.block * kernel.vector);
  if (kernel.tile == 0) {
    expect(candidate.blocks == (plan.elements - 1) / per_block + 1, "not a thread for each vector");
  } else {
    const uint64_t tiles = decoder.column_tiles() * decoder.row_tiles();
    expect(static_cast<uint64_t>(candidate.blocks) == count / decoder.dim(0) / decoder.dim(1) * tiles, "not a block a tile");
    expect(decoder.column_tiles() == (decoder.dim(0) - 1) / kernel.tile + 1, "not as many tiles as there are columns for");
    for (size_t k = 0; k < kernel.access.size(); ++k) {
      expect(kernel.access[k] != 't' || decoder.row_step(k) == 1, "a transposed operand that is not one");
    }
    expect(decoder.row_tiles() == (decoder.dim(1) - 1) / kernel.tile + 1, "not as many tiles as there are rows for");
  }
  expect(candidate.blocks <= INT32_MAX, "more blocks than a launch may have");
  for (int probe = 0; probe < 24; ++probe) {
    const uint64_t i = probe < 4 ? std::min<uint64_t>(static_cast<uint64_t>(probe), count - 1)
                       : probe < 8 ? count - 1 - std::min<uint64_t>(static_cast<uint64_t>(probe - 4), count - 1)
                                   : g_random() % count;
    check_element(decoder, plan, operands, i);
    if (kernel.vector == 1) continue;
    for (size_t k = 0; k < operands.reads.size(); ++k) {
      uint64_t begin = i;
      while (!decoder.begins(k, begin, kernel.vector)) begin -= decoder.step(k);
      const uint64_t last = begin + (kernel.vector - 1) * decoder.step(k);
      if (last < count) check_vector(decoder, candidate, k, begin, kernel.vector);
    }
  }
}

void check_candidates(const Recipe& recipe, const LaunchPlan& plan, const Operands& operands) {
  int64_t count = 0;
  expect(element_count(operands.space, &count) && count == plan.elements, "another number of elements");
  if (count == 0) return;
  expect(!plan.candidates.empty(), "no kernel takes everything");
  for (uintptr_t bits : plan.candidates.back().misaligned) expect(bits == 0, "the last kernel asks for alignment");
  for (const LaunchCandidate& candidate : plan.candidates) {
    check_candidate(recipe.kernels[candidate.kernel], plan, candidate, operands);
  }
}

bool is_refused_for_size(const std::string& error) {
  expect(!error.empty(), "refused without a reason");
  const bool too_many = error.find(" elements are too many for one launch") != std::string::npos;
  expect(!too_many || std::stoll(error) > int64_t{32} * INT32_MAX, "refused although the last kernel takes it");
  return too_many;
}

void check_plan(const Program& program, const Recipe& recipe, const std::vector<Lie>& lies) {
  std::vector<Shape> shapes;
  for (const Lie& lie : lies) shapes.push_back(lie.tensor);
  std::string error;
  const auto plan = cuda::make_launch_plan(program, recipe, {shapes}, &error);
  if (plan == nullptr) {
    is_refused_for_size(error);
    return;
  }
  std::vector<Shape> values;
  expect(resolve_shapes(program, shapes, &values, &error), "a plan for shapes that do not fit");
  Operands operands;
  operands.inputs = program.input_count;
  operands.element_size = storage_size(program.values[0].type);
  operands.reads.assign(values.begin(), values.begin() + static_cast<ptrdiff_t>(program.input_count));
  operands.lies = lies;
  Shape& space = operands.space;
  for (const Shape& shape : operands.reads) {
    expect(broadcast(Shape(space), shape, &space), "a plan for inputs without a common shape");
  }
  for (size_t o = 0; o < program.outputs.size(); ++o) {
    const Shape& shape = values[program.outputs[o]];
    expect(plan->output_shapes[o] == shape, "an output of another shape");
    operands.reads.push_back(shape);
    operands.lies.push_back(Lie{});
    operands.lies.back().tensor = shape;
  }
  check_candidates(recipe, *plan, operands);
}

void check_recipe() {
  const size_t inputs = below(5);
  const size_t outputs = 1 + below(3);
  std::string text = random_recipe(inputs, outputs);
  const bool spoilt = below(3) == 0;
  if (spoilt) spoil(&text);
  Recipe recipe;
  std::string error;
  if (!cuda::parse_recipe(text, inputs, outputs, &recipe, &error)) {
    expect(spoilt && !error.empty(), "a good recipe is refused");
    return;
  }
  std::vector<std::string> lines = random_inputs(inputs);
  const std::vector<Shape> shapes = random_shapes(lines);
  std::vector<Lie> lies;
  for (size_t i = 0; i < inputs; ++i) lies.push_back(random_lie(lines[i], shapes[i]));
  for (size_t i = 0; i < inputs; ++i) lines[i] = lies[i].text;
  Program program;
  expect(parse_program(random_program(lines, outputs), &program, &error, Reads::Views), error.c_str());
  check_plan(program, recipe, lies);
}

// Images in memory of exactly their size, so that AddressSanitizer sees one byte too many.
void check_image() {
  std::string image(below(400), '\0');
  for (char& c : image) c = below(3) == 0 ? static_cast<char>(g_random()) : '\0';
  const unsigned char magic[] = {0x7f, 'E', 'L', 'F', 2, 1};
  if (image.size() >= 64 && below(8) != 0) {
    std::copy(magic, magic + 6, image.begin());
    image[18] = static_cast<char>(190);
    image[19] = 0;
    for (const size_t at : {32u, 40u}) {
      if (below(4) != 0) std::fill_n(image.begin() + static_cast<ptrdiff_t>(at), 8, '\0');
      image[at] = static_cast<char>(below(256));
    }
    image[54] = 56, image[55] = 0, image[58] = 64, image[59] = 0;
    image[56] = static_cast<char>(below(4)), image[57] = 0, image[60] = static_cast<char>(below(5)), image[61] = 0;
  }
  const std::unique_ptr<char[]> exact(new char[image.size()]);
  std::copy(image.begin(), image.end(), exact.get());
  std::string error;
  if (!cuda::is_whole_cubin({exact.get(), image.size()}, &error)) expect(!error.empty(), "refused without a reason");
  cuda::is_whole_ptx({exact.get(), image.size()}, &error);
}

void check_parts() {
  static const cuda::Driver driver = fuzz::listening_driver();
  const fuzz::RandomParts node = fuzz::random_parts();
  std::string text = node.recipe;
  const bool spoilt = below(3) == 0;
  if (spoilt) spoil(&text);
  Program program;
  std::string error;
  expect(parse_program(node.program, &program, &error, Reads::Views), error.c_str());
  cuda::NodeRecipe recipe;
  if (!cuda::parse_node_recipe(text, program, &recipe, &error)) {
    const bool too_long = error.find("4096 bytes") != std::string::npos;
    expect((spoilt || too_long) && !error.empty(), "a good recipe of parts is refused");
    return;
  }
  const auto plan = cuda::make_node_plan(program, recipe, {node.inputs}, &error);
  if (plan == nullptr) {
    int64_t count = 0;
    const auto fits = [&](const Shape& shape) { return element_count(shape, &count); };
    const bool countable = std::all_of(node.tensors.begin(), node.tensors.end(), fits) &&
                           std::all_of(node.inputs.begin(), node.inputs.end(), fits);
    expect(is_refused_for_size(error) || !countable, "shapes that fit are refused");
    return;
  }
  expect(plan->output_shapes == node.tensors, "tensors of other shapes");
  std::vector<uint64_t> bases;
  for (size_t t = 0; t < node.inputs.size() + node.tensors.size(); ++t) {
    bases.push_back((uint64_t{1} << 32) * (t + 1) + (below(8) == 0 ? 4 * below(4) : 0));
  }
  std::vector<std::vector<uint64_t>> addresses;
  for (size_t p = 0; p < recipe.parts.size(); ++p) {
    expect(recipe.parts[p].part.outputs.size() == 1 || spoilt, "a part of more outputs");
    if (recipe.parts[p].part.outputs.size() != 1) return;
    const fuzz::RandomPart& part = node.parts[recipe.parts[p].part.outputs[0]];
    Operands operands;
    operands.inputs = 2;
    operands.element_size = 4;
    operands.space = part.shape;
    operands.reads = {node.inputs[part.first_input], node.inputs[part.first_input + 1], part.shape};
    operands.lies.resize(3);
    for (size_t k = 0; k < 2; ++k) operands.lies[k].tensor = operands.reads[k];
    operands.lies[2].tensor = node.tensors[part.tensor];
    operands.lies[2].joined = part.axis;
    operands.lies[2].before = part.before;
    check_candidates(recipe.parts[p].recipe, *plan->parts[p], operands);
    addresses.push_back({bases[part.first_input], bases[part.first_input + 1], bases[node.inputs.size() + part.tensor]});
  }
  cuda::ContextKernels kernels;
  for (size_t k = 0; k < cuda::signatures(recipe).size(); ++k) {
    kernels.functions.push_back(reinterpret_cast<cuda::CUfunction>(k + 1));
  }
  fuzz::g_launched.clear();
  if (!plan->has_elements || spoilt) return;  // blocks of 64 threads are only expected of what is not spoilt
  cuda::launch(driver, recipe, kernels, *plan, bases, nullptr);
  fuzz::check_launches(recipe, *plan, addresses);
}

void check_all() {
  check_recipe();
  check_parts();
  check_image();
}

}  // namespace

int main(int argc, char** argv) { return fuzz::run(argc, argv, check_all); }
