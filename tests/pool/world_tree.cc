// The world's operations on the prefix tree, against a list of entries that is searched end to end.
#include <algorithm>
#include <utility>

#include "world.h"

namespace kern_test {

using kern::pool::Amount;

namespace {

std::string show(const std::vector<int32_t>& tokens) {
  std::string out;
  for (const int32_t token : tokens) out += std::to_string(token);
  return out;
}

std::vector<uint32_t> numbers(const kern::pool::Checkpoint& checkpoint) {
  std::vector<uint32_t> out;
  for (const kern::pool::PageId page : checkpoint.view().pages()) out.push_back(page.value());
  return out;
}

uint32_t common(const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
  const size_t n = std::min(a.size(), b.size());
  return static_cast<uint32_t>(std::mismatch(a.begin(), a.begin() + n, b.begin()).first -
                               a.begin());
}

}  // namespace

bool World::insert() {
  if (readers_.empty()) return false;
  const uint32_t which = choose_.below(static_cast<uint32_t>(readers_.size()));
  Reader reader = std::move(readers_[which]);
  readers_.erase(readers_.begin() + which);
  const auto same = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) {
    return entry.text.tokens == reader.text.tokens;
  });
  Entry entry{reader.text, numbers(reader.checkpoint), reader.checkpoint.view().slot().value(),
              ++uses_};
  const bool fresh = tree_.insert(reader.text.tokens, std::move(reader.checkpoint));
  require(fresh == (same == entries_.end()), "an entry is entered once");
  note("insert " + show(reader.text.tokens) + (fresh ? "" : ": there is one"));
  if (fresh)
    entries_.push_back(std::move(entry));
  else
    same->last_hit = uses_;
  return true;
}

// Some tokens that are known, cut short, and some more.
World::Tokens World::prompt() {
  std::vector<const Tokens*> known;
  for (const Writer& writer : writers_) known.push_back(&writer.text.tokens);
  for (const Reader& reader : readers_) known.push_back(&reader.text.tokens);
  for (const Entry& entry : entries_) known.push_back(&entry.text.tokens);
  for (const Entry& entry : parked_entries_) known.push_back(&entry.text.tokens);
  Tokens tokens;
  if (!known.empty()) tokens = *known[choose_.below(static_cast<uint32_t>(known.size()))];
  tokens.resize(tokens.size() -
                choose_.below(std::min<uint32_t>(static_cast<uint32_t>(tokens.size()) + 1, 3)));
  tokens.insert(tokens.end(), choose_.below(geometry_.page_tokens + 1),
                static_cast<int32_t>(choose_.below(2)));
  return tokens;
}

// The entry a lookup must find, and at which length; entries.size() if none.
size_t World::expected_hit(const std::vector<Entry>& entries, const Tokens& tokens,
                           uint32_t& len) const {
  size_t best = entries.size(), longest = entries.size();
  uint32_t matched = 0;
  len = 0;
  for (size_t i = 0; i < entries.size(); ++i) {
    const Tokens& entry = entries[i].text.tokens;
    const uint32_t n = common(entry, tokens);
    if (n == entry.size() && n < tokens.size() && n > len) {
      best = i;
      len = n;
    }
    if (n > matched || (n == matched && n > 0 && entry < entries[longest].text.tokens)) {
      longest = i;
      matched = n;
    }
  }
  if (geometry_.recurrent || tokens.empty()) return best;
  matched = std::min(matched, static_cast<uint32_t>(tokens.size()) - 1);
  const uint32_t whole = matched / geometry_.page_tokens * geometry_.page_tokens;
  if (whole <= len) return best;
  len = whole;
  return longest;
}

bool World::lookup() {
  const Tokens tokens = prompt();
  uint32_t len = 0;
  const size_t expected = expected_hit(entries_, tokens, len);
  auto hit = tree_.lookup(tokens);
  require(hit.has_value() == (expected < entries_.size()),
          "a usable prefix is found if there is one");
  if (!hit) {
    note("lookup " + show(tokens) + ": nothing");
    return true;
  }
  Entry& entry = entries_[expected];
  entry.last_hit = ++uses_;
  require(hit->len == len && hit->held.len() == len, "the longest usable proper prefix is found");
  std::vector<uint32_t> pages = entry.pages;
  pages.resize(pages_for(len));
  require(numbers(hit->held) == pages, "a hit is held where its entry lies");
  note("lookup " + show(tokens) + ": " + std::to_string(len));
  readers_.push_back({std::move(hit->held), prefix(entry.text, len)});
  return true;
}

bool World::is_interior(const std::vector<Entry>& entries, const Entry& entry) {
  return std::any_of(entries.begin(), entries.end(), [&](const Entry& other) {
    return other.text.tokens.size() > entry.text.tokens.size() &&
           common(other.text.tokens, entry.text.tokens) == entry.text.tokens.size();
  });
}

size_t World::victim(const Names& names, Amount missing, bool any) const {
  size_t first = entries_.size();
  for (size_t i = 0; i < entries_.size(); ++i) {
    const Entry& entry = entries_[i];
    const bool helps = (missing.pages > 0 && names.pages[entry.pages.back()] == 1) ||
                       (missing.slots > 0 && entry.slot != 0 && names.slots[entry.slot] == 1);
    if (!any && !helps) continue;
    const auto order = [&](const Entry& e) {
      return std::pair(is_interior(entries_, e), e.last_hit);
    };
    if (first == entries_.size() || order(entry) < order(entries_[first])) first = i;
  }
  return first;
}

bool World::evict_one() {
  const size_t expected = victim(names(), {}, true);
  auto gone = tree_.evict();
  require(gone.has_value() == (expected < entries_.size()), "something goes if there is anything");
  if (!gone) return false;
  require(numbers(*gone) == entries_[expected].pages, "the entry worth least goes");
  note("evict: " + show(entries_[expected].text.tokens));
  readers_.push_back({*std::move(gone), entries_[expected].text});
  entries_.erase(entries_.begin() + static_cast<std::ptrdiff_t>(expected));
  return true;
}

bool World::evict_missing() {
  if (entries_.empty()) return false;
  const Amount missing{choose_.below(3), geometry_.recurrent ? choose_.below(2) : 0};
  const Amount before = free_now(names());
  const auto still = [&](uint32_t wanted, uint32_t freed) {
    return wanted - std::min(wanted, freed);
  };
  uint32_t count = 0;
  Amount freed;
  for (;; ++count) {
    const Names now = names();
    freed = {free_now(now).pages - before.pages, free_now(now).slots - before.slots};
    const Amount more{still(missing.pages, freed.pages), still(missing.slots, freed.slots)};
    const size_t next = victim(now, more, false);
    if (more == Amount{} || next == entries_.size()) break;
    entries_.erase(entries_.begin() + static_cast<std::ptrdiff_t>(next));
  }
  const auto done = tree_.evict(missing);
  require(done.entries == count && done.freed == freed, "exactly what helps goes");
  require(done.enough == (freed.pages >= missing.pages && freed.slots >= missing.slots),
          "an eviction tells whether it was enough");
  note("evict " + std::to_string(missing.pages) + "p " + std::to_string(missing.slots) +
       "s: " + std::to_string(count));
  return true;
}

}  // namespace kern_test
