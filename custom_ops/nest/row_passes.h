// What passes over rows of blocks hand on without memory between: reductions that take elements from registers, and elements
// that wait where the results will be.
#ifndef ONNXFUSE_ROW_PASSES_H_
#define ONNXFUSE_ROW_PASSES_H_

#include "nest/nest_blocks.h"

namespace onnxfuse {

// Changes passes of blocks that are planned.
void join_row_passes(const NestShapes& shapes, NestBlocks* blocks);

// The same where rows go in groups.  False if they cannot, for a phase computes something else than a chain of float32, or reduces
// something else than that makes, or than the input that it reads.
bool group_row_passes(const NestShapes& shapes, NestBlocks* blocks);

}  // namespace onnxfuse

#endif  // ONNXFUSE_ROW_PASSES_H_
