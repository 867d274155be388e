#pragma once
/// Runs one handshake over one socket, within a deadline.
/// Ownership: its owner buries it once `done` has run, or any time before to cancel.

#include <optional>

#include "kern/transport/connect.h"
#include "stream.h"

namespace kern::transport {

class Greeter : public Buried {
 public:
  /// `final`: the ends do not match, and trying again will not help.
  using Done = std::function<void(Result<Connection>, bool final)>;

  Greeter(IoContext& io, Socket socket, Handshake::Side side, Terms terms, std::string remote);
  /// `done` runs once, never from inside begin.
  void begin(TimeNs timeout, Done done);
  /// Neither `done` nor anything else runs from here on.
  void cancel();

 private:
  void receive(const Frame& frame);
  void finish(Result<Connection> result, bool final);

  IoContext& io_;
  Socket socket_;
  std::string remote_;
  Handshake handshake_;
  std::optional<Stream> stream_;
  Timer deadline_;
  Timer soon_;
  Done done_;
  bool over_ = false;
  std::unique_ptr<Result<Connection>> outcome_;  ///< told one turn later
};

}  // namespace kern::transport
