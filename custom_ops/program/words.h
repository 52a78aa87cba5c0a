// Reading of the line-based texts that nodes carry: words between single spaces, and numbers.
#ifndef ONNXFUSE_WORDS_H_
#define ONNXFUSE_WORDS_H_

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <system_error>

namespace onnxfuse {

// Splits a line at single spaces; anything else (two spaces, a tab, a trailing space) makes an empty or unknown word.
// Returns the number of words, or capacity + 1 if there are more than `capacity`.
inline size_t split(std::string_view line, std::string_view* words, size_t capacity) {
  size_t count = 0;
  while (true) {
    const size_t space = line.find(' ');
    if (count == capacity) return capacity + 1;
    words[count++] = line.substr(0, space);
    if (space == std::string_view::npos) return count;
    line.remove_prefix(space + 1);
  }
}

// A decimal without sign or leading zeros, at most `limit`.
inline bool parse_number(std::string_view word, uint32_t limit, uint32_t* out) {
  if (word.empty() || word.size() > 6 || (word.size() > 1 && word[0] == '0')) return false;
  uint32_t number = 0;
  for (const char c : word) {
    if (c < '0' || c > '9') return false;
    number = number * 10 + static_cast<uint32_t>(c - '0');
  }
  *out = number;
  return number <= limit;
}

// Takes a decimal without leading zeros off the front of `word`, and the character `end` behind it unless that is 0.
template <class Integer>
bool take_integer(std::string_view* word, char end, Integer* out) {
  const char* const last = word->data() + word->size();
  const auto [stop, problem] = std::from_chars(word->data(), last, *out);
  const std::string_view digits(word->data(), static_cast<size_t>(stop - word->data()));
  if (problem != std::errc() || digits != std::to_string(*out)) return false;
  if (end != 0 && (stop == last || *stop != end)) return false;
  word->remove_prefix(digits.size() + (end != 0 ? 1 : 0));
  return true;
}

}  // namespace onnxfuse

#endif  // ONNXFUSE_WORDS_H_
