#include "cuda/launch/cuda_overlap.h"

#include <algorithm>

#include "cuda/launch/cuda_node.h"
#include "platform/integers.h"

namespace onnxfuse::cuda {
namespace {

constexpr size_t kAlignment = 256;  // of what CUDA allocates

}  // namespace

Overlap::Overlap(const SessionRun& run, const NodeDevice& device, CUstream stream,
                 size_t inputs, const std::vector<Extent>& extents, std::vector<CUdeviceptr>* addresses)
    : device_(device), stream_(stream) {
  std::vector<CUdeviceptr>& places = *addresses;
  const auto overlap = [&](size_t a, size_t b) {
    return std::max(places[a], places[b]) < std::min(places[a] + extents[a].bytes, places[b] + extents[b].bytes);
  };
  const auto in_place = [&](size_t input, size_t output) {
    return places[input] == places[output] && extents[input].in_place != 0 &&
           extents[input].in_place == extents[output].in_place;
  };
  std::vector<size_t> moved;  // outputs, then inputs
  size_t bytes = 0;
  const auto move = [&](size_t tensor) {
    moved.push_back(tensor);
    bytes += round_up(extents[tensor].bytes, kAlignment);
  };
  for (size_t o = inputs + 1; o < places.size(); ++o) {
    bool shared = false;
    for (size_t before = inputs; before < o; ++before) shared = shared || overlap(before, o);
    if (shared) move(o);
  }
  const std::vector<size_t> moved_outputs = moved;
  for (size_t i = 0; i < inputs; ++i) {
    bool shared = false;
    for (size_t o = inputs; o < places.size(); ++o) {
      if (!overlap(i, o) || in_place(i, o)) continue;
      shared = shared || std::find(moved_outputs.begin(), moved_outputs.end(), o) == moved_outputs.end();
    }
    if (shared) move(i);
  }
  if (moved.empty()) return;
  memory_.emplace(run, bytes);
  CUdeviceptr place = memory_->address();
  for (const size_t tensor : moved) {
    const size_t own = extents[tensor].bytes;
    if (tensor < inputs) {
      device.copy(place, places[tensor], own, stream);
    } else {
      results_.push_back({places[tensor], place, own});
    }
    places[tensor] = place;
    place += round_up(own, kAlignment);
  }
}

void Overlap::copy_results() const {
  for (const Copy& copy : results_) device_.copy(copy.to, copy.from, copy.bytes, stream_);
}

}  // namespace onnxfuse::cuda
