#include "stream.h"

#include <algorithm>

#include "kern/base/assert.h"

namespace kern::transport {
namespace {

constexpr size_t kReadBytes = size_t{64} << 10;
constexpr size_t kBytesPerTurn = size_t{1} << 20;  ///< then other connections have theirs
constexpr size_t kGatherMax = 16;

}  // namespace

Stream::Stream(IoContext& io, int fd, StreamOptions options)
    : io_(io),
      fd_(fd),
      options_(std::move(options)),
      watch_(io, fd),
      soon_(io),
      assembler_(options_.length_max, options_.sequence),
      sequence_out_(options_.sequence),
      last_received_(io.now()),
      last_sent_(io.now()),
      buffer_(options_.read_ahead ? kReadBytes : sizeof(FrameHeader) + kHandshakeBytesMax) {
  KERN_ASSERT(options_.frame && options_.failed);
}

void Stream::start_reading() {
  watch_.readable([this] { read(); });
}

void Stream::read() {
  size_t budget = kBytesPerTurn;
  while (!stopped_ && budget > 0)
    if (!read_once(&budget)) break;
  if (!stopped_) start_reading();
}

/// False when the socket has nothing more for now.
bool Stream::read_once(size_t* budget) {
  const size_t want =
      options_.read_ahead ? buffer_.size() : std::min(buffer_.size(), assembler_.wanted());
  auto count = read_some(fd_, MutableByteSpan(buffer_).first(want));
  if (!count) {
    if (assembler_.inside_frame()) count.error().message += " in the middle of a frame";
    fail_with(count.error());
    return false;
  }
  if (*count == 0) return false;
  *budget -= std::min(*budget, *count);
  last_received_ = io_.now();
  assembler_.append(ByteSpan(buffer_).first(*count));
  while (!stopped_) {
    auto frame = assembler_.next();
    if (!frame) {
      fail_with(frame.error());
      return false;
    }
    if (!*frame) return true;
    options_.frame(**frame);
  }
  return false;
}

void Stream::send(uint16_t type, ByteSpan payload) {
  KERN_ASSERT(payload.size() <= options_.length_max, "{} bytes", payload.size());
  send_encoded(encode_frame(type, sequence_out_++, payload));
}

void Stream::send_encoded(std::vector<std::byte> bytes) {
  if (stopped_ || write_failed_ || bytes.empty()) return;
  queued_ += bytes.size();
  queue_.push_back(std::move(bytes));
  if (!waiting_writable_) flush();
}

void Stream::flush() {
  waiting_writable_ = false;
  while (!stopped_ && !queue_.empty()) {
    iovec pieces[kGatherMax];
    size_t used = 0;
    for (auto it = queue_.begin(); it != queue_.end() && used < kGatherMax; ++it, ++used) {
      const size_t skip = used == 0 ? front_at_ : 0;
      pieces[used] = {it->data() + skip, it->size() - skip};
    }
    auto count = write_some(fd_, std::span<const iovec>(pieces, used));
    if (!count) return fail_later(count.error());
    if (*count == 0) {
      waiting_writable_ = true;
      return watch_.writable([this] { flush(); });
    }
    last_sent_ = io_.now();
    queued_ -= *count;
    front_at_ += *count;
    while (!queue_.empty() && front_at_ >= queue_.front().size()) {
      front_at_ -= queue_.front().size();
      queue_.pop_front();
    }
  }
  if (!stopped_ && options_.drained) options_.drained();
}

/// What the peer said before it went explains more than a failed write does: read it first.
void Stream::fail_later(const Error& error) {
  write_failed_ = true;
  queue_.clear();
  queued_ = 0;
  soon_.after(0, [this, error] {
    if (!stopped_) read();
    fail_with(error);
  });
}

void Stream::fail_with(const Error& error) {
  if (stopped_) return;
  stopped_ = true;
  options_.failed(error, assembler_.other_version());
}

}  // namespace kern::transport
