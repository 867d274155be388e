#pragma once
/// What the HTTP front needs from whatever generates tokens: take a request, drop a request, say
/// how it is. A node implements this over its engine, a test over a script. Thread safety: one
/// thread calls every function here and Server::deliver. Ownership / lifetime: a Backend outlives
/// the Server it was given to. Does not: know HTTP, text or tokenizers; it sees token ids alone.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kern/engine/request.h"

namespace kern::serve {

/// The one model this process serves.
struct ModelInfo {
  std::string name;                  ///< as clients spell it in `model`
  std::vector<std::string> aliases;  ///< other names that mean the same model
  int32_t max_model_len = 0;         ///< tokens of prompt and answer together
  int64_t created = 0;               ///< seconds since 1970
  std::string owned_by = "kern";
  std::vector<engine::Token> stop_tokens;  ///< end every answer that does not ask for ignore_eos
  int32_t vocab = 0;                       ///< prompt ids are below this
  int32_t top_logprobs_max = 0;            ///< alternatives a token that the engine can give
};

enum class HealthState : uint8_t { loading, ready, draining, stuck };

/// "loading", "ready", "draining" or "stuck".
std::string_view to_string(HealthState state);

struct Health {
  HealthState state = HealthState::loading;
  std::string reason;        ///< a sentence, empty when ready
  std::string details_json;  ///< one JSON object, or empty
};

/// One table of the status page.
struct StatusTable {
  std::string title;
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;
};

class Backend {
 public:
  virtual ~Backend() = default;
  /// Takes a request whose id was never used before. Its answer comes through Server::deliver, also
  /// from inside this call: any number of TokenEvents, then exactly one FinishedEvent or
  /// FailedEvent.
  virtual void submit(engine::Request request) = 0;
  /// Ends a live request soon. A FinishedEvent with reason aborted should follow (it tells what the
  /// cache spared); the front waits a short while for it and then goes on without. An unknown or
  /// ended id is no error.
  virtual void abort(engine::RequestId id) = 0;
  virtual const ModelInfo& model() const = 0;
  virtual Health health() const = 0;
  /// Prometheus families of the engine side, each line ended. The front writes those listed in
  /// libs/serve/README.md itself; a family must not come from both.
  virtual std::string metrics_text() const = 0;
  /// Stages, ranks, pool and queue for the status page.
  virtual std::vector<StatusTable> status() const { return {}; }
  /// A fresh random number for a request that names no seed.
  virtual uint64_t random_seed() = 0;
};

}  // namespace kern::serve
