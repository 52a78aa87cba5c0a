// The recipe of a fused node whose Program may have several parts.
//
//   onnxfuse-cuda 3
//   source <64 hex digits>
//   part <output>,…
//   kernel …                      as cuda_recipe.h has them, of the inputs that the part needs and of its outputs
//   …
//   joint <name> <kernel> …       for each part the number of one of its kernels among all, from 0
//
// Each output of the Program is in one part.  The last kernel of a part takes tensors of every shape.  A joint kernel
// computes all parts, each as its own kernel does; they are tried in order.  A recipe that begins as that of cuda_recipe.h is
// of one part.
#ifndef ONNXFUSE_CUDA_NODE_RECIPE_H_
#define ONNXFUSE_CUDA_NODE_RECIPE_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "cuda/driver/cuda_kernels.h"
#include "cuda/elementwise/cuda_parts.h"
#include "cuda/launch/cuda_recipe.h"
#include "program/program.h"

namespace onnxfuse::cuda {

struct PartKernels {
  Part part;
  size_t first = 0;  // of its kernels among all of the node
  Recipe recipe;     // of these alone
};

struct JointKernel {
  std::string name;
  std::vector<size_t> members;  // of each part a kernel, its place among the part's own
};

struct NodeRecipe {
  std::vector<PartKernels> parts;
  std::vector<JointKernel> joint;  // behind the parts' kernels
};

// Reads and validates the recipe of a node with this Program.  On failure returns false and sets `error` to one line;
// nothing in `text` is trusted.
bool parse_node_recipe(std::string_view text, const Program& program, NodeRecipe* recipe, std::string* error);

// The kernels of all parts, then the joint ones.
std::vector<KernelSignature> signatures(const NodeRecipe& recipe);

// Where each part's parameters begin behind those before them: first come the ends of the ranges of blocks.
size_t joint_offset(size_t bytes);

}  // namespace onnxfuse::cuda

#endif  // ONNXFUSE_CUDA_NODE_RECIPE_H_
