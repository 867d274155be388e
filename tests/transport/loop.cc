#include "loop.h"

#include <arpa/inet.h>
#include <sys/socket.h>

#include <future>

namespace kern_test {

ClusterKey key_of(char byte) {
  const std::string text(16, byte);
  auto key = ClusterKey::from_bytes(as_bytes(text));
  REQUIRE(key);
  return *key;
}

Terms terms_of(uint32_t own, Purpose purpose) {
  Terms terms;
  terms.self.role = Role::stage;
  terms.self.index = own;
  terms.self.purpose = purpose;
  terms.self.plan = sha256(as_bytes("the plan"));
  terms.self.epoch = 7;
  terms.key = key_of('k');
  terms.peer_role = Role::stage;
  return terms;
}

const Address& loopback() {
  static const Address address{"127.0.0.1", 0};
  return address;
}

bool run_until(IoContext& io, const std::function<bool()>& done, TimeNs timeout) {
  return io.run_until(done, io.now() + timeout);
}

Meeting meet(IoContext& io, Terms listener_terms, Terms dialer_terms) {
  auto port = listen_on(loopback(), listener_terms.key.has_value());
  REQUIRE(port);
  Meeting meeting;
  bool over = false;
  Listener listener(io, std::move(*port),
                    {.terms = std::move(listener_terms),
                     .accepted = [&](Connection made) { meeting.listener = std::move(made); },
                     .rejected = [&](const Error& why) { meeting.listener_error = why.text(); }});
  Dialer dialer(io, listener.address(),
                {.terms = std::move(dialer_terms),
                 .attempts_max = 1,
                 .done =
                     [&](Result<Connection> made) {
                       over = true;
                       if (made)
                         meeting.dialer = std::move(*made);
                       else
                         meeting.dialer_error = made.error().text();
                     },
                 .failed_attempt = {}});
  REQUIRE(
      run_until(io, [&] { return over && (meeting.listener || !meeting.listener_error.empty()); }));
  return meeting;
}

Meeting pair_of(IoContext& io, Purpose purpose) {
  auto meeting = meet(io, terms_of(0, purpose), terms_of(1, purpose));
  REQUIRE(meeting.listener);
  REQUIRE(meeting.dialer);
  return meeting;
}

void LoopThread::on_loop(const std::function<void()>& call) {
  std::promise<void> done;
  io.post([&] {
    call();
    done.set_value();
  });
  done.get_future().wait();
}

Socket raw_dial(const Address& address) {
  Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(address.port);
  REQUIRE(::inet_pton(AF_INET, address.host.c_str(), &to.sin_addr) == 1);
  REQUIRE(::connect(socket.fd(), reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0);
  return socket;
}

void raw_send(const Socket& socket, ByteSpan bytes) {
  const ssize_t sent = ::send(socket.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  REQUIRE(sent == static_cast<ssize_t>(bytes.size()));
}

std::vector<std::byte> raw_read_all(const Socket& socket) {
  std::vector<std::byte> all;
  std::byte buffer[4096];
  for (;;) {
    const ssize_t count = ::recv(socket.fd(), buffer, sizeof buffer, 0);
    if (count <= 0) return all;
    all.insert(all.end(), buffer, buffer + count);
  }
}

}  // namespace kern_test
