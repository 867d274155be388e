#include "kern/node/config.h"

#include <boost/program_options.hpp>
#include <charconv>
#include <sstream>

#include "kern/engine/prefill.h"

namespace kern::node {
namespace {

namespace po = boost::program_options;

void add_model(po::options_description& all) {
  all.add_options()("manifest", po::value<std::string>(), "manifest to run (a JSON file)")(
      "weights", po::value<std::string>(), "checkpoint folder: shards, index, config, tokenizer")(
      "modules", po::value<std::vector<std::string>>()->composing(),
      "folder of kernel modules (default: this build's own); may be repeated")(
      "kernels", po::value<std::vector<std::string>>()->composing(), "the same as --modules")(
      "device", po::value<std::string>()->default_value("host"), "host, or gpu:N")(
      "gpu", po::value<int>(), "the same as --device gpu:N")(
      "chunk", po::value<int>()->default_value(0), "rows of one prefill item (0: the manifest's)")(
      "max-seqs", po::value<int>()->default_value(0), "sequences of one item (0: the manifest's)")(
      "capacity", po::value<int64_t>()->default_value(0),
      "tokens of paged state to hold (0: eight full contexts)")(
      "slots", po::value<int>()->default_value(0),
      "sequences and cached prefixes with recurrent state (0: four times max-seqs)")(
      "threads", po::value<int>()->default_value(1), "worker threads that run kernels")(
      "log-level", po::value<std::string>()->default_value("info"),
      "debug, info, warn, error, off")("trace", po::value<std::string>(),
                                       "write a Chrome trace of the last spans here on exit")(
      "drain-seconds", po::value<int>()->default_value(30), "how long SIGTERM waits for open work");
}

void add_http(po::options_description& all, const std::string& vendor_rules_flag) {
  all.add_options()("port", po::value<int>()->default_value(8000), "port of the HTTP API")(
      "host", po::value<std::string>()->default_value("127.0.0.1"), "address of the HTTP API")(
      "model-name", po::value<std::string>(), "name in /v1/models (default: the manifest's label)")(
      "api-key-file", po::value<std::string>(), "one key a line; guards every route but /health")(
      vendor_rules_flag.c_str(), po::bool_switch(),
      "refuse sampling parameters the vendor refuses")(
      "queue", po::value<int>()->default_value(1024), "requests that may wait");
  const serve::Limits defaults;
  for (const serve::LimitFlag& limit : serve::limit_flags())
    all.add_options()(limit.name, po::value<int64_t>()->default_value(defaults.*limit.field),
                      limit.help);
}

void add_parking(po::options_description& all) {
  all.add_options()("host-gib", po::value<double>()->default_value(0),
                    "GiB of host memory that this process takes for prefixes which leave the "
                    "device (page-locked for a GPU); every stage the same")(
      "host-turn", po::value<int>()->default_value(0),
      "shortest prefix worth parking there, in tokens (the head's word counts)");
}

void add_peers(po::options_description& all) {
  all.add_options()("listen", po::value<std::string>(),
                    "HOST:PORT where this head's peers dial in")(
      "head", po::value<std::string>(), "HOST:PORT of this process's head")(
      "advertise", po::value<std::string>()->default_value("127.0.0.1"),
      "address at which other processes reach this one")(
      "cluster-key-file", po::value<std::string>(),
      "shared secret of all daemons; without one only loopback peers are spoken to")(
      "peer-timeout", po::value<int>()->default_value(5),
      "seconds until a silent peer counts as dead")(
      "exit-with-head", po::bool_switch(),
      "exit when the head is lost, instead of waiting for one");
}

po::options_description describe(const Program& program) {
  const Role role = program.role;
  po::options_description all("options", 100, 60);
  all.add_options()("help,h", "print this")("version", "print the version");
  add_model(all);
  if (role != Role::decode_rank) add_http(all, program.vendor_rules_flag);
  if (role != Role::decode_rank) add_parking(all);
  if (role != Role::one_process) add_peers(all);
  if (role == Role::prefill_stage)
    all.add_options()("decode-listen", po::value<std::string>(),
                      "stage 0: HOST:PORT where decode groups register");
  if (role == Role::decode_rank)
    all.add_options()("rank", po::value<int>()->default_value(0),
                      "place in the group; 0 is its head")(
        "decode", po::value<std::string>(), "rank 0: HOST:PORT of stage 0's --decode-listen");
  return all;
}

std::string usage(const Program& program, const po::options_description& all) {
  std::ostringstream out;
  out << program.usage << "\n" << all;
  return out.str();
}

/// Reads one kind of value out of the map, keeping the default when the flag is absent.
template <class T>
void read(const po::variables_map& map, const char* name, T& into) {
  if (map.count(name) == 0) return;
  if constexpr (std::is_same_v<T, std::filesystem::path>)
    into = map[name].as<std::string>();
  else
    into = map[name].as<T>();
}

Result<void> read_device(const po::variables_map& map, DaemonConfig& config) {
  std::string word = map["device"].as<std::string>();
  if (map.count("gpu") != 0) word = fmt::format("gpu:{}", map["gpu"].as<int>());
  KERN_TRY(gpu, parse_device(word));
  config.gpu = gpu;
  return {};
}

Result<void> read_parking(const po::variables_map& map, DaemonConfig& config) {
  constexpr double kGib = 1024.0 * 1024 * 1024, kGibMax = 1 << 20;
  if (map.count("host-gib") == 0) return {};
  const double gib = map["host-gib"].as<double>();
  if (!(gib >= 0 && gib <= kGibMax))
    return fail(Kind::caller, "`--host-gib`: expected 0 to {}, got {}", kGibMax, gib);
  config.host_tier_bytes = static_cast<int64_t>(gib * kGib);
  read(map, "host-turn", config.park_tokens_min);
  return {};
}

Result<void> check_ranges(const DaemonConfig& c) {
  struct Range {
    const char* flag;
    int64_t value, least, most;
  };
  const Range ranges[] = {{"chunk", c.chunk, 0, 1 << 20},
                          {"max-seqs", c.max_seqs, 0, 1 << 16},
                          {"threads", c.threads, 1, 1024},
                          {"port", c.port, 0, 65535},
                          {"capacity", c.capacity_tokens, 0, int64_t{1} << 40},
                          {"slots", c.slots, 0, 1 << 24},
                          {"host-turn", c.park_tokens_min, 0, 1 << 30},
                          {"queue", c.queue_max, 1, 1 << 20},
                          {"rank", c.rank, 0, 4095},
                          {"peer-timeout", c.peer_timeout_s, 1, 3600},
                          {"drain-seconds", c.drain_s, 0, 3600}};
  for (const Range& r : ranges)
    if (r.value < r.least || r.value > r.most)
      return fail(Kind::caller, "`--{}`: expected {} to {}, got {}", r.flag, r.least, r.most,
                  r.value);
  for (const serve::LimitFlag& limit : serve::limit_flags())
    if (const int64_t value = c.limits.*limit.field; value < limit.low || value > limit.high)
      return fail(Kind::caller, "`--{}`: expected {} to {}, got {}", limit.name, limit.low,
                  limit.high, value);
  if (c.chunk > 0 && c.chunk < static_cast<int>(engine::kGridTokens))
    return fail(Kind::caller, "`--chunk`: expected 0 or at least {}, got {}", engine::kGridTokens,
                c.chunk);
  return {};
}

Result<void> check_needed(Role role, const DaemonConfig& c) {
  if (c.manifest.empty()) return fail(Kind::caller, "`--manifest` is missing");
  if (c.weights.empty()) return fail(Kind::caller, "`--weights` is missing");
  if (role == Role::prefill_stage && c.head.empty() == c.listen.empty())
    return fail(Kind::caller, "give `--listen` to stage 0, or `--head` to another stage");
  if (role == Role::prefill_stage && !c.head.empty() && !c.decode_listen.empty())
    return fail(Kind::caller, "`--decode-listen` belongs to stage 0");
  if (role == Role::decode_rank && c.rank == 0 && !c.head.empty())
    return fail(Kind::caller, "`--head` belongs to ranks above 0; rank 0 is the group's head");
  if (role == Role::decode_rank && c.rank == 0 && c.decode.empty())
    return fail(Kind::caller, "`--decode` is missing: the prefill head's --decode-listen address");
  if (role == Role::decode_rank && c.rank > 0 && c.head.empty())
    return fail(Kind::caller, "`--head` is missing: rank 0's --listen address");
  return {};
}

Result<DaemonConfig> to_config(const Program& program, const po::variables_map& map) {
  DaemonConfig c;
  read(map, "manifest", c.manifest);
  read(map, "weights", c.weights);
  for (const char* flag : {"modules", "kernels"})
    if (map.count(flag) != 0)
      for (const std::string& dir : map[flag].as<std::vector<std::string>>())
        c.module_dirs.emplace_back(dir);
  KERN_TRY_VOID(read_device(map, c));
  read(map, "chunk", c.chunk);
  read(map, "max-seqs", c.max_seqs);
  read(map, "threads", c.threads);
  read(map, "host", c.host);
  read(map, "port", c.port);
  read(map, "model-name", c.model_name);
  read(map, "api-key-file", c.api_key_file);
  read(map, program.vendor_rules_flag.c_str(), c.vendor_rules);
  read(map, "queue", c.queue_max);
  for (const serve::LimitFlag& limit : serve::limit_flags())
    read(map, limit.name, c.limits.*limit.field);
  read(map, "listen", c.listen);
  read(map, "head", c.head);
  read(map, "decode-listen", c.decode_listen);
  read(map, "decode", c.decode);
  read(map, "advertise", c.advertise);
  read(map, "rank", c.rank);
  read(map, "capacity", c.capacity_tokens);
  read(map, "slots", c.slots);
  read(map, "cluster-key-file", c.cluster_key_file);
  read(map, "peer-timeout", c.peer_timeout_s);
  read(map, "drain-seconds", c.drain_s);
  read(map, "exit-with-head", c.exit_with_head);
  read(map, "trace", c.trace);
  KERN_TRY(level, parse_level(map["log-level"].as<std::string>()));
  c.log_level = level;
  KERN_TRY_VOID(read_parking(map, c));
  KERN_TRY_VOID(check_ranges(c));
  return c;
}

}  // namespace

Result<std::optional<int>> parse_device(std::string_view word) {
  constexpr std::string_view kGpu = "gpu:";
  if (word == "host") return std::optional<int>();
  int number = -1;
  if (word.starts_with(kGpu)) {
    const char* const end = word.data() + word.size();
    const auto read = std::from_chars(word.data() + kGpu.size(), end, number);
    if (read.ec != std::errc() || read.ptr != end) number = -1;
  }
  if (number < 0) return fail(Kind::caller, "`--device {}`: expected host or gpu:N", word);
  return std::optional<int>(number);
}

Result<ParsedConfig> parse_config(const Program& program, int argc, const char* const* argv) {
  const Role role = program.role;
  const po::options_description all = describe(program);
  po::positional_options_description positional;
  if (role == Role::one_process) positional.add("manifest", 1);
  po::variables_map map;
  try {
    po::store(po::command_line_parser(argc, argv).options(all).positional(positional).run(), map);
    po::notify(map);
  } catch (const po::error& e) {
    return fail(Kind::caller, "{} (see --help)", e.what());
  }
  if (map.count("help") != 0) return ParsedConfig{{}, usage(program, all)};
  if (map.count("version") != 0) return ParsedConfig{{}, "kern " KERN_VERSION "\n"};
  KERN_TRY(config, to_config(program, map));
  KERN_TRY_VOID(check_needed(role, config));
  return ParsedConfig{std::move(config), {}};
}

}  // namespace kern::node
