#include "kern/transport/tcp.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>

#include "digest.h"
#include "kern/base/assert.h"
#include "sockets.h"

namespace kern::transport {
namespace {

constexpr size_t kBytesPerCall = size_t{1} << 20;
constexpr size_t kBytesPerTurn = size_t{4} << 20;  ///< then other connections have theirs

struct Shape {
  std::string name;
  uint64_t bytes = 0;
};

/// What precedes an item's bytes on the wire.
std::vector<std::byte> encode_head(uint64_t item, const std::vector<Shape>& shapes) {
  ByteWriter head;
  head.put(item);
  head.put(static_cast<uint32_t>(shapes.size()));
  for (const Shape& shape : shapes) {
    head.put_text(shape.name);
    head.put(shape.bytes);
  }
  return head.take();
}

/// Compares what the other side sends with what is expected here, word by word.
Result<void> check_head(ByteSpan payload, uint64_t item, const std::vector<Shape>& shapes) {
  ByteReader head(payload);
  const auto got_item = head.get<uint64_t>();
  const auto count = head.get<uint32_t>();
  if (head.ok() && got_item != item)
    return fail(Kind::peer, "expected item {}, got item {}", item, got_item);
  if (head.ok() && count != shapes.size())
    return fail(Kind::peer, "item {}: expected {} tensors, got {}", item, shapes.size(), count);
  for (const Shape& shape : shapes) {
    const std::string name = head.get_text(kTensorNameBytesMax);
    const auto bytes = head.get<uint64_t>();
    if (head.ok() && (name != shape.name || bytes != shape.bytes))
      return fail(Kind::peer, "item {}: expected tensor `{}` of {} bytes, got `{}` of {}", item,
                  shape.name, shape.bytes, printable(as_bytes(name), kTensorNameBytesMax), bytes);
  }
  return with_context(head.finish("head of an item"), "item {}", item);
}

template <class Tensor>
Result<std::vector<Shape>> shapes_of(const std::vector<Tensor>& tensors) {
  if (tensors.size() > kTensorsPerItemMax)
    return fail(Kind::caller, "an item has at most {} tensors, got {}", kTensorsPerItemMax,
                tensors.size());
  std::vector<Shape> shapes;
  for (const Tensor& tensor : tensors) {
    if (tensor.name.size() > kTensorNameBytesMax)
      return fail(Kind::caller, "tensor `{}`: a name has at most {} bytes", tensor.name,
                  kTensorNameBytesMax);
    uint64_t bytes = 0;
    for (const auto& piece : tensor.pieces) bytes += piece.size();
    shapes.push_back({tensor.name, bytes});
  }
  return shapes;
}

/// One direction's post: the bytes in order, and the digest of each tensor as they pass.
struct Post {
  enum class Stage : uint8_t { head, body, digests };

  uint64_t item = 0;
  std::vector<Shape> shapes;
  Gather body;
  Stage stage = Stage::head;
  std::vector<std::byte> frame;  ///< being sent: head, then digests
  size_t frame_at = 0;
  size_t tensor = 0;  ///< whose bytes pass now
  uint64_t tensor_left = 0;
  RunningDigest running;
  std::vector<uint64_t> digests;

  void skip_full() {
    while (tensor < shapes.size() && tensor_left == 0) {
      digests.push_back(running.finish());
      running.reset();
      ++tensor;
      tensor_left = tensor < shapes.size() ? shapes[tensor].bytes : 0;
    }
  }
  void begin_body() {
    stage = Stage::body;
    tensor_left = shapes.empty() ? 0 : shapes[0].bytes;
    skip_full();
  }
  void passed(ByteSpan run) {
    while (!run.empty()) {
      const size_t step = std::min<uint64_t>(run.size(), tensor_left);
      KERN_ASSERT(step > 0, "bytes beyond the last tensor");
      running.add(run.first(step));
      run = run.subspan(step);
      tensor_left -= step;
      skip_full();
    }
  }
};

}  // namespace

/// Shared by the device thread and the context's. Every access is under the mutex; the context's
/// thread holds it during a call on posted memory, so after `breaking` nobody touches that.
class TcpLink::Core : public Buried {
 public:
  Core(IoContext& io, Connection connection)
      : io_(io),
        connection_(std::move(connection)),
        assembler_(kLinkHeadBytesMax, kHandshakeFrames) {}

  void start() {
    const std::lock_guard lock(mutex_);
    watch_.emplace(io_, connection_.socket.fd());
    pump_send();
    pump_receive();
  }
  Result<Ticket> post(bool sending, uint64_t item, std::vector<Shape> shapes, Gather body);
  Result<bool> wait(bool sending, Ticket ticket, TimeNs timeout);
  void shutdown(const std::string& reason) {
    const std::lock_guard lock(mutex_);
    breaking(Error{Kind::peer, reason, {}});
  }
  LinkCounters counters() {
    const std::lock_guard lock(mutex_);
    return counters_;
  }

