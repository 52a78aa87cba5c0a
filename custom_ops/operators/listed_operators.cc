#include "operators/listed_operators.h"

#include <algorithm>
#include <map>

#include "operators/operator_names.h"
#include "platform/error.h"

namespace onnxfuse {
namespace {

// The numbers of fields in onnx.proto.
constexpr uint64_t kModelFunctions = 25;
constexpr uint64_t kFunctionName = 1;
constexpr uint64_t kFunctionDomain = 10;
constexpr uint64_t kFunctionMetadata = 14;
constexpr uint64_t kEntryKey = 1;
constexpr uint64_t kEntryValue = 2;

// The metadata of a function whose nodes have inputs and outputs of one type alone, which it names.
constexpr std::string_view kTypeKey = "onnxfuse.element_type";
constexpr std::string_view kFloat = "float";
// Behind operators of floats in a list.
constexpr std::string_view kOfFloats = "=float";
// Before the number of the last one of several.
constexpr std::string_view kTo = "..";

// The format of Protocol Buffers (protobuf.dev/programming-guides/encoding).
enum WireType { kVarint = 0, kFixed64 = 1, kLengthDelimited = 2, kFixed32 = 5 };
constexpr size_t kLongestVarint = 10;

[[noreturn]] void fail() { throw Error("these are no bytes of a message"); }

// Takes a number off the front of `bytes`.
uint64_t take_varint(std::string_view* bytes) {
  uint64_t value = 0;
  for (size_t i = 0; i < kLongestVarint && i < bytes->size(); ++i) {
    const auto byte = static_cast<uint8_t>((*bytes)[i]);
    value |= static_cast<uint64_t>(byte & 0x7F) << (7 * i);
    if (byte < 0x80) {
      bytes->remove_prefix(i + 1);
      return value;
    }
  }
  fail();
}

// Calls `visit` with the number of each field that holds bytes, where these begin, and how many they are.
template <class Visit>
void for_each_field(const ModelBytes& message, const Visit& visit) {
  std::string buffer;
  for (uint64_t at = 0; at < message.size();) {
    const std::string_view head = message.read(at, 2 * kLongestVarint, &buffer);
    std::string_view rest = head;
    const uint64_t key = take_varint(&rest);
    uint64_t length = 0;
    switch (key % 8) {
      case kVarint: take_varint(&rest); break;
      case kLengthDelimited: length = take_varint(&rest); break;
      case kFixed64: length = 8; break;
      case kFixed32: length = 4; break;
      default: fail();
    }
    at += head.size() - rest.size();
    if (length > message.size() - at) fail();
    if (key % 8 == kLengthDelimited) visit(key / 8, at, static_cast<size_t>(length));
    at += length;
  }
}

// Calls `visit` with the number of each field of a message in memory that holds bytes, and with these.
template <class Visit>
void for_each_field(std::string_view message, const Visit& visit) {
  for_each_field(ModelBytes(message.data(), message.size()), [&](uint64_t number, uint64_t begin, size_t length) {
    visit(number, message.substr(begin, length));
  });
}

// Whether this StringStringEntryProto says that a function is one of floats.
bool says_float(std::string_view entry) {
  std::string_view key, value;
  for_each_field(entry, [&](uint64_t number, std::string_view bytes) {
    if (number == kEntryKey) key = bytes;
    if (number == kEntryValue) value = bytes;
  });
  return key == kTypeKey && value == kFloat;
}

// Whether a name can be an operator's: no other is listed, so that a list means nothing else than the model has.
bool is_word(std::string_view name) {
  constexpr std::string_view letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";
  return !name.empty() && name.find_first_not_of(letters) == std::string_view::npos;
}

// Adds a range behind the others, or to the last of them if it goes on with that.
void append(const OperatorRange& range, std::vector<OperatorRange>* operators) {
  OperatorRange* const last = operators->empty() ? nullptr : &operators->back();
  const bool goes_on = last != nullptr && last->family == range.family && last->last == range.first - 1;
  if (goes_on && last->of_floats == range.of_floats) {
    last->last = range.last;
  } else {
    operators->push_back(range);
  }
}

}  // namespace

std::string_view ModelBytes::read(uint64_t at, size_t size, std::string* buffer) const {
  size = static_cast<size_t>(std::min<uint64_t>(size, size_ - at));
  if (!file_) return {data_ + at, size};
  buffer->resize(size);
  if (!file_->read(at, size, buffer->data())) fail();
  return *buffer;
}

std::vector<OperatorRange> list_operators(const ModelBytes& model, std::string_view domain) {
  if (model.size() == 0) fail();
  std::map<std::pair<std::string, int>, bool> found;
  std::string buffer;
  for_each_field(model, [&](uint64_t number, uint64_t at, size_t size) {
    if (number != kModelFunctions) return;
    std::string_view name, its_domain;
    bool of_floats = false;
    for_each_field(model.read(at, size, &buffer), [&](uint64_t field, std::string_view bytes) {
      if (field == kFunctionName) name = bytes;
      if (field == kFunctionDomain) its_domain = bytes;
      if (field == kFunctionMetadata) of_floats = of_floats || says_float(bytes);
    });
    if (its_domain != domain || !is_word(name)) return;
    const OperatorName split = split_name(name);
    // Functions may share a name, if their overloads tell them apart: the operator must take what all of them do.
    const auto [entry, is_new] = found.emplace(std::pair(std::string(split.family), split.number), of_floats);
    if (!is_new) entry->second = entry->second && of_floats;
  });
  std::vector<OperatorRange> operators;
  for (const auto& [name, of_floats] : found) append({name.first, name.second, name.second, of_floats}, &operators);
  return operators;
}

std::vector<OperatorRange> without_types(const std::vector<OperatorRange>& operators) {
  std::vector<OperatorRange> all;
  for (const OperatorRange& range : operators) append({range.family, range.first, range.last, false}, &all);
  return all;
}

std::string write_operators(const std::vector<OperatorRange>& operators) {
  std::string text;
  for (const OperatorRange& range : operators) {
    if (!text.empty()) text += ',';
    text += operator_name(range.family, range.first);
    if (range.last > range.first) text.append(kTo).append(std::to_string(range.last));
    if (range.of_floats) text += kOfFloats;
  }
  return text;
}

std::vector<OperatorRange> parse_operators(std::string_view text) {
  std::vector<OperatorRange> operators;
  while (!text.empty()) {
    const size_t end = std::min(text.find(','), text.size());
    std::string_view name = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const size_t type = name.size() - std::min(kOfFloats.size(), name.size());
    const bool of_floats = name.substr(type) == kOfFloats;
    if (of_floats) name = name.substr(0, type);
    const size_t to = std::min(name.find(kTo), name.size());
    std::string_view rest = name.substr(std::min(to + kTo.size(), name.size()));
    const OperatorName first = split_name(name.substr(0, to));
    operators.push_back({std::string(first.family), first.number, std::max(first.number, take_number(&rest)), of_floats});
  }
  return operators;
}

}  // namespace onnxfuse
