#include "cuda/attention/cuda_attention_recipe.h"

#include <utility>

#include "cuda/launch/cuda_recipe_text.h"
#include "figures/cuda.h"
#include "figures/cuda_attention.h"
#include "program/words.h"

namespace onnxfuse::cuda {
namespace {

constexpr char kKernelLine[] =
    "expected 'kernel <name> family <family> type <type> reads <letters> zeros <Z> rows <R> keys <K> size <D> "
    "columns <C> block <B> vector <V> split <S>'";

bool parse_type(std::string_view word, DType* type) {
  for (const DType known : {DType::f32, DType::f16, DType::bf16}) {
    if (word != info(known).name) continue;
    *type = known;
    return true;
  }
  return false;
}

bool parse_edge(std::string_view word, uint32_t* size) {
  return parse_number(word, kMaxAttentionTile, size) && *size != 0;
}

class Parser {
 public:
  Parser(const Attention& node, AttentionRecipe* recipe) : node_(node), recipe_(*recipe) {}

  const char* add_kernel(std::string_view line) {
    std::string_view words[24];
    const size_t count = split(line, words, 24);
    AttentionKernel kernel;
    if (const char* problem = parse_kernel(words, count, &kernel)) return problem;
    if (!functions_.add(kernel.name, &kernel.function)) return "the kernel's name is taken";
    size_t sum = 0;
    if (kernel.split > 1 && !functions_.add(kernel.sum_name(), &sum)) return "the sum's name is taken";
    recipe_.kernels.push_back(std::move(kernel));
    return nullptr;
  }

  const char* finish() const {
    return recipe_.kernels.back().size == 0 ? nullptr : "the last kernel does not take heads of every size";
  }

 private:
  const char* parse_kernel(const std::string_view* words, size_t count, AttentionKernel* kernel) {
    static constexpr std::string_view kLabels[] = {"kernel", "family", "type",    "reads", "zeros",  "rows",
                                                   "keys",   "size",   "columns", "block", "vector", "split"};
    bool complete = count == 24;
    for (size_t w = 0; complete && w < 12; ++w) complete = words[2 * w] == kLabels[w];
    if (!complete) return kKernelLine;
    const bool any = words[3] == "any";
    if (!any && words[3] != "tensor" && words[3] != "simt") return "the family is not tensor, simt or any";
    DType type{};
    if (!parse_type(words[5], &type)) return "the type is not f32, f16 or bf16";
    if (!recipe_.kernels.empty() && type != recipe_.type) return "the type is not that of the first kernel";
    recipe_.type = type;
    const std::string reads = std::string(node_.masked ? "m" : "") + (node_.chosen ? "c" : "");
    if (words[7] != (reads.empty() ? "-" : reads)) return "it does not read what the node does";
    if (words[9] != (node_.masked_as_zero ? "1" : "0")) return "its zeros are not the node's";
    const bool edges = parse_edge(words[11], &kernel->rows) && parse_edge(words[13], &kernel->keys) &&
                       parse_number(words[15], kMaxAttentionTile, &kernel->size) &&
                       parse_edge(words[17], &kernel->columns);
    if (!edges) return "the sizes are not numbers up to 1024";
    if (any != (kernel->size == 0)) return "a size of 0 is that of the family any";
    if (!parse_block(words[19], &kernel->block)) return "the block is not a multiple of 32 up to 1024";
    const bool power = parse_number(words[21], 8, &kernel->vector) && (kernel->vector & (kernel->vector - 1)) == 0;
    if (!power || kernel->vector == 0 || (any && kernel->vector > 1)) return "the vector is not 1, 2, 4 or 8, or 1 of any";
    if (!parse_number(words[23], kMaxAttentionSplit, &kernel->split) || kernel->split == 0) {
      return "the split is not from 1 to 64";
    }
    kernel->name = words[1];
    const bool named = is_identifier(kernel->split > 1 ? kernel->sum_name() : kernel->name, kMaxKernelName);
    return named ? nullptr : "the kernel's name is not an identifier";
  }

  const Attention& node_;
  AttentionRecipe& recipe_;
  FunctionNames functions_;
};

}  // namespace

bool parse_attention_recipe(std::string_view text, const Attention& node, AttentionRecipe* recipe, std::string* error) {
  *recipe = AttentionRecipe{};
  Parser parser(node, recipe);
  return read_recipe(
      text, "onnxfuse-cuda-attention 1", &recipe->source,
      [&](std::string_view line) { return parser.add_kernel(line); }, [&] { return parser.finish(); }, error);
}

}  // namespace onnxfuse::cuda
