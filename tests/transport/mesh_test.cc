#include "kern/transport/mesh.h"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "kern/base/prng.h"
#include "loop.h"

using namespace kern_test;

namespace {

using Block = std::vector<std::byte>;

/// The listening sockets of a group and what its members agree on.
struct Group {
  explicit Group(int size, TimeNs peer_timeout = 5 * kSecondNs) {
    options.key = key_of('k');
    options.plan = sha256(as_bytes("the group"));
    options.epoch = 3;
    options.join_timeout = 20 * kSecondNs;
    options.peer_timeout = peer_timeout;
    for (int i = 0; i < size; ++i) {
      auto port = listen_on(loopback(), true);
      REQUIRE(port);
      options.addresses.push_back(port->address);
      ports.push_back(std::move(*port));
    }
  }
  int size() const { return static_cast<int>(ports.size()); }
  Result<std::unique_ptr<Mesh>> join(int rank) {
    MeshOptions own = options;
    own.rank = rank;
    return Mesh::join(std::move(ports[static_cast<size_t>(rank)]), own);
  }
  MeshOptions options;
  std::vector<ListenSocket> ports;
};

/// Runs every member on a thread of its own; a member that cannot join is told in `errors`.
std::vector<std::string> run_threads(Group& group, const std::function<std::string(Mesh&)>& body) {
  std::vector<std::string> errors(static_cast<size_t>(group.size()));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < group.size(); ++rank)
    threads.emplace_back([&, rank] {
      auto mesh = group.join(rank);
      errors[static_cast<size_t>(rank)] = mesh ? body(**mesh) : mesh.error().text();
    });
  for (auto& thread : threads) thread.join();
  return errors;
}

/// What member `from` sends member `to` in `step`; `to` -1: everyone.
Block block_of(int from, int to, int step, size_t size) {
  Prng prng(static_cast<uint64_t>(from) * 1000003 + static_cast<uint64_t>(to + 1) * 7919 +
            static_cast<uint64_t>(step));
  Block block(size);
  for (auto& byte : block) byte = std::byte(prng.next() & 0xFF);
  return block;
}

/// One step of each collective, compared byte for byte with what the others must have sent.
std::string step_of_both(Mesh& mesh, int step, size_t size) {
  const auto members = static_cast<size_t>(mesh.size());
  Block got(members * size), sent;
  auto done = mesh.all_gather(block_of(mesh.rank(), -1, step, size), got);
  if (!done) return done.error().text();
  for (int from = 0; from < mesh.size(); ++from) {
    const Block want = block_of(from, -1, step, size);
    if (!std::equal(want.begin(), want.end(), got.begin() + from * static_cast<ptrdiff_t>(size)))
      return "wrong bytes gathered";
  }
  for (int to = 0; to < mesh.size(); ++to) {
    const Block block = block_of(mesh.rank(), to, step, size);
    sent.insert(sent.end(), block.begin(), block.end());
  }
  done = mesh.all_to_all(sent, got);
  if (!done) return done.error().text();
  for (int from = 0; from < mesh.size(); ++from) {
    const Block want = block_of(from, mesh.rank(), step, size);
    if (!std::equal(want.begin(), want.end(), got.begin() + from * static_cast<ptrdiff_t>(size)))
      return "wrong bytes exchanged";
  }
  return "";
}

constexpr int kExitDone = 0, kExitPeerError = 7, kExitWrong = 9;

/// Forks every member; returns their exit codes (128 + signal for a killed one).
std::vector<int> run_processes(Group& group, const std::function<int(Mesh&)>& body,
                               const std::function<void(const std::vector<pid_t>&)>& meddle = {}) {
  std::vector<pid_t> children;
  for (int rank = 0; rank < group.size(); ++rank) {
    const pid_t child = ::fork();
    if (child == 0) {
      for (int other = 0; other < group.size(); ++other)
        if (other != rank) group.ports[static_cast<size_t>(other)].socket.close();
      auto mesh = group.join(rank);
      ::_exit(mesh ? body(**mesh) : kExitWrong);
    }
    children.push_back(child);
  }
  for (auto& port : group.ports) port.socket.close();
  if (meddle) meddle(children);
  std::vector<int> codes;
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    codes.push_back(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
  }
  return codes;
}

