// Machine code as a node carries it.
#ifndef ONNXFUSE_CUDA_IMAGE_H_
#define ONNXFUSE_CUDA_IMAGE_H_

#include <string>
#include <string_view>

namespace onnxfuse::cuda {

// The driver is told where an image begins but not where it ends, and would read beyond a damaged one.  So these check
// that what the image says of its own parts lies inside it; what the code does is the driver's and the GPU's affair.
// On failure they return false and set `error`.

// A cubin is an ELF file.
bool is_whole_cubin(std::string_view image, std::string* error);

// PTX is text without a zero byte.
bool is_whole_ptx(std::string_view image, std::string* error);

}  // namespace onnxfuse::cuda

#endif  // ONNXFUSE_CUDA_IMAGE_H_
