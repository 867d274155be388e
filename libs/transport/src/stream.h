#pragma once
/// A non-blocking socket that carries frames, on the context's thread: what a handshake and a
/// Channel have in common.
/// Ownership: does not own the descriptor. May be told to stop inside its callbacks; its owner is
/// then buried, not deleted, so that the running call finds its object alive.

#include <deque>
#include <functional>
#include <vector>

#include "kern/transport/frame.h"
#include "kern/transport/io.h"
#include "sockets.h"

namespace kern::transport {

struct StreamOptions {
  uint64_t length_max = 0;
  uint64_t sequence = 0;    ///< of the next frame in each direction
  bool read_ahead = false;  ///< false: never takes a byte beyond the current frame
  std::function<void(const Frame&)> frame;
  std::function<void(const Error&, bool other_version)> failed;  ///< once; nothing follows
  std::function<void()> drained;  ///< everything queued was written; may be empty
};

class Stream {
 public:
  Stream(IoContext& io, int fd, StreamOptions options);

  /// Queues one frame and writes what the socket takes. Calls `drained` at most; a failure is told
  /// later, never from inside.
  void send(uint16_t type, ByteSpan payload);
  void send_encoded(std::vector<std::byte> bytes);
  void start_reading();
  /// Reads what has already arrived; for a timer that is about to judge the peer.
  void read_now() { read(); }
  /// No callback runs from here on.
  void stop() { stopped_ = true; }
  size_t queued_bytes() const { return queued_; }
  TimeNs last_received() const { return last_received_; }
  TimeNs last_sent() const { return last_sent_; }

 private:
  void read();
  bool read_once(size_t* budget);
  void flush();
  void fail_with(const Error& error);
  void fail_later(const Error& error);

  IoContext& io_;
  int fd_;
  StreamOptions options_;
  Watch watch_;
  Timer soon_;
  FrameAssembler assembler_;
  uint64_t sequence_out_;
  std::deque<std::vector<std::byte>> queue_;
  size_t front_at_ = 0;
  size_t queued_ = 0;
  bool waiting_writable_ = false;
  bool write_failed_ = false;
  bool stopped_ = false;
  TimeNs last_received_;
  TimeNs last_sent_;
  std::vector<std::byte> buffer_;
};

}  // namespace kern::transport
