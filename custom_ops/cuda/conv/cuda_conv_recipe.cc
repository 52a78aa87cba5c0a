#include "cuda/conv/cuda_conv_recipe.h"

#include <algorithm>
#include <utility>

#include "cuda/conv/cuda_conv_parameters.h"
#include "cuda/launch/cuda_recipe_text.h"
#include "figures/cuda.h"
#include "figures/cuda_conv.h"
#include "program/words.h"

namespace onnxfuse::cuda {
namespace {

constexpr char kKernelLine[] =
    "expected 'kernel <name> family <family> tile <A>x<B>x<C> block <B> split <S> vector <V> index <I> "
    "access <letters>;<letters>'";

bool parse_family(std::string_view word, ConvFamily* family) {
  static constexpr struct {
    std::string_view name;
    ConvFamily value;
  } kFamilies[] = {{"depthwise", ConvFamily::Depthwise},
                   {"gemm", ConvFamily::Gemm},
                   {"direct", ConvFamily::Direct},
                   {"any", ConvFamily::Any}};
  for (const auto& known : kFamilies) {
    if (word != known.name) continue;
    *family = known.value;
    return true;
  }
  return false;
}

bool parse_tile(std::string_view word, std::array<uint32_t, 3>* tile) {
  for (size_t edge = 0; edge < tile->size(); ++edge) {
    const size_t end = word.find('x');
    const bool last = edge + 1 == tile->size();
    if ((end == std::string_view::npos) != last) return false;
    uint32_t& size = (*tile)[edge];
    if (!parse_number(word.substr(0, end), kMaxConvTile, &size) || size == 0) return false;
    if (!last) word.remove_prefix(end + 1);
  }
  return true;
}

class Parser {
 public:
  Parser(const ConvOperandCounts& counts, ConvRecipe* recipe) : counts_(counts), recipe_(*recipe) {}

  const char* add_kernel(std::string_view line) {
    std::string_view words[16];
    const size_t count = split(line, words, 16);
    ConvKernel kernel;
    if (const char* problem = parse_kernel(words, count, &kernel)) return problem;
    if (!functions_.add(kernel.name, &kernel.function)) return "the kernel's name is taken";
    if (kernel.split > 1 && !functions_.add(kernel.sum_name(), &kernel.sum_function)) return "the sum's name is taken";
    recipe_.kernels.push_back(std::move(kernel));
    return nullptr;
  }

  const char* finish() const {
    const ConvKernel& last = recipe_.kernels.back();
    const bool general = last.family == ConvFamily::Any && last.index == 64 && consists_of(last.access, "g");
    return general ? nullptr : "the last kernel does not take tensors of every shape";
  }

 private:
  const char* parse_kernel(const std::string_view* words, size_t count, ConvKernel* kernel) const {
    const bool complete = count == 16 && words[0] == "kernel" && words[2] == "family" && words[4] == "tile" &&
                          words[6] == "block" && words[8] == "split" && words[10] == "vector" &&
                          words[12] == "index" && words[14] == "access";
    if (!complete) return kKernelLine;
    if (!parse_family(words[3], &kernel->family)) return "the family is not depthwise, gemm, direct or any";
    if (!parse_tile(words[5], &kernel->tile)) return "the tile is not three numbers from 1 to 4096";
    if (!parse_block(words[7], &kernel->block)) return "the block is not a multiple of 32 up to 1024";
    if (!parse_number(words[9], kMaxConvSplit, &kernel->split) || kernel->split == 0) {
      return "the split is not from 1 to 64";
    }
    const bool power = parse_number(words[11], 8, &kernel->vector) && (kernel->vector & (kernel->vector - 1)) == 0;
    if (!power || kernel->vector == 0) return "the vector is not 1, 2, 4 or 8";
    if (words[13] != "32" && words[13] != "64") return "the index is not 32 or 64";
    kernel->index = words[13] == "32" ? 32 : 64;
    kernel->name = words[1];
    const std::string longest = kernel->split > 1 ? kernel->sum_name() : kernel->name;
    if (!is_identifier(longest, kMaxKernelName)) return "the kernel's name is not an identifier";
    if (kernel->split > 1 && kernel->family != ConvFamily::Gemm) return "a split of another family than gemm";
    const bool any = kernel->family == ConvFamily::Any;
    if (kernel->vector > 1 && (any || kernel->index == 64)) return "a vector with the family any or an index of 64";
    const auto one = [](uint32_t edge) { return edge == 1; };
    if (any && !std::all_of(kernel->tile.begin(), kernel->tile.end(), one)) return "a tile of the family any";
    return parse_access(words[15], kernel);
  }

  const char* parse_access(std::string_view word, ConvKernel* kernel) const {
    const size_t semicolon = word.find(';');
    if (semicolon != counts_.prologue || word.size() != counts_.prologue + 1 + counts_.epilogue) {
      return "there is not one access letter an operand";
    }
    kernel->access = std::string(word.substr(0, semicolon)) + std::string(word.substr(semicolon + 1));
    if (!consists_of(kernel->access, "lscog")) return "an access letter is not one of l s c o g";
    if (conv_parameters(*kernel, counts_).bytes > kMaxParameterBytes) return "the parameters are more than 4096 bytes";
    return nullptr;
  }

  const ConvOperandCounts& counts_;
  ConvRecipe& recipe_;
  FunctionNames functions_;
};

}  // namespace

bool parse_conv_recipe(std::string_view text, const ConvOperandCounts& counts, ConvRecipe* recipe, std::string* error) {
  *recipe = ConvRecipe{};
  Parser parser(counts, recipe);
  return read_recipe(
      text, "onnxfuse-conv 1", &recipe->source, [&](std::string_view line) { return parser.add_kernel(line); },
      [&] { return parser.finish(); }, error);
}

}  // namespace onnxfuse::cuda
