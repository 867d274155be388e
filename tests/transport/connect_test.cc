#include "kern/transport/connect.h"

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "loop.h"

using namespace kern_test;

namespace {

/// A listener that counts what comes of its visitors.
struct Door {
  explicit Door(IoContext& io, TimeNs timeout = 300 * kMillisecondNs, size_t strangers_max = 32,
                Terms terms = terms_of(0)) {
    auto port = listen_on(loopback(), terms.key.has_value());
    REQUIRE(port);
    listener.emplace(
        io, std::move(*port),
        ListenerOptions{
            .terms = std::move(terms),
            .handshake_timeout = timeout,
            .strangers_max = strangers_max,
            .accepted = [this](Connection made) { accepted.push_back(std::move(made)); },
            .rejected = [this](const Error& why) { rejected.push_back(why.text()); }});
  }
  std::vector<Connection> accepted;
  std::vector<std::string> rejected;
  std::optional<Listener> listener;
};

}  // namespace

TEST_CASE("addresses read as they are written", "[transport][connect]") {
  for (const char* text : {"127.0.0.1:80", "host.example:0", "[::1]:65535"}) {
    const auto address = Address::parse(text);
    REQUIRE(address);
    CHECK(address->text() == text);
  }
  for (const char* text : {"", ":80", "host", "host:", "host:x", "host:65536", "host:-1", "::1:80",
                           "[]:80", "[::1:80", "host:80 "})
    CHECK_FALSE(Address::parse(text));
  CHECK(Address{"localhost", 1}.is_loopback());
  CHECK(Address{"127.8.8.8", 1}.is_loopback());
  CHECK(Address{"::1", 1}.is_loopback());
  CHECK_FALSE(Address{"0.0.0.0", 1}.is_loopback());
  CHECK_FALSE(Address{"10.0.0.1", 1}.is_loopback());
}

TEST_CASE("a listener and a dialer learn who the other is", "[transport][connect]") {
  IoContext io;
  const auto pair = pair_of(io);
  CHECK(pair.listener->peer == terms_of(1).self);
  CHECK(pair.dialer->peer == terms_of(0).self);
  CHECK_THAT(pair.listener->name(), Catch::StartsWith("stage 1 at 127.0.0.1:"));
}

TEST_CASE("a port in use is a sentence", "[transport][connect]") {
  const auto first = listen_on(loopback(), true);
  REQUIRE(first);
  const auto second = listen_on(first->address, true);
  REQUIRE_FALSE(second);
  CHECK(second.error().kind == Kind::io);
  CHECK(second.error().text() ==
        fmt::format("cannot listen on `{}`: the port is in use", first->address.text()));
}

TEST_CASE("without a key only loopback addresses listen and dial", "[transport][connect]") {
  const auto port = listen_on(Address{"0.0.0.0", 0}, false);
  REQUIRE_FALSE(port);
  CHECK(port.error().kind == Kind::caller);
  CHECK_THAT(port.error().text(), Catch::Contains("without a cluster key only loopback"));
  CHECK(listen_on(Address{"0.0.0.0", 0}, true));
  const auto here = listen_on(Address{"localhost", 0}, false);  // with no /etc/hosts too
  REQUIRE(here);
  CHECK(here->address.is_loopback());

  Terms terms = terms_of(1);
  terms.key.reset();
  const auto made =
      dial_blocking(Address{"192.0.2.1", 9}, {.terms = terms, .give_up_after = kSecondNs});
  REQUIRE_FALSE(made);
  CHECK_THAT(made.error().text(), Catch::Contains("without a cluster key only loopback"));
}

