// What work costs, to decide how much of it is worth a thread.
#ifndef ONNXFUSE_COST_H_
#define ONNXFUSE_COST_H_

#include <cstdint>

#include "program/dtype.h"

namespace onnxfuse {

// The nanoseconds that one thread takes for an element of instruction `op` on type `type`, operands in the level 1
// cache: the table's (onnxfuse/program/ops.py).
double cost_of(Op op, DType type);

// The same for an instruction inside a chain, where values stay in registers.
double chained_cost_of(Op op, DType type);

// Of this machine.
int64_t processors();

// Parts of a node's work at most.
int64_t most_parts();

// In how many parts, at most `most`, to hand work of so many nanoseconds to threads: one for each processor, if there are
// as many chunks of kChunkNanoseconds, and an equal number of more where they are long enough to be worth the even shares
// that they make for threads that are not equally fast.
int64_t parts_of(double nanoseconds, int64_t most);

// How many of these parts, which are neighbours, ORT hands a thread, if it has as many threads as there are processors.
int64_t parts_of_thread(int64_t parts);

// How long threads take for units of equal cost, over what they would take if each had an equal share: the mean of
// several numbers of threads, for a plan does not know how many of the machine's there are.
double imbalance(int64_t units);

}  // namespace onnxfuse

#endif  // ONNXFUSE_COST_H_
