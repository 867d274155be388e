// The world's operations on the prefix tree, against a list of entries that is searched end to end.
#include <algorithm>
#include <tuple>
#include <utility>

#include "world.h"
#include "world_places.h"

namespace kern_test {

using kern::pool::Amount;

namespace {

uint32_t common(const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
  const auto n = static_cast<std::ptrdiff_t>(std::min(a.size(), b.size()));
  return static_cast<uint32_t>(std::mismatch(a.begin(), a.begin() + n, b.begin()).first -
                               a.begin());
}

// Whether `longer` continues `shorter`.
bool continues(const std::vector<int32_t>& longer, const std::vector<int32_t>& shorter) {
  return longer.size() > shorter.size() && common(longer, shorter) == shorter.size();
}

}  // namespace

// --- the entries of a tier --------------------------------------------------------------------

double World::worth(const Entries& entries, const Entry& entry) const {
  if (!setup_.by_cost) return 0;
  const uint64_t len = entry.text.len();
  uint64_t from = 0;
  for (const Entry& other : entries.all)
    if (continues(entry.text.tokens, other.text.tokens))
      from = std::max<uint64_t>(from, other.text.len());
  const uint64_t work = 3 * (len - from) + len * len - from * from;
  const uint64_t pages = pages_for(static_cast<uint32_t>(len)) - from / geometry_.page_tokens;
  const uint64_t bytes = 5 * pages + (geometry_.recurrent ? 7 : 0);
  return entries.age + static_cast<double>(work) / static_cast<double>(bytes);
}

// An entry is judged again when it becomes a leaf or an ancestor.
void World::refresh(Entries& entries) {
  for (Entry& entry : entries.all) {
    const bool interior = std::any_of(
        entries.all.begin(), entries.all.end(),
        [&](const Entry& other) { return continues(other.text.tokens, entry.text.tokens); });
    if (std::exchange(entry.interior, interior) != interior) entry.worth = worth(entries, entry);
  }
}

void World::hit(Entries& entries, Entry& entry) {
  entry.last_hit = ++entries.uses;
  entry.worth = worth(entries, entry);
}

void World::enter(Entries& entries, Entry entry) {
  const auto same = std::find_if(entries.all.begin(), entries.all.end(), [&](const Entry& other) {
    return entry.text.tokens == other.text.tokens;
  });
  if (same != entries.all.end()) return hit(entries, *same);
  if (!geometry_.recurrent)
    for (size_t len = 1; len <= entry.text.len(); ++len)
      entries.since.emplace(prefix(entry.text, static_cast<uint32_t>(len)).tokens, entries.uses);
  entries.all.push_back(std::move(entry));
  refresh(entries);
  hit(entries, entries.all.back());
}

void World::leave(Entries& entries, size_t which) {
  entries.age = std::max(entries.age, entries.all[which].worth);
  entries.all.erase(entries.all.begin() + static_cast<std::ptrdiff_t>(which));
  std::erase_if(entries.since, [&](const auto& branch) {
    return std::none_of(entries.all.begin(), entries.all.end(), [&](const Entry& entry) {
      return common(entry.text.tokens, branch.first) == branch.first.size();
    });
  });
  refresh(entries);
}

size_t World::first_to_go(const Entries& entries) {
  const auto order = [](const Entry& e) { return std::tuple(e.interior, e.worth, e.last_hit); };
  size_t first = entries.all.size();
  for (size_t i = 0; i < entries.all.size(); ++i)
    if (first == entries.all.size() || order(entries.all[i]) < order(entries.all[first])) first = i;
  return first;
}

size_t World::victim(const Entries& entries, const Names& names, bool pages, bool slots) {
  const auto first_where = [&](auto helps) {
    const auto order = [](const Entry& e) { return std::tuple(e.interior, e.worth, e.last_hit); };
    size_t first = entries.all.size();
    for (size_t i = 0; i < entries.all.size(); ++i) {
      if (!helps(entries.all[i])) continue;
      if (first == entries.all.size() || order(entries.all[i]) < order(entries.all[first]))
        first = i;
    }
    return first;
  };
  const size_t alone = first_where([&](const Entry& entry) {
    return (pages && names.pages[entry.at.pages.back()] == 1) ||
           (slots && entry.at.slot != 0 && names.slots[entry.at.slot] == 1);
  });
  if (alone < entries.all.size() || !pages) return alone;
  // The longest of some that end inside one page which nobody else holds.
  return first_where([&](const Entry& entry) {
    const uint32_t last = entry.at.pages.back();
    uint32_t together = 0;
    bool longest = true;
    for (const Entry& other : entries.all) {
      if (other.at.pages.back() != last) continue;
      ++together;
      longest = longest && other.text.len() <= entry.text.len();
    }
    return longest && names.pages[last] == together;
  });
}

size_t World::taken(const Entries& entries, Tokens begin) {
  while (true) {
    int32_t next = 0;
    uint64_t latest = 0;
    bool any = false;
    for (size_t i = 0; i < entries.all.size(); ++i) {
      const Tokens& tokens = entries.all[i].text.tokens;
      if (tokens == begin) return i;
      if (!continues(tokens, begin)) continue;
      const auto end = tokens.begin() + static_cast<std::ptrdiff_t>(begin.size()) + 1;
      const uint64_t since = entries.since.at(Tokens(tokens.begin(), end));
      if (any && since <= latest) continue;
      any = true;
      latest = since;
      next = tokens[begin.size()];
    }
    if (!any) return entries.all.size();
    begin.push_back(next);
  }
}

// The entry a lookup must find, and at which length; all.size() if none.
size_t World::expected_hit(const Entries& entries, const Tokens& tokens, uint32_t& len) const {
  size_t best = entries.all.size();
  uint32_t matched = 0;
  len = 0;
  for (size_t i = 0; i < entries.all.size(); ++i) {
    const Tokens& entry = entries.all[i].text.tokens;
    const uint32_t n = common(entry, tokens);
    if (n == entry.size() && n < tokens.size() && n > len) {
      best = i;
      len = n;
    }
    matched = std::max(matched, n);
  }
  if (geometry_.recurrent || tokens.empty()) return best;
  const uint32_t proper = std::min(matched, static_cast<uint32_t>(tokens.size()) - 1);
  const uint32_t whole = proper / geometry_.page_tokens * geometry_.page_tokens;
  if (whole <= len) return best;
  len = whole;
  return taken(entries, Tokens(tokens.begin(), tokens.begin() + matched));
}

// --- operations -------------------------------------------------------------------------------

bool World::insert() {
  if (readers_.empty()) return false;
  const uint32_t which = one_of(readers_.size());
  Reader reader = std::move(readers_[which]);
  readers_.erase(readers_.begin() + which);
  const size_t before = entries_.all.size();
  note("insert", reader.text.tokens);
  const bool fresh = tree_.insert(reader.text.tokens, std::move(reader.checkpoint));
  enter(entries_, {std::move(reader.text), std::move(reader.at)});
  require(fresh == (entries_.all.size() > before), "an entry is entered once");
  return true;
}

// Some tokens that are known, cut short, and some more.
World::Tokens World::prompt() {
  std::vector<const Tokens*> known;
  if (!setup_.narrow) {
    for (const Writer& writer : writers_) known.push_back(&writer.text.tokens);
    for (const Reader& reader : readers_) known.push_back(&reader.text.tokens);
  }
  for (const Entry& entry : entries_.all) known.push_back(&entry.text.tokens);
  for (const Entry& entry : parked_entries_.all) known.push_back(&entry.text.tokens);
  Tokens tokens;
  if (!known.empty()) tokens = *known[one_of(known.size())];
  if (setup_.narrow) {
    tokens.insert(tokens.end(), choose_.below(2), 0);
    return tokens;
  }
  tokens.resize(tokens.size() -
                choose_.below(std::min<uint32_t>(static_cast<uint32_t>(tokens.size()) + 1, 3)));
  tokens.insert(tokens.end(), choose_.below(geometry_.page_tokens + 1),
                static_cast<int32_t>(choose_.below(2)));
  return tokens;
}

bool World::lookup() {
  const Tokens tokens = prompt();
  uint32_t len = 0;
  const size_t expected = expected_hit(entries_, tokens, len);
  auto found = tree_.lookup(tokens);
  require(found.has_value() == (expected < entries_.all.size()),
          "a usable prefix is found if there is one");
  note("lookup", tokens, len);
  if (!found) return true;
  Entry& entry = entries_.all[expected];
  hit(entries_, entry);
  require(found->len == len && found->held.len() == len,
          "the longest usable proper prefix is found");
  Places at = entry.at;
  at.pages.resize(pages_for(len));
  require(shows(found->held.view(), at), "a hit is held where its entry lies");
  readers_.push_back({std::move(found->held), prefix(entry.text, len), std::move(at)});
  return true;
}

bool World::evict_one() {
  const size_t expected = first_to_go(entries_);
  auto gone = tree_.evict();
  require(gone.has_value() == (expected < entries_.all.size()),
          "something goes if there is anything");
  if (!gone) return false;
  Entry& entry = entries_.all[expected];
  require(shows(gone->view(), entry.at), "the entry worth least goes");
  note("evict", entry.text.tokens);
  readers_.push_back({*std::move(gone), entry.text, entry.at});
  leave(entries_, expected);
  return true;
}

bool World::evict_missing() {
  if (entries_.all.empty()) return false;
  const Amount missing{setup_.narrow ? choose_.below(3) : choose_.below(geometry_.pages),
                       geometry_.recurrent ? choose_.below(3) : 0};
  const Names at_first = names();
  const Amount before = free_now(at_first);
  const uint32_t frozen = geometry_.pages - 1 - before.pages - at_first.writable;
  const uint32_t frozen_slots = geometry_.recurrent ? geometry_.slots - 1 - before.slots -
                                                          static_cast<uint32_t>(writers_.size())
                                                    : 0;
  const bool hopeless = missing.pages > frozen || missing.slots > frozen_slots;
  uint32_t count = 0;
  Amount freed;
  for (;; ++count) {
    const Names now = names();
    freed = {free_now(now).pages - before.pages, free_now(now).slots - before.slots};
    const bool pages = freed.pages < missing.pages, slots = freed.slots < missing.slots;
    if (hopeless || (!pages && !slots)) break;
    const size_t next = victim(entries_, now, pages, slots);
    if (next == entries_.all.size()) break;
    leave(entries_, next);
  }
  const auto done = tree_.evict(missing);
  require(done.entries == count && done.freed == freed, "exactly what helps goes");
  require(done.enough == (freed.pages >= missing.pages && freed.slots >= missing.slots),
          "an eviction tells whether it was enough");
  note("evict", missing.pages, missing.slots, count);
  return true;
}

}  // namespace kern_test
