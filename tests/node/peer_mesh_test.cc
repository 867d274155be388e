#include "kern/node/peer_mesh.h"

#include <catch2/catch.hpp>
#include <functional>
#include <thread>

#include "kern/base/clock.h"
#include "kern/transport/mesh.h"
#include "kern/transport/socket.h"

using namespace kern;

namespace {

/// Runs `body` as every rank of a group of `size`, each on a thread; what they return, by rank.
std::vector<std::string> as_group(int size,
                                  const std::function<std::string(runtime::PeerGroup&)>& body) {
  transport::MeshOptions options;
  options.peer_timeout = 2 * kSecondNs;
  std::vector<transport::ListenSocket> ports;
  for (int rank = 0; rank < size; ++rank) {
    auto port = transport::listen_on({"127.0.0.1", 0}, false);
    REQUIRE(port);
    options.addresses.push_back(port->address);
    ports.push_back(std::move(*port));
  }
  std::vector<std::string> told(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank, own = options]() mutable {
      own.rank = rank;
      auto mesh = transport::Mesh::join(std::move(ports[static_cast<size_t>(rank)]), own);
      if (!mesh) {
        told[static_cast<size_t>(rank)] = mesh.error().text();
        return;
      }
      node::PeerMesh group(rank, size);
      group.set(std::move(*mesh));
      told[static_cast<size_t>(rank)] = body(group);
    });
  for (auto& thread : threads) thread.join();
  return told;
}

}  // namespace

TEST_CASE("a runtime's peer group over a mesh gathers and exchanges in rank order",
          "[node][peers]") {
  const auto told = as_group(3, [](runtime::PeerGroup& group) {
    const std::string own = fmt::format("g{}", group.rank());
    std::string blocks, gathered(6, '?'), exchanged(6, '?');
    for (int to = 0; to < group.size(); ++to) blocks += fmt::format("{}{}", group.rank(), to);
    const auto writable = [](std::string& text) {
      return MutableByteSpan(reinterpret_cast<std::byte*>(text.data()), text.size());
    };
    if (auto done = group.all_gather(as_bytes(own), writable(gathered)); !done)
      return done.error().text();
    if (auto done = group.all_to_all(as_bytes(blocks), writable(exchanged)); !done)
      return done.error().text();
    return gathered + " " + exchanged;
  });
  CHECK(told == std::vector<std::string>{"g0g1g2 001020", "g0g1g2 011121", "g0g1g2 021222"});
}

TEST_CASE("a rank that leaves is a peer error that names the rank that left", "[node][peers]") {
  const auto told = as_group(3, [](runtime::PeerGroup& group) -> std::string {
    if (group.rank() == 1) return "left";
    std::vector<std::byte> got(3);
    const auto done = group.all_gather(std::vector<std::byte>(1), got);
    if (done || done.error().kind != Kind::peer) return "wrong";
    return done.error().text();
  });
  CHECK_THAT(told[0], Catch::StartsWith("member 1 of 3 "));
  CHECK_THAT(told[2], Catch::StartsWith("member 1 of 3 "));
}
