// The names of a family of operators, which do the same: NAME, NAME_2, NAME_3, and so on.
#ifndef ONNXFUSE_OPERATOR_NAMES_H_
#define ONNXFUSE_OPERATOR_NAMES_H_

#include <string>
#include <string_view>

namespace onnxfuse {

struct OperatorName {
  std::string_view family;
  int number;  // from 1 on
};

// Any name is one: the first of a family, unless it ends with a later number.
OperatorName split_name(std::string_view name);

std::string operator_name(std::string_view family, int number);

// Takes the number of an operator off the front of `text`; 0 if there is none, or one of more than six digits.
int take_number(std::string_view* text);

}  // namespace onnxfuse

#endif  // ONNXFUSE_OPERATOR_NAMES_H_
