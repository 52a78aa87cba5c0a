// The links of chains of float32 and float64: what kernels of elements do one after the other.
#ifndef ONNXFUSE_CHAIN_LINKS_H_
#define ONNXFUSE_CHAIN_LINKS_H_

#include <cstddef>
#include <cstdint>

namespace onnxfuse {

// One link of a chain: a value kept in registers is combined with another operand.  `...S` takes one scalar, `...V` a
// vector; `R...` has the operands the other way round.
enum class Link : uint8_t {
  AddS, AddV, SubS, SubV, RSubS, RSubV, MulS, MulV, MulSelf, DivS, DivV, RDivS, RDivV,
  MinS, MinV, RMinS, RMinV, MaxS, MaxV, RMaxS, RMaxV, LeakyReluS, LeakyReluV,
  ClipSS,    // RMaxS, then RMinS with the second operand
  MulAddSS,  // MulS, then AddS with the second operand
  // A product with the first operand and a sum with the second, rounded once where KernelTable::fused_multiply_add.
  FmaSS, FmaSV, FmaVS, FmaVV,
  // With one scalar for each row of elements, the first of them at `operand`; the rows are whole vectors, and `operand2` has
  // 2^32 over how many, rounded up, as 64 bits.
  AddRow, SubRow, RSubRow, MulRow,
  DivPartsS,  // DivS, with the ReciprocalParts of the operand; f32 only, where KernelTable::fused_multiply_add
  Neg, Abs, Reciprocal, Relu, HardSwish, HardSigmoidSS,
  HardGateSS,  // the value times its HardSigmoidSS
  Sqrt, Round, Floor, Ceil,
  Exp, Log, Tanh, Erf, Sigmoid, Softplus, Mish, Gelu, GeluTanh,  // f32 only
  Silu,  // the value times its Sigmoid; f32 only
  Keep,  // store the value to `operand` and go on
  // Keep the value in a register, and combine the value with the one kept last; where KernelTable::second_value.
  Save, AddR, SubR, RSubR, MulR, DivR, RDivR,
};

// How many of `operand` and `operand2` a link reads.
constexpr int link_reads(Link link) {
  switch (link) {
    case Link::MulSelf: case Link::Neg: case Link::Abs: case Link::Reciprocal: case Link::Relu: case Link::HardSwish:
    case Link::Exp: case Link::Log: case Link::Tanh: case Link::Erf: case Link::Sigmoid: case Link::Softplus:
    case Link::Mish: case Link::Gelu: case Link::GeluTanh: case Link::Silu: case Link::Sqrt: case Link::Round: case Link::Floor:
    case Link::Ceil: case Link::Keep: case Link::Save: case Link::AddR: case Link::SubR: case Link::RSubR:
    case Link::MulR: case Link::DivR: case Link::RDivR:
      return 0;
    case Link::ClipSS: case Link::MulAddSS: case Link::DivPartsS: case Link::HardSigmoidSS: case Link::HardGateSS:
    case Link::FmaSS: case Link::FmaSV: case Link::FmaVS: case Link::FmaVV:
    case Link::AddRow: case Link::SubRow: case Link::RSubRow: case Link::MulRow:
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

}  // namespace onnxfuse

#endif  // ONNXFUSE_CHAIN_LINKS_H_
