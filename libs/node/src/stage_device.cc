#include "stage_device.h"

namespace kern::node {
namespace {

/// A link is waited on in slices of this length; a shutdown ends the wait sooner.
constexpr TimeNs kWaitSlice = kSecondNs;

int64_t seqs_of(const engine::Item& item) {
  return static_cast<int64_t>(item.slices.size());
}

}  // namespace

void StageDevice::set_links(std::shared_ptr<transport::Link> in,
                            std::shared_ptr<transport::Link> out) {
  const std::lock_guard lock(mutex_);
  in_ = std::move(in);
  out_ = std::move(out);
}

void StageDevice::shutdown_links(const std::string& reason) {
  std::shared_ptr<transport::Link> in, out;
  {
    const std::lock_guard lock(mutex_);
    in = std::move(in_);
    out = std::move(out_);
  }
  if (in) in->shutdown(reason);
  if (out) out->shutdown(reason);
}

TimeNs StageDevice::record(const char* name, uint64_t id, TimeNs start,
                           std::atomic<int64_t>& total) {
  const TimeNs end = clock_.now();
  recorder_.add({"device", name, id, start, end});
  total += end - start;
  return end;
}

Result<engine::ItemResult> StageDevice::run(const engine::Item& item) {
  std::shared_ptr<transport::Link> in, out;
  {
    const std::lock_guard lock(mutex_);
    in = in_;
    out = out_;
  }
  TimeNs at = clock_.now();
  KERN_TRY_VOID(executor_.start_moves(item));
  if (!executor_.received().empty()) {
    if (!in) return fail(Kind::peer, "the link from the stage before is gone");
    KERN_TRY_VOID(receive(*in, item));
    at = record("receive", item.id, at, times_.receiving);
  }
  KERN_TRY(result, executor_.run(item));
  at = record("run", item.id, at, times_.busy);
  if (!executor_.sent().empty()) {
    if (!out) return fail(Kind::peer, "the link to the stage after is gone");
    KERN_TRY_VOID(send(*out, item));
    record("send", item.id, at, times_.sending);
  }
  ++times_.items;
  times_.rows += rows_of(item);
  return result;
}

Result<void> StageDevice::receive(transport::Link& link, const engine::Item& item) {
  std::vector<transport::InTensor> tensors;
  for (const Crossing& c : executor_.received())
    tensors.push_back({c.name, {c.valid(rows_of(item), seqs_of(item))}});
  KERN_TRY(ticket, link.post_receive(item.id, std::move(tensors)));
  for (;;) {
    KERN_TRY(done, link.wait_receive(ticket, kWaitSlice));
    if (done) return {};
  }
}

Result<void> StageDevice::send(transport::Link& link, const engine::Item& item) {
  std::vector<transport::OutTensor> tensors;
  for (const Crossing& c : executor_.sent())
    tensors.push_back({c.name, {ByteSpan(c.valid(rows_of(item), seqs_of(item)))}});
  KERN_TRY(ticket, link.post_send(item.id, std::move(tensors)));
  for (;;) {
    KERN_TRY(done, link.wait_send(ticket, kWaitSlice));
    if (done) return {};
  }
}

}  // namespace kern::node
