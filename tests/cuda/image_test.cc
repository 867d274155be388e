// Carving device code out of files nobody trusts.
#include <elf.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <string>

#include "kern/base/prng.h"
#include "kern/cuda/module.h"
#include "kern_test/fake_driver.h"

using namespace kern;
using kern_test::FakeDriver;

namespace {

std::string fatbin(const std::string& payload) {
  std::string out(16, '\0');
  const uint32_t magic = 0xBA55ED50;
  const uint16_t version = 1, header = 16;
  const uint64_t bytes = payload.size();
  std::memcpy(out.data(), &magic, 4);
  std::memcpy(out.data() + 4, &version, 2);
  std::memcpy(out.data() + 6, &header, 2);
  std::memcpy(out.data() + 8, &bytes, 8);
  return out + payload;
}

/// An ELF library of this machine with one section of that name and content.
std::string library(const std::string& section_name, const std::string& content) {
  const std::string names = std::string(1, '\0') + section_name + '\0' + ".shstrtab" + '\0';
  Elf64_Ehdr header = {};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_ident[EI_DATA] = ELFDATA2LSB;
  header.e_machine = EM_X86_64;
  header.e_shentsize = sizeof(Elf64_Shdr);
  header.e_shnum = 3;
  header.e_shstrndx = 2;
  header.e_shoff = sizeof(header);
  Elf64_Shdr sections[3] = {};
  const uint64_t data_at = sizeof(header) + sizeof(sections);
  sections[1].sh_name = 1;
  sections[1].sh_type = SHT_PROGBITS;
  sections[1].sh_offset = data_at;
  sections[1].sh_size = content.size();
  sections[2].sh_name = static_cast<uint32_t>(section_name.size()) + 2;
  sections[2].sh_type = SHT_STRTAB;
  sections[2].sh_offset = data_at + content.size();
  sections[2].sh_size = names.size();
  std::string out(reinterpret_cast<const char*>(&header), sizeof(header));
  out.append(reinterpret_cast<const char*>(sections), sizeof(sections));
  return out + content + names;
}

std::vector<std::string> images(const std::string& file) {
  const auto found = cuda::device_images(as_bytes(file));
  std::vector<std::string> out;
  if (!found) return {found.error().text()};
  for (const ByteSpan image : *found) out.emplace_back(as_text(image));
  return out;
}

}  // namespace

TEST_CASE("a cubin and a fatbin are one image each", "[cuda][image]") {
  const std::string cubin = kern_test::fake_cubin(), fat = fatbin("some code");
  CHECK(images(cubin) == std::vector<std::string>{cubin});
  CHECK(images(fat) == std::vector<std::string>{fat});
}

TEST_CASE("of a host library every fatbin is carved out, padding left", "[cuda][image]") {
  const std::string a = fatbin("12345678"), b = fatbin("other 78");
  CHECK(images(library(".nv_fatbin", a + std::string(8, '\0') + b)) ==
        std::vector<std::string>{a, b});
}

TEST_CASE("sections in any order give images in the file's order, and may not share a byte",
          "[cuda][image]") {
  const std::string a = fatbin("12345678"), b = fatbin("other 78");
  std::string file = library(".nv_fatbin", a + b);
  Elf64_Shdr sections[2];  // the null section becomes one for b, before that for a
  std::memcpy(sections, file.data() + sizeof(Elf64_Ehdr), sizeof(sections));
  sections[0] = sections[1];
  sections[1].sh_size = a.size();
  sections[0].sh_offset += a.size();
  sections[0].sh_size = b.size();
  std::memcpy(file.data() + sizeof(Elf64_Ehdr), sections, sizeof(sections));
  CHECK(images(file) == std::vector<std::string>{a, b});
  sections[0] = sections[1];
  std::memcpy(file.data() + sizeof(Elf64_Ehdr), sections, sizeof(sections));
  CHECK(images(file) ==
        std::vector<std::string>{"two sections `.nv_fatbin` share the byte 256 of the file"});
}

TEST_CASE("a file without device code is refused with what it is", "[cuda][image]") {
  CHECK(images("") == std::vector<std::string>{"neither a cubin, a fatbin nor a host library: 0 "
                                               "bytes that begin with 0x00000000"});
  CHECK(images("plain text") ==
        std::vector<std::string>{"neither a cubin, a fatbin nor a host library: 10 bytes that "
                                 "begin with 0x69616c70"});
  CHECK(images(library(".text", "12345678")) ==
        std::vector<std::string>{"an ELF file of machine 62 without a section `.nv_fatbin`"});
  CHECK(images(library(".nv_fatbin", "not a fatbin, but long")) ==
        std::vector<std::string>{"no whole fatbin at byte 0 of 22"});
}

