// How a convolution is cut into strips for the CPU, and how a strip's part of the input lies in memory.
//
// A strip is a run of rows of places (conv_axis.h), or of columns of one row.  What it reads of a channel is copied,
// with the padding, so that place i of the strip meets tap (kh, kw) of the kernel at a fixed distance from i.  The sums
// are then the same sums of products for every place, as for a matrix product, and the input is copied once rather than
// once for each tap.  A strip's copy stays in the level 2 cache while all output channels read it; its results are
// computed in parts that stay in the level 1 cache until the epilogue has read them.
#ifndef ONNXFUSE_CONV_STRIPS_H_
#define ONNXFUSE_CONV_STRIPS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "convolution/conv_axis.h"
#include "kernels/kernels.h"

namespace onnxfuse {

class ConvStrips {
 public:
  // For a convolution that has results, on vectors of `floats` elements, with up to `filters` filters at once.  Throws
  // Error if a strip needs too much memory.
  ConvStrips(const ConvGeometry& geometry, size_t floats, int64_t filters);

  int64_t count() const { return depth_.count * rows_.count * columns_.count; }

  // Filters whose sums are computed at once, at most.
  int64_t filters_at_once() const { return filters_at_once_; }

  // Some places of a strip, and the positions of the output that they stand for.
  struct Part {
    int64_t depth_place;
    ConvRange row_places;
    ConvRange column_places;
    ConvPositions positions;
    int64_t first_row;  // of the strip's
    int64_t first_column;

    int64_t size() const { return positions.size(); }
  };

  // What a plane of a strip's copy has of a channel of the input; the rest is zero.
  struct Plane {
    int64_t elements = 0;
    ptrdiff_t from = 0;
    ptrdiff_t to = 0;
    size_t rows = 0;
    size_t width = 0;
  };

  struct Strip {
    int64_t depth;  // places
    ConvRange rows;
    ConvRange columns;
    const Plane* planes;
  };

  // How many planes each strip has, and how many parts at most.
  size_t plane_count() const;
  size_t part_count() const;

  // `planes` is memory for those of the strip, and has to live as long as it.
  Strip strip(int64_t index, Plane* planes) const;

  // Fills in the strip's parts, and returns how many they are.
  size_t parts(const Strip& strip, Part* parts) const;

  // Whether the results of all filters follow one another in one part, as they do in the output.
  bool is_one_run() const;

  // The most results that a part has for a filter, and the elements between those of two filters at most.
  int64_t part_size() const { return part_size_; }
  int64_t results_pitch() const;

  // Elements between the results of two filters: the part's size where they follow one another.
  int64_t pitch(const Part& part) const;

  // Elements of memory for `prepare`, and for `sum`: that begins at a cache line.
  size_t input_elements() const { return input_elements_; }
  size_t scratch_elements() const { return scratch_elements_; }

  // In how many blocks for each group weights must be put in another order; none if they need not be.
  int64_t weight_blocks() const;

  // Puts the weights of one block of all groups' in order; `ordered` has as many elements as they.
  void reorder_weights(const float* weights, int64_t block, float* ordered) const;

  // Where the sums of a strip and a group find what they read: in a copy, or in place, which may be far from the caches.
  struct Source {
    const float* data;
    const ptrdiff_t* in_place = nullptr;  // to where each channel is
    bool far = false;
  };

  // `image` is the first channel of the group, `end` the end of the whole tensor.
  Source prepare(const float* image, const float* end, const Strip& strip, float* memory) const;

  // Writes `count` elements of channels of the group, from element `first` of each on, to rows of `pitch` elements.
  struct Reader {
    void* data;
    void (*read)(void* data, const ConvRange& channels, int64_t first, int64_t count, float* to, int64_t pitch);
  };

  // The same where another reads the input, for some of the channels; for matrix products.
  Source prepare(const Reader& reader, const Strip& strip, const ConvRange& channels, float* memory) const;
  bool is_product() const { return pointwise_; }

  // Whether all that `prepare` does, with a Reader or without one, is to copy to `memory`, so that threads can share it.
  bool copies(bool with_reader) const { return !dots_ && (with_reader || !pointwise_); }

  // Where the results of the first filter go in the end, and how far apart those of filters and of rows are there; null if
  // that does not matter.
  struct Target {
    const float* data;
    size_t filter;
    size_t row;
  };

