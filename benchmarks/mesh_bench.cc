// Latency of collectives among processes on one host, over TCP: the floor of a decode step.
// usage: mesh-bench [members] [steps]
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "kern/base/clock.h"
#include "kern/transport/mesh.h"

using namespace kern;
using namespace kern::transport;

namespace {

void measure(Mesh& mesh, const char* what, size_t bytes, int steps, bool exchange) {
  const SystemClock clock;
  const auto members = static_cast<size_t>(mesh.size());
  const std::vector<std::byte> send(exchange ? bytes * members : bytes);
  std::vector<std::byte> receive(bytes * members);
  std::vector<TimeNs> times;
  for (int i = 0; i < steps; ++i) {
    const TimeNs begun = clock.now();
    const auto done = exchange ? mesh.all_to_all(send, receive) : mesh.all_gather(send, receive);
    if (!done) {
      fmt::print(stderr, "{}\n", done.error().text());
      std::exit(1);
    }
    times.push_back(clock.now() - begun);
  }
  if (mesh.rank() != 0) return;
  std::sort(times.begin(), times.end());
  fmt::print("{:<11} {:>7} B  median {:8.1f} us  p99 {:8.1f} us\n", what, bytes,
             static_cast<double>(times[times.size() / 2]) / 1e3,
             static_cast<double>(times[times.size() * 99 / 100]) / 1e3);
}

int run_member(ListenSocket port, MeshOptions options, int steps) {
  auto mesh = Mesh::join(std::move(port), options);
  if (!mesh) {
    fmt::print(stderr, "{}\n", mesh.error().text());
    return 1;
  }
  measure(**mesh, "null", 0, steps, false);
  for (const size_t bytes : {size_t{1} << 10, size_t{8} << 10, size_t{64} << 10}) {
    measure(**mesh, "all_gather", bytes, steps, false);
    measure(**mesh, "all_to_all", bytes, steps, true);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const int members = argc > 1 ? std::atoi(argv[1]) : 8;
  const int steps = argc > 2 ? std::atoi(argv[2]) : 200;
  MeshOptions options;
  std::vector<ListenSocket> ports;
  for (int i = 0; i < members; ++i) {
    auto port = listen_on({"127.0.0.1", 0}, false);
    if (!port) return 1;
    options.addresses.push_back(port->address);
    ports.push_back(std::move(*port));
  }
  for (int rank = 0; rank < members; ++rank) {
    if (::fork() != 0) continue;
    options.rank = rank;
    std::exit(run_member(std::move(ports[static_cast<size_t>(rank)]), options, steps));
  }
  int worst = 0;
  for (int status = 0; ::wait(&status) > 0;) worst = std::max(worst, status);
  return worst == 0 ? 0 : 1;
}
