#include "cuda/nest/cuda_nest_recipe.h"

#include "cuda/launch/cuda_recipe_text.h"
#include "cuda/nest/cuda_nest_parameters.h"
#include "figures/cuda.h"
#include "figures/cuda_nest.h"
#include "program/words.h"

namespace onnxfuse::cuda {
namespace {

constexpr char kKernelLine[] =
    "expected 'kernel <name> along <A> threads <T> items <N> vector <V> block <B> index <I> steps <S> access <letters> "
    "[tile <R>]'";

bool is_power_of_two(uint32_t number) { return number != 0 && (number & (number - 1)) == 0; }

class Parser {
 public:
  Parser(const NestOperands& counts, NestRecipe* recipe) : counts_(counts), recipe_(*recipe) {}

  const char* add_kernel(std::string_view line) {
    std::string_view words[20];
    const size_t count = split(line, words, 20);
    NestKernel kernel;
    const char* problem = parse_kernel(words, count, &kernel);
    if (problem != nullptr) return problem;
    kernel.function = functions_;
    functions_ += kernel.steps == 0 ? 1 : kernel.steps;
    recipe_.kernels.push_back(std::move(kernel));
    return nullptr;
  }

  const char* finish() const {
    const NestKernel& last = recipe_.kernels.back();
    const std::string_view access = last.access;
    const bool general = !last.by_columns && last.vector == 1 && last.index == 64 && last.items == 0 && last.steps == 0 &&
                         consists_of(access.substr(0, access.size() - counts_.outputs), "g") &&
                         consists_of(access.substr(access.size() - counts_.outputs), "gs");
    return general ? nullptr : "the last kernel does not take tensors of every shape";
  }

 private:
  const char* parse_kernel(const std::string_view* words, size_t count, NestKernel* kernel) const {
    static constexpr std::string_view kLabels[] = {"kernel", "along", "threads", "items", "vector",
                                                   "block",  "index", "steps",   "access"};
    const bool tiled = count == 20 && words[18] == "tile";
    bool complete = count == 18 || tiled;
    for (size_t w = 0; complete && w < 9; ++w) complete = words[2 * w] == kLabels[w];
    if (!complete) return kKernelLine;
    if (!is_identifier(words[1], kMaxKernelName)) return "the kernel's name is not an identifier";
    kernel->name = words[1];
    if (words[3] != "rows" && words[3] != "columns") return "it is not along rows or columns";
    kernel->by_columns = words[3] == "columns";
    if (!parse_block(words[11], &kernel->block)) return "the block is not a multiple of 32 up to 1024";
    if (!parse_number(words[5], kMaxBlock, &kernel->threads) || !shares(*kernel)) {
      return "the threads do not share a block";
    }
    if (!parse_number(words[7], kMaxNestItems, &kernel->items)) return "more than 64 items";
    if (!parse_number(words[9], kMaxNestVector, &kernel->vector) || !is_power_of_two(kernel->vector)) {
      return "the vector is not 1, 2, 4, 8, 16 or 32";
    }
    if (words[13] != "32" && words[13] != "64") return "the index is not 32 or 64";
    kernel->index = words[13] == "32" ? 32 : 64;
    if (!parse_number(words[15], kMaxNestSteps, &kernel->steps)) return "more than 16 steps";
    if (kernel->steps != 0 && (kernel->items != 0 || (!kernel->by_columns && kernel->threads < kernel->block))) {
      return "a kernel in steps that keeps rows, or has several in a block";
    }
    if (tiled && (!parse_number(words[19], kMaxNestTile, &kernel->tile) || kernel->tile < 2)) {
      return "the tile is not from 2 to 8";
    }
    if (tiled && (kernel->by_columns || kernel->steps != 0)) return "a tile along columns, or in steps";
    if (counts_.tables != 0 && (tiled || kernel->by_columns)) return "rows are named of a tile or along columns";
    return parse_access(words[17], kernel);
  }

  static bool shares(const NestKernel& kernel) {
    if (kernel.by_columns) return kernel.threads * kNestLanes == kernel.block;
    return is_power_of_two(kernel.threads) && kernel.block % kernel.threads == 0 &&
           (kernel.threads <= kWarp || kernel.threads == kernel.block);
  }

  const char* parse_access(std::string_view word, NestKernel* kernel) const {
    const size_t first = counts_.inputs;
    const size_t second = first + 1 + counts_.indices;
    const bool complete = word.size() == second + 1 + counts_.outputs && word[first] == ':' && word[second] == ':';
    if (!complete) return "there is not one access letter for each tensor and index";
    const char* const of_inputs = kernel->by_columns ? "slg" : kernel->tile > 1 ? "slbgSLBG" : "slbg";
    const std::string_view outputs = word.substr(second + 1);
    for (const std::string_view part : {word.substr(0, first), word.substr(first + 1, counts_.indices)}) {
      if (!consists_of(part, of_inputs)) return "an access letter is not one of s l b g";
      kernel->access += part;
    }
    if (!consists_of(outputs, "slg")) return "an access letter is not one of s l g";
    kernel->access += outputs;
    if (kernel->vector > 1 && word.substr(second).find('g') != std::string_view::npos) return "access g with a vector";
    if (nest_parameters(*kernel, counts_).bytes > kMaxParameterBytes) return "the parameters are more than 4096 bytes";
    return nullptr;
  }

  const NestOperands& counts_;
  NestRecipe& recipe_;
  size_t functions_ = 0;
};

}  // namespace

bool parse_nest_recipe(std::string_view text, const NestOperands& counts, NestRecipe* recipe, std::string* error) {
  *recipe = NestRecipe{};
  Parser parser(counts, recipe);
  return read_recipe(
      text, "onnxfuse-cuda-rows 1", &recipe->source, [&](std::string_view line) { return parser.add_kernel(line); },
      [&] { return parser.finish(); }, error);
}

}  // namespace onnxfuse::cuda
