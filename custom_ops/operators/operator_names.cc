#include "operators/operator_names.h"

namespace onnxfuse {
namespace {

constexpr size_t kMostDigits = 6;

}  // namespace

int take_number(std::string_view* text) {
  size_t digits = 0;
  int number = 0;
  for (; digits < text->size() && (*text)[digits] >= '0' && (*text)[digits] <= '9'; ++digits) {
    if (digits == kMostDigits || (*text)[0] == '0') return 0;
    number = 10 * number + ((*text)[digits] - '0');
  }
  text->remove_prefix(digits);
  return number;
}

OperatorName split_name(std::string_view name) {
  const size_t end = name.rfind('_');
  if (end == std::string_view::npos) return {name, 1};
  std::string_view rest = name.substr(end + 1);
  const int number = take_number(&rest);
  return number > 1 && rest.empty() ? OperatorName{name.substr(0, end), number} : OperatorName{name, 1};
}

std::string operator_name(std::string_view family, int number) {
  return number == 1 ? std::string(family) : std::string(family) + '_' + std::to_string(number);
}

}  // namespace onnxfuse