 private:
  struct Direction {
    std::deque<Post> posts;
    Ticket posted = 0;
    Ticket done = 0;
    bool waiting = false;  ///< for the socket, or for a kick on its way
  };

  void kick(bool sending);
  void pump_send();
  void pump_receive();
  Result<bool> send_step(Post& post, size_t* budget);
  Result<bool> receive_step(Post& post, size_t* budget);
  Result<bool> receive_frame(Post& post);
  Result<void> take_frame(Post& post, const Frame& frame);
  void finish_front(Direction& direction);
  void breaking(Error why);

  IoContext& io_;
  Connection connection_;
  std::mutex mutex_;
  std::condition_variable changed_;
  Direction out_, in_;
  FrameAssembler assembler_;
  uint64_t sequence_out_ = kHandshakeFrames;
  std::optional<Error> broken_;
  LinkCounters counters_;
  std::optional<Watch> watch_;
};

Result<Ticket> TcpLink::Core::post(bool sending, uint64_t item, std::vector<Shape> shapes,
                                   Gather body) {
  const std::lock_guard lock(mutex_);
  if (broken_) return tl::unexpected<Error>(*broken_);
  Direction& direction = sending ? out_ : in_;
  if (direction.posts.size() >= kPostsMax)
    return fail(Kind::busy, "{} posts are not done", direction.posts.size());
  Post& post = direction.posts.emplace_back();
  post.item = item;
  post.shapes = std::move(shapes);
  post.body = std::move(body);
  if (!direction.waiting) {
    direction.waiting = true;
    kick(sending);
  }
  return ++direction.posted;
}

/// The core is buried on the context's thread, after every kick that was posted before.
void TcpLink::Core::kick(bool sending) {
  io_.post([this, sending] {
    const std::lock_guard lock(mutex_);
    if (!watch_) return;
    if (sending)
      pump_send();
    else
      pump_receive();
  });
}

Result<bool> TcpLink::Core::wait(bool sending, Ticket ticket, TimeNs timeout) {
  std::unique_lock lock(mutex_);
  const Direction& direction = sending ? out_ : in_;
  KERN_ASSERT(ticket >= 1 && ticket <= direction.posted, "ticket {}", ticket);
  changed_.wait_for(lock, std::chrono::nanoseconds(timeout),
                    [&] { return broken_ || direction.done >= ticket; });
  if (direction.done >= ticket) return true;
  if (broken_) return tl::unexpected<Error>(*broken_);
  return false;
}

void TcpLink::Core::pump_send() {
  out_.waiting = false;
  size_t budget = kBytesPerTurn;
  while (!broken_ && !out_.posts.empty()) {
    auto more = send_step(out_.posts.front(), &budget);
    if (!more) return breaking(more.error());
    if (*more && budget > 0) continue;
    out_.waiting = true;
    return watch_->writable([this] {
      const std::lock_guard lock(mutex_);
      pump_send();
    });
  }
}

/// False when the socket takes no more for now.
Result<bool> TcpLink::Core::send_step(Post& post, size_t* budget) {
  if (post.frame.empty() && post.stage == Post::Stage::head)
    post.frame = encode_frame(static_cast<uint16_t>(FrameType::item), sequence_out_++,
                              encode_head(post.item, post.shapes));
  std::vector<iovec> pieces;
  const size_t frame_left = post.frame.size() - post.frame_at;
  if (frame_left > 0) pieces.push_back({post.frame.data() + post.frame_at, frame_left});
  if (post.stage == Post::Stage::head) post.begin_body();
  if (post.stage == Post::Stage::body)
    for (const iovec& piece : post.body.window(std::min(kBytesPerCall, *budget)))
      pieces.push_back(piece);
  if (!pieces.empty()) {
    KERN_TRY(count, write_some(connection_.socket.fd(), pieces));
    if (count == 0) return false;
    const size_t of_frame = std::min(count, frame_left);
    post.frame_at += of_frame;
    post.body.advance(count - of_frame, [&](ByteSpan run) { post.passed(run); });
    counters_.bytes_sent += count;
    *budget -= std::min(*budget, count);
  }
  if (post.frame_at < post.frame.size() || !post.body.done()) return true;
  if (post.stage == Post::Stage::body) {
    KERN_ASSERT(post.digests.size() == post.shapes.size());
    post.stage = Post::Stage::digests;
    post.frame = encode_frame(static_cast<uint16_t>(FrameType::digests), sequence_out_++,
                              bytes_of(std::span<const uint64_t>(post.digests)));
    post.frame_at = 0;
    return true;
  }
  ++counters_.items_sent;
  finish_front(out_);
  return true;
}

void TcpLink::Core::pump_receive() {
  in_.waiting = false;
  size_t budget = kBytesPerTurn;
  while (!broken_ && !in_.posts.empty()) {
    auto more = receive_step(in_.posts.front(), &budget);
    if (!more) return breaking(more.error());
    if (*more && budget > 0) continue;
    in_.waiting = true;
    return watch_->readable([this] {
      const std::lock_guard lock(mutex_);
      pump_receive();
    });
  }
}

Result<bool> TcpLink::Core::receive_step(Post& post, size_t* budget) {
  if (post.stage != Post::Stage::body || post.body.done()) return receive_frame(post);
  KERN_TRY(count,
           read_some(connection_.socket.fd(), post.body.window(std::min(kBytesPerCall, *budget))));
  if (count == 0) return false;
  post.body.advance(count, [&](ByteSpan run) { post.passed(run); });
  counters_.bytes_received += count;
  *budget -= std::min(*budget, count);
  return true;
}

Result<bool> TcpLink::Core::receive_frame(Post& post) {
  std::byte buffer[4096];
  const size_t want = std::min(sizeof buffer, assembler_.wanted());
  KERN_TRY(count, read_some(connection_.socket.fd(), MutableByteSpan(buffer, want)));
  if (count == 0) return false;
  assembler_.append(ByteSpan(buffer, count));
  KERN_TRY(frame, assembler_.next());
  if (frame) KERN_TRY_VOID(take_frame(post, *frame));
  return true;
}

Result<void> TcpLink::Core::take_frame(Post& post, const Frame& frame) {
  const auto expected = post.stage == Post::Stage::head ? FrameType::item : FrameType::digests;
  if (frame.type != static_cast<uint16_t>(expected))
    return fail(Kind::peer, "item {}: a frame of type {} out of turn", post.item, frame.type);
  if (post.stage == Post::Stage::head) {
    KERN_TRY_VOID(check_head(frame.payload, post.item, post.shapes));
    post.begin_body();
    return {};
  }
  const ByteSpan own = bytes_of(std::span<const uint64_t>(post.digests));
  if (own.size() != frame.payload.size())
    return fail(Kind::peer, "item {}: {} bytes of digests, expected {}", post.item,
                frame.payload.size(), own.size());
  for (size_t i = 0; i < post.digests.size(); ++i) {
    if (std::memcmp(own.data() + i * 8, frame.payload.data() + i * 8, 8) == 0) continue;
    ++counters_.digest_failures;
    return fail(Kind::peer, "item {}: tensor `{}` was altered on the way", post.item,
                post.shapes[i].name);
  }
  ++counters_.items_received;
  finish_front(in_);
  return {};
}

void TcpLink::Core::finish_front(Direction& direction) {
  direction.posts.pop_front();
  ++direction.done;
  changed_.notify_all();
}

void TcpLink::Core::breaking(Error why) {
  if (broken_) return;
  why.context.push_back("data link with " + connection_.name());
  broken_ = std::move(why);
  out_.posts.clear();
  in_.posts.clear();
  ::shutdown(connection_.socket.fd(), SHUT_RDWR);
  changed_.notify_all();
}

TcpLink::TcpLink(IoContext& io, Connection connection) : io_(io) {
  KERN_ASSERT(connection.peer.purpose == Purpose::link);
  core_ = std::make_unique<Core>(io, std::move(connection));
  io.post([core = core_.get()] { core->start(); });
}

TcpLink::~TcpLink() {
  core_->shutdown("the link was destroyed");
  io_.bury(std::move(core_));
}

Result<Ticket> TcpLink::post_send(uint64_t item, std::vector<OutTensor> tensors) {
  KERN_TRY(shapes, shapes_of(tensors));
  Gather body;
  for (const OutTensor& tensor : tensors)
    for (const ByteSpan piece : tensor.pieces) body.add(piece);
  return core_->post(true, item, std::move(shapes), std::move(body));
}

Result<Ticket> TcpLink::post_receive(uint64_t item, std::vector<InTensor> tensors) {
  KERN_TRY(shapes, shapes_of(tensors));
  Gather body;
  for (const InTensor& tensor : tensors)
    for (const MutableByteSpan piece : tensor.pieces) body.add(piece);
  return core_->post(false, item, std::move(shapes), std::move(body));
}

Result<bool> TcpLink::wait_send(Ticket ticket, TimeNs timeout) {
  return core_->wait(true, ticket, timeout);
}

Result<bool> TcpLink::wait_receive(Ticket ticket, TimeNs timeout) {
  return core_->wait(false, ticket, timeout);
}

void TcpLink::shutdown(const std::string& reason) {
  core_->shutdown(reason);
}
LinkCounters TcpLink::counters() const {
  return core_->counters();
}

}  // namespace kern::transport
