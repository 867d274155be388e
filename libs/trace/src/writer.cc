#include "kern/trace/writer.h"

#include <map>

#include "kern/base/file.h"

namespace kern::trace {
namespace {

std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return out + '"';
}

}  // namespace

std::string to_chrome_trace(std::string_view process, std::span<const Event> events) {
  std::map<std::string_view, int> lanes;
  for (const Event& e : events) lanes.emplace(e.lane, static_cast<int>(lanes.size()) + 1);
  std::string out = fmt::format(
      "{{\"traceEvents\":[\n"
      "{{\"ph\":\"M\",\"pid\":1,\"name\":\"process_name\",\"args\":{{\"name\":{}}}}}",
      quoted(process));
  for (const auto& [lane, number] : lanes)
    out += fmt::format(
        ",\n{{\"ph\":\"M\",\"pid\":1,\"tid\":{},\"name\":\"thread_name\","
        "\"args\":{{\"name\":{}}}}}",
        number, quoted(lane));
  for (const Event& e : events)
    out += fmt::format(
        ",\n{{\"ph\":\"X\",\"pid\":1,\"tid\":{},\"name\":{},\"ts\":{:.3f},\"dur\":{:.3f},"
        "\"args\":{{\"id\":{}}}}}",
        lanes[e.lane], quoted(e.name), static_cast<double>(e.start) / 1e3,
        static_cast<double>(e.end - e.start) / 1e3, e.id);
  return out + "\n]}\n";
}

Result<void> write_chrome_trace(const std::filesystem::path& path, std::string_view process,
                                std::span<const Event> events) {
  return write_file(path, as_bytes(to_chrome_trace(process, events)));
}

}  // namespace kern::trace