/// Steps until a failure; tells whether that was a peer error within `most`.
int step_until_failure(Mesh& mesh, int die_at, TimeNs least, TimeNs most) {
  const SystemClock clock;
  for (int step = 0;; ++step) {
    if (step == die_at && mesh.rank() == 2) ::raise(SIGKILL);
    if (step > 100000) return kExitDone;
    Block got(static_cast<size_t>(mesh.size()) * 100);
    const TimeNs begun = clock.now();
    const auto done = mesh.all_gather(Block(100), got);
    if (done) continue;
    const TimeNs took = clock.now() - begun;
    const bool good = done.error().kind == Kind::peer && took >= least && took <= most;
    // A broken mesh stays broken and says so at once.
    const auto again = mesh.all_gather(Block(100), got);
    return good && !again && clock.now() - begun - took < 50 * kMillisecondNs ? kExitPeerError
                                                                              : kExitWrong;
  }
}

}  // namespace

TEST_CASE("a mesh of one moves its own bytes", "[transport][mesh]") {
  Group group(1);
  const auto errors = run_threads(group, [](Mesh& mesh) { return step_of_both(mesh, 1, 1000); });
  CHECK(errors == std::vector<std::string>{""});
}

TEST_CASE("collectives among threads give every size of block to everyone", "[transport][mesh]") {
  for (const int size : {2, 3, 8}) {
    Group group(size);
    const auto errors = run_threads(group, [](Mesh& mesh) -> std::string {
      int step = 0;
      for (const size_t bytes : {0, 1, 39, 40, 4096, 300000, 7})
        if (auto wrong = step_of_both(mesh, step++, bytes); !wrong.empty()) return wrong;
      return "";
    });
    CHECK(errors == std::vector<std::string>(static_cast<size_t>(size)));
  }
}

TEST_CASE("blocks larger than every socket buffer do not lock up", "[transport][mesh]") {
  Group group(3, 20 * kSecondNs);
  const auto errors =
      run_threads(group, [](Mesh& mesh) { return step_of_both(mesh, 0, size_t{12} << 20); });
  CHECK(errors == std::vector<std::string>(3));
}

TEST_CASE("eight processes step together", "[transport][mesh]") {
  Group group(8);
  const auto codes = run_processes(group, [](Mesh& mesh) {
    Prng prng(5);
    for (int step = 0; step < 100; ++step)
      if (!step_of_both(mesh, step, prng.below(3000)).empty()) return kExitWrong;
    return kExitDone;
  });
  CHECK(codes == std::vector<int>(8, kExitDone));
}

TEST_CASE("a killed member is a peer error on all others within the time-out",
          "[transport][mesh]") {
  Group group(8, 2 * kSecondNs);
  const auto codes = run_processes(
      group, [](Mesh& mesh) { return step_until_failure(mesh, 50, 0, 2500 * kMillisecondNs); });
  for (size_t rank = 0; rank < 8; ++rank)
    CHECK(codes[rank] == (rank == 2 ? 128 + SIGKILL : kExitPeerError));
}

TEST_CASE("a stopped member is a peer error on all others at the time-out", "[transport][mesh]") {
  Group group(4, kSecondNs);
  const auto codes = run_processes(
      group, [](Mesh& mesh) { return step_until_failure(mesh, -1, 0, 2 * kSecondNs); },
      [](const std::vector<pid_t>& children) {
        std::this_thread::sleep_for(std::chrono::milliseconds(500));
        ::kill(children[2], SIGSTOP);
        std::this_thread::sleep_for(std::chrono::milliseconds(2500));
        ::kill(children[2], SIGKILL);
      });
  for (size_t rank = 0; rank < 4; ++rank)
    CHECK(codes[rank] == (rank == 2 ? 128 + SIGKILL : kExitPeerError));
}

TEST_CASE("a member stopped for less than the time-out costs nothing", "[transport][mesh]") {
  Group group(3, 5 * kSecondNs);
  const auto codes = run_processes(
      group,
      [](Mesh& mesh) {
        for (int step = 0; step < 60; ++step) {
          if (!step_of_both(mesh, step, 500).empty()) return kExitWrong;
          std::this_thread::sleep_for(std::chrono::milliseconds(5));
        }
        return kExitDone;
      },
      [](const std::vector<pid_t>& children) {
        std::this_thread::sleep_for(std::chrono::milliseconds(150));
        ::kill(children[1], SIGSTOP);
        std::this_thread::sleep_for(std::chrono::milliseconds(700));
        ::kill(children[1], SIGCONT);
      });
  CHECK(codes == std::vector<int>(3, kExitDone));
}

