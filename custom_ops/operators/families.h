// All custom operators of the library.
#ifndef ONNXFUSE_FAMILIES_H_
#define ONNXFUSE_FAMILIES_H_

#include <vector>

#include "ort/custom_op.h"

namespace onnxfuse {

// For each provider, in the order in which they are registered.
std::vector<OpFamily> all_families();

}  // namespace onnxfuse

#endif  // ONNXFUSE_FAMILIES_H_
