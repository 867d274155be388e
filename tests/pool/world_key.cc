// What of a world its future depends on, as text. The pool's own state is not looked at: it follows
// from what the handles name, but for the order of free device places, which only renames what is
// granted. So device places are renamed in order of appearance; host places keep their numbers,
// because where the free ones lie decides what fits. Stamps are left out: every handle was seen to
// read its own, and what is written from now on has stamps of its own.
#include <algorithm>
#include <numeric>

#include "world.h"

namespace kern_test {

namespace {

class Renamed {
 public:
  // A short name for a place, the same for the same place; 0 for none.
  char of(uint32_t place) {
    if (place == 0) return '0';
    const auto found = std::find(seen_.begin(), seen_.end(), place) - seen_.begin();
    if (found == static_cast<std::ptrdiff_t>(seen_.size())) seen_.push_back(place);
    return static_cast<char>('1' + found);
  }

 private:
  std::vector<uint32_t> seen_;
};

std::string text_of(const std::vector<int32_t>& tokens) {
  std::string out;
  for (const int32_t token : tokens) out += static_cast<char>('a' + token);
  return out;
}

char digit(size_t value) {
  return static_cast<char>('0' + value);
}

}  // namespace

// A handle or entry: what is said of it without naming a device place, and its places.
struct World::Line {
  std::string text;
  const Places* at = nullptr;
  bool device = true;
};

// At each position of an entry how many other branches there are that were empty later.
std::string World::branches(const Entries& entries, const Tokens& tokens) const {
  std::string out;
  Tokens begin;
  for (const int32_t token : tokens) {
    begin.push_back(token);
    const auto own = entries.since.find(begin);
    if (own == entries.since.end()) continue;
    size_t later = 0;
    for (const auto& [other, since] : entries.since)
      later += other.size() == begin.size() && since > own->second &&
               std::equal(begin.begin(), begin.end() - 1, other.begin());
    out += digit(later);
  }
  return out;
}

std::vector<World::Line> World::lines() const {
  std::vector<Line> lines;
  for (const Writer& writer : writers_)
    lines.push_back({"w" + text_of(writer.text.tokens) +
                         digit(writer.lease.writable_from() / geometry_.page_tokens) +
                         digit(writer.at.pages.size()),
                     &writer.at, true});
  for (const Reader& reader : readers_)
    lines.push_back({"r" + text_of(reader.text.tokens), &reader.at, true});
  for (const Sleeper& sleeper : sleepers_)
    lines.push_back({"s" + text_of(sleeper.text.tokens), &sleeper.at, false});
  const auto add = [&](const Entries& entries, const char* kind, bool device) {
    for (const Entry& entry : entries.all) {
      const auto later =
          std::count_if(entries.all.begin(), entries.all.end(),
                        [&](const Entry& other) { return other.last_hit > entry.last_hit; });
      lines.push_back({kind + text_of(entry.text.tokens) + digit(static_cast<size_t>(later)) +
                           branches(entries, entry.text.tokens),
                       &entry.at, device});
    }
  };
  add(entries_, "e", true);
  add(parked_entries_, "p", false);
  return lines;
}

std::string World::rendered(const std::vector<Line>& lines,
                            const std::vector<size_t>& order) const {
  Renamed pages, slots;
  std::string out;
  const auto twin_of = [&](const std::map<uint32_t, uint32_t>& twins, uint32_t place) {
    const auto twin = twins.find(place);
    if (twin == twins.end()) return;
    out += '=';
    out += digit(twin->second);
  };
  for (const size_t which : order) {
    const Line& line = lines[which];
    out += line.text + ':';
    for (const uint32_t page : line.at->pages) {
      out += line.device ? pages.of(page) : digit(page);
      if (line.device) twin_of(page_twins_, page);
    }
    out += '/';
    out += line.device ? slots.of(line.at->slot) : digit(line.at->slot);
    if (line.device) twin_of(slot_twins_, line.at->slot);
    out += ' ';
  }
  return out;
}

// Which of several handles comes first decides nothing: they are ordered by what is said of them,
// and among those alike the order is taken that reads least.
std::string World::key() const {
  const std::vector<Line> lines = this->lines();
  std::vector<size_t> order(lines.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return lines[a].text < lines[b].text; });
  const auto alike_from = [&](size_t begin) {
    size_t end = begin;
    while (end < order.size() && lines[order[end]].text == lines[order[begin]].text) ++end;
    return end;
  };
  const auto next_order = [&] {
    for (size_t begin = 0; begin < order.size(); begin = alike_from(begin))
      if (std::next_permutation(order.begin() + static_cast<std::ptrdiff_t>(begin),
                                order.begin() + static_cast<std::ptrdiff_t>(alike_from(begin))))
        return true;
    return false;
  };
  std::string least = rendered(lines, order);
  while (next_order()) least = std::min(least, rendered(lines, order));
  return least;
}

}  // namespace kern_test