TEST_CASE("members out of step are told so and nobody hangs", "[transport][mesh]") {
  Group kinds(3, 2 * kSecondNs);
  auto errors = run_threads(kinds, [](Mesh& mesh) -> std::string {
    Block got(30);
    const auto done =
        mesh.rank() == 1 ? mesh.all_to_all(Block(30), got) : mesh.all_gather(Block(10), got);
    return done ? "" : done.error().text();
  });
  for (const auto& error : errors) CHECK_THAT(error, Catch::Contains("member "));
  CHECK_THAT(errors[0] + errors[2], Catch::Contains("it calls another collective"));

  Group sizes(3, 2 * kSecondNs);
  errors = run_threads(sizes, [](Mesh& mesh) -> std::string {
    const size_t size = mesh.rank() == 1 ? 11 : 10;
    Block got(3 * size);
    const auto done = mesh.all_gather(Block(size), got);
    return done ? "" : done.error().text();
  });
  for (const auto& error : errors) CHECK_THAT(error, Catch::Contains("member "));
  CHECK_THAT(errors[0] + errors[2], Catch::Contains("it sends a block of 11 bytes, expected 10"));
}

TEST_CASE("shutdown from another thread wakes a member that waits", "[transport][mesh]") {
  Group group(2, 60 * kSecondNs);
  std::atomic<int> finished = 0;
  const auto errors = run_threads(group, [&](Mesh& mesh) -> std::string {
    if (mesh.rank() == 1) {
      while (finished == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      return "";
    }
    std::thread other([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      mesh.shutdown("the group is gone");
    });
    Block got(2);
    const auto done = mesh.all_gather(Block(1), got);
    other.join();
    ++finished;
    return done ? "" : done.error().text();
  });
  CHECK(errors[0] == "the mesh was shut down: the group is gone");
}

TEST_CASE("every flipped bit of a member's block is an error on the other side",
          "[transport][mesh]") {
  // Member 1 is a bare socket that sends the joining step and then one altered frame.
  const auto type = static_cast<uint16_t>(FrameType::gather);
  const auto joining = encode_frame(type, kHandshakeFrames, Block(1, std::byte{1}));
  const auto good = encode_frame(type, kHandshakeFrames + 1, as_bytes("eight by"));
  for (size_t bit = 0; bit <= good.size() * 8; bit += 3) {
    Group group(2, 2 * kSecondNs);
    const Address address = group.ports[0].address;
    std::string outcome;
    Block got(16);
    std::thread member([&] {
      auto mesh = group.join(0);
      if (!mesh) {
        outcome = mesh.error().text();
        return;
      }
      const auto done = (*mesh)->all_gather(as_bytes("12345678"), got);
      outcome = done ? "good" : done.error().text();
    });
    Terms terms;
    terms.self = {Role::rank, 1, Purpose::mesh, group.options.plan, group.options.epoch};
    terms.key = group.options.key;
    terms.peer_role = Role::rank;
    auto made = dial_blocking(address, {.terms = terms, .give_up_after = 5 * kSecondNs});
    auto bytes = good;
    if (bit < good.size() * 8) bytes[bit / 8] ^= std::byte(1 << (bit % 8));
    if (made) {
      raw_send(made->socket, joining);
      raw_send(made->socket, bytes);
    }
    member.join();
    REQUIRE(made);
    INFO("bit " << bit);
    if (bit < good.size() * 8)
      REQUIRE_THAT(outcome, Catch::Contains("member 1 of 2"));
    else
      REQUIRE(outcome == "good");
  }
}

TEST_CASE("joining ends in time when a member does not come or is of another epoch",
          "[transport][mesh]") {
  Group missing(3);
  missing.options.join_timeout = 300 * kMillisecondNs;
  std::vector<std::string> errors(2);
  std::vector<std::thread> threads;
  for (int rank : {0, 1})
    threads.emplace_back([&, rank] {
      auto mesh = missing.join(rank);
      errors[static_cast<size_t>(rank)] = mesh ? "" : mesh.error().text();
    });
  for (auto& thread : threads) thread.join();
  for (const auto& error : errors)
    CHECK_THAT(error, Catch::Contains("member 2 of 3 did not come within 0.3 s"));

  Group other(2);
  other.options.join_timeout = 400 * kMillisecondNs;
  MeshOptions changed = other.options;
  changed.rank = 1;
  changed.epoch = 4;
  std::thread first([&] { (void)other.join(0); });
  auto mesh = Mesh::join(std::move(other.ports[1]), changed);
  first.join();
  REQUIRE_FALSE(mesh);
}
