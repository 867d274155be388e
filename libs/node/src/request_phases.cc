#include "request_phases.h"

#include <algorithm>

namespace kern::node {
namespace {

void set_once(TimeNs& at, TimeNs now) {
  if (at == 0) at = now;
}

}  // namespace

void RequestPhases::sent(const engine::StageCommand& command, TimeNs now) {
  if (const auto* run = std::get_if<engine::RunItem>(&command)) {
    for (const engine::Slice& slice : run->item.slices) {
      const auto it = open_.find(slice.request);
      if (it != open_.end()) set_once(it->second.started, now);
    }
  } else if (const auto* send = std::get_if<engine::SendState>(&command)) {
    const auto it = open_.find(send->request);
    if (it == open_.end()) return;
    it->second.generation = send->generation;
    generations_[send->generation] = send->request;
  }
}

void RequestPhases::heard(const engine::GroupReport& report, TimeNs now) {
  const auto* landed = std::get_if<engine::Landed>(&report);
  if (landed == nullptr) return;
  const auto request = generations_.find(landed->generation);
  if (request == generations_.end()) return;
  const auto it = open_.find(request->second);
  if (it != open_.end()) set_once(it->second.landed, now);
}

void RequestPhases::told(const engine::RequestEvent& event, TimeNs now) {
  const auto it = open_.find(event.id);
  if (it == open_.end()) return;
  Times& t = it->second;
  if (std::holds_alternative<engine::TokenEvent>(event.what)) return set_once(t.first_token, now);
  if (std::holds_alternative<engine::FinishedEvent>(event.what) && t.landed != 0) {
    ++sums_.requests;
    sums_.queue += t.started - t.submitted;
    sums_.prefill += t.first_token - t.started;
    sums_.handoff += std::max<TimeNs>(t.landed - t.first_token, 0);
    sums_.steps += now - std::max(t.landed, t.first_token);
  }
  generations_.erase(t.generation);
  open_.erase(it);
}

}  // namespace kern::node
