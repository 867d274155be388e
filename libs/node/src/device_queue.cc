#include "device_queue.h"

#include <algorithm>
#include <utility>

namespace kern::node {

void DeviceQueue::run(engine::Item item, std::function<void(Result<engine::ItemResult>)> done) {
  thread_.post([this, item = std::move(item), done = std::move(done)]() mutable {
    start(item, std::move(done));
  });
}

void DeviceQueue::start(const engine::Item& item,
                        std::function<void(Result<engine::ItemResult>)> done) {
  const TimeNs begin = clock_.now();
  const int64_t rows = rows_of(item);
  if (auto started = executor_.start(item); !started)
    return done(tl::unexpected<Error>(std::move(started.error())));
  const auto is_done = [this] {
    const auto is = executor_.is_done();
    return !is || *is;  // what went wrong is for `finish` to say
  };
  thread_.post_when(is_done, [this, id = item.id, rows, begin, done = std::move(done)] {
    Result<engine::ItemResult> result = executor_.finish();
    const TimeNs end = clock_.now(), since = std::max(begin, free_at_);
    recorder_.add({"device", "run", id, since, end});
    times_.busy += end - since;
    ++times_.items;
    times_.rows += static_cast<uint64_t>(rows);
    free_at_ = end;
    done(std::move(result));
  });
}

}  // namespace kern::node
