#include "kern/pool/pool.h"

#include <utility>

#include "store.h"

namespace kern::pool {

std::string refusal(const Geometry& geometry) {
  const auto say = [](const char* what, const char* expected, uint64_t got) {
    return std::string("geometry `") + what + "`: expected " + expected + ", got " +
           std::to_string(got);
  };
  if (geometry.page_tokens < 1) return say("page_tokens", "at least 1", geometry.page_tokens);
  if (geometry.pages < 2) return say("pages", "at least 2, page 0 included", geometry.pages);
  if (geometry.recurrent && geometry.slots < 2)
    return say("slots", "at least 2, slot 0 included", geometry.slots);
  if (geometry.row_pages_max < 1) return say("row_pages_max", "at least 1", geometry.row_pages_max);
  if (uint64_t{geometry.row_pages_max} * geometry.page_tokens > UINT32_MAX)
    return say("row_pages_max", "fewer than 2^32 positions in a row", geometry.row_pages_max);
  if (geometry.host_bytes == 0) return "";
  const auto fits = [&](uint64_t bytes) {
    return bytes > 0 && bytes <= UINT64_MAX / 2 / UINT32_MAX &&
           geometry.host_bytes / bytes < UINT32_MAX;
  };
  const char* const size = "at least 1, and fewer than 2^32 of them in `host_bytes`";
  if (!fits(geometry.page_bytes)) return say("page_bytes", size, geometry.page_bytes);
  if (geometry.recurrent && !fits(geometry.slot_bytes))
    return say("slot_bytes", size, geometry.slot_bytes);
  return "";
}

Pool::Pool(const Geometry& geometry) : store_(std::make_unique<Store>(geometry)) {}
Pool::~Pool() = default;

Outcome<Lease> Pool::lease(uint32_t tokens) {
  return store_->lease(tokens);
}

Outcome<Frozen> Pool::checkpoint(Lease& lease, uint32_t len) {
  return store_->checkpoint(lease, len);
}

Checkpoint Pool::retire(Lease lease, uint32_t len) {
  return store_->retire(std::move(lease), len);
}

Outcome<Restored> Pool::restore(const Checkpoint& checkpoint, uint32_t len, uint32_t tokens) {
  return store_->restore(checkpoint, len, tokens);
}

Outcome<Restored> Pool::fork(Lease& lease, uint32_t len, uint32_t tokens) {
  return store_->fork(lease, len, tokens);
}

Outcome<Slept> Pool::park(const Checkpoint& checkpoint, Transfers&& executed) {
  return store_->park(checkpoint, std::move(executed));
}

Outcome<Woken> Pool::wake(const Parked& parked, uint32_t len, Transfers&& executed) {
  return store_->wake(parked, len, std::move(executed));
}

uint64_t Pool::host_offset(HostPageId page) const {
  return store_->host_offset(page);
}
uint64_t Pool::host_offset(HostSlotId slot) const {
  return store_->host_offset(slot);
}

const Geometry& Pool::geometry() const {
  return store_->geometry();
}
const Occupancy& Pool::occupancy() const {
  return store_->occupancy();
}
uint64_t Pool::version() const {
  return store_->version();
}

}  // namespace kern::pool
