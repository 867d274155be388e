#include "npy.h"

#include <charconv>
#include <cstring>

#include "kern/base/checked.h"
#include "kern/base/file.h"

namespace kern::app {
namespace {

using manifest::Dtype;

constexpr size_t kArrayBytesMax = size_t{1} << 36;
constexpr std::string_view kMagic("\x93NUMPY\x01\x00", 8);
constexpr size_t kPreamble = 10;  // magic, version, header length

float widen(uint16_t bits) {
  const uint32_t wide = uint32_t{bits} << 16;
  float value;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

uint16_t narrow(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

/// The text after `'key':` in the header, up to `end`.
std::string_view field(std::string_view header, std::string_view key, char begin, char end) {
  const size_t at = header.find(key);
  if (at == std::string_view::npos) return {};
  const size_t from = header.find(begin, at + key.size());
  const size_t to = from == std::string_view::npos ? from : header.find(end, from + 1);
  return to == std::string_view::npos ? std::string_view() : header.substr(from + 1, to - from - 1);
}

Result<std::vector<int64_t>> parse_shape(std::string_view text, const std::string& path) {
  std::vector<int64_t> shape;
  while (!text.empty()) {
    const size_t digit = text.find_first_of("0123456789");
    if (digit == std::string_view::npos) break;
    int64_t value = 0;
    const auto [end, error] =
        std::from_chars(text.data() + digit, text.data() + text.size(), value);
    if (error != std::errc()) return fail(Kind::caller, "`{}`: its shape does not read", path);
    shape.push_back(value);
    text.remove_prefix(static_cast<size_t>(end - text.data()));
  }
  return shape;
}

/// Element by element through a conversion.
template <class From, class To, class Convert>
std::vector<std::byte> converted(const std::vector<std::byte>& from, Convert convert) {
  const size_t count = from.size() / sizeof(From);
  std::vector<std::byte> out(count * sizeof(To));
  for (size_t i = 0; i < count; ++i) {
    From value;
    std::memcpy(&value, from.data() + i * sizeof(From), sizeof(From));
    const To to = convert(value);
    std::memcpy(out.data() + i * sizeof(To), &to, sizeof(To));
  }
  return out;
}

}  // namespace

int64_t npy_element_bytes(std::string_view descr) {
  if (descr.size() != 3 || descr[2] < '1' || descr[2] > '8') return 0;
  if (descr[0] != '<' && descr[0] != '|') return 0;
  return descr[2] - '0';
}

Result<Array> read_npy(const std::filesystem::path& path) {
  KERN_TRY(text, read_file(path, kArrayBytesMax));
  const std::string name = path.string();
  if (text.size() < kPreamble || std::string_view(text).substr(0, kMagic.size()) != kMagic)
    return fail(Kind::caller, "`{}` is not a .npy file of version 1", name);
  uint16_t length = 0;
  std::memcpy(&length, text.data() + kMagic.size(), sizeof(length));
  if (text.size() - kPreamble < length)
    return fail(Kind::caller, "`{}` ends inside its header", name);
  const std::string_view header = std::string_view(text).substr(kPreamble, length);
  Array out;
  out.descr = field(header, "'descr':", '\'', '\'');
  if (header.find("'fortran_order': False") == std::string_view::npos)
    return fail(Kind::caller, "`{}`: expected an array in C order", name);
  KERN_TRY(shape, parse_shape(field(header, "'shape':", '(', ')'), name));
  out.shape = std::move(shape);
  std::optional<int64_t> bytes = npy_element_bytes(out.descr);
  if (*bytes == 0) return fail(Kind::caller, "`{}`: elements of `{}`", name, out.descr);
  for (const int64_t extent : out.shape)
    if (bytes) bytes = checked_mul(*bytes, extent);
  const std::string_view data = std::string_view(text).substr(kPreamble + length);
  if (!bytes || static_cast<size_t>(*bytes) != data.size())
    return fail(Kind::caller, "`{}` holds {} bytes, its shape [{}] of {} does not", name,
                data.size(), fmt::join(out.shape, ", "), out.descr);
  const ByteSpan raw = as_bytes(data);
  out.bytes.assign(raw.begin(), raw.end());
  return out;
}

Result<void> write_npy(const std::filesystem::path& path, const Array& array) {
  std::string header =
      fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}{}), }}", array.descr,
                  fmt::join(array.shape, ", "), array.shape.size() == 1 ? "," : "");
  header.resize(round_up(kPreamble + header.size() + 1, size_t{64}) - kPreamble - 1, ' ');
  header += '\n';
  std::string out(kMagic);
  const auto length = static_cast<uint16_t>(header.size());
  out.append(reinterpret_cast<const char*>(&length), sizeof(length));
  out += header;
  out += as_text(array.bytes);
  return write_file(path, as_bytes(out));
}

std::string npy_descr(Dtype dtype) {
  switch (dtype) {
    case Dtype::bf16:
    case Dtype::f32:
      return "<f4";
    case Dtype::f16:
      return "<f2";
    case Dtype::i32:
      return "<i4";
    case Dtype::u32:
      return "<u4";
    case Dtype::i64:
      return "<i8";
    case Dtype::u64:
      return "<u8";
    case Dtype::i8:
      return "|i1";
    case Dtype::fp8e4m3:
    case Dtype::fp8e8m0:
    case Dtype::u8:
      break;
  }
  return "|u1";
}

void append_as_npy(Dtype dtype, ByteSpan from, std::vector<std::byte>& to) {
  if (dtype != Dtype::bf16) {
    to.insert(to.end(), from.begin(), from.end());
    return;
  }
  const std::vector<std::byte> wide =
      converted<uint16_t, float>({from.begin(), from.end()}, [](uint16_t v) { return widen(v); });
  to.insert(to.end(), wide.begin(), wide.end());
}

Result<std::vector<std::byte>> as_buffer(const Array& array, Dtype dtype) {
  const std::string& have = array.descr;
  if (dtype == Dtype::bf16) {
    if (have == "<u2") return array.bytes;
    if (have == "<f4")
      return converted<float, uint16_t>(array.bytes, [](float v) { return narrow(v); });
    if (have == "<f8")
      return converted<double, uint16_t>(array.bytes,
                                         [](double v) { return narrow(static_cast<float>(v)); });
  } else if (have == npy_descr(dtype)) {
    return array.bytes;
  } else if (dtype == Dtype::f32 && have == "<f8") {
    return converted<double, float>(array.bytes, [](double v) { return static_cast<float>(v); });
  } else if (dtype == Dtype::i32 && have == "<i8") {
    return converted<int64_t, int32_t>(array.bytes,
                                       [](int64_t v) { return static_cast<int32_t>(v); });
  }
  return fail(Kind::caller, "elements of {} do not become {}", have, manifest::to_string(dtype));
}

}  // namespace kern::app
