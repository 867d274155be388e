/// kern-device-test [--cubins DIR] [--only TEXT] [--family NAME] [--bench] [--json FILE] [--seed N]
///                  [--small] [--part K/N] [--verbose] [--list] [--allow-none]
/// Checks every device kernel against its host twin, or times them. Each family runs in a process
/// of its own, because a device error takes its whole process. --small: every kernel and corner,
/// but few and small cases, so that a sanitizer ends soon. --part: of N parts the Kth, from 1; all
/// parts together are every check once. --verbose: each check's name and seconds. --list: needs no
/// device, runs the small cases' twins and prints which entries of which modules would be launched,
/// a line each. Exit: 0 all passed, 1 a check failed, 2 a bad option, 3 the device failed or is not
/// there (0 with --allow-none).

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "families.h"

using namespace kern_device;

namespace {

struct Command {
  Options options;
  std::string family;
  bool allow_none = false, list = false;
};

[[noreturn]] void refuse(const char* what, const char* got) {
  std::printf("kern-device-test: %s `%s`; the options are at the top of main.cc\n", what, got);
  std::exit(2);
}

Command parse(int argc, char** argv) {
  Command command;
  std::error_code ignored;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", ignored);
  command.options.cubins = self.parent_path() / "cuda";  // as carried; else as built
  if (!std::filesystem::is_directory(command.options.cubins, ignored))
    command.options.cubins = self.parent_path().parent_path() / "lib" / "kern" / "cuda";
  for (int i = 1; i < argc; ++i) {
    const std::string option = argv[i];
    if (option == "--bench") {
      command.options.bench = true;
    } else if (option == "--small") {
      command.options.small = true;
    } else if (option == "--verbose") {
      command.options.verbose = true;
    } else if (option == "--list") {
      command.list = command.options.small = true;
    } else if (option == "--allow-none") {
      command.allow_none = true;
    } else if (i + 1 == argc) {
      refuse("unknown option, or no value for", argv[i]);
    } else if (option == "--cubins") {
      command.options.cubins = argv[++i];
    } else if (option == "--only") {
      command.options.only = argv[++i];
    } else if (option == "--part") {
      Options& o = command.options;
      if (std::sscanf(argv[++i], "%zu/%zu", &o.part, &o.parts) != 2 || o.part < 1 ||
          o.part > o.parts)
        refuse("expected K/N with K from 1 to N after --part, got", argv[i]);
    } else if (option == "--family") {
      command.family = argv[++i];
    } else if (option == "--json") {
      command.options.json = argv[++i];
    } else if (option == "--seed") {
      command.options.seed = std::strtoull(argv[++i], nullptr, 10);
    } else {
      refuse("unknown option", argv[i]);
    }
  }
  return command;
}

/// In a child: one family, or only whether there is a device. The exit status.
int run_family(const Command& command, const Family* family) {
  auto gpu = Gpu::open(command.options.cubins);
  if (!gpu) end_with(gpu.error());
  const auto& info = (*gpu)->context().info();
  if (family == nullptr) {
    std::printf("device: %s, sm_%d, %d multiprocessors; seed %llu\n", info.name.c_str(), info.sm,
                info.multiprocessors, static_cast<unsigned long long>(command.options.seed));
    return 0;
  }
  const auto begin = std::chrono::steady_clock::now();
  Suite suite(**gpu, command.options);
  family->run(suite);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  std::printf("%s: %d passed, %d failed, %.1f s\n", family->name, suite.passed(), suite.failed(),
              took.count());
  return suite.failed() > 0 ? 1 : 0;
}

int in_child(const Command& command, const Family* family) {
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    const int status = run_family(command, family);
    std::fflush(stdout);
    std::_Exit(status);
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) return 3;
  if (WIFEXITED(status)) return WEXITSTATUS(status);
  std::printf("%s: ended by signal %d\n", family ? family->name : "device", WTERMSIG(status));
  return 3;
}

/// What the families launch.
int list_launches(const Command& command) {
  const auto gpu = Gpu::recording();
  for (const Family& family : kFamilies) {
    if (!command.family.empty() && command.family != family.name) continue;
    Suite suite(*gpu, command.options);
    family.run(suite);
  }
  for (const auto& [module, entry] : gpu->launched())
    std::printf("%s %s\n", module.c_str(), entry.c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const Command command = parse(argc, argv);
  if (command.list) return list_launches(command);
  if (const int status = in_child(command, nullptr); status != 0) {
    if (command.allow_none) std::printf("no device: nothing was checked\n");
    return command.allow_none ? 0 : status;
  }
  int worst = 0;
  bool found = false;
  for (const Family& family : kFamilies) {
    if (!command.family.empty() && command.family != family.name) continue;
    found = true;
    worst = std::max(worst, in_child(command, &family));
  }
  if (!found) refuse("no family", command.family.c_str());
  std::printf(worst == 0 ? "all passed\n" : "NOT all passed\n");
  return worst;
}
