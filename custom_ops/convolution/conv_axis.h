// One spatial dimension of a convolution on the CPU: where its taps meet the input, and how a strip's part of the input
// is laid out along it.
//
// Results are numbered by `place`.  A Conv's place is the output's position.  A ConvTranspose is one convolution of
// stride 1 for each remainder that positions of the output have modulo the stride, its *phase*: position + crop =
// place * phases + phase.  A tap belongs to one phase, and meets the input at place * stride - pad + distance.
#ifndef ONNXFUSE_CONV_AXIS_H_
#define ONNXFUSE_CONV_AXIS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "convolution/conv.h"

namespace onnxfuse {

struct ConvRange {
  int64_t begin;
  int64_t end;
  int64_t size() const { return end - begin; }
};

// Positions of the output of one channel.
struct ConvPositions {
  ConvRange depth;
  ConvRange rows;
  ConvRange columns;

  int64_t size() const { return depth.size() * rows.size() * columns.size(); }
};

struct ConvAxis {
  int64_t in = 1;      // size of the input
  int64_t out = 1;     // size of the output
  int64_t places = 1;
  int64_t stride = 1;  // of places over the input
  int64_t pad = 0;
  int64_t phases = 1;
  int64_t crop = 0;
  std::vector<int64_t> distance;  // for each tap
  std::vector<int64_t> phase;     // for each tap

  // Strips: runs of places.
  int64_t length = 1;  // the last may be shorter
  int64_t count = 1;
  // A strip's part of the input: one plane for each remainder that the taps' distances leave modulo the stride, as long
  // as the strip and what the taps reach beyond; or one for each distance, if they are so far apart that this is less.
  std::vector<int64_t> planes;    // where each begins: a distance
  std::vector<size_t> plane_of;   // for each tap
  std::vector<int64_t> shift_of;  // for each tap: how far into the plane it begins
  int64_t reach = 0;              // the longest of them

  int64_t span() const { return length + reach; }
  ConvRange strip(int64_t index) const;
  // Positions of the output, of all phases.
  ConvRange positions(const ConvRange& places) const;
};

// The taps of one dimension that meet the input at a position of the output; not of a ConvTranspose.
ConvRange taps_inside(const ConvGeometry& geometry, size_t d, int64_t position);

// The end of the positions, from the first of `range` on, that the same taps meet: those that all do, or one alone.
int64_t same_taps_end(const ConvGeometry& geometry, size_t d, const ConvRange& range);

ConvAxis make_conv_axis(const ConvGeometry& geometry, size_t d);

// Cuts the axis into strips of this length, and lays one out.
void set_strip_length(ConvAxis* axis, int64_t length);

}  // namespace onnxfuse

#endif  // ONNXFUSE_CONV_AXIS_H_
