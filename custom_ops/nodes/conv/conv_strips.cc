#include "nodes/conv/conv_strips.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <string>
#include <utility>

#include "figures/conv.h"
#include "figures/convolution.h"
#include "platform/caches.h"
#include "platform/error.h"
#include "platform/integers.h"

namespace onnxfuse {
namespace {

// A strip of more places is not worth its memory.
constexpr int64_t kLongestStrip = 2048;
// So many columns are whole vectors, three at a time, and whole steps of chains of elementwise operations.
constexpr int64_t kWholeColumns = 192;
// Fewer are not worth the weights' way through the caches.
constexpr int64_t kShortestStrip = 512;
// The same where the weights stay in the level 2 cache.
constexpr int64_t kShortestLight = 384;
// From this length on rows are not computed as one.
constexpr int64_t kLongRow = 64;
// Sums of few places that are computed between two runs of the epilogue.
constexpr int64_t kDots = 256;
// Of a ConvTranspose, however many phases it has: filters to compute at once, and places, at least.
constexpr int64_t kFewestFilters = 4;
constexpr int64_t kFewestPlaces = 72;
// Channels that are further apart are read one page after the other.
constexpr int64_t kInPlace = 8192;
// Elements that a strip may have in memory of its own, and weights that a filter may have: more is a mistake in the
// model.
constexpr int64_t kMostElements = int64_t{1} << 27;

int64_t level1_floats() { return level1_bytes() / static_cast<int64_t>(sizeof(float)); }

int64_t level2_floats() { return level2_bytes() / static_cast<int64_t>(sizeof(float)); }

// The length of strips that are about equally long, and no longer than `most`.
int64_t even_length(int64_t places, int64_t most) { return divide_up(places, divide_up(places, most)); }

bool is_pointwise(const ConvGeometry& g) {
  const ConvGeometry::Sizes ones{1, 1, 1};
  const ConvGeometry::Sizes zeros{0, 0, 0};
  return !g.transposed && g.kernel == ones && g.strides == ones && g.pads == zeros && g.in == g.out;
}

// How many positions of the output a place stands for, along an axis.
int64_t positions_of_place(const ConvAxis& axis) { return std::min(axis.phases, axis.out); }

// What the sums of a row of so many columns cost, in tenths of one of three vectors that are computed at once: of fewer
// each costs more, and half a vector about as much as a whole one.
int64_t row_cost(int64_t columns, int64_t floats) {
  constexpr std::array<int64_t, 3> kRest{0, 13, 22};
  const int64_t vectors = divide_up(columns, floats);
  return vectors / 3 * 30 + kRest[static_cast<size_t>(vectors % 3)];
}

int64_t checked(__int128 elements) {
  if (elements <= kMostElements) return static_cast<int64_t>(elements);
  throw Error("a part of the convolution needs more than " + std::to_string(kMostElements) + " elements of memory");
}

}  // namespace

ConvStrips::ConvStrips(const ConvGeometry& geometry, size_t floats, int64_t filters)
    : channels_(geometry.channels()),
      filters_(geometry.filters()),
      taps_(geometry.kernel[0] * geometry.kernel[1] * geometry.kernel[2]),
      transposed_(geometry.transposed),
      depth_(make_conv_axis(geometry, 0)),
      rows_(make_conv_axis(geometry, 1)),
      columns_(make_conv_axis(geometry, 2)),
      pointwise_(is_pointwise(geometry)) {
  checked(static_cast<__int128>(channels_) * taps_);
  if (pointwise_) {
    columns_.in = columns_.out = columns_.places = geometry.out[0] * geometry.out[1] * geometry.out[2];
    depth_.in = depth_.out = depth_.places = 1;
    rows_.in = rows_.out = rows_.places = 1;
    far_ = columns_.in > level2_floats() / channels_;
  }
  choose_lengths(geometry, static_cast<int64_t>(floats));
  lay_out(geometry);
  choose_parts(static_cast<int64_t>(floats), filters);
  check_sizes();
}

void ConvStrips::choose_lengths(const ConvGeometry& geometry, int64_t floats) {
  const int64_t positions = positions_of_place(depth_) * positions_of_place(rows_) * positions_of_place(columns_);
  const double per_place = static_cast<double>(filters_) * static_cast<double>(channels_) * static_cast<double>(taps_);
  const auto worth = static_cast<int64_t>(std::min(kHandoverProducts / per_place, static_cast<double>(kLongestStrip)));
  const int64_t all = depth_.places * rows_.places * columns_.places;
  // Two threads cannot share a few groups of an odd number equally: of three one may take all.  Others are not divided,
  // for what a strip adds is up to a tenth.
  const bool shared = geometry.group < kPlainUnits / 2 && geometry.group % 2 == 1;
  // Rather a strip for each thread than a copy that they share, if the weights may be read for each.
  const bool light = shared && !pointwise_ && filters_ * channels_ * taps_ <= level2_floats() / 2;
  const int64_t even = std::clamp<int64_t>(kLeastStrips * kSharedFilters / filters_, 1, kLeastStrips);
  const int64_t at_least = light ? kLightStrips : even;
  const int64_t share = divide_up(all, shared ? divide_up(at_least, geometry.group) : 1);
  int64_t room = level2_floats() / 2;
  int64_t most = std::min(kLongestStrip, std::max({light ? kShortestLight : kShortestStrip, worth, share}));
  if (channels_ == 1) {
    // The copy is read once for each filter, and has to be in the level 1 cache with the results.
    room = level1_floats() * 3 / 8;
    most = std::max<int64_t>(level1_floats() * 3 / 8 / positions, 1);
  }
  const auto elements = [&] { return static_cast<__int128>(channels_) * channel_elements(); };
  set_strip_length(&depth_, 1);
  set_strip_length(&rows_, 1);
  int64_t length = std::min(columns_.places, std::max(most, floats));
  set_strip_length(&columns_, length);
  while (elements() > room && length > floats) {
    length = std::max(length - length / 8 - 1, floats);
    set_strip_length(&columns_, length);
  }
  if (columns_.count > 1) {
    int64_t even = round_up(even_length(columns_.places, length), floats);
    if (even >= 4 * kWholeColumns) even = std::min(round_up(even, kWholeColumns), length / kWholeColumns * kWholeColumns);
    return set_strip_length(&columns_, std::min(even, columns_.places));
  }
  length = std::clamp<int64_t>(most / columns_.places, 1, rows_.places);
  set_strip_length(&rows_, length);
  while (elements() > room && length > 1) {
    length -= length / 8 + 1;
    set_strip_length(&rows_, length);
  }
  set_strip_length(&rows_, even_length(rows_.places, length));
}

// Between two rows of a plane in a strip's copy.  What is behind a whole row and what is before the next one are zeros:
// they are the same ones.
int64_t ConvStrips::line() const {
  if (columns_.count > 1 || columns_.stride > 1 || columns_.planes.size() > 1) return columns_.span();
  const int64_t left = columns_.pad - columns_.planes[0];
  const int64_t before = std::clamp<int64_t>(left, 0, columns_.span());
  const int64_t behind = std::clamp<int64_t>(columns_.span() - left - columns_.in, 0, columns_.span());
  return std::max(columns_.length, columns_.span() - std::min(before, behind));
}

// Between two rows of places in a strip's copy.
int64_t ConvStrips::row_pitch() const {
  return line() * (in_turn_ ? static_cast<int64_t>(rows_.planes.size()) : 1);
}

// A channel's copy is in the order [plane of depth][plane of columns][depth][plane of rows][row][column], or with the
// planes of rows within the rows if they are in turn.
ptrdiff_t ConvStrips::offset_of(size_t kd, size_t kh, size_t kw) const {
  const auto columns = static_cast<int64_t>(depth_.plane_of[kd] * columns_.planes.size() + columns_.plane_of[kw]);
  const auto row_planes = static_cast<int64_t>(rows_.planes.size());
  const auto row_plane = static_cast<int64_t>(rows_.plane_of[kh]);
  return columns * row_planes * plane_elements() + depth_.shift_of[kd] * row_planes * rows_.span() * line() +
         row_plane * line() * (in_turn_ ? 1 : rows_.span()) + rows_.shift_of[kh] * row_pitch() +
         columns_.shift_of[kw];
}

void ConvStrips::lay_out(const ConvGeometry& geometry) {
  checked(static_cast<__int128>(channels_) * channel_elements());
  one_channel_ = channels_ == 1 && rows_.length > 1;
  const auto row_planes = static_cast<int64_t>(rows_.planes.size());
  const bool every_row = row_planes == rows_.stride && rows_.planes.back() < rows_.stride;
  in_turn_ = every_row && rows_.stride > 1 && (one_channel_ || columns_.length >= kLongRow);
  find_phases(geometry);
  complete_groups();
  if (transposed_) place_taps();
  const bool in_place = pointwise_ && columns_.in <= kInPlace;
  for (int64_t c = 0; in_place && c < channels_; ++c) in_place_.push_back(c * columns_.in);
}

// All phases, those whose taps meet the same elements in one group.
void ConvStrips::find_phases(const ConvGeometry& geometry) {
  const auto taps_in = [](const ConvAxis& axis, int64_t phase) {
    std::vector<size_t> taps;
    for (size_t k = 0; k < axis.phase.size(); ++k) {
      if (axis.phase[k] == phase) taps.push_back(k);
    }
    return taps;
  };
  const auto height = static_cast<size_t>(geometry.kernel[1]);
  const auto width = static_cast<size_t>(geometry.kernel[2]);
  const std::vector<int64_t> column_phases = distinct(columns_.phase);
  column_phases_ = column_phases.size();
  for (const int64_t depth : distinct(depth_.phase)) {
    for (const int64_t row : distinct(rows_.phase)) {
      for (const int64_t column : column_phases) {
        std::vector<size_t> taps;
        std::vector<ptrdiff_t> offsets;
        for (const size_t kd : taps_in(depth_, depth)) {
          for (const size_t kh : taps_in(rows_, row)) {
            for (const size_t kw : taps_in(columns_, column)) {
              taps.push_back((kd * height + kh) * width + kw);
              offsets.push_back(offset_of(kd, kh, kw));
            }
          }
        }
        const auto meets_the_same = [&](const PhaseGroup& group) { return group.offsets == offsets; };
        auto group = std::find_if(groups_.begin(), groups_.end(), meets_the_same);
        if (group == groups_.end()) {
          groups_.emplace_back();
          group = std::prev(groups_.end());
          group->offsets = std::move(offsets);
        }
        phases_.push_back({depth, row, column, group - groups_.begin(), group->phases++});
        group->taps.insert(group->taps.end(), taps.begin(), taps.end());
      }
    }
  }
}

// From one channel's offsets to those of all, and where each group begins.
void ConvStrips::complete_groups() {
  int64_t phases = 0;
  int64_t products = 0;
  for (PhaseGroup& group : groups_) {
    group.phases_before = phases;
    group.products_before = products;
    if (one_channel_) add_columns(&group);
    const std::vector<ptrdiff_t> of_channel = group.offsets;
    for (int64_t c = 1; c < channels_; ++c) {
      for (const ptrdiff_t offset : of_channel) group.offsets.push_back(c * channel_elements() + offset);
    }
    group.depth = static_cast<int64_t>(group.offsets.size());
    phases += group.phases;
    products += group.phases * group.depth;
  }
}

// Runs of taps that meet consecutive rows, with weights that are equally far apart.
void ConvStrips::add_columns(PhaseGroup* group) const {
  struct Tap {
    ptrdiff_t offset;
    ptrdiff_t weight;
  };
  std::vector<Tap> taps;
  for (const ptrdiff_t offset : group->offsets) taps.push_back({offset, static_cast<ptrdiff_t>(taps.size())});
  const auto pitch = static_cast<ptrdiff_t>(row_pitch());
  std::sort(taps.begin(), taps.end(), [pitch](const Tap& a, const Tap& b) {
    return std::make_pair(a.offset % pitch, a.offset) < std::make_pair(b.offset % pitch, b.offset);
  });
  for (const Tap& tap : taps) {
    if (!group->columns.empty()) {
      ConvColumn& last = group->columns.back();
      const bool below = tap.offset == last.offset + last.height * pitch && last.height < kMaxColumnHeight;
      if (below && (last.height == 1 || tap.weight == last.first + last.height * last.step)) {
        if (last.height++ == 1) last.step = tap.weight - last.first;
        continue;
      }
    }
    group->columns.push_back({tap.offset, tap.weight, 0, 1});
  }
}

void ConvStrips::place_taps() {
  tap_places_.resize(static_cast<size_t>(taps_));
  for (const PhaseGroup& group : groups_) {
    const auto taps = static_cast<int64_t>(group.taps.size()) / group.phases;
    for (size_t i = 0; i < group.taps.size(); ++i) {
      const auto at = static_cast<int64_t>(i);
      const int64_t first = group.products_before * filters_ + at / taps * group.depth + at % taps;
      tap_places_[group.taps[i]] = {first, group.phases * group.depth, taps};
    }
  }
}

void ConvStrips::choose_parts(int64_t floats, int64_t filters) {
  const int64_t positions = positions_of_place(depth_) * positions_of_place(rows_) * positions_of_place(columns_);
  int64_t most = std::max<int64_t>(2 * level1_floats() / filters / positions, kShortestStrip);
  if (transposed_) {
    // The sums of all phases are computed before they are put in order.
    const int64_t room = level2_floats() / 2 / positions;
    filters = std::clamp(room / kFewestPlaces, kFewestFilters, filters);
    most = std::max(room / std::min(filters, filters_), kFewestPlaces);
  }
  part_columns_ = columns_.length;
  part_rows_ = rows_.length;
  if (!one_channel_) {
    if (columns_.length > most) {
      // Three vectors are computed at once.
      const int64_t even = even_length(columns_.length, std::max(most, floats));
      const int64_t whole = even >= 2 * kWholeColumns && columns_.length % kWholeColumns == 0 ? kWholeColumns : 3 * floats;
      part_columns_ = std::min(round_up(even, whole), columns_.length);
    }
    part_rows_ = even_length(rows_.length, std::clamp<int64_t>(most / columns_.length, 1, rows_.length));
    const int64_t as_one = row_cost((part_rows_ - 1) * line() + columns_.length, floats);
    flat_ = part_rows_ > 1 && !in_turn_ && as_one < part_rows_ * row_cost(columns_.length, floats);
  }
  dots_ = !transposed_ && count() == 1 && !one_channel_ && rows_.places * columns_.places * 2 <= floats;
  if (dots_) part_rows_ = rows_.length;
  const __int128 part = static_cast<__int128>(part_rows_ * part_columns_) * positions;
  part_size_ = checked(part);
  filters_at_once_ = std::min(dots_ ? kDots : filters, filters_);
}

void ConvStrips::check_sizes() {
  // Vectors are read and written whole.
  const auto slack = static_cast<int64_t>(2 * kMaxFloats);
  const __int128 packed = static_cast<__int128>(channels_) * channel_elements() + columns_.reach + slack;
  const __int128 gathered = dots_ ? static_cast<__int128>(products()) * part_size_ : 0;
  // Of channels of which a vector may end behind the last one's end.
  constexpr auto floats = static_cast<int64_t>(kMaxFloats);
  const __int128 copied = static_cast<__int128>(floats / std::max<int64_t>(columns_.in, 1) + 1) * (columns_.length + floats);
  const __int128 ends = in_place_.empty() ? 0 : offset_elements() + copied;
  packed_elements_ = static_cast<size_t>(round_up(std::max(checked(packed), checked(ends)), floats));
  input_elements_ = packed_elements_ + static_cast<size_t>(checked(packed + gathered) - checked(packed));
  if (transposed_) {
    const int64_t row = part_columns_ * static_cast<int64_t>(column_phases_);
    // With an addend for each row of sums.
    const __int128 sums = static_cast<__int128>(sums_pitch() + 1) * static_cast<int64_t>(phases_.size()) * filters_at_once_;
    scratch_elements_ = pointer_elements() + static_cast<size_t>(checked(sums + row + slack));
  }
  checked(static_cast<__int128>(results_pitch()) * filters_at_once_);
}

// Of where each channel is, if some are not where others are: whole cache lines.
int64_t ConvStrips::offset_elements() const {
  constexpr auto size = static_cast<int64_t>(sizeof(ptrdiff_t) / sizeof(float));
  return in_place_.empty() ? 0 : round_up(channels_ * size, static_cast<int64_t>(kMaxFloats));
}

// Between the sums of two rows of a tile: of a phase's places, with what lies between rows and what vectors write.
int64_t ConvStrips::sums_pitch() const {
  const int64_t row = flat_ ? line() : part_columns_;
  return round_up(part_rows_ * row, static_cast<int64_t>(kMaxFloats)) + static_cast<int64_t>(kMaxFloats);
}

// Of a pointer to each column phase's sums: whole cache lines.
size_t ConvStrips::pointer_elements() const {
  return round_up(column_phases_ * sizeof(const float*) / sizeof(float), kMaxFloats);
}

int64_t ConvStrips::results_pitch() const { return transposed_ ? part_size_ : sums_pitch(); }

int64_t ConvStrips::pitch(const Part& part) const { return follow_one_another(part) ? part.size() : sums_pitch(); }

bool ConvStrips::follow_one_another(const Part& part) const { return follow_one_another(part.row_places.size()); }

bool ConvStrips::follow_one_another(int64_t rows) const {
  return transposed_ || flat_ || one_channel_ || dots_ || rows == 1;
}

bool ConvStrips::is_one_run() const {
  return count() == 1 && part_size_ == depth_.out * rows_.out * columns_.out &&
         follow_one_another(std::min(part_rows_, rows_.places));
}

size_t ConvStrips::plane_count() const {
  const size_t row_planes = in_turn_ ? 1 : rows_.planes.size();
  return depth_.planes.size() * columns_.planes.size() * static_cast<size_t>(depth_.span()) * row_planes;
}

size_t ConvStrips::part_count() const {
  return static_cast<size_t>(divide_up(rows_.length, part_rows_) * divide_up(columns_.length, part_columns_));
}

size_t ConvStrips::parts(const Strip& strip, Part* parts) const {
  Part* next = parts;
  for (int64_t row = strip.rows.begin; row < strip.rows.end; row += part_rows_) {
    for (int64_t column = strip.columns.begin; column < strip.columns.end; column += part_columns_) {
      Part& part = *next++;
      part.depth_place = strip.depth;
      part.row_places = {row, std::min(row + part_rows_, strip.rows.end)};
      part.column_places = {column, std::min(column + part_columns_, strip.columns.end)};
      part.positions.depth = depth_.positions({strip.depth, strip.depth + 1});
      part.positions.rows = rows_.positions(part.row_places);
      part.positions.columns = columns_.positions(part.column_places);
      part.first_row = row - strip.rows.begin;
      part.first_column = column - strip.columns.begin;
    }
  }
  return static_cast<size_t>(next - parts);
}

}  // namespace onnxfuse
