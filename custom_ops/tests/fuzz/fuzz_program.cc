// Fuzzing of the Program parser, the planner and the executor.
//
// Programs that reduce are planned and run too, on the same bytes.
//
// The input is the text of a program, a zero byte, and then bytes that choose the shapes.  LLVMFuzzerTestOneInput and
// LLVMFuzzerCustomMutator are the entries for libFuzzer; the program's own main() makes and mutates programs without a
// fuzzing engine:
//   fuzz_program [runs] [seed]
// The environment variable ONNXFUSE_FUZZ_THREADS gives the threads.
// Every plan runs with its chunks in reverse order, and again on several threads if asked for, cut into single tiles where
// nothing reduces; both must give the same bytes.  ONNXFUSE_CACHE_BYTES=1 makes every tensor a large one, whose stores bypass the caches.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "nest/nest_plan.h"
#include "nest/simplify_nest.h"
#include "plan/plan.h"
#include "platform/cache_lines.h"
#include "platform/error.h"
#include "platform/integers.h"
#include "platform/system.h"
#include "program/program.h"
#include "program/program_shapes.h"
#include "runtime/executor.h"
#include "tests/fuzz/fuzz_host.h"

namespace {

using namespace onnxfuse;

constexpr int64_t kMaxElements = 4096;

const size_t g_threads = fuzz::threads_asked_for();

// The stages of a plan with their tiles dealt out to threads one by one.
void run_on_threads(const Program& program, const Plan& plan, const Tensors& tensors) {
  for (const Stage& stage : plan.stages) {
    std::vector<std::thread> threads;
    const auto count = static_cast<int64_t>(g_threads);
    for (int64_t t = 0; t < count; ++t) {
      threads.emplace_back([&, t, count] {
        for (int64_t tile = t; tile < stage.tiles; tile += count) run_tiles(program, stage, tensors, tile, tile + 1);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

// That outputs which are there come out again, if several threads are asked for.
template <class Bytes, class Run>
void expect_same_again(const std::vector<void*>& outputs, const Bytes& bytes_of, const Run& run) {
  if (g_threads == 1) return;
  std::vector<std::string> first;
  for (size_t o = 0; o < outputs.size(); ++o) {
    first.emplace_back(static_cast<const char*>(outputs[o]), bytes_of(o));
    std::memset(outputs[o], 0x5a, bytes_of(o));
  }
  run();
  for (size_t o = 0; o < outputs.size(); ++o) {
    if (std::memcmp(first[o].data(), outputs[o], bytes_of(o)) != 0) std::abort();
  }
}

Shape next_shape(const uint8_t** bytes, size_t* left) {
  static constexpr int64_t kSizes[] = {1, 1, 2, 3, 3, 0, 17, 300};
  Shape shape;
  const auto next = [&]() -> uint8_t { return *left == 0 ? 0 : (--*left, *(*bytes)++); };
  shape.rank = next() % 5;
  for (int d = 0; d < shape.rank; ++d) shape.dims[static_cast<size_t>(d)] = kSizes[next() % 8];
  return shape;
}

// Heap memory of exactly the tensor's size, so that AddressSanitizer sees one byte too many.
std::unique_ptr<uint8_t[]> tensor(int64_t count, DType type) {
  const auto bytes = static_cast<size_t>(count) * storage_size(type);
  std::unique_ptr<uint8_t[]> data(new uint8_t[bytes]);
  for (size_t i = 0; i < bytes; ++i) data[i] = type == DType::boolean ? i % 2 : static_cast<uint8_t>(i * 37 + 11);
  return data;
}

void execute(const Program& program, const uint8_t* bytes, size_t left) {
  PlanKey key;
  for (size_t i = 0; i < program.input_count; ++i) key.shapes.push_back(next_shape(&bytes, &left));
  if (left > 0) {
    key.aliased = bytes[0];
    key.deferred = bytes[0] & (left > 1 ? bytes[1] : 0);
  }
  std::string error;
  const auto plan = make_plan(program, key, &error);
  if (plan == nullptr) {
    if (error.empty()) std::abort();
    return;
  }
  std::vector<std::unique_ptr<uint8_t[]>> memory;
  std::vector<const void*> inputs;
  std::vector<void*> outputs;
  const auto add = [&](const Shape& shape, DType type) -> uint8_t* {
    int64_t count = 0;
    if (!element_count(shape, &count) || count > kMaxElements) return nullptr;
    memory.push_back(tensor(count, type));
    return memory.back().get();
  };
  for (size_t i = 0; i < program.input_count; ++i) inputs.push_back(add(key.shapes[i], program.values[i].type));
  for (size_t t = 0; t < plan->output_shapes.size(); ++t) {
    outputs.push_back(add(plan->output_shapes[t], output_type(program, first_output(program, t))));
  }
  for (const void* input : inputs) {
    if (input == nullptr) return;
  }
  for (void* output : outputs) {
    if (output == nullptr) return;
  }
  int64_t elements = 0;
  for (const Stage& stage : plan->stages) elements += stage.elements;
  if (elements > 64 * kMaxElements || plan->scratch_bytes > (1u << 24)) return;
  const size_t room = round_up<size_t>(plan->scratch_bytes, kCacheLine) + kCacheLine;
  const std::unique_ptr<char, decltype(&release)> scratch(static_cast<char*>(allocate(room)), &release);
  std::vector<void*> parts(program.outputs.size());
  find_outputs(program, *plan, outputs.data(), parts.data());
  const Tensors tensors{inputs.data(), parts.data(), scratch.get()};
  try {
    run_plan(program, *plan, tensors, fuzz::kBackwards);
  } catch (const Error&) {  // an integer is divided by zero
    return;
  }
  const auto bytes_of = [&](size_t o) {
    int64_t count = 0;
    element_count(plan->output_shapes[o], &count);
    return static_cast<size_t>(count) * storage_size(output_type(program, first_output(program, o)));
  };
  expect_same_again(outputs, bytes_of, [&] { run_on_threads(program, *plan, tensors); });
}

void execute_nest(const Program& program, const uint8_t* bytes, size_t left) {
  PlanKey key;
  for (size_t i = 0; i < program.input_count; ++i) key.shapes.push_back(next_shape(&bytes, &left));
  NestPlan plan;
  std::string error;
  if (!make_nest_plan(with_reciprocals(without_nibbles(program)), key, &plan, &error)) {
    if (error.empty()) std::abort();
    return;
  }
  // Between outputs that are small there may be values that are not.
  std::vector<Shape> shapes;
  if (!resolve_shapes(program, key.shapes, &shapes, &error)) std::abort();
  std::vector<std::unique_ptr<uint8_t[]>> memory;
  std::vector<const void*> inputs;
  std::vector<void*> outputs;
  const auto is_small = [](const Shape& shape) {
    int64_t count = 0;
    return element_count(shape, &count) && count <= kMaxElements;
  };
  if (!std::all_of(shapes.begin(), shapes.end(), is_small) || !std::all_of(key.shapes.begin(), key.shapes.end(), is_small)) return;
  const auto add = [&](const Shape& shape, DType type) {
    int64_t count = 0;
    element_count(shape, &count);
    memory.push_back(tensor(count, type));
    return memory.back().get();
  };
  for (size_t i = 0; i < program.input_count; ++i) inputs.push_back(add(key.shapes[i], program.values[i].type));
  for (size_t o = 0; o < program.outputs.size(); ++o) outputs.push_back(add(plan.output_shapes[o], output_type(program, o)));
  try {
    run_nest(plan, inputs.data(), outputs.data(), fuzz::kBackwards);
  } catch (const Error&) {  // an integer is divided by zero
    return;
  }
  expect_same_again(outputs, [&](size_t o) { return plan.output_bytes[o]; },
                    [&] { run_nest(plan, inputs.data(), outputs.data(), fuzz::kHost); });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto* end = static_cast<const uint8_t*>(size == 0 ? nullptr : std::memchr(data, 0, size));
  const size_t length = end == nullptr ? size : static_cast<size_t>(end - data);
  Program program;
  std::string error;
  const std::string_view text(reinterpret_cast<const char*>(data), length);
  if (!parse_program(text, &program, &error, Reads::Reductions) && !parse_program(text, &program, &error, Reads::Views)) {
    if (error.empty()) std::abort();
    return 0;
  }
  const size_t rest = length == size ? 0 : size - length - 1;
  reduces(program) ? execute_nest(program, data + size - rest, rest) : execute(program, data + size - rest, rest);
  return 0;
}

namespace {

// A valid program with random instructions, for mutations alone seldom reach the executor.
std::string generate(std::mt19937& random) {
  const auto below = [&](size_t n) { return random() % n; };
  static const char* const kTypes[] = {"f32", "f32", "f32", "f16", "bf16", "f64", "i8", "i16", "i32", "i64", "u8", "u32", "u64", "bool"};
  const bool is_newer = below(2) == 0;
  std::string text = is_newer ? "onnxfuse 2\n" : "onnxfuse 1\n";
  if (below(2) == 0) text += "contract\n";
  std::vector<std::string> types;
  const size_t inputs = 1 + below(4);
  const auto number = [&](int least, size_t count) { return std::to_string(least + static_cast<int>(below(count))); };
  for (size_t i = 0; i < inputs; ++i) {
    types.push_back(kTypes[below(14)]);
    text += "input " + types.back();
    const size_t kind = below(8);
    if (is_newer && below(3) == 0) {
      static const char* const kSteps[] = {"permute:1.0", "permute:0.2.1", "split:-1:-1:3", "split:-2:1:-1",
                                           "merge:-2", "squeeze:-1", "unsqueeze:-2", "slice:-1:1:9:2"};
      text += " view " + std::string(kSteps[below(8)]);
      for (size_t more = below(3); more > 0; --more) text += "," + std::string(kSteps[below(8)]);
      text += "\n";
    } else if (kind == 0) {
      text += " axis " + number(-2, 5) + "\n";
    } else if (kind == 1) {
      text += " halves\n";
    } else if (kind < 4) {
      for (size_t slices = 1 + below(3), s = 0; s < slices; ++s) {
        const std::string end = below(2) == 0 ? "9223372036854775807" : number(-9, 30);
        text += (s == 0 ? " slice " : ",") + number(-4, 7) + ":" + number(-4, 9) + ":" + end + ":" + number(1, 3);
      }
      text += below(4) == 0 ? " halves\n" : "\n";
    } else {
      text += " broadcast\n";
    }
  }
  static const char* const kAxes[] = {"-1", "-2", "-2,-1", "-3,-1"};
  const std::string axes = kAxes[below(4)];
  const bool reduces = is_newer && below(2) == 0;
  for (size_t tries = 0; tries < 40; ++tries) {
    if (is_newer && below(6) == 0) {
      const size_t id = below(types.size());
      const bool counts = !reduces || below(3) == 0;
      const std::string type = counts ? kTypes[below(14)] : types[id];
      std::string line = counts ? "index" : kReductions[below(kReductionCount)].name;
      line += " " + type + " " + std::to_string(id) + " " + (counts ? number(-3, 3) : axes);
      Program program;
      std::string error;
      if (!parse_program(text + line + "\noutput 0\n", &program, &error, Reads::Reductions)) continue;
      text += line + "\n";
      types.push_back(type);
      continue;
    }
    const OpInfo& op = kOps[below(kOpCount)];
    const size_t first = below(types.size());
    const std::string type = op.rule == Rule::Cast ? kTypes[below(14)] : types[first];
    std::string line = std::string(op.name) + " " + type;
    for (int i = 0; i < op.arity; ++i) {
      const std::string want = op.rule == Rule::Select && i == 0 ? "bool" : type;
      size_t id = first;
      for (size_t k = 0; op.rule != Rule::Cast && k < 64 && (k == 0 || types[id] != want); ++k) id = below(types.size());
      line += " " + std::to_string(id);
    }
    Program program;
    std::string error;
    if (!parse_program(text + line + "\noutput 0\n", &program, &error, Reads::Reductions)) continue;
    text += line + "\n";
    types.push_back(op.rule == Rule::Compare ? "bool" : type);
  }
  const size_t outputs = 1 + below(4);
  const bool is_viewed = is_newer && below(3) == 0;
  const bool appends = is_newer && below(reduces ? 16 : 2) == 0;  // of what reduces it is refused
  std::string axis;
  text += "output " + std::to_string(types.size() - 1) + (is_viewed ? " view merge:-2,unsqueeze:-1\n" : "\n");
  for (size_t i = 1, id = types.size() - 1; i < outputs; ++i) {
    if (appends && below(4) != 0) {
      // Mostly the same value again, for others seldom fit it.
      for (size_t k = below(3) * 8; k > 0; --k) {
        const size_t other = below(types.size());
        if (types[other] == types[id]) id = other;
      }
      if (axis.empty()) axis = number(-4, 4);
      text += "append " + std::to_string(id) + " " + axis + (is_viewed ? " view merge:-2,unsqueeze:-1\n" : "\n");
      continue;
    }
    id = below(types.size());
    axis.clear();
    text += "output " + std::to_string(id) + "\n";
  }
  return text;
}

// Changes single characters.
void edit_bytes(std::mt19937& random, std::string* text) {
  for (size_t edits = 1 + random() % 4; edits > 0 && !text->empty(); --edits) {
    const size_t at = random() % text->size();
    switch (random() % 3) {
      case 0: (*text)[at] = static_cast<char>(random()); break;
      case 1: text->erase(at, 1 + random() % 3); break;
      default: text->insert(at, 1, "0123456789 \n-"[random() % 13]); break;
    }
  }
}

// Removes, repeats or exchanges lines, or puts a word of one line in place of a word of another.
void edit_lines(std::mt19937& random, std::string* text) {
  std::vector<std::string> lines;
  for (size_t at = 0; at < text->size();) {
    const size_t end = std::min(text->find('\n', at), text->size());
    lines.push_back(text->substr(at, end - at));
    at = end + 1;
  }
  if (lines.empty()) return;
  const auto any = [&]() -> std::string& { return lines[random() % lines.size()]; };
  // A word begins after a space; the first word of a line counts too.
  const auto word = [&](const std::string& line) {
    size_t at = 0;
    for (size_t skip = random() % 4; skip > 0; --skip) {
      const size_t space = line.find(' ', at);
      if (space == std::string::npos) break;
      at = space + 1;
    }
    return std::pair(at, std::min(line.find(' ', at), line.size()) - at);
  };
  switch (random() % 4) {
    case 0: lines.erase(lines.begin() + static_cast<std::ptrdiff_t>(random() % lines.size())); break;
    case 1: lines.insert(lines.begin() + static_cast<std::ptrdiff_t>(random() % lines.size()), std::string(any())); break;
    case 2: std::swap(any(), any()); break;
    default: {
      std::string& target = any();
      const std::string source = any();
      const auto [from, length] = word(source);
      const auto [at, old] = word(target);
      target.replace(at, old, source.substr(from, length));
    }
  }
  text->clear();
  for (const std::string& line : lines) *text += line + "\n";
}

}  // namespace

#ifdef ONNXFUSE_LIBFUZZER
extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  std::mt19937 random(seed);
  const size_t kind = random() % 8;
  if (kind < 3) return LLVMFuzzerMutate(data, size, max_size);
  const std::string whole(reinterpret_cast<const char*>(data), size);
  const size_t end = whole.find('\0');
  std::string text = kind == 3 ? generate(random) : whole.substr(0, end);
  std::string rest = end == std::string::npos ? std::string(24, '\0') : whole.substr(end);
  if (kind == 4) {
    for (char& byte : rest) byte = random() % 4 == 0 ? static_cast<char>(random()) : byte;
    rest[0] = '\0';
  } else if (kind > 4) {
    random() % 4 == 0 ? edit_bytes(random, &text) : edit_lines(random, &text);
  }
  text += rest;
  const size_t length = std::min(text.size(), max_size);
  std::memcpy(data, text.data(), length);
  return length;
}
#else
int main(int argc, char** argv) {
  const long runs = argc > 1 ? std::atol(argv[1]) : 20000;
  std::mt19937 random(argc > 2 ? static_cast<unsigned>(std::atol(argv[2])) : 1u);
  for (long run = 0; run < runs; ++run) {
    std::string input = generate(random);
    if (run % 4 == 0) edit_bytes(random, &input);
    if (run % 4 == 1) edit_lines(random, &input);
    input += '\0';
    for (int i = 0; i < 24; ++i) input += static_cast<char>(random());
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size());
  }
  std::printf("%ld runs\n", runs);
  return 0;
}
#endif
