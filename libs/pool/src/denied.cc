#include "kern/pool/denied.h"

#include <cstdio>
#include <cstdlib>

#include "check.h"

namespace kern::pool {

namespace detail {

void assert_failed(const char* file, int line, const char* expression, const char* rule) {
  std::fprintf(stderr, "%s:%d: assertion `%s` failed: %s\n", file, line, expression, rule);
  std::abort();
}

void outcome_misread() {
  assert_failed(__FILE__, __LINE__, "outcome holds this half",
                "check an outcome before reading it");
}

}  // namespace detail

namespace {

std::string counted(uint32_t n, const char* noun) {
  return std::to_string(n) + " " + noun + (n == 1 ? "" : "s");
}

std::string listed(const Amount& amount) {
  if (amount.slots == 0) return counted(amount.pages, "page");
  if (amount.pages == 0) return counted(amount.slots, "slot");
  return counted(amount.pages, "page") + " and " + counted(amount.slots, "slot");
}

}  // namespace

std::string sentence(const Denied& denied) {
  switch (denied.reason) {
    case Reason::busy:
      return "the pool is busy: " + listed(denied.missing) + " must become free first";
    case Reason::exceeds_pool:
      return "needs " + listed(denied.missing) + " more than the whole pool has";
    case Reason::exceeds_row:
      return "needs " + listed(denied.missing) + " more than one page table holds";
  }
  detail::assert_failed(__FILE__, __LINE__, "reason is known", "a Denied has one of three reasons");
}

}  // namespace kern::pool
