// The C++ sides of pool_peers.py: one workload of token sequences to store and prompts to look up,
// played on the pool's tree and on two plain structures, each the obvious way to do without one.
//   tree        kern::pool::PrefixTree without recurrent state: any whole page of an entry is
//   usable std::map    every stored sequence whole, in token order; the longest common prefix is
//   that with
//               a neighbour of the prompt
//   block hash  a table from the hash of a page, chained from the page before, to the page: what a
//               block manager keeps that knows pages and no tokens. XXH3 of 128 bits, unordered_map
// All answer with the longest proper prefix in whole pages of 64 tokens. Prints one JSON object:
// a side's least nanoseconds an insertion and a lookup, and the length found for every prompt.
//
// A workload is 32-bit little-endian: sequences to store, prompts, the length of each, all tokens.

#include <time.h>
#include <xxhash.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kern/pool/pool.h"
#include "kern/pool/prefix.h"

namespace {

constexpr uint32_t kPageTokens = 64;
using Tokens = std::span<const int32_t>;

struct Workload {
  std::vector<int32_t> memory;
  std::vector<Tokens> stored, prompts;
};

[[noreturn]] void die(const char* file, const char* why) {
  std::fprintf(stderr, "pool-peers: %s: %s\n", file, why);
  std::exit(1);
}

Workload read(const char* path) {
  std::FILE* file = std::fopen(path, "rb");
  if (file == nullptr) die(path, "cannot be opened");
  std::fseek(file, 0, SEEK_END);
  Workload load;
  load.memory.resize(static_cast<size_t>(std::ftell(file)) / sizeof(int32_t));
  std::rewind(file);
  const size_t got = std::fread(load.memory.data(), sizeof(int32_t), load.memory.size(), file);
  std::fclose(file);
  if (got != load.memory.size() || got < 2) die(path, "cannot be read");
  const auto stored = static_cast<size_t>(load.memory[0]);
  const size_t all = stored + static_cast<size_t>(load.memory[1]);
  const Tokens words(load.memory);
  size_t at = 2 + all;
  for (size_t i = 0; i < all; ++i) {
    const auto len = static_cast<size_t>(words[2 + i]);
    if (at + len > words.size()) die(path, "ends early");
    (i < stored ? load.stored : load.prompts).push_back(words.subspan(at, len));
    at += len;
  }
  return load;
}

uint32_t whole_proper(size_t common, size_t prompt) {
  const size_t proper = std::min(common, prompt - 1);
  return static_cast<uint32_t>(proper - proper % kPageTokens);
}

// --- the sides --------------------------------------------------------------------------------

class Tree {
 public:
  explicit Tree(const Workload& load) : pool_(geometry(load)), tree_(pool_) {
    for (const Tokens tokens : load.stored) {
      const auto len = static_cast<uint32_t>(tokens.size());
      frozen_.push_back(pool_.retire(std::move(*pool_.lease(len)), len));
    }
  }
  void insert(Tokens tokens) { tree_.insert(tokens, std::move(frozen_[next_++])); }
  uint32_t lookup(Tokens tokens) {
    const auto hit = tree_.lookup(tokens);
    return hit ? hit->len : 0;
  }

 private:
  static kern::pool::Geometry geometry(const Workload& load) {
    size_t pages = 1, longest = 1;
    for (const Tokens tokens : load.stored) {
      pages += (tokens.size() - 1) / kPageTokens + 1;
      longest = std::max(longest, tokens.size());
    }
    return {.page_tokens = kPageTokens,
            .pages = static_cast<uint32_t>(pages),
            .recurrent = false,
            .row_pages_max = static_cast<uint32_t>(longest / kPageTokens + 1)};
  }
  kern::pool::Pool pool_;
  kern::pool::PrefixTree tree_;
  std::vector<kern::pool::Checkpoint> frozen_;  // made beforehand: only the tree is measured
  size_t next_ = 0;
};

class SortedMap {
 public:
  explicit SortedMap(const Workload&) {}
  void insert(Tokens tokens) {
    map_.emplace(std::vector<int32_t>(tokens.begin(), tokens.end()), map_.size());
  }
  uint32_t lookup(Tokens tokens) {
    const auto above = map_.lower_bound(tokens);
    size_t longest = 0;
    if (above != map_.end()) longest = common(above->first, tokens);
    if (above != map_.begin()) longest = std::max(longest, common(std::prev(above)->first, tokens));
    return whole_proper(longest, tokens.size());
  }

