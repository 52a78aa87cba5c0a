#include "cuda/launch/cuda_recipe_text.h"

#include <algorithm>

#include "figures/cuda.h"
#include "program/words.h"

namespace onnxfuse::cuda {
namespace {

bool is_digest(std::string_view word) { return word.size() == 64 && consists_of(word, "0123456789abcdef"); }

}  // namespace

bool is_identifier(std::string_view word, size_t limit) {
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  return !word.empty() && word.size() <= limit && letter(word[0]) &&
         std::all_of(word.begin(), word.end(), [&](char c) { return letter(c) || digit(c); });
}

bool consists_of(std::string_view word, const char* letters) {
  return word.find_first_not_of(letters) == std::string_view::npos;
}

bool parse_block(std::string_view word, uint32_t* block) {
  return parse_number(word, kMaxBlock, block) && *block != 0 && *block % kWarp == 0;
}

bool FunctionNames::add(const std::string& name, size_t* number) {
  *number = names_.size();
  if (std::find(names_.begin(), names_.end(), name) != names_.end()) return false;
  names_.push_back(name);
  return true;
}

bool read_recipe(std::string_view text, const std::string& header, std::string* source,
                 const std::function<const char*(std::string_view line)>& add_kernel,
                 const std::function<const char*()>& finish, std::string* error, size_t most) {
  size_t line = 0;
  const auto fail = [&](const std::string& problem) {
    *error = "line " + std::to_string(line) + ": " + problem;
    return false;
  };
  if (text.size() > kMaxRecipeText) return fail("the text is longer than 64 KiB");
  while (!text.empty()) {
    ++line;
    const size_t end = text.find('\n');
    if (end == std::string_view::npos) return fail("the last line has no end");
    const std::string_view content = text.substr(0, end);
    text.remove_prefix(end + 1);
    if (line == 1) {
      if (content != header) return fail("the first line is not '" + header + "'");
    } else if (line == 2) {
      std::string_view words[2];
      const bool good = split(content, words, 2) == 2 && words[0] == "source" && is_digest(words[1]);
      if (!good) return fail("expected 'source <64 hex digits>'");
      *source = words[1];
    } else if (line - 2 > most) {
      return fail(most == kMaxKernels ? "more than 16 kernels" : "more than " + std::to_string(most) + " lines of kernels");
    } else if (const char* problem = add_kernel(content)) {
      return fail(problem);
    }
  }
  if (line <= 2) return fail("there is no kernel");
  const char* problem = finish();
  return problem == nullptr || fail(problem);
}

}  // namespace onnxfuse::cuda