TEST_CASE("a file cut anywhere, or with any byte changed, reads nothing outside it",
          "[cuda][image]") {
  const std::string whole = library(".nv_fatbin", fatbin("12345678") + fatbin("abcdefgh"));
  for (size_t size = 0; size < whole.size(); ++size) {
    // A copy of its own, so that a sanitizer sees a read past its end.
    const std::vector<char> cut(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(size));
    const auto found = cuda::device_images(as_bytes({cut.data(), cut.size()}));
    CHECK(!found);
  }
  Prng prng(7);
  for (int i = 0; i < 20000; ++i) {
    std::string changed = whole;
    changed[prng.below(whole.size())] = static_cast<char>(prng.below(256));
    const auto found = cuda::device_images(as_bytes(changed));
    if (!found) continue;
    for (const ByteSpan image : *found) {
      CHECK(image.data() >= as_bytes(changed).data());
      CHECK(image.data() + image.size() <= as_bytes(changed).data() + changed.size());
    }
  }
}

TEST_CASE("bulk copies by multicast are told from the others by their encoding", "[cuda][image]") {
  struct Sample {
    const char* text;
    uint64_t low, high;
    bool is_multicast;
  };
  // As nvcc 13.0 encodes them for sm_90a, each with and without a cache hint where it has one.
  const Sample samples[] = {
      {"UTMALDG.1D", 0x00000004080075b4, 0x0001d80008000000, false},
      {"UTMALDG.1D hint", 0x000008040a0075b4, 0x0001d80008001000, false},
      {"UTMALDG.1D.MULTICAST", 0x00000004080073b4, 0x0001d80008000807, true},
      {"UTMALDG.2D", 0x00000004080075b4, 0x0001f40008008000, false},
      {"UTMALDG.2D.MULTICAST", 0x00000004080073b4, 0x0001f4000800880a, true},
      {"UTMALDG.2D.MULTICAST hint", 0x000008040a0073b4, 0x0001f4000800980c, true},
      {"UTMALDG.3D.IM2COL", 0x00000008060073b4, 0x0001f20008050004, false},
      {"UTMALDG.3D.IM2COL.MULTICAST", 0x00000008060073b4, 0x0001f20008050804, true},
      {"UTMALDG.5D", 0x00000008060075b4, 0x0001ee0008020000, false},
      {"UTMALDG.5D.MULTICAST", 0x00000008060073b4, 0x0001ee0008020804, true},
      {"UBLKCP.S.G", 0x00000004080073ba, 0x0001d80008000206, false},
      {"UBLKCP.S.G hint", 0x000008040a0073ba, 0x0001d80008001206, false},
      {"UBLKCP.G.S", 0x00000006040073ba, 0x0001e40008000405, false},
      {"UBLKCP.S.S", 0x00000004070073ba, 0x0001d80008000606, false},
      {"UBLKCP.S.G.MULTICAST", 0x00000004080073ba, 0x0001d80008000a06, true},
      {"UBLKCP.S.G.MULTICAST hint", 0x000008040a0073ba, 0x0001d80008001a06, true},
      {"UBLKRED.G.S.ADD", 0x00000006040073bb, 0x0001d800080a0405, false},
      {"UBLKPF.L2", 0x00000000060073bc, 0x0001e40008000004, false},
      {"STG.E", 0x0000000702007986, 0x000fe2000c101904, false},
  };
  for (const Sample& sample : samples) {
    INFO(sample.text);
    std::string code(16, '\0');
    std::memcpy(code.data(), &sample.low, 8);
    std::memcpy(code.data() + 8, &sample.high, 8);
    const auto expected = sample.is_multicast ? cuda::Multicast::found : cuda::Multicast::none;
    const std::string cubin = kern_test::fake_cubin(std::string(32, '\0') + code);
    CHECK(cuda::scan_multicast(as_bytes(cubin)) == expected);
  }
}

TEST_CASE("code that cannot be searched is unknown, not clean", "[cuda][image]") {
  std::string other = kern_test::fake_cubin();
  other[49] = 100;  // e_flags' second byte: sm_100
  CHECK(cuda::scan_multicast(as_bytes(other)) == cuda::Multicast::unknown);
  CHECK(cuda::scan_multicast(as_bytes(fatbin("compressed, or PTX"))) == cuda::Multicast::unknown);
  CHECK(cuda::scan_multicast({}) == cuda::Multicast::unknown);
}

TEST_CASE("images without code for the device are passed over while one has it", "[cuda][module]") {
  FakeDriver fake;
  fake.kernels["k"] = {{8}, [](const cuda::api::LaunchConfig&, void* const*) {}};
  const auto context = cuda::Context::open(fake.driver(), 0);
  const std::string file = library(".nv_fatbin", fatbin("12345678") + fatbin("abcdefgh"));
  fake.fail("cuModuleLoadData", cuda::api::kNoBinaryForGpu);
  const auto module = cuda::Module::load(*context, as_bytes(file));
  REQUIRE(module);
  CHECK(module->find("k"));
  fake.fail("cuModuleLoadData", cuda::api::kNoBinaryForGpu, 1);
  fake.fail("cuModuleLoadData", cuda::api::kNoBinaryForGpu, 2);
  const auto none = cuda::Module::load(*context, as_bytes(file));
  REQUIRE(!none);
  CHECK(none.error().kind == Kind::kernel_artifact);
  CHECK(none.error().message ==
        "none of 2 device images loads on device 0 (a device of this process, sm_90): "
        "cuModuleLoadData: as the test asked (CUDA_ERROR_FAKE, 209)");
}
