// What a tile reads of a tensor that is broadcast along some dimensions, or of a part of one.
#ifndef ONNXFUSE_GATHER_H_
#define ONNXFUSE_GATHER_H_

#include <cstddef>
#include <cstdint>

#include "plan/plan.h"

namespace onnxfuse {

// Copies `count` elements of the stage, from number `start` on, as `slot` reads them from `data`, to `out`.  Of a
// slot that is read transposed, what is copied from element `next` on is fetched meanwhile, unless that is negative.
void gather(const Slot& slot, const char* data, int64_t start, size_t count, char* out, int64_t next);

// Copies `count` elements of the stage, from number `start` on, to where `slot` has them in a part of a tensor that begins at
// `data`.
void scatter(const Slot& slot, const char* from, int64_t start, size_t count, char* data);

// As `gather`, of a tensor whose elements are their own offsets, as numbers of this type.
void coordinates(const Slot& slot, DType type, int64_t start, size_t count, char* out);

}  // namespace onnxfuse

#endif  // ONNXFUSE_GATHER_H_
