#include "cuda/launch/cuda_parameters.h"

#include <cstdint>
#include <cstring>

#include "cuda/launch/cuda_divider.h"
#include "figures/programs.h"

namespace onnxfuse::cuda {
namespace {


template <class Index, class Divider>
class Packer {
 public:
  Packer(const RecipeKernel& kernel, const IterationSpace& space, const std::vector<Indexing>& indexing, const Tiles& tiles)
      : kernel_(kernel), space_(space), indexing_(indexing), tiles_(tiles), order_(tiles.order) {
    if (kernel.tile != 0) return;
    for (size_t d = space.dims.size(); d-- > 0;) order_.push_back(d);
  }

  Parameters pack() {
    const std::string& access = kernel_.access;
    for (size_t k = 0; k < access.size(); ++k) add(uint64_t{0});
    add(static_cast<Index>(space_.elements));
    if (kernel_.tile != 0) {
      add(Divider::of(tiles_.columns));
      add(Divider::of(tiles_.rows));
      add_strides("lgt");
      return std::move(result_);
    }
    for (size_t k = 0; k < access.size(); ++k) {
      if (access[k] == 'o' || access[k] == 'c') add(Divider::of(indexing_[k].inner));
      if (access[k] == 'i' || access[k] == 'c') add(Divider::of(indexing_[k].extent));
      if (access[k] == 'p') {
        add(Divider::of(indexing_[k].inner));
        add(static_cast<Index>(indexing_[k].extent));
      }
    }
    if (access.find_first_of("gw") != std::string::npos) add_strides("gw");
    return std::move(result_);
  }

 private:
  struct Space {
    uint32_t rank;
    Divider dims[kMaxRank];
  };

  struct Strides {
    Index step[kMaxRank];
  };

  // The space, and the strides of the operands of these letters.
  void add_strides(const std::string& letters) {
    add(space());
    for (size_t k = 0; k < kernel_.access.size(); ++k) {
      if (letters.find(kernel_.access[k]) != std::string::npos) add(strides(space_.operands[k]));
    }
  }

  Space space() const {
    Space space;
    std::memset(&space, 0, sizeof(space));  // padding too
    space.rank = static_cast<uint32_t>(order_.size());
    for (size_t d = 0; d < kMaxRank; ++d) space.dims[d] = Divider::of(d < space.rank ? space_.dims[order_[d]] : 1);
    return space;
  }

  Strides strides(const Operand& operand) const {
    Strides strides{};
    for (size_t d = 0; d < order_.size(); ++d) strides.step[d] = static_cast<Index>(operand.strides[order_[d]]);
    return strides;
  }

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
  const Tiles& tiles_;
  std::vector<size_t> order_;  // the space's dimensions as the kernel has them
  Parameters result_;
};

}  // namespace

Parameters pack_parameters(const RecipeKernel& kernel, const IterationSpace& space, const std::vector<Indexing>& indexing,
                           const Tiles& tiles) {
  if (kernel.index == 32) return Packer<uint32_t, Divider32>(kernel, space, indexing, tiles).pack();
  return Packer<uint64_t, Divider64>(kernel, space, indexing, tiles).pack();
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