  // Computes the results of `count` filters from `first` on, for a group with these weights.  Vectors write up to
  // kMaxFloats elements behind the last.  The results begin with the group's `addends`, or with 0 if that is null, as it
  // has to be unless takes_addends.
  void sum(const Source& source, const float* weights, const float* addends, int64_t first, int64_t count,
           const Part& part, float* results, const Target& target, float* scratch) const;
  bool takes_addends() const { return !one_channel_ && !dots_; }

 private:
  // Phases whose taps meet the same elements.  Weights are in the order [group][phase group][filter][phase][tap].
  struct PhaseGroup {
    std::vector<ptrdiff_t> offsets;   // for each channel's taps: where place 0 of a strip meets them
    std::vector<ConvColumn> columns;  // the same for one channel
    std::vector<size_t> taps;         // [phase][tap]: index in the kernel
    int64_t phases = 0;
    int64_t phases_before = 0;    // of the groups before
    int64_t products_before = 0;  // likewise, of a filter
    int64_t depth = 0;            // products of a sum
  };
  struct Phase {
    int64_t depth;
    int64_t row;
    int64_t column;
    int64_t group;
    int64_t index;  // in the group
  };

  // Where the weights of a tap go, in the order in which they are read.
  struct TapPlace {
    int64_t first;    // of the first filter and channel
    int64_t filter;   // from one to the next
    int64_t channel;  // likewise
  };

  void choose_lengths(const ConvGeometry& geometry, int64_t floats);
  void lay_out(const ConvGeometry& geometry);
  void find_phases(const ConvGeometry& geometry);
  void complete_groups();
  void add_columns(PhaseGroup* group) const;
  void place_taps();
  void choose_parts(int64_t floats, int64_t filters);
  void check_sizes();
  bool follow_one_another(const Part& part) const;
  bool follow_one_another(int64_t rows) const;
  int64_t sums_pitch() const;
  int64_t products() const { return channels_ * taps_; }
  size_t pointer_elements() const;
  int64_t plane_elements() const { return depth_.span() * rows_.span() * line(); }
  int64_t channel_elements() const {
    return static_cast<int64_t>(depth_.planes.size() * rows_.planes.size() * columns_.planes.size()) * plane_elements();
  }
  ptrdiff_t offset_of(size_t kd, size_t kh, size_t kw) const;
  int64_t line() const;
  int64_t row_pitch() const;
  Plane* add_planes(const Strip& strip, int64_t depth, int64_t column_plane, Plane* planes) const;
  Source gather(const float* from, bool in_place, float* memory) const;
  bool reads_in_place(const float* image, const float* end, const Strip& strip) const;
  Source copy_ends(const float* image, const float* end, const Strip& strip, float* memory) const;
  int64_t offset_elements() const;
  void pack(const float* image, const float* end, const Strip& strip, float* packed) const;
  void sum_phases(const Source& source, const float* weights, const float* addends, int64_t first, int64_t count,
                  const Part& part, float* results, float* scratch) const;
  void sum_group(const Source& source, const PhaseGroup& group, const float* weights, const float* addends,
                 int64_t rows, const Part& part, float* out, int64_t pitch, const Target& target) const;
  void close_gaps(int64_t count, const Part& part, float* results) const;
  void place_phases(const float* sums, int64_t count, const Part& part, float* results, const float** from,
                    float* row) const;
  void place_row(const float* const* from, const Phase* phases, const Part& part, float* to, float* whole_row) const;

  int64_t channels_;
  int64_t filters_;
  int64_t taps_;
  bool transposed_;
  ConvAxis depth_;  // strips of one place
  ConvAxis rows_;
  ConvAxis columns_;
  bool pointwise_;            // a matrix product: all places are one row
  bool far_ = false;          // a group's image is larger than the level 2 cache
  bool one_channel_ = false;  // rows are computed together, by columns of taps
  bool in_turn_ = false;      // the rows of all planes of rows lie in the input's order
  bool flat_ = false;         // rows are computed as one, with what lies between them
  bool dots_ = false;         // few places: vectors along the depth
  int64_t part_rows_ = 1;
  int64_t part_columns_ = 1;
  int64_t part_size_ = 1;
  int64_t filters_at_once_ = 1;
  size_t packed_elements_ = 0;
  size_t input_elements_ = 0;
  size_t scratch_elements_ = 0;
  std::vector<Phase> phases_;  // by depth, then row, then column
  size_t column_phases_ = 1;   // of those: which columns have
  std::vector<PhaseGroup> groups_;
  std::vector<TapPlace> tap_places_;  // if weights must be put in another order
  std::vector<ptrdiff_t> in_place_;  // offsets of channels in the input, if it is read there
};

}  // namespace onnxfuse

#endif  // ONNXFUSE_CONV_STRIPS_H_
