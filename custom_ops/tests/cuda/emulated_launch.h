// What a function that takes the place of a kernel gets from the stand-in driver.
#ifndef ONNXFUSE_TESTS_EMULATED_LAUNCH_H_
#define ONNXFUSE_TESTS_EMULATED_LAUNCH_H_

#include <cstddef>

extern "C" struct EmulatedLaunch {
  const unsigned char* parameters;
  size_t bytes;
  unsigned grid;
  unsigned block;
};

#endif  // ONNXFUSE_TESTS_EMULATED_LAUNCH_H_
