// A launch's parameters as a kernel reads them, written a second time from cuda_parameters.h and cuda_access.h.
#ifndef ONNXFUSE_TESTS_CONTRACT_DECODER_H_
#define ONNXFUSE_TESTS_CONTRACT_DECODER_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace contract {

struct Reader {
  const unsigned char* next;

  uint64_t take(size_t bytes) {
    uint64_t value = 0;
    std::memcpy(&value, next, bytes);
    next += bytes;
    return value;
  }
};

// Division as a kernel does it, for both kinds of index.
struct Divider {
  uint64_t divisor = 1;
  uint64_t multiplier = 0;
  uint64_t shift = 0;
  bool wide = true;

  Divider() = default;
  Divider(Reader* reader, bool is_wide) : wide(is_wide) {
    divisor = reader->take(wide ? 8 : 4);
    if (wide) return;
    multiplier = reader->take(4);
    shift = reader->take(4);
  }
  uint64_t divide(uint64_t x) const {
    if (wide) return x / divisor;
    const auto high = static_cast<uint32_t>(x * multiplier >> 32);
    return static_cast<uint32_t>(high + static_cast<uint32_t>(x)) >> shift;
  }
  uint64_t modulo(uint64_t x) const { return x - divide(x) * divisor; }
};

class Decoder {
 public:
  // `access`: a letter for each input, then for each output.
  Decoder(const std::string& access, bool wide, const unsigned char* parameters, size_t bytes) : access_(access) {
    Reader reader{parameters};
    operands_.resize(access.size());
    for (Operand& operand : operands_) operand.address = reader.take(8);
    count_ = reader.take(wide ? 8 : 4);
    transposes_ = access.find('t') != std::string::npos;
    if (transposes_) {
      columns_ = Divider(&reader, wide);
      rows_ = Divider(&reader, wide);
    }
    for (size_t k = 0; k < access.size() && !transposes_; ++k) {
      if (access[k] == 'o' || access[k] == 'c') operands_[k].inner = Divider(&reader, wide);
      if (access[k] == 'i' || access[k] == 'c') operands_[k].extent = Divider(&reader, wide);
      if (access[k] == 'p') {
        operands_[k].inner = Divider(&reader, wide);
        operands_[k].gap = reader.take(wide ? 8 : 4);
      }
    }
    if (access.find_first_of("gwt") != std::string::npos) read_strides(&reader, wide);
    complete_ = reader.next == parameters + bytes;
  }

  uint64_t count() const { return count_; }
  uint64_t address(size_t k) const { return operands_[k].address; }

  // Whether the parameters were read to their end.
  bool complete() const { return complete_; }

  // Whether the kernel turns tiles; how many there are along columns, and along rows.  The space is counted by columns, then
  // by rows, then.
  bool transposes() const { return transposes_; }
  uint64_t column_tiles() const { return columns_.divisor; }
  uint64_t row_tiles() const { return rows_.divisor; }
  uint64_t dim(size_t d) const { return dims_[d].divisor; }

  // How far neighbours of a column are apart in operand k, which a kernel that turns tiles does not ask of a transposed one.
  int64_t row_step(size_t k) const { return operands_[k].steps[1]; }

  // Elements of the space from one of a vector of operand k to the next, and whether one may begin at element i.
  uint64_t step(size_t k) const { return access_[k] == 't' ? dims_[0].divisor : 1; }
  bool begins(size_t k, uint64_t i, uint64_t vector) const {
    return (access_[k] == 't' ? dims_[1].modulo(dims_[0].divide(i)) : i) % vector == 0;
  }

  // The element of operand k, counted from its first, that belongs to element i of the space.
  int64_t index(size_t k, uint64_t i) const {
    const Operand& operand = operands_[k];
    switch (transposes_ && access_[k] == 'l' ? 'g' : access_[k]) {
      case 's':
        return 0;
      case 'l':
        return static_cast<int64_t>(i);
      case 'i':
        return static_cast<int64_t>(operand.extent.modulo(i));
      case 'o':
        return static_cast<int64_t>(operand.inner.divide(i));
      case 'c':
        return static_cast<int64_t>(operand.extent.modulo(operand.inner.divide(i)));
      case 'p':
        return static_cast<int64_t>(i + operand.inner.divide(i) * operand.gap);
      default: {
        int64_t index = 0;
        for (size_t d = 0; d < dims_.size(); ++d) {
          index += static_cast<int64_t>(dims_[d].modulo(i)) * operand.steps[d];
          i = dims_[d].divide(i);
        }
        return index;
      }
    }
  }

  // Whether element i writes output k: where the output does not step, only coordinate 0 does.
  bool writes(size_t k, uint64_t i) const {
    bool writes = true;
    for (size_t d = 0; access_[k] == 'w' && d < dims_.size(); ++d) {
      writes = writes && (operands_[k].steps[d] != 0 || dims_[d].modulo(i) == 0);
      i = dims_[d].divide(i);
    }
    return writes;
  }

  // Whether a vector of operand k is consecutive elements, not one for all.
  bool contiguous(size_t k) const {
    const bool steps = access_[k] == 'g' && !dims_.empty() && operands_[k].steps[0] != 0;
    return std::strchr("lipt", access_[k]) != nullptr || steps;
  }

 private:
  struct Operand {
    uint64_t address = 0;
    Divider inner;
    Divider extent;
    uint64_t gap = 0;  // elements of the tensor between two runs
    std::vector<int64_t> steps;
  };

  void read_strides(Reader* reader, bool wide) {
    const uint64_t rank = reader->take(4);
    reader->take(wide ? 4 : 0);
    for (size_t d = 0; d < 16; ++d) {
      const Divider dim(reader, wide);
      if (d < rank) dims_.push_back(dim);
    }
    for (size_t k = 0; k < access_.size(); ++k) {
      if (transposes_ ? access_[k] == 's' : access_[k] != 'g' && access_[k] != 'w') continue;
      for (size_t d = 0; d < 16; ++d) {
        const uint64_t step = reader->take(wide ? 8 : 4);
        operands_[k].steps.push_back(wide ? static_cast<int64_t>(step) : static_cast<int32_t>(step));
      }
    }
  }

  const std::string access_;
  uint64_t count_ = 0;
  std::vector<Operand> operands_;
  std::vector<Divider> dims_;  // from inner to outer
  bool transposes_ = false;
  Divider columns_;
  Divider rows_;
  bool complete_ = false;
};

}  // namespace contract

#endif  // ONNXFUSE_TESTS_CONTRACT_DECODER_H_
