#include "cuda/nest/cuda_nest_parameters.h"

#include <array>
#include <cstring>

#include "cuda/launch/cuda_divider.h"
#include "figures/programs.h"

namespace onnxfuse::cuda {
namespace {


template <class Divider>
struct Space {
  uint32_t row_rank;
  uint32_t rank;
  Divider dims[kMaxRank];
};

template <class Index>
struct Steps {
  Index offset;
  Index step[kMaxRank];
};

template <class Index>
struct Table {
  Index rows;
  Index step;
};

template <class Index, class Divider>
NestParameters places_of(const NestOperands& counts) {
  NestParameters places;
  const auto add = [&](size_t bytes) {
    places.each.push_back({places.bytes, bytes});
    places.bytes += bytes;  // each is a multiple of what the next one is aligned to
    return places.bytes - bytes;
  };
  for (size_t k = 0; k < counts.inputs + counts.outputs + 1; ++k) add(sizeof(uint64_t));
  add(sizeof(Index));
  add(sizeof(Index));
  places.splits = add(sizeof(Index));
  add(sizeof(Index));
  add(sizeof(Space<Divider>));
  for (size_t k = 0; k < counts.inputs + counts.indices + counts.outputs; ++k) add(sizeof(Steps<Index>));
  for (size_t k = 0; k < counts.tables; ++k) add(sizeof(Table<Index>));
  return places;
}

template <class Index, class Divider>
std::vector<unsigned char> pack(const NestOperands& counts, const NestLayout& layout) {
  const NestParameters places = places_of<Index, Divider>(counts);
  std::vector<unsigned char> block(places.bytes);
  size_t next = counts.inputs + counts.outputs + 1;
  const auto put = [&](const auto& value) {
    std::memcpy(block.data() + places.each[next++].offset, &value, sizeof(value));
  };
  put(static_cast<Index>(layout.rows));
  put(static_cast<Index>(layout.length));
  next += 2;
  Space<Divider> space;
  std::memset(&space, 0, sizeof(space));
  space.row_rank = static_cast<uint32_t>(layout.row_rank);
  space.rank = static_cast<uint32_t>(layout.dims.size());
  for (size_t d = 0; d < kMaxRank; ++d) space.dims[d] = Divider::of(d < layout.dims.size() ? layout.dims[d] : 1);
  put(space);
  for (const NestOperand& operand : layout.operands) {
    Steps<Index> steps{};
    steps.offset = static_cast<Index>(operand.offset);
    for (size_t d = 0; d < operand.steps.size(); ++d) steps.step[d] = static_cast<Index>(operand.steps[d]);
    put(steps);
  }
  for (const NestOperand& operand : layout.operands) {
    if (operand.table < 0) continue;
    put(Table<Index>{static_cast<Index>(operand.table), static_cast<Index>(operand.table_step)});
  }
  return block;
}

}  // namespace

NestParameters nest_parameters(const NestKernel& kernel, const NestOperands& counts) {
  if (kernel.index == 32) return places_of<uint32_t, Divider32>(counts);
  return places_of<uint64_t, Divider64>(counts);
}

std::vector<unsigned char> pack_nest_parameters(const NestKernel& kernel, const NestOperands& counts,
                                                const NestLayout& layout) {
  if (kernel.index == 32) return pack<uint32_t, Divider32>(counts, layout);
  return pack<uint64_t, Divider64>(counts, layout);
}

void put_splits(const NestKernel& kernel, int64_t splits, int64_t chunk, unsigned char* place) {
  const auto put = [&](const auto& both) { std::memcpy(place, &both, sizeof(both)); };
  if (kernel.index == 32) {
    put(std::array<uint32_t, 2>{static_cast<uint32_t>(splits), static_cast<uint32_t>(chunk)});
  } else {
    put(std::array<uint64_t, 2>{static_cast<uint64_t>(splits), static_cast<uint64_t>(chunk)});
  }
}

std::vector<KernelSignature> signatures(const NestRecipe& recipe, const NestOperands& counts) {
  std::vector<KernelSignature> functions;
  for (const NestKernel& kernel : recipe.kernels) {
    const std::vector<Parameter> parameters = nest_parameters(kernel, counts).each;
    for (size_t step = 0; step < (kernel.steps == 0 ? 1 : kernel.steps); ++step) {
      functions.push_back({kernel.function_name(step), kernel.block, parameters});
    }
  }
  return functions;
}

}  // namespace onnxfuse::cuda