TEST_CASE("a port binds again right after its process was killed", "[transport][connect]") {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    IoContext io;
    auto port = listen_on(loopback(), true);
    const uint16_t number = port ? port->address.port : 0;
    (void)!::write(ends[1], &number, sizeof number);
    Listener listener(io, std::move(*port),
                      {.terms = terms_of(0),
                       .accepted =
                           [](Connection made) {
                             static std::vector<Connection> kept;
                             kept.push_back(std::move(made));
                           },
                       .rejected = {}});
    io.run();
    ::_exit(0);
  }
  uint16_t number = 0;
  REQUIRE(::read(ends[0], &number, sizeof number) == sizeof number);
  const Address address{"127.0.0.1", number};
  const auto made = dial_blocking(address, {.terms = terms_of(1), .give_up_after = 5 * kSecondNs});
  CHECK(made);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  CHECK(listen_on(address, true));
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST_CASE("a wrong key is refused at once and ends dialing", "[transport][connect]") {
  IoContext io;
  Terms wrong = terms_of(1);
  wrong.key = key_of('x');
  const auto meeting = meet(io, terms_of(0), wrong);
  CHECK_FALSE(meeting.listener);
  CHECK_THAT(meeting.dialer_error, Catch::Contains("the cluster keys differ"));
  CHECK_THAT(meeting.listener_error, Catch::Contains("the cluster keys differ"));
}

TEST_CASE("a dialer waits for a listener that comes later", "[transport][connect]") {
  IoContext io;
  auto port = listen_on(loopback(), true);
  REQUIRE(port);
  const Address address = port->address;
  port->socket.close();
  int failures = 0;
  std::optional<Result<Connection>> made;
  Dialer dialer(io, address,
                {.terms = terms_of(1),
                 .backoff_first = kMillisecondNs,
                 .done = [&](Result<Connection> result) { made.emplace(std::move(result)); },
                 .failed_attempt = [&](const Error&) { ++failures; }});
  CHECK(run_until(io, [&] { return failures >= 3; }));
  CHECK_FALSE(made);
  auto late = listen_on(address, true);
  REQUIRE(late);
  std::optional<Connection> accepted;
  Listener listener(io, std::move(*late),
                    {.terms = terms_of(0),
                     .accepted = [&](Connection c) { accepted = std::move(c); },
                     .rejected = {}});
  REQUIRE(run_until(io, [&] { return made && accepted; }));
  CHECK(*made);
}

TEST_CASE("a dialer gives up with the address and the last reason", "[transport][connect]") {
  auto port = listen_on(loopback(), true);
  REQUIRE(port);
  const Address address = port->address;
  port->socket.close();
  const auto made = dial_blocking(address, {.terms = terms_of(1),
                                            .backoff_first = kMillisecondNs,
                                            .give_up_after = 100 * kMillisecondNs});
  REQUIRE_FALSE(made);
  CHECK_THAT(made.error().text(), Catch::Contains(address.text()));
  CHECK_THAT(made.error().text(), Catch::Contains("cannot connect"));
  const auto unknown =
      dial_blocking(Address{"no-such-host.invalid", 9}, {.terms = terms_of(1), .attempts_max = 1});
  REQUIRE_FALSE(unknown);
  CHECK_THAT(unknown.error().text(), Catch::Contains("no-such-host.invalid"));
}

TEST_CASE("a destroyed dialer calls nobody", "[transport][connect]") {
  IoContext io;
  Door door(io);
  bool called = false;
  auto dialer =
      std::make_unique<Dialer>(io, door.listener->address(),
                               DialOptions{.terms = terms_of(1),
                                           .done = [&](Result<Connection>) { called = true; },
                                           .failed_attempt = {}});
  dialer.reset();
  run_until(
      io, [&] { return called; }, 50 * kMillisecondNs);
  CHECK_FALSE(called);
}

TEST_CASE("garbage is closed with a sentence", "[transport][connect]") {
  IoContext io;
  Door door(io);
  const Socket browser = raw_dial(door.listener->address());
  raw_send(browser, as_bytes("GET / HTTP/1.1\r\nHost: somewhere.example\r\nAccept: */*\r\n\r\n"));
  REQUIRE(run_until(io, [&] { return door.rejected.size() == 1; }));
  CHECK_THAT(door.rejected[0], Catch::Contains("expected magic"));
  CHECK_FALSE(raw_read_all(browser).empty());
  CHECK(door.accepted.empty());
}

