// Element types and the table of operators, as generated from onnxfuse/program/ops.py.
#ifndef ONNXFUSE_DTYPE_H_
#define ONNXFUSE_DTYPE_H_

#include <cstddef>
#include <cstdint>

namespace onnxfuse {

enum class DType : uint8_t { f16, bf16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64, boolean };

constexpr int kDTypeCount = 13;

// Textual name, ONNX enum, element size and compute type of each DType.
struct DTypeInfo {
  const char* name;
  int onnx;
  uint8_t size;
  DType compute;
};

inline constexpr DTypeInfo kDTypes[kDTypeCount] = {
    {"f16", 10, 2, DType::f32}, {"bf16", 16, 2, DType::f32}, {"f32", 1, 4, DType::f32},  {"f64", 11, 8, DType::f64},
    {"i8", 3, 1, DType::i8},    {"i16", 5, 2, DType::i16},   {"i32", 6, 4, DType::i32},  {"i64", 7, 8, DType::i64},
    {"u8", 2, 1, DType::u8},    {"u16", 4, 2, DType::u16},   {"u32", 12, 4, DType::u32}, {"u64", 13, 8, DType::u64},
    {"bool", 9, 1, DType::boolean},
};

constexpr const DTypeInfo& info(DType type) { return kDTypes[static_cast<int>(type)]; }
constexpr DType compute_type(DType type) { return info(type).compute; }
constexpr size_t storage_size(DType type) { return info(type).size; }
constexpr size_t compute_size(DType type) { return info(compute_type(type)).size; }

enum class Rule : uint8_t { Same, Compare, Select, Cast };

enum class Op : uint8_t {
#define ONNXFUSE_OP(functor, ...) functor,
#include "program/opcodes.inc"
#undef ONNXFUSE_OP
};

enum class Cost : uint8_t {
#define ONNXFUSE_COST(name, ...) name,
#include "program/opcodes.inc"
#undef ONNXFUSE_COST
};

struct OpInfo {
  const char* name;
  uint8_t arity;
  Rule rule;
  uint16_t types;  // bit (1 << DType) for each type that has a kernel
  Cost cost;
  uint16_t chained;  // the same for each type whose chains have the operator
  bool divides;      // whether the second operand is a divisor, which as an integer must not be 0
};

inline constexpr OpInfo kOps[] = {
#define ONNXFUSE_OP(functor, name, arity, rule, mask, cost, chained, divides) \
  {name, arity, Rule::rule, mask, Cost::cost, chained, divides},
#include "program/opcodes.inc"
#undef ONNXFUSE_OP
};

constexpr int kOpCount = sizeof(kOps) / sizeof(kOps[0]);

enum class Reduce : uint8_t {
#define ONNXFUSE_REDUCTION(functor, ...) functor,
#include "program/opcodes.inc"
#undef ONNXFUSE_REDUCTION
};

// What becomes of an element before it is reduced: itself, its absolute value, or its square.
enum class Mapped : uint8_t { Plain, Absolute, Square };

// What a reduction gives of no elements.
enum class Identity : uint8_t { Zero, One, Lowest, Highest };

struct ReduceInfo {
  const char* name;
  uint16_t types;  // as of OpInfo
  Op combine;      // joins two partial results
  Identity identity;
};

inline constexpr ReduceInfo kReductions[] = {
#define ONNXFUSE_REDUCTION(functor, name, mask, combine, identity) {name, mask, Op::combine, Identity::identity},
#include "program/opcodes.inc"
#undef ONNXFUSE_REDUCTION
};

constexpr int kReductionCount = sizeof(kReductions) / sizeof(kReductions[0]);

constexpr const ReduceInfo& info(Reduce reduce) { return kReductions[static_cast<int>(reduce)]; }
constexpr bool has_kernel(Reduce reduce, DType type) {
  return (info(reduce).types >> static_cast<int>(compute_type(type))) & 1;
}

constexpr const OpInfo& info(Op op) { return kOps[static_cast<int>(op)]; }
constexpr bool has_kernel(Op op, DType type) {
  return (info(op).types >> static_cast<int>(compute_type(type))) & 1;
}
constexpr bool is_chained(Op op, DType type) {
  return (info(op).chained >> static_cast<int>(compute_type(type))) & 1;
}

// Whether chains have an operator with the value that is handed on as its first operand alone.
constexpr bool is_chained_first_only(Op op) { return op == Op::HardSigmoid || op == Op::LeakyRelu; }

}  // namespace onnxfuse

#endif  // ONNXFUSE_DTYPE_H_
