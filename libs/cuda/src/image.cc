#include <elf.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "kern/cuda/module.h"

namespace kern::cuda {
namespace {

constexpr uint16_t kMachineCuda = 190;
constexpr uint32_t kFatbinMagic = 0xBA55ED50;

/// What a fatbin begins with; the rest of it follows.
struct FatbinHeader {
  uint32_t magic;
  uint16_t version;
  uint16_t header_bytes;
  uint64_t bytes;
};
static_assert(sizeof(FatbinHeader) == 16);

template <class T>
std::optional<T> read_at(ByteSpan from, uint64_t at) {
  if (at > from.size() || from.size() - at < sizeof(T)) return std::nullopt;
  T value;
  std::memcpy(&value, from.data() + at, sizeof(T));
  return value;
}

bool is_elf(ByteSpan file) {
  return file.size() >= EI_NIDENT && std::memcmp(file.data(), ELFMAG, SELFMAG) == 0;
}

/// A section's bytes; those of a section without any are empty.
Result<ByteSpan> section_bytes(ByteSpan file, const Elf64_Shdr& section) {
  if (section.sh_type == SHT_NOBITS || section.sh_type == SHT_NULL) return ByteSpan();
  if (section.sh_offset > file.size() || file.size() - section.sh_offset < section.sh_size)
    return fail(Kind::kernel_artifact, "an ELF section of {} bytes at {} leaves the {} of the file",
                section.sh_size, section.sh_offset, file.size());
  return file.subspan(section.sh_offset, section.sh_size);
}

/// The sections of an ELF file, each within it.
Result<std::vector<Elf64_Shdr>> sections_of(ByteSpan file) {
  const auto header = read_at<Elf64_Ehdr>(file, 0);
  if (!header || header->e_ident[EI_CLASS] != ELFCLASS64 ||
      header->e_ident[EI_DATA] != ELFDATA2LSB || header->e_shentsize != sizeof(Elf64_Shdr))
    return fail(Kind::kernel_artifact, "not a whole little-endian 64-bit ELF file");
  std::vector<Elf64_Shdr> sections;
  for (uint64_t i = 0; i < header->e_shnum; ++i) {
    const auto section = read_at<Elf64_Shdr>(file, header->e_shoff + i * sizeof(Elf64_Shdr));
    if (header->e_shoff > file.size() || !section)
      return fail(Kind::kernel_artifact, "the ELF section table leaves the {} bytes of the file",
                  file.size());
    KERN_TRY_VOID(section_bytes(file, *section));
    sections.push_back(*section);
  }
  return sections;
}

/// The fatbins that lie end to end in a span; zeros may pad them.
Result<std::vector<ByteSpan>> fatbins_in(ByteSpan bytes) {
  std::vector<ByteSpan> images;
  for (uint64_t at = 0; bytes.size() - at >= sizeof(FatbinHeader);) {
    const FatbinHeader header = *read_at<FatbinHeader>(bytes, at);
    if (header.magic == 0) {
      at += 8;
      continue;
    }
    const uint64_t left = bytes.size() - at - sizeof(FatbinHeader);
    if (header.magic != kFatbinMagic || header.header_bytes < sizeof(FatbinHeader) ||
        header.bytes > left || header.header_bytes - sizeof(FatbinHeader) > left - header.bytes)
      return fail(Kind::kernel_artifact, "no whole fatbin at byte {} of {}", at, bytes.size());
    images.push_back(bytes.subspan(at, header.header_bytes + header.bytes));
    at += header.header_bytes + header.bytes;
  }
  return images;
}

Result<std::vector<ByteSpan>> images_of_library(ByteSpan file, const Elf64_Ehdr& header,
                                                const std::vector<Elf64_Shdr>& sections) {
  if (header.e_shstrndx >= sections.size())
    return fail(Kind::kernel_artifact, "an ELF file without section names");
  const ByteSpan names = *section_bytes(file, sections[header.e_shstrndx]);
  std::vector<ByteSpan> images;
  for (const Elf64_Shdr& section : sections) {
    if (section.sh_name >= names.size()) continue;
    const std::string_view name = as_text(names.subspan(section.sh_name));
    if (name.substr(0, name.find('\0')) != ".nv_fatbin") continue;
    KERN_TRY(found, fatbins_in(*section_bytes(file, section)));
    images.insert(images.end(), found.begin(), found.end());
  }
  if (images.empty())
    return fail(Kind::kernel_artifact, "an ELF file of machine {} without a section `.nv_fatbin`",
                header.e_machine);
  // A table of sections has no order, and nothing keeps two from the same bytes.
  std::sort(images.begin(), images.end(),
            [](ByteSpan a, ByteSpan b) { return a.data() < b.data(); });
  for (size_t i = 1; i < images.size(); ++i)
    if (images[i].data() < images[i - 1].data() + images[i - 1].size())
      return fail(Kind::kernel_artifact, "two sections `.nv_fatbin` share the byte {} of the file",
                  images[i].data() - file.data());
  return images;
}

// ---- multicast ----

/// One cubin or piece of PTX in a fatbin; its bytes follow the header.
struct FatbinEntry {
  uint16_t kind;
  uint16_t version;
  uint32_t header_bytes;
  uint64_t bytes;
};
static_assert(sizeof(FatbinEntry) == 16);

int sm_of(const Elf64_Ehdr& header) {
  constexpr unsigned char kNewAbi = 0x41;
  const uint32_t shift = header.e_ident[EI_OSABI] == kNewAbi ? 8 : 0;
  return static_cast<int>(header.e_flags >> shift & 0xFF);
}

bool has_multicast(ByteSpan code) {
  constexpr uint64_t kOpcode = 0x1FF, kTensorLoad = 0x1B4, kBulkCopy = 0x1BA, kMulticast = 0x800;
  for (uint64_t at = 0; at + 16 <= code.size(); at += 16) {
    const uint64_t low = *read_at<uint64_t>(code, at), high = *read_at<uint64_t>(code, at + 8);
    const uint64_t opcode = low & kOpcode;
    if ((opcode == kTensorLoad || opcode == kBulkCopy) && (high & kMulticast) != 0) return true;
  }
  return false;
}

Multicast scan_cubin(ByteSpan cubin) {
  const auto sections = sections_of(cubin);
  if (!sections) return Multicast::unknown;
  const Elf64_Ehdr header = *read_at<Elf64_Ehdr>(cubin, 0);
  if (header.e_machine != kMachineCuda || sm_of(header) != 90) return Multicast::unknown;
  for (const Elf64_Shdr& section : *sections)
    if ((section.sh_flags & SHF_EXECINSTR) != 0 && has_multicast(*section_bytes(cubin, section)))
      return Multicast::found;
  return Multicast::none;
}

Multicast scan_fatbin(ByteSpan image) {
  const auto header = read_at<FatbinHeader>(image, 0);
  if (!header || header->magic != kFatbinMagic) return Multicast::unknown;
  Multicast answer = Multicast::unknown;
  uint64_t at = header->header_bytes;
  while (const auto entry = read_at<FatbinEntry>(image, at)) {
    const uint64_t left = image.size() - at;
    if (entry->header_bytes < sizeof(FatbinEntry) || entry->header_bytes > left ||
        entry->bytes > left - entry->header_bytes)
      return Multicast::unknown;
    const ByteSpan payload = image.subspan(at + entry->header_bytes, entry->bytes);
    const Multicast one = is_elf(payload) ? scan_cubin(payload) : Multicast::unknown;
    if (one != Multicast::none) return one;
    answer = one;
    at += entry->header_bytes + entry->bytes;
  }
  return answer;
}

}  // namespace

Multicast scan_multicast(ByteSpan image) {
  return is_elf(image) ? scan_cubin(image) : scan_fatbin(image);
}

Result<std::vector<ByteSpan>> device_images(ByteSpan file) {
  if (is_elf(file)) {
    KERN_TRY(sections, sections_of(file));
    const Elf64_Ehdr header = *read_at<Elf64_Ehdr>(file, 0);
    if (header.e_machine == kMachineCuda) return std::vector<ByteSpan>{file};
    return images_of_library(file, header, sections);
  }
  if (const auto magic = read_at<uint32_t>(file, 0); magic && *magic == kFatbinMagic) {
    KERN_TRY(images, fatbins_in(file));
    if (!images.empty()) return images;
  }
  return fail(Kind::kernel_artifact,
              "neither a cubin, a fatbin nor a host library: {} bytes that begin with {:#010x}",
              file.size(), read_at<uint32_t>(file, 0).value_or(0));
}

}  // namespace kern::cuda
