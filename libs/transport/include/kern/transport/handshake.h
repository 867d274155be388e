#pragma once
/// How two processes come to trust a connection, as a state machine without a socket: frames in,
/// bytes out. Both ends send a challenge, both prove that they hold the cluster key over everything
/// that was said, and both compare protocol version, purpose, plan, epoch and role, before any
/// other frame is looked at.
///
///   dialer                         listener
///   hello (who, challenge)  ->
///                           <-     hello (who, challenge, proof)
///   proof | refuse          ->
///                           <-     accept | refuse
///
/// Thread safety: one thread each.
/// Does not: encrypt; a cluster's network is private, its keys are not passwords.

#include <functional>
#include <optional>
#include <string>

#include "kern/transport/frame.h"
#include "kern/transport/key.h"

namespace kern::transport {

enum class Role : uint8_t { stage = 1, rank = 2 };
std::string_view to_string(Role role);

/// Who speaks, and what it must have in common with the one who listens.
struct Identity {
  Role role = Role::stage;
  uint32_t index = 0;                  ///< stage number or rank; 0 is the head of its kind
  Purpose purpose = Purpose::control;  ///< the same on both ends
  Digest plan{};       ///< the same on both ends: hash of the manifest family or group layout
  uint64_t epoch = 0;  ///< the same on both ends: which forming of a pipeline or group this is

  /// "stage 3"
  std::string name() const;
  friend bool operator==(const Identity&, const Identity&) = default;
};

/// What one end says of itself and accepts of the other.
struct Terms {
  Identity self;
  std::optional<ClusterKey> key;
  Role peer_role = Role::stage;
  std::optional<uint32_t> peer_index;  ///< nothing: any
  /// Listener only: a last word on a peer that has proved itself, such as "stage 3 is already
  /// here". Empty: everyone is welcome.
  std::function<Result<void>(const Identity&)> admit;
};

/// Frames of the handshake in each direction; messages go on counting from here.
inline constexpr uint64_t kHandshakeFrames = 2;

/// One end of a handshake. `start`, then `receive` for every frame until done or failed.
class Handshake {
 public:
  enum class Side : uint8_t { dialer, listener };
  /// What to do after a frame: send these bytes first, in any case.
  struct Step {
    std::vector<std::byte> send;
    std::optional<Error> failed;  ///< kind peer; close after sending
    bool final = false;           ///< the ends do not match: trying again will not help
  };

  Handshake(Side side, Terms terms);
  /// Ends a handshake whose peer cannot be understood: the bytes that tell it why.
  std::vector<std::byte> give_up(const Error& why, bool final);
  /// The dialer's first bytes; empty for a listener. Fails with kind io without randomness.
  Result<std::vector<std::byte>> start();
  Step receive(const Frame& frame);
  bool done() const { return stage_ == Stage::done; }
  /// Valid once done.
  const Identity& peer() const { return peer_; }

 private:
  enum class Stage : uint8_t { hello, proof, accept, done, failed };

  struct Mismatch;

  Step fail_here(std::string sentence, bool final, bool tell);
  Step refused_by_peer(ByteSpan payload);
  Step receive_hello(ByteSpan payload);
  Step receive_proof(ByteSpan payload);
  Result<void> read_hello(ByteSpan payload, Digest* proof);
  std::optional<Mismatch> mismatch() const;
  Digest prove(Side side) const;
  std::vector<std::byte> frame(FrameType type, ByteSpan payload);

  Side side_;
  Terms terms_;
  Stage stage_ = Stage::hello;
  Digest own_challenge_{};
  Digest peer_challenge_{};
  bool peer_has_key_ = false;
  Identity peer_;
  uint64_t sequence_ = 0;
};

}  // namespace kern::transport
