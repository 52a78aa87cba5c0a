// What the fuzz drivers without an engine share: runs, random numbers, expectations, and edits that spoil a text.
#ifndef ONNXFUSE_FUZZ_RANDOM_H_
#define ONNXFUSE_FUZZ_RANDOM_H_

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <string_view>

namespace fuzz {

inline std::mt19937_64 g_random;

inline size_t below(size_t n) { return g_random() % n; }

inline void expect(bool good, const char* what) {
  if (good) return;
  std::fprintf(stderr, "unexpected: %s\n", what);
  std::abort();
}

// What is refused has to say why.
inline void expect_reason(const std::string& error) { expect(!error.empty(), "refused for no reason"); }

// Up to four edits, with characters of `alphabet` inserted.
inline void spoil(std::string* text, std::string_view alphabet) {
  for (size_t edits = 1 + below(4); edits > 0 && !text->empty(); --edits) {
    const size_t at = below(text->size());
    switch (below(3)) {
      case 0: (*text)[at] = static_cast<char>(g_random()); break;
      case 1: text->erase(at, 1 + below(3)); break;
      default: text->insert(at, 1, alphabet[below(alphabet.size())]); break;
    }
  }
}

// The main function of a driver, of the arguments [runs] [seed].
inline int run(int argc, char** argv, void (*check)()) {
  const long runs = argc > 1 ? std::atol(argv[1]) : 20000;
  g_random.seed(argc > 2 ? static_cast<unsigned long>(std::atol(argv[2])) : 1u);
  for (long i = 0; i < runs; ++i) check();
  std::printf("%ld runs\n", runs);
  return 0;
}

}  // namespace fuzz

#endif  // ONNXFUSE_FUZZ_RANDOM_H_
