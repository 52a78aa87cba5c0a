// The part of ConvStrips that runs: copies of the input, sums, and results in the output's order.
#include <algorithm>
#include <array>
#include <cstring>

#include "nodes/conv/conv_strips.h"
#include "platform/integers.h"

namespace onnxfuse {
namespace {

// Filters, and channels at most, whose weights are put in order at once, and the elements of so many.
constexpr int64_t kReordered = 16;
constexpr int64_t kTileFloats = 4096;
// So many taps of a channel meet elements near each other.
constexpr int64_t kDenseTaps = 4;

// Which of so many elements, a stride apart from `first` on, lie in an input of this size.
ConvRange inside(int64_t first, int64_t stride, int64_t size, int64_t elements) {
  const int64_t begin = std::min(first < 0 ? divide_up(-first, stride) : 0, elements);
  return {begin, std::clamp(first < size ? divide_up(size - first, stride) : 0, begin, elements)};
}

}  // namespace

int64_t ConvStrips::weight_blocks() const { return transposed_ ? divide_up(filters_, kReordered) : 0; }

void ConvStrips::reorder_weights(const float* weights, int64_t block, float* ordered) const {
  // Those of a ConvTranspose are in the order [group][channel][filter][tap].
  const int64_t blocks = divide_up(filters_, kReordered);
  const int64_t first = block % blocks * kReordered;
  const int64_t count = std::min(kReordered, filters_ - first);
  const int64_t all = channels_ * filters_ * taps_;
  weights += block / blocks * all + first * taps_;
  ordered += block / blocks * all;
  // What is near in one order is far in the other, and often at the same place in a cache: so a few filters of some
  // channels at a time, which are read as they follow one another, and then put in order from memory of their own.
  const int64_t run = count * taps_;
  const int64_t most = std::clamp<int64_t>(kTileFloats / run, 1, kReordered);
  std::array<float, kTileFloats> tile;
  for (int64_t begin = 0; begin < channels_; begin += most) {
    const int64_t channels = std::min(most, channels_ - begin);
    const float* from = weights + begin * filters_ * taps_;
    if (run <= kTileFloats) {
      for (int64_t c = 0; c < channels; ++c) {
        std::copy_n(from + c * filters_ * taps_, run, tile.data() + c * run);
      }
      from = tile.data();
    }
    for (size_t k = 0; k < tap_places_.size(); ++k) {
      const TapPlace place = tap_places_[k];
      for (int64_t m = 0; m < count; ++m) {
        const float* weight = from + m * taps_ + static_cast<int64_t>(k);
        float* to = ordered + place.first + (first + m) * place.filter + begin * place.channel;
        for (int64_t c = 0; c < channels; ++c, weight += run, to += place.channel) *to = *weight;
      }
    }
  }
}

bool ConvStrips::reads_in_place(const float* image, const float* end, const Strip& strip) const {
  if (in_place_.empty()) return false;
  const auto floats = static_cast<int64_t>(kernels().floats);
  const int64_t read = dots_ ? strip.columns.size() : round_up(strip.columns.size(), floats);
  return end - image >= (channels_ - 1) * columns_.in + strip.columns.begin + read;
}

ConvStrips::Source ConvStrips::prepare(const float* image, const float* end, const Strip& strip, float* memory) const {
  const bool in_place = reads_in_place(image, end, strip);
  if (in_place && (!dots_ || columns_.in == 1)) return {image + strip.columns.begin, in_place_.data(), far_};
  if (!in_place && !in_place_.empty() && !dots_) return copy_ends(image, end, strip, memory);
  if (!in_place) pack(image, end, strip, memory);
  return dots_ ? gather(in_place ? image : memory, in_place, memory) : Source{memory};
}

ConvStrips::Source ConvStrips::prepare(const Reader& reader, const Strip& strip, const ConvRange& channels,
                                       float* memory) const {
  const int64_t pitch = channel_elements();
  reader.read(reader.data, channels, strip.columns.begin, strip.columns.size(), memory + channels.begin * pitch, pitch);
  return dots_ ? gather(memory, false, memory) : Source{memory};
}

// In place but for the last channels, behind which vectors would read beyond the tensor: these are copied.
ConvStrips::Source ConvStrips::copy_ends(const float* image, const float* end, const Strip& strip, float* memory) const {
  const int64_t size = strip.columns.size();
  const int64_t read = round_up(size, static_cast<int64_t>(kernels().floats));
  const float* const data = image + strip.columns.begin;
  auto* const offsets = reinterpret_cast<ptrdiff_t*>(memory);
  std::copy(in_place_.begin(), in_place_.end(), offsets);
  float* to = memory + offset_elements();
  for (auto c = static_cast<size_t>(channels_); c > 0 && end - data < in_place_[c - 1] + read; to += read) {
    --c;
    std::fill(std::copy_n(data + in_place_[c], size, to), to + read, 0.0f);
    offsets[c] = static_cast<ptrdiff_t>(reinterpret_cast<intptr_t>(to) - reinterpret_cast<intptr_t>(data)) /
                 static_cast<ptrdiff_t>(sizeof(float));
  }
  return {data, offsets, far_};
}

// What each place meets, one after the other.
ConvStrips::Source ConvStrips::gather(const float* from, bool in_place, float* memory) const {
  const ptrdiff_t* const offsets = in_place ? in_place_.data() : groups_[0].offsets.data();
  float* const gathered = memory + packed_elements_;
  float* to = gathered;
  for (int64_t r = 0; r < rows_.places; ++r) {
    for (int64_t i = 0; i < columns_.places; ++i) {
      const float* const place = from + r * row_pitch() + i;
      for (int64_t k = 0; k < groups_[0].depth; ++k) *to++ = place[offsets[k]];
    }
  }
  return {gathered};
}

void ConvStrips::pack(const float* image, const float* end, const Strip& strip, float* packed) const {
  // Without elements the sizes may be any.
  const bool empty = depth_.in == 0 || rows_.in == 0 || columns_.in == 0;
  const int64_t size = empty ? 0 : depth_.in * rows_.in * columns_.in;
  const auto take_rows = kernels().take_rows;
  ConvCopy copy;
  copy.pitch = static_cast<size_t>(line());
  copy.from_pitch = empty ? 0 : (in_turn_ ? 1 : rows_.stride) * columns_.in;
  copy.end = end;
  copy.stride = static_cast<size_t>(columns_.stride);
  const Plane* const planes_end = strip.planes + plane_count();
  for (int64_t c = 0; c < channels_; ++c, image += size) {
    copy.ahead = c + 1 < channels_ ? size : 0;
    for (const Plane* p = strip.planes; p < planes_end; ++p) {
      const Plane& plane = *p;
      float* const stop = packed + plane.elements;
      if (plane.rows > 0) {
        copy.to = packed + plane.to;
        copy.from = image + plane.from;
        copy.rows = plane.rows;
        copy.width = plane.width;
        copy.gap = copy.pitch - plane.width;
        std::fill(packed, copy.to, 0.0f);
        take_rows(copy);
        packed = copy.to + (copy.rows - 1) * copy.pitch + copy.width;
      }
      std::fill(packed, stop, 0.0f);
      packed = stop;
    }
  }
  std::fill_n(packed, columns_.reach, 0.0f);
}

ConvStrips::Strip ConvStrips::strip(int64_t index, Plane* planes) const {
  Strip strip;
  strip.columns = columns_.strip(index % columns_.count);
  strip.rows = rows_.strip(index / columns_.count % rows_.count);
  strip.depth = index / columns_.count / rows_.count;
  strip.planes = planes;
  for (const int64_t depth_plane : depth_.planes) {
    for (const int64_t column_plane : columns_.planes) {
      for (int64_t i = 0; i < depth_.span(); ++i) {
        const int64_t depth = (strip.depth + i) * depth_.stride - depth_.pad + depth_plane;
        planes = add_planes(strip, depth, column_plane, planes);
      }
    }
  }
  return strip;
}

// All planes of rows, at a depth of the input, for one plane of columns.  Returns the place behind the last.
ConvStrips::Plane* ConvStrips::add_planes(const Strip& strip, int64_t depth, int64_t column_plane,
                                          Plane* planes) const {
  const auto row_planes = static_cast<int64_t>(rows_.planes.size());
  const int64_t left = strip.columns.begin * columns_.stride - columns_.pad + column_plane;
  const ConvRange columns = inside(left, columns_.stride, columns_.in, strip.columns.size() + columns_.reach);
  // If they are in turn, the planes are one with every row of the input.
  const int64_t stride = in_turn_ ? 1 : rows_.stride;
  const int64_t merged = in_turn_ ? row_planes : 1;
  for (int64_t p = 0; p < row_planes; p += merged) {
    Plane plane;
    plane.elements = rows_.span() * merged * line();
    const int64_t top = strip.rows.begin * rows_.stride - rows_.pad + rows_.planes[static_cast<size_t>(p)];
    const ConvRange rows = inside(top, stride, rows_.in, (strip.rows.size() + rows_.reach) * merged);
    if (depth >= 0 && depth < depth_.in && rows.size() > 0 && columns.size() > 0) {
      plane.to = rows.begin * line() + columns.begin;
      const int64_t first_row = depth * rows_.in + top + rows.begin * stride;
      plane.from = first_row * columns_.in + left + columns.begin * columns_.stride;
      plane.rows = static_cast<size_t>(rows.size());
      plane.width = static_cast<size_t>(columns.size());
    }
    *planes++ = plane;
  }
  return planes;
}

void ConvStrips::sum(const Source& source, const float* weights, const float* addends, int64_t first, int64_t count,
                     const Part& part, float* results, const Target& target, float* scratch) const {
  if (dots_) {
    const auto depth = static_cast<size_t>(products()), columns = static_cast<size_t>(part.size());
    return kernels().conv_dots({weights + first * products(), depth, source.data, depth, depth, results, columns, 1,
                                static_cast<size_t>(count), columns});
  }
  if (addends != nullptr) addends += first;
  if (transposed_) return sum_phases(source, weights, addends, first, count, part, results, scratch);
  const PhaseGroup& group = groups_[0];
  sum_group(source, group, weights + first * group.depth, addends, count, part, results, pitch(part), target);
  if (flat_) close_gaps(count, part, results);
}

// Takes out what lies between the rows of sums that were computed as one.
void ConvStrips::close_gaps(int64_t count, const Part& part, float* results) const {
  const int64_t height = part.row_places.size();
  const int64_t width = part.column_places.size();
  for (int64_t m = 0; m < count; ++m) {
    for (int64_t r = m == 0 ? 1 : 0; r < height; ++r) {
      const float* const from = results + m * sums_pitch() + r * row_pitch();
      std::memmove(results + (m * height + r) * width, from, static_cast<size_t>(width) * sizeof(float));
    }
  }
}

// Sums of all phases, each by itself, and then in the output's order.
void ConvStrips::sum_phases(const Source& source, const float* weights, const float* addends, int64_t first,
                            int64_t count, const Part& part, float* results, float* scratch) const {
  const int64_t pitch = sums_pitch();
  const auto phases = static_cast<int64_t>(phases_.size());
  float* const sums = scratch + pointer_elements();
  float* const addends_of_phases = sums + phases * count * pitch;
  for (const PhaseGroup& group : groups_) {
    const float* const own = weights + group.products_before * filters_ + first * group.phases * group.depth;
    for (int64_t m = 0; addends != nullptr && m < count; ++m) {
      std::fill_n(addends_of_phases + m * group.phases, group.phases, addends[m]);
    }
    sum_group(source, group, own, addends == nullptr ? nullptr : addends_of_phases, count * group.phases, part,
              sums + group.phases_before * count * pitch, pitch, {});
  }
  // Positions that no tap reaches.
  if (phases < depth_.phases * rows_.phases * columns_.phases) {
    for (int64_t m = 0; m < count; ++m) {
      std::fill_n(results + m * part.size(), part.size(), addends == nullptr ? 0.0f : addends[m]);
    }
  }
  float* const row = addends_of_phases + phases * count;
  place_phases(sums, count, part, results, reinterpret_cast<const float**>(scratch), row);
}

void ConvStrips::sum_group(const Source& source, const PhaseGroup& group, const float* weights, const float* addends,
                           int64_t rows, const Part& part, float* out, int64_t pitch, const Target& target) const {
  const int64_t height = part.row_places.size();
  const int64_t width = part.column_places.size();
  const int64_t span = row_pitch();
  const float* const input = source.data + part.first_row * span + part.first_column;
  if (one_channel_) {
    for (int64_t m = 0; m < rows; ++m) {
      kernels().conv_plane({weights + m * group.depth, group.columns.data(), group.columns.size(), input,
                            static_cast<size_t>(span), out + m * pitch, static_cast<size_t>(width),
                            static_cast<size_t>(height), static_cast<size_t>(width)});
    }
    return;
  }
  ConvBlock block;
  block.addends = addends;
  block.weights = weights;
  block.row_stride = block.depth = static_cast<size_t>(group.depth);
  block.offsets = source.in_place != nullptr ? source.in_place : group.offsets.data();
  block.rows = static_cast<size_t>(rows);
  block.dense = group.depth >= channels_ * kDenseTaps;
  block.fetches = source.far;
  block.target_pitch = target.filter;
  if (flat_) {
    block.input = input;
    block.out = out;
    block.columns = static_cast<size_t>((height - 1) * span + width);
    block.pitch = static_cast<size_t>(sums_pitch());
    kernels().conv_sums(block);
    return;
  }
  // What vectors write behind a row is overwritten by the next one.
  block.columns = static_cast<size_t>(width);
  block.pitch = static_cast<size_t>(pitch);
  for (int64_t r = 0; r < height; ++r) {
    block.input = input + r * span;
    block.out = out + r * width;
    if (target.data != nullptr) block.target = target.data + static_cast<size_t>(r) * target.row;
    kernels().conv_sums(block);
  }
}

// Puts the phases' sums where they are in the output.  `from` is memory for a pointer to each column phase's sums,
// `row` for a row of the output.
void ConvStrips::place_phases(const float* sums, int64_t count, const Part& part, float* results, const float** from,
                              float* row) const {
  const ConvPositions& to = part.positions;
  const int64_t size = part.size();
  const int64_t height = part.row_places.size();
  const int64_t width = part.column_places.size();
  const int64_t pitch = sums_pitch();
  const int64_t row_step = flat_ ? row_pitch() : width;
  for (size_t p = 0; p < phases_.size(); p += column_phases_) {
    const int64_t d = part.depth_place * depth_.phases + phases_[p].depth - depth_.crop - to.depth.begin;
    if (d < 0 || d >= to.depth.size()) continue;
    for (int64_t m = 0; m < count; ++m) {
      for (int64_t r = 0; r < height; ++r) {
        const int64_t h = (part.row_places.begin + r) * rows_.phases + phases_[p].row - rows_.crop - to.rows.begin;
        if (h < 0 || h >= to.rows.size()) continue;
        for (size_t i = 0; i < column_phases_; ++i) {
          const Phase& phase = phases_[p + i];
          const PhaseGroup& group = groups_[static_cast<size_t>(phase.group)];
          from[i] = sums + (group.phases_before * count + m * group.phases + phase.index) * pitch + r * row_step;
        }
        float* const results_row = results + m * size + (d * to.rows.size() + h) * to.columns.size();
        place_row(from, &phases_[p], part, results_row, row);
      }
    }
  }
}

// Puts the sums of all column phases in a row of the output; `phases` are these, `whole_row` is memory for what is
// cropped.
void ConvStrips::place_row(const float* const* from, const Phase* phases, const Part& part, float* to,
                           float* whole_row) const {
  const ConvRange& columns = part.positions.columns;
  const int64_t width = part.column_places.size();
  const int64_t left = part.column_places.begin * columns_.phases - columns_.crop;
  if (static_cast<int64_t>(column_phases_) == columns_.phases) {
    const bool cropped = left != columns.begin || left + width * columns_.phases != columns.end;
    kernels().interleave(cropped ? whole_row : to, from, static_cast<size_t>(width), column_phases_);
    if (cropped) std::copy_n(whole_row + (columns.begin - left), columns.size(), to);
    return;
  }
  for (size_t i = 0; i < column_phases_; ++i) {
    for (int64_t j = 0; j < width; ++j) {
      const int64_t w = left + j * columns_.phases + phases[i].column - columns.begin;
      if (w >= 0 && w < columns.size()) to[w] = from[i][j];
    }
  }
}

}  // namespace onnxfuse
