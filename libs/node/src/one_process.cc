#include "one_process.h"

namespace kern::node {

Result<std::unique_ptr<OneProcessNode>> OneProcessNode::create(
    transport::IoContext& io, const Log& log, const DaemonConfig& config, LoadedModel& model,
    serve::ModelInfo info, trace::Recorder& recorder) {
  if (model.limits.prefill_rows_max == 0 || model.limits.decode_seqs_max == 0)
    return fail(Kind::caller, "`{}` has no program for {}: one process needs both",
                config.manifest.string(),
                model.limits.prefill_rows_max == 0 ? "prompts" : "decode steps");
  engine::UnifiedOptions options;
  options.limits = model.limits;
  options.queue_max = config.queue_max;
  options.park_tokens_min = static_cast<uint32_t>(config.park_tokens_min);
  KERN_TRY(head, engine::UnifiedHead::create(options));
  info.max_model_len = model.limits.context_max;
  info.top_logprobs_max = model.limits.top_logprobs_max;
  return std::make_unique<OneProcessNode>(io, log, model, std::move(info), std::move(head),
                                          recorder);
}

OneProcessNode::OneProcessNode(transport::IoContext& io, const Log& log, LoadedModel& model,
                               serve::ModelInfo info, engine::UnifiedHead head,
                               trace::Recorder& recorder)
    : EngineBackend(std::move(info)),
      io_(io),
      log_(log),
      head_(std::move(head)),
      timer_(io),
      device_(*model.executor, recorder) {}

OneProcessNode::~OneProcessNode() {
  *alive_ = false;
}

void OneProcessNode::submit(engine::Request request) {
  head_.submit(std::move(request), io_.now());
  pump();
}

void OneProcessNode::abort(engine::RequestId id) {
  head_.abort(id, io_.now());
  pump();
}

/// Carries out what the engine decided. A call from inside itself is left to the outer loop.
void OneProcessNode::pump() {
  again_ = true;
  if (pumping_) return;
  pumping_ = true;
  while (std::exchange(again_, false)) {
    for (engine::Item& item : head_.take_items()) run(std::move(item));
    for (engine::RequestEvent& event : head_.take_events()) deliver(std::move(event));
  }
  pumping_ = false;
  const TimeNs wake = head_.wake_at();
  if (wake == 0) return timer_.cancel();
  timer_.after(std::max<TimeNs>(wake - io_.now(), 0), [this] {
    head_.tick(io_.now());
    pump();
  });
}

void OneProcessNode::run(engine::Item item) {
  device_.run(std::move(item), [this](Result<engine::ItemResult> result) {
    io_.post([this, alive = alive_, result = std::move(result)] {
      if (*alive) finished(result);
    });
  });
}

void OneProcessNode::finished(Result<engine::ItemResult> result) {
  Result<void> taken = result ? head_.on_result(*result, io_.now())
                              : fail(result.error().kind, "{}", result.error().text());
  if (!taken) {
    log_.error("the device is lost: {}", taken.error().text());
    head_.on_executor_lost(io_.now());
    pump();
    return fatal_(taken.error());
  }
  pump();
}

std::vector<StageTimes> OneProcessNode::stages() const {
  const DeviceTimes& t = device_.times();
  return {{0, true, t.busy, t.receiving, t.sending, t.items, t.rows}};
}

}  // namespace kern::node
