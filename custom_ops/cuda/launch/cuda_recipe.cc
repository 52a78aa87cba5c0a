#include "cuda/launch/cuda_recipe.h"

#include "cuda/launch/cuda_parameters.h"
#include "cuda/launch/cuda_recipe_text.h"
#include "figures/cuda.h"
#include "program/words.h"

namespace onnxfuse::cuda {
namespace {

constexpr char kKernelLine[] =
    "expected 'kernel <name> vector <V> block <B> index <I> access <letters>:<letters> [tile <T>]'";

class Parser {
 public:
  Parser(size_t inputs, size_t outputs, Recipe* recipe) : inputs_(inputs), outputs_(outputs), recipe_(*recipe) {}

  const char* add_kernel(std::string_view line) {
    RecipeKernel kernel;
    const char* problem = parse_recipe_kernel(line, inputs_, outputs_, &kernel);
    if (problem == nullptr) recipe_.kernels.push_back(std::move(kernel));
    return problem;
  }

  const char* finish() const {
    const RecipeKernel& last = recipe_.kernels.back();
    const bool general = last.vector == 1 && last.index == 64 && consists_of(last.access, "gw");
    return general ? nullptr : "the last kernel does not take tensors of every shape";
  }

 private:
  const size_t inputs_;
  const size_t outputs_;
  Recipe& recipe_;
};

// Reads the words of a kernel's line.
class KernelParser {
 public:
  KernelParser(size_t inputs, size_t outputs) : inputs_(inputs), outputs_(outputs) {}

  const char* parse_kernel(const std::string_view* words, size_t count, RecipeKernel* kernel) const {
    const bool tiled = count == 12 && words[10] == "tile";
    const bool complete = (count == 10 || tiled) && words[0] == "kernel" && words[2] == "vector" && words[4] == "block" &&
                          words[6] == "index" && words[8] == "access";
    if (!complete) return kKernelLine;
    if (!is_identifier(words[1], kMaxKernelName)) return "the kernel's name is not an identifier";
    kernel->name = words[1];
    const bool power = parse_number(words[3], 16, &kernel->vector) && (kernel->vector & (kernel->vector - 1)) == 0;
    if (!power || kernel->vector == 0) return "the vector is not 1, 2, 4, 8 or 16";
    if (!parse_block(words[5], &kernel->block)) return "the block is not a multiple of 32 up to 1024";
    if (words[7] != "32" && words[7] != "64") return "the index is not 32 or 64";
    kernel->index = words[7] == "32" ? 32 : 64;
    if (tiled && words[11] != "32" && words[11] != "64") return "the tile is not 32 or 64";
    if (tiled) kernel->tile = words[11] == "32" ? 32 : 64;
    return parse_access(words[9], kernel);
  }

 private:
  const char* parse_access(std::string_view word, RecipeKernel* kernel) const {
    const size_t colon = word.find(':');
    if (colon != inputs_ || word.size() != inputs_ + 1 + outputs_) return "there is not one access letter a tensor";
    const std::string_view inputs = word.substr(0, colon);
    const std::string_view outputs = word.substr(colon + 1);
    if (!consists_of(inputs, "sliocgt")) return "an input's access letter is not one of s l i o c g t";
    if (!consists_of(outputs, "lwp")) return "an output's access letter is not one of l w p";
    kernel->access = std::string(inputs) + std::string(outputs);
    if (kernel->vector > 1 && !consists_of(outputs, "lp")) return "access w with a vector";
    const bool transposes = inputs.find('t') != std::string_view::npos;
    if (transposes != (kernel->tile != 0)) return "access t without a tile, or a tile without access t";
    const bool beside = consists_of(inputs, "sgt") && consists_of(outputs, "l") && kernel->index == 32;
    if (transposes && !beside) return "access t beside others than s g t of inputs, l of outputs and indices of 32 bits";
    if (parameter_layout(*kernel).block.size() > kMaxParameterBytes) return "the parameters are more than 4096 bytes";
    return nullptr;
  }

  const size_t inputs_;
  const size_t outputs_;
};

}  // namespace

const char* parse_recipe_kernel(std::string_view line, size_t inputs, size_t outputs, RecipeKernel* kernel) {
  std::string_view words[12];
  const size_t count = split(line, words, 12);
  return KernelParser(inputs, outputs).parse_kernel(words, count, kernel);
}

bool parse_recipe(std::string_view text, size_t inputs, size_t outputs, Recipe* recipe, std::string* error) {
  *recipe = Recipe{};
  Parser parser(inputs, outputs, recipe);
  return read_recipe(
      text, "onnxfuse-cuda 2", &recipe->source, [&](std::string_view line) { return parser.add_kernel(line); },
      [&] { return parser.finish(); }, error);
}

}  // namespace onnxfuse::cuda
