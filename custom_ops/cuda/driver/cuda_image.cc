#include "cuda/driver/cuda_image.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace onnxfuse::cuda {
namespace {

// The ELF64 structures (System V ABI), little-endian.
struct Header {
  unsigned char identification[16];
  uint16_t type;
  uint16_t machine;
  uint32_t version;
  uint64_t entry;
  uint64_t segments_offset;
  uint64_t sections_offset;
  uint32_t flags;
  uint16_t header_size;
  uint16_t segment_size;
  uint16_t segment_count;
  uint16_t section_size;
  uint16_t section_count;
  uint16_t names_section;
};

struct Segment {
  uint32_t type;
  uint32_t flags;
  uint64_t offset;
  uint64_t virtual_address;
  uint64_t physical_address;
  uint64_t file_size;
  uint64_t memory_size;
  uint64_t alignment;
};

struct Section {
  uint32_t name;
  uint32_t type;
  uint64_t flags;
  uint64_t address;
  uint64_t offset;
  uint64_t size;
  uint32_t link;
  uint32_t info;
  uint64_t alignment;
  uint64_t entry_size;
};

constexpr uint16_t kMachineCuda = 190;
constexpr uint32_t kSectionNull = 0;
constexpr uint32_t kSectionNoBits = 8;
constexpr uint32_t kSectionLowProcessor = 0x70000000;  // from here on types are NVIDIA's, and may have no bytes

bool inside(std::string_view image, uint64_t offset, uint64_t size) {
  return offset <= image.size() && size <= image.size() - offset;
}

template <class T>
T read(std::string_view image, uint64_t offset) {
  T value;
  std::memcpy(&value, image.data() + offset, sizeof(T));
  return value;
}

constexpr const char* kCutShort = "it is cut short";

template <class T>
bool table_inside(std::string_view image, uint64_t offset, uint64_t count) {
  return inside(image, offset, count * sizeof(T));
}

const char* problem_of(std::string_view image) {
  if (!inside(image, 0, sizeof(Header))) return "it is shorter than an ELF header";
  const auto header = read<Header>(image, 0);
  if (std::memcmp(header.identification, "\x7f" "ELF\x02\x01", 6) != 0) return "it is not a 64-bit ELF file";
  if (header.machine != kMachineCuda) return "it is not for NVIDIA GPUs";
  if (header.section_count == 0 || header.section_size != sizeof(Section)) return "it has no sections";
  if (!table_inside<Section>(image, header.sections_offset, header.section_count)) return kCutShort;
  if (header.names_section >= header.section_count) return "its sections have no names";
  for (uint64_t i = 0; i < header.section_count; ++i) {
    const auto section = read<Section>(image, header.sections_offset + i * sizeof(Section));
    const bool in_file = section.type != kSectionNull && section.type != kSectionNoBits;
    if (!in_file || section.type >= kSectionLowProcessor) continue;
    if (!inside(image, section.offset, section.size)) return kCutShort;
  }
  if (header.segment_count == 0) return nullptr;
  if (header.segment_size != sizeof(Segment)) return "its program headers are of another size";
  if (!table_inside<Segment>(image, header.segments_offset, header.segment_count)) return kCutShort;
  for (uint64_t i = 0; i < header.segment_count; ++i) {
    const auto segment = read<Segment>(image, header.segments_offset + i * sizeof(Segment));
    if (!inside(image, segment.offset, segment.file_size)) return kCutShort;
  }
  return nullptr;
}

}  // namespace

bool is_whole_cubin(std::string_view image, std::string* error) {
  const char* problem = problem_of(image);
  if (problem != nullptr) *error = problem;
  return problem == nullptr;
}

bool is_whole_ptx(std::string_view image, std::string* error) {
  const bool text = std::all_of(image.begin(), image.end(), [](char c) {
    return (c >= ' ' && c <= '~') || c == '\t' || c == '\n' || c == '\r';
  });
  if (!text || image.find(".version ") == std::string_view::npos || image.find(".target ") == std::string_view::npos) {
    *error = "it is not PTX";
    return false;
  }
  return true;
}

}  // namespace onnxfuse::cuda
