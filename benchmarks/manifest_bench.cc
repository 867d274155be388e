// What reading and verifying manifests costs on one core: manifest-bench [--once] FILE…
// Every file is mapped, parsed, verified and let go, one after another. One line a phase over all
// files: milliseconds of this thread's own time, the least of the repetitions, for the machine may
// be shared; and MB/s. `touch` is the floor, a read of every byte; `stage 1` is the parser's own
// pass over the text, which `parse` contains. The last lines are memory: the most that was resident
// above the start, mapped text included, over the bytes of the files. `--once`: one repetition.

#include <malloc.h>
#include <simdjson.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "kern/base/file.h"
#include "kern/manifest/verify.h"

namespace {

using namespace kern;

constexpr int kRepetitions = 15;
constexpr size_t kDepthMax = 1024;

double thread_ms() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) / 1e6;
}

[[noreturn]] void give_up(const std::string& why) {
  std::fprintf(stderr, "manifest-bench: %s\n", why.c_str());
  std::exit(1);
}

MappedFile map(const std::string& path) {
  auto file = MappedFile::open(path);
  if (!file) give_up(file.error().text());
#ifdef MADV_POPULATE_READ
  ::madvise(const_cast<std::byte*>(file->bytes().data()), file->bytes().size(), MADV_POPULATE_READ);
#endif
  return std::move(*file);
}

std::string_view text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

manifest::Manifest parsed(const std::string& path, const MappedFile& file) {
  auto manifest = manifest::parse(text_of(file));
  if (!manifest) give_up(manifest::to_error(manifest.error(), path).text());
  return std::move(*manifest);
}

manifest::Verified verified(const std::string& path, manifest::Manifest manifest) {
  auto verified = manifest::verify(std::move(manifest));
  if (!verified) give_up(manifest::to_error(verified.error(), path).text());
  return std::move(*verified);
}

struct Phases {
  double touch = 0, stage1 = 0, map = 0, parse = 0, verify = 0, release = 0;
  double total() const { return map + parse + verify + release; }
};

/// Milliseconds that `work` takes, added to `phase`.
template <class Work>
auto timed(double& phase, const Work& work) {
  const double start = thread_ms();
  auto result = work();
  phase += thread_ms() - start;
  return result;
}

uint64_t touch(std::string_view text) {
  uint64_t sum = 0;
  for (size_t at = 0; at + 8 <= text.size(); at += 8) {
    uint64_t word = 0;
    std::memcpy(&word, text.data() + at, 8);
    sum += word;
  }
  return sum;
}

bool stage1(std::string_view text) {
  std::unique_ptr<simdjson::internal::dom_parser_implementation> parser;
  if (simdjson::get_active_implementation()->create_dom_parser_implementation(text.size(),
                                                                              kDepthMax, parser))
    return false;
  return !parser->stage1(reinterpret_cast<const uint8_t*>(text.data()), text.size(),
                         simdjson::stage1_mode::regular);
}

Phases measure(const std::vector<std::string>& paths) {
  Phases phases;
  for (const std::string& path : paths) {
    std::optional<MappedFile> file = timed(phases.map, [&] { return map(path); });
    if (timed(phases.touch, [&] { return touch(text_of(*file)); }) == 0) give_up(path);
    if (!timed(phases.stage1, [&] { return stage1(text_of(*file)); })) give_up(path);
    auto manifest = timed(phases.parse, [&] { return parsed(path, *file); });
    std::optional<manifest::Verified> checked =
        timed(phases.verify, [&] { return verified(path, std::move(manifest)); });
    timed(phases.release, [&] {
      checked.reset();
      file.reset();
      return 0;
    });
  }
  return phases;
}

int64_t status_kib(const char* key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(key)) return std::atoll(line.c_str() + std::strlen(key) + 1);
  return 0;
}

/// The most KiB that were resident in a process that does `work` and nothing else, above what it
/// had after `first`: the pages of the code that runs are any process's.
int64_t peak_kib(const std::function<void()>& first, const std::function<void()>& work) {
  int ends[2];
  if (::pipe(ends) != 0) give_up("no pipe");
  const pid_t child = ::fork();
  if (child < 0) give_up("no process");
  if (child == 0) {
    first();
    ::malloc_trim(0);
    const int64_t before = status_kib("VmRSS");
    work();
    const int64_t more = status_kib("VmHWM") - before;
    ::_exit(::write(ends[1], &more, sizeof more) == sizeof more ? 0 : 1);
  }
  ::close(ends[1]);  // or a child that ends without a word would be waited for without end
  int64_t more = 0;
  const bool told = ::read(ends[0], &more, sizeof more) == sizeof more;
  ::waitpid(child, nullptr, 0);
  ::close(ends[0]);
  if (!told) give_up("a process that measures memory ended early");
  return more;
}

void print_memory(const std::vector<std::string>& paths, const std::vector<double>& bytes) {
  const size_t largest =
      static_cast<size_t>(std::max_element(bytes.begin(), bytes.end()) - bytes.begin());
  double sum = 0;
  for (const double one : bytes) sum += one;
  const auto read = [&](size_t at) {
    const MappedFile file = map(paths[at]);
    return verified(paths[at], parsed(paths[at], file));
  };
  const size_t smallest =
      static_cast<size_t>(std::min_element(bytes.begin(), bytes.end()) - bytes.begin());
  const auto read_smallest = [&] { read(smallest); };
  const auto line = [](const char* what, int64_t kib, double of) {
    std::printf("%-28s %9.2f MB %6.2f x\n", what, static_cast<double>(kib) * 1024 / 1e6,
                static_cast<double>(kib) * 1024 / of);
  };
  line("peak, the largest file", peak_kib(read_smallest, [&] { read(largest); }), bytes[largest]);
  line("peak, all kept verified",
       peak_kib(read_smallest,
                [&] {
                  std::vector<manifest::Verified> kept;
                  for (size_t at = 0; at < paths.size(); ++at) kept.push_back(read(at));
                }),
       sum);
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> paths(argv + 1, argv + argc);
  const bool once = std::erase(paths, "--once") > 0;
  if (paths.empty()) give_up("expected files");
  std::vector<double> bytes;
  double sum = 0;
  for (const std::string& path : paths) {
    bytes.push_back(static_cast<double>(map(path).bytes().size()));
    sum += bytes.back();
  }
  print_memory(paths, bytes);  // first, while this process is small
  Phases least = measure(paths);
  for (int i = 1; !once && i < kRepetitions; ++i) {
    const Phases phases = measure(paths);
    least.touch = std::min(least.touch, phases.touch);
    least.stage1 = std::min(least.stage1, phases.stage1);
    if (phases.total() >= least.total()) continue;
    std::tie(least.map, least.parse, least.verify, least.release) =
        std::tuple(phases.map, phases.parse, phases.verify, phases.release);
  }
  std::printf("%-28s %9.2f MB\n", "files", sum / 1e6);
  const std::pair<const char*, double> lines[] = {
      {"touch", least.touch},  {"stage 1", least.stage1}, {"map", least.map},
      {"parse", least.parse},  {"verify", least.verify},  {"release", least.release},
      {"total", least.total()}};
  for (const auto& [name, ms] : lines)
    std::printf("%-28s %9.2f ms %9.0f MB/s\n", name, ms, sum / 1e3 / ms);
  return 0;
}
