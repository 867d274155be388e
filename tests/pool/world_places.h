#pragma once
// The numbers behind a view, for the reference.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kern/pool/view.h"

namespace kern_test {

// The pages and slot that a view shows, as numbers.
template <class Places>
Places places(const kern::pool::LeaseView& view) {
  Places out;
  for (const kern::pool::PageId page : view.pages()) out.pages.push_back(page.value());
  out.slot = view.slot().value();
  return out;
}

template <class Places, class Tier>
Places places(const kern::pool::PrefixView<Tier>& view) {
  Places out;
  for (const auto page : view.pages()) out.pages.push_back(page.value());
  out.slot = view.slot().value();
  return out;
}

// Whether it shows just these.
template <class View, class Places>
bool shows(const View& view, const Places& at) {
  const auto& pages = view.pages();
  return view.slot().value() == at.slot &&
         std::equal(pages.begin(), pages.end(), at.pages.begin(), at.pages.end(),
                    [](auto page, uint32_t number) { return page.value() == number; });
}

}  // namespace kern_test