 private:
  static size_t common(Tokens a, Tokens b) {
    const size_t n = std::min(a.size(), b.size());
    return static_cast<size_t>(
        std::mismatch(a.begin(), a.begin() + static_cast<long>(n), b.begin()).first - a.begin());
  }
  struct Less {
    using is_transparent = void;
    bool operator()(Tokens a, Tokens b) const {
      return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end());
    }
  };
  std::map<std::vector<int32_t>, size_t, Less> map_;
};

class BlockTable {
 public:
  explicit BlockTable(const Workload&) {}
  void insert(Tokens tokens) {
    XXH128_hash_t hash{0, 0};
    for (; tokens.size() >= kPageTokens; tokens = tokens.subspan(kPageTokens)) {
      hash = chained(hash, tokens);
      table_.try_emplace(hash, static_cast<uint32_t>(table_.size()));
    }
  }
  uint32_t lookup(Tokens tokens) {
    const uint32_t most = whole_proper(tokens.size(), tokens.size());
    XXH128_hash_t hash{0, 0};
    uint32_t len = 0;
    for (; len < most; len += kPageTokens) {
      hash = chained(hash, tokens.subspan(len));
      if (!table_.contains(hash)) break;
    }
    return len;
  }

 private:
  static XXH128_hash_t chained(const XXH128_hash_t& before, Tokens page) {
    unsigned char bytes[sizeof before + kPageTokens * sizeof(int32_t)];
    std::memcpy(bytes, &before, sizeof before);
    std::memcpy(bytes + sizeof before, page.data(), kPageTokens * sizeof(int32_t));
    return XXH3_128bits(bytes, sizeof bytes);
  }
  struct Hash {
    size_t operator()(const XXH128_hash_t& hash) const { return hash.low64; }
  };
  struct Equal {
    bool operator()(const XXH128_hash_t& a, const XXH128_hash_t& b) const {
      return XXH128_isEqual(a, b) != 0;
    }
  };
  std::unordered_map<XXH128_hash_t, uint32_t, Hash, Equal> table_;
};

// --- measuring --------------------------------------------------------------------------------

// The thread's own time: waiting for a core is no side's cost.
double cpu_ns() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
}

template <class Operation>
double least(double so_far, size_t operations, Operation&& all) {
  const double start = cpu_ns();
  all();
  const double each = (cpu_ns() - start) / static_cast<double>(operations);
  return so_far == 0 ? each : std::min(so_far, each);
}

template <class Side>
void measure(const char* name, const Workload& load, int repetitions, const char* end) {
  double insert_ns = 0, lookup_ns = 0;
  std::vector<uint32_t> lengths(load.prompts.size());
  for (int r = 0; r < repetitions; ++r) {
    Side side(load);
    insert_ns = least(insert_ns, load.stored.size(), [&] {
      for (const Tokens tokens : load.stored) side.insert(tokens);
    });
    for (int again = 0; again < 2; ++again)  // the first touches what the others find touched
      lookup_ns = least(lookup_ns, load.prompts.size(), [&] {
        for (size_t i = 0; i < load.prompts.size(); ++i) lengths[i] = side.lookup(load.prompts[i]);
      });
  }
  std::printf("\"%s\":{\"insert_ns\":%.1f,\"lookup_ns\":%.1f,\"lengths\":[", name, insert_ns,
              lookup_ns);
  for (size_t i = 0; i < lengths.size(); ++i) std::printf(i == 0 ? "%u" : ",%u", lengths[i]);
  std::printf("]}%s\n", end);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: pool-peers WORKLOAD REPETITIONS   (see pool_peers.py)\n");
    return 2;
  }
  const Workload load = read(argv[1]);
  const int repetitions = std::max(1, std::atoi(argv[2]));
  std::printf("{");
  measure<Tree>("tree", load, repetitions, ",");
  measure<SortedMap>("std::map", load, repetitions, ",");
  measure<BlockTable>("block hash", load, repetitions, "}");
  return 0;
}
