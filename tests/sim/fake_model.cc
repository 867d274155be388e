#include "fake_model.h"

#include <fmt/format.h>

#include <set>

namespace kern::sim {
namespace {

Digest mix(Digest a, Digest b) {
  uint64_t z = (a ^ (b + 0x9E3779B97F4A7C15ULL + (a << 6) + (a >> 2))) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 29)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 32);
}

Digest embed(engine::Token token) {
  return mix(0x5EED, static_cast<uint64_t>(token));
}
Digest kv_of(int stage, uint32_t position, Digest hidden) {
  return mix(mix(static_cast<uint64_t>(stage) + 1, position), hidden);
}
Digest line_of(int stage, Digest before, Digest hidden) {
  return mix(mix(0xAB1E + static_cast<uint64_t>(stage), before), hidden);
}
Digest out_of(Digest hidden, Digest read, Digest line) {
  return mix(mix(hidden, read), line);
}
Digest rank_mark(uint32_t rank) {
  return mix(0x4A4A, rank);
}

engine::Emitted next_token(engine::RequestId request, Digest hidden,
                           const engine::Sampling& sampling, uint32_t draw) {
  engine::Emitted emitted{.request = request};
  const Digest drawn = sampling.temperature > 0 ? mix(mix(hidden, sampling.seed), draw) : hidden;
  emitted.token = static_cast<engine::Token>(drawn % 50);
  emitted.failed = (sampling.seed & kFragile) != 0 && mix(hidden, 99) % 8 == 0;
  if (emitted.failed) emitted.token = -1;
  return emitted;
}

}  // namespace

Memory::Memory(uint32_t page_count, uint32_t slot_count, uint32_t tokens, Prng& garbage)
    : page_tokens(tokens) {
  const Digest filth = garbage.next();
  pages.assign(page_count, std::vector<Digest>(tokens, filth));
  slots.assign(slot_count, filth + 1);
}

void apply(Memories& memories, const std::vector<Write>& writes) {
  for (const Write& write : writes) {
    Memory& memory = memories.at(static_cast<size_t>(write.stage));
    if (write.slot)
      memory.slots.at(write.index) = write.value;
    else
      memory.pages.at(write.index).at(write.offset) = write.value;
  }
}

std::vector<engine::Token> tokens_of(const engine::ItemResult& step) {
  std::vector<engine::Token> tokens;
  for (const engine::Emitted& one : step.emitted) tokens.push_back(one.failed ? -1 : one.token);
  return tokens;
}

void feed(engine::Item& item, const std::vector<engine::Token>& kept) {
  for (engine::Slice& slice : item.slices)
    if (slice.fed_from >= 0)
      slice.tokens = {std::max(kept.at(static_cast<size_t>(slice.fed_from)), 0)};
}

void Moves::start(const engine::Item& item) {
  for (const engine::Move& move : item.moves) under_way_.emplace_back(item.id, move);
  if (!item.moves.empty()) started_ = item.id;
}

bool Moves::holds_up(const engine::Item& item) const {
  return !under_way_.empty() && under_way_.front().first <= item.after_moves;
}

void Moves::step(Memories& memories) {
  using What = engine::Move::What;
  const engine::Move move = under_way_.front().second;
  under_way_.pop_front();
  for (Memory& memory : memories) {
    if (move.what == What::park_page) memory.host_pages[move.host] = memory.pages.at(move.device);
    if (move.what == What::wake_page)
      memory.pages.at(move.device) = memory.host_pages.at(move.host);
    if (move.what == What::park_slot) memory.host_slots[move.host] = memory.slots.at(move.device);
    if (move.what == What::wake_slot)
      memory.slots.at(move.device) = memory.host_slots.at(move.host);
  }
}