TEST_CASE("a greeting with an oversized length is closed before it is read",
          "[transport][connect]") {
  IoContext io;
  Door door(io);
  const Socket peer = raw_dial(door.listener->address());
  const FrameHeader header = make_header(1, 0, 0, uint64_t{1} << 40, 0);
  raw_send(peer, std::as_bytes(std::span(&header, 1)));
  REQUIRE(run_until(io, [&] { return door.rejected.size() == 1; }));
  CHECK_THAT(door.rejected[0], Catch::Contains("at most 1024 allowed"));
}

TEST_CASE("a slow handshake is closed at its deadline, byte by byte or silent",
          "[transport][connect]") {
  IoContext io;
  Door door(io, 150 * kMillisecondNs);
  const TimeNs begun = io.now();
  const Socket silent = raw_dial(door.listener->address());
  const Socket slow = raw_dial(door.listener->address());
  const auto bytes = encode_frame(1, 0, std::vector<std::byte>(79));
  size_t sent = 0;
  Timer drip(io);
  std::function<void()> next = [&] {
    if (sent < 20) raw_send(slow, ByteSpan(bytes).subspan(sent++, 1));
    drip.after(10 * kMillisecondNs, next);
  };
  next();
  REQUIRE(run_until(io, [&] { return door.rejected.size() == 2; }));
  CHECK(io.now() - begun >= 140 * kMillisecondNs);
  CHECK(io.now() - begun < 2 * kSecondNs);
  CHECK_THAT(door.rejected[0], Catch::Contains("no handshake within 0.1 s") ||
                                   Catch::Contains("no handshake within 0.2 s"));
}

TEST_CASE("a crowd of strangers does not keep a member out", "[transport][connect]") {
  IoContext io;
  Door door(io, 10 * kSecondNs, 4);
  std::vector<Socket> crowd;
  for (int i = 0; i < 40; ++i) crowd.push_back(raw_dial(door.listener->address()));
  std::optional<Result<Connection>> made;
  Dialer dialer(io, door.listener->address(),
                {.terms = terms_of(1),
                 .done = [&](Result<Connection> result) { made.emplace(std::move(result)); },
                 .failed_attempt = {}});
  REQUIRE(run_until(io, [&] { return made && !door.accepted.empty(); }));
  CHECK(*made);
  CHECK(door.rejected.size() >= 36);
}

TEST_CASE("every cut of a greeting ends in a rejection and nothing else", "[transport][connect]") {
  IoContext io;
  Door door(io);
  Handshake handshake(Handshake::Side::dialer, terms_of(1));
  const auto hello = handshake.start();
  REQUIRE(hello);
  for (size_t size = 0; size < hello->size(); size += 7) {
    const Socket peer = raw_dial(door.listener->address());
    raw_send(peer, ByteSpan(*hello).first(size));
    ::shutdown(peer.fd(), SHUT_WR);
    const size_t before = door.rejected.size();
    REQUIRE(run_until(io, [&] { return door.rejected.size() == before + 1; }));
    CHECK_THAT(door.rejected.back(), Catch::Contains("it closed the connection"));
  }
  CHECK(door.accepted.empty());
}

TEST_CASE("a listener may be destroyed by what it calls", "[transport][connect]") {
  IoContext io;
  auto port = listen_on(loopback(), true);
  REQUIRE(port);
  const Address address = port->address;
  std::unique_ptr<Listener> listener;
  listener = std::make_unique<Listener>(
      io, std::move(*port),
      ListenerOptions{
          .terms = terms_of(0), .accepted = [&](Connection) { listener.reset(); }, .rejected = {}});
  bool over = false;
  Dialer dialer(io, address,
                {.terms = terms_of(1),
                 .done = [&](Result<Connection>) { over = true; },
                 .failed_attempt = {}});
  CHECK(run_until(io, [&] { return over && !listener; }));
}
