#include "series.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "kern/base/assert.h"

namespace kern::manifest {
namespace {

constexpr size_t kDigitsMax = 18;  // so that no run of segments counts past 64 bits

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

/// A number within a name, written without leading zeros.
struct Number {
  size_t at = 0, digits = 0;
  int64_t value = 0;
};

std::optional<Number> number_at(std::string_view name, size_t at) {
  Number number{at, 0, 0};
  while (at + number.digits < name.size() && is_digit(name[at + number.digits])) ++number.digits;
  if (number.digits == 0 || number.digits > kDigitsMax) return std::nullopt;
  if (name[at] == '0' && number.digits > 1) return std::nullopt;
  std::from_chars(name.data() + at, name.data() + at + number.digits, number.value);
  return number;
}

/// The number in which two names differ, the second's being the next one.
std::optional<Number> counted_up(std::string_view first, std::string_view second) {
  size_t at = 0;
  while (at < first.size() && at < second.size() && first[at] == second[at]) ++at;
  while (at > 0 && is_digit(first[at - 1])) --at;
  const auto one = number_at(first, at), two = number_at(second, at);
  if (!one || !two || two->value != one->value + 1) return std::nullopt;
  if (first.substr(at + one->digits) != second.substr(at + two->digits)) return std::nullopt;
  return one;
}

/// Whether a text is written in quotes just as it is.
bool is_plain(std::string_view text) {
  return std::none_of(text.begin(), text.end(), [](char c) {
    return c == '"' || c == '\\' || static_cast<unsigned char>(c) < 0x20;
  });
}

/// The entry of a table, or what stands for every rank.
int64_t first_at(const Series& series, size_t place) {
  const size_t entry = series.group.empty() ? 0 : place;
  KERN_ASSERT(entry < series.firsts.size(), "place {} of {}", place, series.firsts.size());
  return series.firsts[entry];
}

}  // namespace

std::string name_in(const BindSegment& segment, std::string_view name, size_t place,
                    int64_t index) {
  std::string out(name);
  if (!segment.series) return out;
  KERN_ASSERT(index >= 0 && index < segment.series->count);
  const size_t at = out.find(kNumber);
  KERN_ASSERT(at != std::string::npos, "`{}` is a name of a series", name);
  return out.replace(at, kNumber.size(), std::to_string(first_at(*segment.series, place) + index));
}

bool SeriesFinder::begins_series(BindSegment& first, const BindSegment& second) const {
  Series series{first.group, {}, 2, true};
  std::vector<std::string> names;
  for (size_t r = 0; r < first.tensors.size(); ++r) {
    const std::string& name = first.tensors[r];
    const auto number = counted_up(name, second.tensors[r]);
    if (!number || name.find(kNumber) != std::string::npos) return false;
    series.firsts.push_back(number->value);
    names.push_back(name);
    names.back().replace(number->at, number->digits, kNumber);
  }
  first.tensors = std::move(names);
  first.series = std::move(series);
  return true;
}

bool SeriesFinder::continues(const BindSegment& run, const BindSegment& next) const {
  const Series& series = *run.series;
  for (size_t r = 0; r < run.tensors.size(); ++r) {
    const auto number =
        counted_up(name_in(run, run.tensors[r], r, series.count - 1), next.tensors[r]);
    if (!number || number->at != run.tensors[r].find(kNumber)) return false;
  }
  return true;
}

void SeriesFinder::appended(Json value) {
  next_.clear();
  if (bind_.size() < 2) return;
  BindSegment& last = bind_[bind_.size() - 2];
  const BindSegment& next = bind_.back();
  const bool written_out = !last.series || last.series->spelled_out;
  const size_t entries = next.group.empty() ? 1 : next.tensors.size();
  if (!written_out || next.series || last.interleave || next.interleave ||
      next.tensors.size() != entries || entries == 0 ||
      last.tensors.size() != next.tensors.size() || last.group != next.group ||
      last.rows != next.rows || last.cols != next.cols)
    return;
  if (last.series) {
    if (!continues(last, next)) return;
    ++last.series->count;
  } else if (!begins_series(last, next)) {
    return;
  }
  bind_.pop_back();
  expect_next(value.spelling());
}

/// The last segment as it was written, with each name's number counted up, if every name can be
/// found there without a doubt.
void SeriesFinder::expect_next(const Spelling& last) {
  const BindSegment& run = bind_.back();
  numbers_.clear();
  size_t from = 0;
  for (size_t r = 0; r < run.tensors.size(); ++r) {
    if (!is_plain(run.tensors[r])) return;
    const std::string name = name_in(run, run.tensors[r], r, run.series->count - 1);
    const std::string quoted = '"' + name + '"';
    const size_t at = last.text.find(quoted);
    if (at == std::string_view::npos || at < from) return;
    if (last.text.find(quoted, at + 1) != std::string_view::npos) return;
    const auto number = number_at(name, run.tensors[r].find(kNumber));
    numbers_.push_back({at + 1 + number->at, number->digits});
    from = at + quoted.size();
  }
  next_ = last.text;
  tokens_ = last.tokens;
  count_up();
}

void SeriesFinder::count_up() {
  size_t grown = 0;
  for (Digits& digits : numbers_) {
    digits.at += grown;
    size_t at = digits.at + digits.count;
    while (at > digits.at && next_[at - 1] == '9') next_[--at] = '0';
    if (at > digits.at) {
      ++next_[at - 1];
    } else {
      next_.insert(at, 1, '1');
      ++digits.count;
      ++grown;
    }
  }
}

bool SeriesFinder::take(Json value) {
  if (next_.empty() || !value.is_spelled({next_, tokens_})) return false;
  ++bind_.back().series->count;
  count_up();
  return true;
}

}  // namespace kern::manifest
