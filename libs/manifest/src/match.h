#pragma once
/// Several lambdas as one visitor of a variant.

namespace kern::manifest {

template <class... F>
struct Match : F... {
  using F::operator()...;
};
template <class... F>
Match(F...) -> Match<F...>;

}  // namespace kern::manifest
