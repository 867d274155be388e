#pragma once
/// The data link over TCP. Bytes go from and to the posted memory without a copy in between, in
/// gathered writes; each tensor has a digest that is compared before its ticket is done.
/// Backpressure is the socket's: nothing is read before a receive is posted.
/// Thread safety: as Link; the bytes move on the IoContext's thread.
/// Ownership: the IoContext outlives the link; the link may be destroyed on any thread.

#include <functional>
#include <memory>

#include "kern/transport/connect.h"
#include "kern/transport/link.h"

namespace kern::transport {

struct LinkCounters {
  uint64_t items_sent = 0, bytes_sent = 0;
  uint64_t items_received = 0, bytes_received = 0;
  uint64_t digest_failures = 0;
};

class TcpLink : public Link {
 public:
  TcpLink(IoContext& io, Connection connection);
  ~TcpLink() override;

  Result<Ticket> post_send(uint64_t item, std::vector<OutTensor> tensors) override;
  Result<Ticket> post_receive(uint64_t item, std::vector<InTensor> tensors) override;
  Result<bool> wait_send(Ticket ticket, TimeNs timeout) override;
  Result<bool> wait_receive(Ticket ticket, TimeNs timeout) override;
  void shutdown(const std::string& reason) override;
  LinkCounters counters() const;

 private:
  class Core;
  IoContext& io_;
  std::unique_ptr<Core> core_;
};

}  // namespace kern::transport
