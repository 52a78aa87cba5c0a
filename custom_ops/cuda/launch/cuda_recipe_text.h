// What the texts of all recipes have in common: a first line, the hash of the source, and a line for each kernel.
#ifndef ONNXFUSE_CUDA_RECIPE_TEXT_H_
#define ONNXFUSE_CUDA_RECIPE_TEXT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "figures/cuda.h"

namespace onnxfuse::cuda {

// A C identifier of at most so many characters.
bool is_identifier(std::string_view word, size_t limit);

bool consists_of(std::string_view word, const char* letters);

// Threads of a block: a multiple of a warp up to 1024.
bool parse_block(std::string_view word, uint32_t* block);

// The names of the functions of a recipe's source, in the order in which they are found.
class FunctionNames {
 public:
  // The number of the next function; false if an earlier one has the name.
  bool add(const std::string& name, size_t* number);

 private:
  std::vector<std::string> names_;
};

// Reads a recipe that begins with the line `header`.  `add_kernel` gets each kernel's line, and `finish` is called after
// the last; they are called for at most `most` lines, and what they return is what is wrong, or null.  On failure returns
// false and sets `error` to one line that names the line of the text.
bool read_recipe(std::string_view text, const std::string& header, std::string* source,
                 const std::function<const char*(std::string_view line)>& add_kernel,
                 const std::function<const char*()>& finish, std::string* error, size_t most = kMaxKernels);

}  // namespace onnxfuse::cuda

#endif  // ONNXFUSE_CUDA_RECIPE_TEXT_H_
