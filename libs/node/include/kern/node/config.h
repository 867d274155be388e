#pragma once
/// The flags of the daemons, read once into plain values. Every limit a person may set is here.
/// Thread safety: plain values.
/// Does not: read the environment, open files, or know which daemon asks (each says what it needs).

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kern/base/log.h"
#include "kern/serve/limits.h"

namespace kern::node {

/// Which program parses: decides which flags exist and which are needed.
enum class Role : uint8_t { prefill_stage, decode_rank, one_process };

/// What a main says about itself.
struct Program {
  Role role = Role::one_process;
  std::string usage;  ///< printed above the options by --help
  std::string vendor_rules_flag = "vendor-rules";
};

struct DaemonConfig {
  std::filesystem::path manifest;
  std::filesystem::path weights;
  std::vector<std::filesystem::path> module_dirs;  ///< --modules, alias --kernels
  int chunk = 0;     ///< rows of a prefill item; 0: the manifest's bound
  int max_seqs = 0;  ///< sequences of an item; 0: the manifest's bound
  int threads = 1;
  std::optional<int> gpu;         ///< --device gpu:N; absent: the host
  bool multicast_is_off = false;  ///< set by main, as runtime::Options says

  std::string host = "127.0.0.1";  ///< where the HTTP API listens
  int port = 8000;
  std::string model_name;  ///< in /v1/models; empty: the manifest's label
  std::string api_key_file;
  bool vendor_rules = false;  ///< the flag of that program's name

  std::string listen;                   ///< heads: where stages or ranks dial in
  std::string head;                     ///< others: their head's --listen
  std::string decode_listen;            ///< stage 0: where decode groups dial in
  std::string decode;                   ///< rank 0: the prefill head's --decode-listen
  std::string advertise = "127.0.0.1";  ///< address at which other processes reach this one
  int rank = 0;

  int64_t capacity_tokens = 0;  ///< tokens of paged state; 0: a default from the manifest
  int slots = 0;                ///< sequences and checkpoints with recurrent state; 0: a default
  int64_t host_tier_bytes = 0;  ///< of host memory for parked prefixes, in this process; 0: none
  int park_tokens_min = 0;      ///< the shortest prefix that is parked
  int queue_max = 1024;         ///< requests waiting at the head
  serve::Limits limits;         ///< of the HTTP API, each a flag
  std::filesystem::path cluster_key_file;
  int peer_timeout_s = 5;
  int drain_s = 30;
  bool exit_with_head = false;
  Level log_level = Level::info;
  std::filesystem::path trace;  ///< write spans here on exit
};

/// "host" is no GPU, "gpu:N" that one. Kind caller for anything else.
Result<std::optional<int>> parse_device(std::string_view word);

/// Reads argv; `help` is also what --version prints. An empty `help` means the config is good; else
/// print `help` and exit 0. A caller error names the flag, what was expected and what was got.
struct ParsedConfig {
  DaemonConfig config;
  std::string help;
};
Result<ParsedConfig> parse_config(const Program& program, int argc, const char* const* argv);

}  // namespace kern::node
