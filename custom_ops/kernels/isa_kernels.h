// The kernels of one instruction set, which its files define: double_kernels.inc, array_kernels.inc, conv_kernels.inc,
// channel_kernels.inc, attention_kernels.inc, reduction_kernels.inc, row_chain_kernels.inc,
// nhwc_kernels.inc, nhwc_pool_kernels.inc.
// kernels.inc puts them into the table; KernelTable says what they do.
#ifndef ONNXFUSE_ISA_KERNELS_H_
#define ONNXFUSE_ISA_KERNELS_H_

#include "kernels/kernels.h"

// Instruction sets of 32 vector registers; the others have 16.
#if defined(__AVX512F__) || defined(__aarch64__)
#define ONNXFUSE_MANY_REGISTERS
#endif

namespace onnxfuse {
namespace ONNXFUSE_ISA {

// How many rows of three vectors fill the registers with sums, and with what is multiplied; and how many rows a block of
// sums should have where there are so many.
#if defined(ONNXFUSE_MANY_REGISTERS)
constexpr int kSumRows = 8;
constexpr int kManyRows = 8;
#else
constexpr int kSumRows = 4;
constexpr int kManyRows = 64;
#endif

// A sum of more products is added up in parts of so many, for its rounding error grows with the length of each.
constexpr size_t kPartDepth = 256;

Kernel find_op(Op op, DType type, unsigned scalars);
Kernel find_cast(DType from, DType to);
void load_f16(void* out, const void* const* in, size_t n);
void load_bf16(void* out, const void* const* in, size_t n);
void store_f16(void* out, const void* const* in, size_t n);
void store_bf16(void* out, const void* const* in, size_t n);

void chain_doubles(void* out, const void* in, const ChainLink* links, size_t count, size_t n, Stores stores);
// Runs a target's chain on so many vectors of results, which are in `tile` one after the other.  Each belongs `at` + its place
// behind the target's beginning.
using FinishTile = void (*)(const TileTarget& target, const float* tile, const ptrdiff_t* places, size_t vectors,
                            size_t at);
FinishTile finish_for(const TileTarget& target);

void conv_sums(const ConvBlock& block);
void conv_dots(const ConvDots& dots);
void conv_plane(const ConvPlane& plane);
void conv_rows(const ConvRowsBlock& block);
void conv_lanes(const ConvLanesRow& row);
void take_lanes(float* to, const float* from, size_t pitch, size_t lanes, size_t n, const float* end);
void take_columns(float* to, size_t to_pitch, const float* from, size_t pitch, size_t lanes, size_t n,
                  const float* end);
void put_lanes(float* to, size_t pitch, const float* from, size_t n);
void take_rows(const ConvCopy& copy);
void add_to_rows(float* rows, size_t pitch, const float* addends, size_t count, size_t n);
void interleave(float* out, const float* const* in, size_t n, size_t stride);
void row_means(float* means, const float* rows, size_t count, size_t n);

void softmax_rows(const SoftmaxRows& block);
void scale_rows(const ScaledRows& block);

ReduceKernels find_reduction(Op combine, DType type, Mapped map);
void chain_rows(const ChainedRows& block);

void nhwc_sums(const NhwcSums& block);
void nhwc_planes(const NhwcPlanes& block);
void nhwc_channels(const NhwcChannels& block);
void transpose_rows(float* to, size_t to_pitch, const float* from, size_t from_pitch, size_t rows, size_t columns);
void place_runs(float* to, size_t pitch, const float* from, size_t n, size_t count);
void add_rows(float* sums, const float* rows, size_t pitch, size_t count, size_t n);

void nhwc_greatest(const NhwcWindows& block);
void nhwc_means(const NhwcWindows& block);

}  // namespace ONNXFUSE_ISA
}  // namespace onnxfuse

#endif  // ONNXFUSE_ISA_KERNELS_H_
