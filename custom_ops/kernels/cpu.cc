// The choice of the instruction set.
#include <cstdlib>
#include <cstring>

#include "kernels/kernels.h"
#include "platform/forks.h"
#include "platform/processor.h"

namespace onnxfuse {

#if defined(__x86_64__)
namespace baseline { extern const KernelTable kTable; }
namespace avx2 { extern const KernelTable kTable; }
namespace avx512 { extern const KernelTable kTable; }

namespace {

const KernelTable& choose() {
  const char* wish = std::getenv("ONNXFUSE_ISA");
  const auto allowed = [wish](const char* name) { return wish == nullptr || std::strcmp(wish, name) == 0; };
  const Features features = find_features();
  if (features.avx512 && allowed("avx512")) return avx512::kTable;
  if (features.avx2 && (allowed("avx2") || allowed("avx512"))) return avx2::kTable;
  return baseline::kTable;
}

}  // namespace
#elif defined(__aarch64__)
namespace neon { extern const KernelTable kTable; }

namespace {
const KernelTable& choose() { return neon::kTable; }
}  // namespace
#else
namespace baseline { extern const KernelTable kTable; }

namespace {
const KernelTable& choose() { return baseline::kTable; }
}  // namespace
#endif

const KernelTable& kernels() {
  static Once<const KernelTable*> table;
  return *table.get([] { return &choose(); });
}

}  // namespace onnxfuse
