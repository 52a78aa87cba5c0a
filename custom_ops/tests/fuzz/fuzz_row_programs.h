// Programs over long rows, for the driver of what reduces: phases, each of what the one before made.
#ifndef ONNXFUSE_FUZZ_ROW_PROGRAMS_H_
#define ONNXFUSE_FUZZ_ROW_PROGRAMS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "program/shape.h"
#include "tests/fuzz/fuzz_random.h"
#include "tests/fuzz/fuzz_tensors.h"

namespace fuzz {

// Rows of 33 to some 4100 elements, which go through all phases in groups; read beside tensors of their shape are such as
// several rows have in common, and numbers of each row.  What a phase makes may be an output, and what a later one reads.
// Numbers stay near 1, or else what is wrong would be small beside them.
class RowProgram {
 public:
  // Of at most so many elements.
  explicit RowProgram(int64_t most) {
    const auto uneven = 33 + static_cast<int64_t>(below(size_t{16} << below(9)));
    run_ = below(3) == 0 ? one_of({48, 64, 128, 256, 768, 1024, 4096}) : uneven;
    const auto fits = static_cast<size_t>(most / run_);
    outer_ = one_of({1, 1, 2, 3, 5});
    rows_ = std::max<int64_t>(static_cast<int64_t>((1 + below(fits)) >> below(6)) / outer_, 1);
    text_ = below(4) == 0 ? "onnxfuse 2\ncontract\n" : "onnxfuse 2\n";
    add_tensor();
    for (size_t more = below(4); more > 0; --more) add_input();
    const int64_t first_made = count_;
    for (const char* bits : {"3f000000", "3a800000", "3f800000"}) constants_.push_back(add("const f32", {}, bits));
    made_ = elements_[0];
    for (size_t phase = 1 + below(4); phase > 0; --phase) {
      compute();
      reduce();
    }
    if (below(4) > 0) compute();
    add_output(made_);
    for (const int64_t id : elements_) {
      if (id >= first_made && below(6) == 0) add_output(id);
    }
    for (const Ids* of_rows : {&results_, &sums_}) {
      for (const int64_t id : *of_rows) {
        if (below(3) == 0) add_output(id);
      }
    }
  }

  const std::string& text() const { return text_; }
  const std::vector<Shape>& shapes() const { return shapes_; }

 private:
  using Ids = std::vector<int64_t>;

  int64_t add(const std::string& name, const Ids& operands, const std::string& rest = "") {
    text_ += name;
    for (const int64_t id : operands) text_ += " " + std::to_string(id);
    text_ += (rest.empty() ? "" : " " + rest) + "\n";
    return count_++;
  }

  void add_output(int64_t id) { text_ += "output " + std::to_string(id) + "\n"; }

  void add_input(const Shape& shape, const std::string& view = "broadcast") {
    shapes_.push_back(shape);
    elements_.push_back(add("input f32 " + view, {}));
  }

  // One with as many elements as there are.
  void add_tensor() {
    const std::string end = std::to_string(run_ + 3);
    switch (below(16)) {
      case 0: return add_input({3, {outer_, rows_, run_ + one_of({3, 4, 13})}}, "view slice:-1:3:" + end + ":1");
      case 1: return add_input({3, {outer_, rows_, 2 * run_}}, "view slice:-1:0:" + std::to_string(2 * run_) + ":2");
      default: return add_input({3, {outer_, rows_, run_}});
    }
  }

  void add_input() {
    switch (below(6)) {
      case 0: return add_input({1, {run_}});
      case 1: return add_input({3, {outer_, 1, run_}});
      case 2: return add_input({2, {rows_, run_}});
      case 3:
      case 4: return add_input({3, {one_of({1, outer_}), one_of({1, rows_, rows_}), 1}});
      default: return add_tensor();
    }
  }

  static int64_t any(const Ids& ids) { return ids[below(ids.size())]; }

  int64_t operand() const {
    if (!results_.empty() && below(3) == 0) return any(results_);
    return below(4) == 0 ? any(constants_) : any(elements_);
  }

  void make(const std::string& name, const Ids& operands) {
    made_ = add(name, operands);
    elements_.push_back(made_);
  }

  void compute() {
    static const char* const kBinary[] = {"add f32", "sub f32", "mul f32", "max f32", "min f32"};
    static const char* const kUnary[] = {"abs f32", "neg f32", "relu f32", "sigmoid f32", "tanh f32"};
    for (size_t steps = below(4); steps > 0; --steps) {
      if (below(3) == 0) {
        make(kUnary[below(5)], {made_});
      } else {
        make(kBinary[below(5)], {made_, operand()});
      }
    }
  }

  int64_t reduced(const std::string& name, int64_t id) {
    const int64_t result = add(name + " f32", {id}, "-1");
    (name == "reduce_sum" ? sums_ : results_).push_back(result);
    return result;
  }

  void reduce() {
    switch (below(6)) {
      case 0: return softmax();
      case 1:
      case 2: return normalize();
      default: return reduce_plainly();
    }
  }

  void softmax() {
    make("sub f32", {made_, reduced("reduce_max", made_)});
    make("exp f32", {made_});
    make("div f32", {made_, reduced("reduce_sum", made_)});
  }

  // By the root of the mean of squares, also where the mean is read beside it.
  void normalize() {
    const int64_t square = add("mul f32", {made_, made_});
    if (below(2) == 0) reduced("reduce_mean", made_);
    const int64_t mean = reduced("reduce_mean", square);
    if (below(3) == 0) elements_.push_back(square);
    results_.push_back(add("sqrt f32", {add("add f32", {mean, constants_[2]})}));
    make("div f32", {made_, results_.back()});
  }

  void reduce_plainly() {
    static const char* const kReductions[] = {"reduce_sum", "reduce_mean", "reduce_max", "reduce_min"};
    const size_t which = below(4);
    int64_t result = reduced(kReductions[which], below(3) == 0 ? add("abs f32", {made_}) : made_);
    if (which == 0) result = add("mul f32", {result, constants_[1]});
    if (below(3) == 0) result = add("tanh f32", {result});
    if (results_.empty() || results_.back() != result) results_.push_back(result);
    if (below(2) == 0) make(below(2) == 0 ? "sub f32" : "mul f32", {made_, result});
  }

  std::string text_;
  std::vector<Shape> shapes_;
  int64_t outer_ = 1;
  int64_t rows_ = 1;
  int64_t run_ = 1;
  int64_t count_ = 0;  // of values
  int64_t made_ = 0;   // the last that has as many elements as there are
  Ids elements_;       // such values, and inputs
  Ids results_;        // numbers of each row
  Ids sums_;           // likewise, too large to go on with
  Ids constants_;
};

}  // namespace fuzz

#endif  // ONNXFUSE_FUZZ_ROW_PROGRAMS_H_
