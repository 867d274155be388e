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