std::optional<std::string> Moves::in_the_way(const engine::Item& item, uint32_t page_tokens) const {
  using What = engine::Move::What;
  std::set<uint32_t> pages_read, pages_written, slots_read, slots_written;
  slots_written.insert(item.zero_slots.begin(), item.zero_slots.end());
  for (const engine::Copy& copy : item.slot_copies) {
    slots_read.insert(copy.from);
    slots_written.insert(copy.to);
  }
  for (const engine::Slice& slice : item.slices) {
    const auto end = slice.start + static_cast<uint32_t>(slice.tokens.size());
    for (uint32_t at = 0; at < end; ++at)
      (at < slice.start ? pages_read : pages_written).insert(slice.pages.at(at / page_tokens));
    slots_written.insert(slice.slot);
    slots_written.insert(slice.snapshot_slot);
  }
  for (const auto& [id, move] : under_way_) {
    const bool page = move.what == What::park_page || move.what == What::wake_page;
    const bool wakes = move.what == What::wake_page || move.what == What::wake_slot;
    const bool written = (page ? pages_written : slots_written).contains(move.device);
    const bool read = (page ? pages_read : slots_read).contains(move.device);
    if (written || (wakes && read))
      return fmt::format("item {} {} {} {}, which item {} still {}", item.id,
                         written ? "writes" : "reads", page ? "page" : "slot", move.device, id,
                         wakes ? "wakes" : "parks");
  }
  return std::nullopt;
}

std::vector<Digest> embed(const engine::Item& item) {
  std::vector<Digest> hidden;
  for (const engine::Slice& slice : item.slices)
    for (const engine::Token token : slice.tokens) hidden.push_back(embed(token));
  return hidden;
}

std::vector<Digest> run_stage(const Model& model, int stage, Memory& memory,
                              const engine::Item& item, const std::vector<Digest>& hidden) {
  for (const uint32_t slot : item.zero_slots) memory.slots.at(slot) = 0;
  for (const engine::Copy& copy : item.page_copies)
    memory.pages.at(copy.to) = memory.pages.at(copy.from);
  for (const engine::Copy& copy : item.slot_copies)
    memory.slots.at(copy.to) = memory.slots.at(copy.from);
  std::vector<Digest> out;
  size_t row = 0;
  for (const engine::Slice& slice : item.slices) {
    Digest read = 0;
    for (uint32_t at = 0; at < slice.start; ++at) read = mix(read, memory.at(slice.pages, at));
    Digest line = model.recurrent ? memory.slots.at(slice.slot) : 0;
    const auto end = slice.start + static_cast<uint32_t>(slice.tokens.size());
    for (uint32_t at = slice.start; at < end; ++at, ++row) {
      const Digest in = hidden.at(row);
      memory.at(slice.pages, at) = kv_of(stage, at, in);
      read = mix(read, memory.at(slice.pages, at));
      if (model.recurrent) line = line_of(stage, line, in);
      out.push_back(out_of(in, read, line));
      if (slice.snapshot_slot != 0 && at + 1 == end / 64 * 64)
        memory.slots.at(slice.snapshot_slot) = line;
    }
    if (model.recurrent) memory.slots.at(slice.slot) = line;
  }
  return out;
}

engine::ItemResult emit(const engine::Item& item, const std::vector<Digest>& hidden) {
  engine::ItemResult result{.id = item.id};
  size_t row = 0;
  for (const engine::Slice& slice : item.slices) {
    row += slice.tokens.size();
    if (slice.emits)
      result.emitted.push_back(
          next_token(slice.request, hidden.at(row - 1), slice.sampling, slice.draw));
  }
  return result;
}

