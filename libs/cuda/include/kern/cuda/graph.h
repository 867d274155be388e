#pragma once
/// Captured work, ready to be launched any number of times with the arguments it was captured with.
/// Thread safety: one thread at a time. Ownership: memory that the work touches outlives it.

#include "kern/cuda/stream.h"

namespace kern::cuda {

class Graph {
 public:
  /// Takes a captured graph, which is destroyed either way.
  static Result<Graph> instantiate(const Driver& driver, api::Graph captured);
  Graph(Graph&& other) noexcept;
  Graph& operator=(Graph&& other) noexcept;
  ~Graph();

  /// Puts the graph's image on the device, so that the first launch costs what later ones do.
  Result<void> upload(const Stream& stream) const;
  Result<void> launch(const Stream& stream) const;

 private:
  Graph(const Driver& driver, api::GraphExec exec) : driver_(&driver), exec_(exec) {}

  const Driver* driver_;
  api::GraphExec exec_;
};

}  // namespace kern::cuda
