#include "kern/pool/view.h"

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <csignal>
#include <optional>
#include <type_traits>
#include <utility>

#include "kern/pool/pool.h"

using namespace kern::pool;

namespace {

const Geometry kTiered{4, 10, 4, true, 8, 1000, 100, 150};

// Whether `read` ends its process as a broken assertion does.
template <class Read>
bool aborts(Read read) {
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    close(2);
    std::signal(SIGABRT, SIG_DFL);
    read();
    _exit(0);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

}  // namespace

TEST_CASE("a view shows the places of a lease, a checkpoint and a parked prefix", "[pool][view]") {
  Pool pool(kTiered);
  auto lease = pool.lease(10);
  REQUIRE(lease);
  CHECK(lease->view().pages().size() == 3);
  CHECK(lease->view().capacity() == 12);
  CHECK(lease->view().writable_from() == 0);
  const Checkpoint checkpoint = pool.retire(*std::move(lease), 7);
  const CheckpointView view = checkpoint.view();
  CHECK((view.len() == 7 && view.page_count() == 2 && view.slot().value() == 1));
  std::array<PageId, 2> pages;
  view.pages_into(pages);
  CHECK((pages[0].value() == 1 && pages[1].value() == 2));
  const auto slept = pool.park(checkpoint);
  REQUIRE(slept);
  const ParkedView parked = slept->parked.view();
  CHECK((parked.len() == 7 && parked.page_count() == 2));
  CHECK(pool.host_offset(parked.pages()[1]) == 100);
  CHECK(pool.host_offset(parked.slot()) == 850);
  STATIC_REQUIRE_FALSE(std::is_convertible_v<CheckpointView::Page, ParkedView::Page>);
}

TEST_CASE("a view is current until a place is granted, frozen or given back", "[pool][view]") {
  Pool pool(kTiered);
  auto lease = pool.lease(8);
  REQUIRE(lease);
  LeaseView view = lease->view();
  const auto stale = [&] {
    const bool was = !view.current();
    view = lease->view();
    return was;
  };
  CHECK_FALSE(stale());
  std::optional<Outcome<Lease>> other = pool.lease(4);
  CHECK(stale());  // granted
  other.reset();
  CHECK(stale());  // given back
  auto frozen = pool.checkpoint(*lease, 4);
  CHECK(stale());  // frozen
  const Checkpoint again = frozen->checkpoint.share();
  CHECK_FALSE(pool.lease(1000).granted());
  CHECK_FALSE(stale());  // sharing and refusals move nothing
  auto slept = pool.park(again);
  CHECK(stale());
  auto woken = pool.wake(slept->parked, 4);
  CHECK(stale());
}

TEST_CASE("reading a view that its pool has outlived aborts", "[pool][view]") {
  Pool pool(kTiered);
  auto lease = pool.lease(8);
  const LeaseView view = lease->view();
  CHECK_FALSE(aborts([&] { return view.pages().size(); }));
  const Checkpoint checkpoint = pool.retire(*std::move(lease), 8);
  CHECK(aborts([&] { return view.pages().size(); }));
  CHECK(aborts([&] { return view.slot(); }));
  const CheckpointView prefix = checkpoint.view();
  CHECK_FALSE(aborts([&] { return prefix.pages().size(); }));
  const auto other = pool.lease(1);
  CHECK(aborts([&] { return prefix.pages().size(); }));
}