engine::ItemResult run_group(const Model& model, std::vector<Memories*>& ranks,
                             const engine::Item& item, std::vector<std::vector<Write>>& writes) {
  const auto count = static_cast<uint32_t>(ranks.size());
  writes.assign(count, {});
  std::vector<Digest> hidden = embed(item);
  for (size_t i = 0; i < item.slices.size(); ++i) {
    const engine::Slice& slice = item.slices[i];
    Digest in = hidden[i];
    for (int stage = 0; stage < model.stages; ++stage) {
      const auto s = static_cast<size_t>(stage);
      Digest read = 0;
      for (uint32_t at = 0; at < slice.start; ++at)
        read = mix(read, ranks[at % count]->at(s).at(slice.pages, at / count));
      const Digest kv = kv_of(stage, slice.start, in);
      read = mix(read, kv);
      const uint32_t row = slice.start / count;
      Memory& owner = ranks[slice.start % count]->at(s);
      writes[slice.start % count].push_back(
          {stage, false, slice.pages.at(row / owner.page_tokens), row % owner.page_tokens, kv});
      Digest line = 0;
      for (uint32_t rank = 0; model.recurrent && rank < count; ++rank) {
        const Digest mine = ranks[rank]->at(s).slots.at(slice.slot) - rank_mark(rank);
        line = rank == 0 || line == mine ? mine : mix(line, mine);  // ranks that differ spoil it
      }
      if (model.recurrent) line = line_of(stage, line, in);
      for (uint32_t rank = 0; model.recurrent && rank < count; ++rank)
        writes[rank].push_back({stage, true, slice.slot, 0, line + rank_mark(rank)});
      in = out_of(in, read, line);
    }
    hidden[i] = in;
  }
  return emit(item, hidden);
}

std::vector<Digest> cut_part(Memory& memory, const engine::Place& from, uint32_t tokens, bool paged,
                             uint32_t rank, uint32_t ranks) {
  if (!paged) return {memory.slots.at(from.slot) + rank_mark(rank)};
  std::vector<Digest> rows;
  for (uint32_t at = rank; at < tokens; at += ranks) rows.push_back(memory.at(from.pages, at));
  return rows;
}

void land_part(Memory& memory, const engine::Place& to, bool paged, uint32_t,
               const std::vector<Digest>& part) {
  if (!paged) {
    memory.slots.at(to.slot) = part.at(0);
    return;
  }
  for (uint32_t row = 0; row < part.size(); ++row) memory.at(to.pages, row) = part[row];
}

Answer answer(const Model& model, const engine::Request& request) {
  std::vector<Digest> read(static_cast<size_t>(model.stages), 0), line(read);
  uint32_t position = 0;
  const auto feed = [&](engine::Token token) {
    Digest in = embed(token);
    for (int stage = 0; stage < model.stages; ++stage) {
      const auto s = static_cast<size_t>(stage);
      read[s] = mix(read[s], kv_of(stage, position, in));
      if (model.recurrent) line[s] = line_of(stage, line[s], in);
      in = out_of(in, read[s], line[s]);
    }
    ++position;
    return in;
  };
  Digest hidden = 0;
  for (const engine::Token token : request.prompt) hidden = feed(token);
  Answer answer;
  for (uint32_t draw = 0;; ++draw) {
    const engine::Emitted next = next_token(request.id, hidden, request.sampling, draw);
    if (next.failed) {
      answer.end = engine::EndReason::failed;
      return answer;
    }
    for (const engine::Token stop : request.stop_tokens) {
      if (stop != next.token) continue;
      answer.end = engine::EndReason::stop;
      return answer;
    }
    answer.tokens.push_back(next.token);
    if (answer.tokens.size() >= static_cast<size_t>(request.max_tokens)) return answer;
    hidden = feed(next.token);
  }
}

std::optional<std::string> unsound(const engine::Item& item, uint32_t page_tokens, uint32_t ranks) {
  std::set<uint32_t> pages, slots;
  for (const uint32_t slot : item.zero_slots)
    if (slot == 0) return "slot 0 is zeroed";
  for (const engine::Slice& slice : item.slices) {
    const auto end = slice.start + static_cast<uint32_t>(slice.tokens.size());
    std::set<uint32_t> mine;
    for (uint32_t at = slice.start; at < end; ++at)
      mine.insert(slice.pages.at(at / ranks / page_tokens));
    for (const uint32_t page : mine)
      if (page == 0 || !pages.insert(page).second)
        return fmt::format("item {}: page {} is written twice", item.id, page);
    for (const uint32_t slot : {slice.slot, slice.snapshot_slot})
      if (slot != 0 && !slots.insert(slot).second)
        return fmt::format("item {}: slot {} is written twice", item.id, slot);
  }
  return std::nullopt;
}

}  // namespace kern::sim
