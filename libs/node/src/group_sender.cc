#include "group_sender.h"

#include "kern/node/handoff.h"

namespace kern::node {

GroupSender::GroupSender(engine::GroupHello hello, GroupSenderOptions options)
    : hello_(std::move(hello)),
      options_(std::move(options)),
      sender_(transport::PartSenderOptions{options_.terms}) {}

GroupSender::~GroupSender() {
  sender_.shutdown("the stage ends");
}

void GroupSender::send(const engine::SendState& order, std::function<void(Result<void>)> sent) {
  thread_.post([this, order, sent = std::move(sent)] { sent(send_now(order)); });
}

void GroupSender::leave(const std::string& why, std::function<void()> drained) {
  sender_.shutdown(why);
  thread_.post(std::move(drained));
}

Result<void> GroupSender::send_now(const engine::SendState& order) {
  std::vector<StateImage> images;  // what the parts of a GPU's states are cut from
  std::vector<CutPart> kept;       // what the pieces point into
  images.reserve(hello_.states.size());
  std::vector<transport::OutPart> parts;
  for (const engine::HandoffState& state : hello_.states) {
    const manifest::State* own = options_.manifest->state(state.name);
    if (own == nullptr) continue;  // another stage's
    StateMemory memory{options_.runtime->state(state.name), options_.page_tokens};
    const engine::Place* from = &order.from;
    if (memory.bytes.empty()) {
      KERN_TRY(image, copy_out(*options_.runtime, state, own->bytes, options_.page_tokens,
                               order.from, order.tokens));
      images.push_back(std::move(image));
      memory.bytes = images.back().bytes;
      from = &images.back().place;
    }
    for (uint32_t rank = 0; rank < hello_.ranks; ++rank) {
      KERN_TRY(address, transport::Address::parse(hello_.addresses[rank]));
      KERN_TRY(part, cut_part(state, own->bytes, memory, *from, order.tokens, rank, hello_.ranks));
      kept.push_back(std::move(part));
      parts.push_back({address, order.request.value(), order.generation.value(), state.name,
                       kept.back().pieces});
    }
  }
  return sender_.send(parts, options_.part_timeout);
}

}  // namespace kern::node
