#include "cuda/launch/cuda_parameters.h"

#include <cstdint>
#include <cstring>

#include "cuda/launch/cuda_divider.h"

namespace onnxfuse::cuda {
namespace {

constexpr size_t kSpaceRank = 16;

template <class Index, class Divider>
class Packer {
 public:
  Packer(const RecipeKernel& kernel, const IterationSpace& space, const std::vector<Indexing>& indexing)
      : kernel_(kernel), space_(space), indexing_(indexing) {}

  Parameters pack() {
    const std::string& access = kernel_.access;
    for (size_t k = 0; k < access.size(); ++k) add(uint64_t{0});
    add(static_cast<Index>(space_.elements));
    for (size_t k = 0; k < access.size(); ++k) {
      if (access[k] == 'o' || access[k] == 'c') add(Divider::of(indexing_[k].inner));
      if (access[k] == 'i' || access[k] == 'c') add(Divider::of(indexing_[k].extent));
    }
    if (access.find_first_of("gw") == std::string::npos) return std::move(result_);
    add(space());
    for (size_t k = 0; k < access.size(); ++k) {
      if (access[k] == 'g' || access[k] == 'w') add(strides(space_.operands[k]));
    }
    return std::move(result_);
  }

 private:
  struct Space {
    uint32_t rank;
    Divider dims[kSpaceRank];
  };

  struct Strides {
    Index step[kSpaceRank];
  };

  Space space() const {
    Space space;
    std::memset(&space, 0, sizeof(space));  // padding too
    space.rank = static_cast<uint32_t>(space_.dims.size());
    for (size_t d = 0; d < kSpaceRank; ++d) space.dims[d] = Divider::of(d < space.rank ? from_back(space_.dims, d) : 1);
    return space;
  }

  static Strides strides(const Operand& operand) {
    Strides strides{};
    for (size_t d = 0; d < operand.strides.size(); ++d) {
      strides.step[d] = static_cast<Index>(from_back(operand.strides, d));
    }
    return strides;
  }

  static int64_t from_back(const std::vector<int64_t>& values, size_t d) { return values[values.size() - 1 - d]; }

  template <class T>
  void add(const T& value) {
    const size_t offset = (result_.block.size() + alignof(T) - 1) / alignof(T) * alignof(T);
    result_.block.resize(offset + sizeof(T));
    std::memcpy(result_.block.data() + offset, &value, sizeof(T));
    result_.each.push_back({offset, sizeof(T)});
  }

  const RecipeKernel& kernel_;
  const IterationSpace& space_;
  const std::vector<Indexing>& indexing_;
  Parameters result_;
};

}  // namespace

Parameters pack_parameters(const RecipeKernel& kernel, const IterationSpace& space,
                           const std::vector<Indexing>& indexing) {
  if (kernel.index == 32) return Packer<uint32_t, Divider32>(kernel, space, indexing).pack();
  return Packer<uint64_t, Divider64>(kernel, space, indexing).pack();
}

Parameters parameter_layout(const RecipeKernel& kernel) {
  IterationSpace space;
  space.operands.resize(kernel.access.size());
  return pack_parameters(kernel, space, std::vector<Indexing>(kernel.access.size()));
}

std::vector<KernelSignature> signatures(const Recipe& recipe) {
  std::vector<KernelSignature> kernels;
  for (const RecipeKernel& kernel : recipe.kernels) {
    kernels.push_back({kernel.name, kernel.block, parameter_layout(kernel).each});
  }
  return kernels;
}

}  // namespace onnxfuse::cuda
