// Array kernels, compiled once for each instruction set from kernels.inc, and the run-time choice between them.
#ifndef ONNXFUSE_KERNELS_H_
#define ONNXFUSE_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "dtype.h"

namespace onnxfuse {

// Computes `n` elements.  An operand is a vector of `n` elements or one scalar, as the kernel was chosen; `out` may be
// exactly an operand of the same element size, and overlaps nothing otherwise.
using Kernel = void (*)(void* out, const void* const* in, size_t n);

// One link of a chain: a value kept in registers is combined with another operand.  `...S` takes one scalar, `...V` a
// vector; `R...` has the operands the other way round.
enum class Link : uint8_t {
  AddS, AddV, SubS, SubV, RSubS, RSubV, MulS, MulV, MulSelf, DivS, DivV, RDivS, RDivV,
  MinS, MinV, RMinS, RMinV, MaxS, MaxV, RMaxS, RMaxV, LeakyReluS, LeakyReluV,
  ClipSS,    // MaxS, then MinS with the second operand
  MulAddSS,  // MulS, then AddS with the second operand
  Neg, Abs, Reciprocal, Relu, HardSwish, HardSigmoidSS,
  Sqrt, Round, Floor, Ceil,
  Exp, Log, Tanh, Erf, Sigmoid, Softplus, Mish, Gelu, GeluTanh,  // f32 only
  Keep,  // store the value to `operand` and go on
  // Keep the value in a register, and combine the value with the one kept last; where KernelTable::second_value.
  Save, AddR, SubR, RSubR, MulR, DivR, RDivR,
};

// How many of `operand` and `operand2` a link reads.
constexpr int link_reads(Link link) {
  switch (link) {
    case Link::MulSelf: case Link::Neg: case Link::Abs: case Link::Reciprocal: case Link::Relu: case Link::HardSwish:
    case Link::Exp: case Link::Log: case Link::Tanh: case Link::Erf: case Link::Sigmoid: case Link::Softplus:
    case Link::Mish: case Link::Gelu: case Link::GeluTanh: case Link::Sqrt: case Link::Round: case Link::Floor:
    case Link::Ceil: case Link::Keep: case Link::Save: case Link::AddR: case Link::SubR: case Link::RSubR:
    case Link::MulR: case Link::DivR: case Link::RDivR:
      return 0;
    case Link::ClipSS: case Link::MulAddSS: case Link::HardSigmoidSS:
      return 2;
    default:
      return 1;
  }
}

struct ChainLink {
  Link link;
  void* operand;
  const void* operand2;
};

constexpr size_t kMaxChainLinks = 64;

// Runs a chain over `n` elements: out = ...(link 1(link 0(in))).  `stream` asks for stores that bypass the
// caches; then `out` and the operands to keep must not be memory that the chain reads.
using ChainKernel = void (*)(void* out, const void* in, const ChainLink* links, size_t count, size_t n, bool stream);

struct KernelTable {
  const char* name;  // "baseline", "avx2", "avx512", "neon"
  // An operator's kernel for a compute type, with bit i of `scalars` set if operand i is one; null where there is none.
  Kernel (*find_op)(Op op, DType type, unsigned scalars);
  Kernel (*find_cast)(DType from, DType to);  // from a compute type to any type; the result is in its compute type
  Kernel loads[kDTypeCount];               // storage -> compute; null where they are the same
  Kernel stores[kDTypeCount];              // compute -> storage; null where they are the same
  ChainKernel chains[kDTypeCount];         // f32 and f64
  bool second_value;                       // chains have registers for Save
  void (*stream)(void* out, const void* in, size_t bytes);  // a copy that bypasses the caches
};

// The table for this machine, chosen once.  The environment variable ONNXFUSE_ISA (baseline, avx2, avx512) asks for
// a smaller instruction set than the machine has.
const KernelTable& kernels();

}  // namespace onnxfuse

#endif  // ONNXFUSE_KERNELS_H_
