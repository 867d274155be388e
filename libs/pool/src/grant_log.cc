// A mirror's log. An event is its kind (one byte), the handle's id (eight) and, of a grant: how
// many pages, how many of them shared, the slot (four bytes each), whether it is shared (one), the
// pages (four each).

#include <utility>

#include "check.h"
#include "kern/pool/mirror.h"

namespace kern::pool {

namespace {

enum Event : uint8_t { kGranted = 1, kReturned = 2 };
constexpr size_t kReturnedBytes = 1 + 8;
constexpr size_t kGrantedBytes = kReturnedBytes + 4 + 4 + 4 + 1;  // before the pages

void put(std::vector<uint8_t>& log, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) log.push_back(static_cast<uint8_t>(value >> (8 * i)));
}

// Takes the next bytes, which were seen to be there.
uint64_t take(std::span<const uint8_t>& log, size_t bytes) {
  KERN_POOL_ASSERT(log.size() >= bytes, "an event is read once it is all there");
  uint64_t value = 0;
  for (size_t i = 0; i < bytes; ++i) value |= uint64_t{log[i]} << (8 * i);
  log = log.subspan(bytes);
  return value;
}

}  // namespace

void log_granted(std::vector<uint8_t>& log, const GrantRecord& record) {
  put(log, kGranted, 1);
  put(log, record.id, 8);
  put(log, record.pages.size(), 4);
  put(log, record.pages_shared, 4);
  put(log, record.slot, 4);
  put(log, record.slot_shared ? 1 : 0, 1);
  for (const uint32_t page : record.pages) put(log, page, 4);
}

void log_returned(std::vector<uint8_t>& log, uint64_t id) {
  put(log, kReturned, 1);
  put(log, id, 8);
}

// One event at the front of `log`; `bytes` is 0 while it is not all there.
Mirror::Step Mirror::step(std::span<const uint8_t> log) {
  const uint8_t kind = log[0];
  if (kind != kGranted && kind != kReturned)
    return {0, "event: expected 1 or 2, got " + std::to_string(kind)};
  if (log.size() < (kind == kGranted ? kGrantedBytes : kReturnedBytes)) return {};
  auto rest = log.subspan(1);
  GrantRecord record;
  record.id = take(rest, 8);
  if (kind == kReturned) return {kReturnedBytes, returned(record.id)};
  const uint64_t pages = take(rest, 4);
  if (pages > geometry_.row_pages_max)  // before they are waited for
    return {0, "pages: expected at most " + std::to_string(geometry_.row_pages_max) + ", got " +
                   std::to_string(pages)};
  record.pages_shared = static_cast<uint32_t>(take(rest, 4));
  record.slot = static_cast<uint32_t>(take(rest, 4));
  const uint64_t shared = take(rest, 1);
  if (shared > 1) return {0, "slot shared: expected 0 or 1, got " + std::to_string(shared)};
  record.slot_shared = shared == 1;
  if (rest.size() / 4 < pages) return {};
  for (uint64_t i = 0; i < pages; ++i) record.pages.push_back(static_cast<uint32_t>(take(rest, 4)));
  return {log.size() - rest.size(), granted(record)};
}

Replayed Mirror::replay(std::span<const uint8_t> log) {
  Replayed done;
  while (done.bytes < log.size()) {
    Step next = step(log.subspan(done.bytes));
    if (!next.why.empty()) {
      done.why = "log at byte " + std::to_string(done.bytes) + ": " + next.why;
      return done;
    }
    if (next.bytes == 0) return done;
    done.bytes += next.bytes;
  }
  return done;
}

}  // namespace kern::pool
