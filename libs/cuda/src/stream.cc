#include "kern/cuda/stream.h"

#include <optional>
#include <utility>

#include "kern/cuda/graph.h"

namespace kern::cuda {

// ---- events ----

Result<Event> Event::create(const Driver& driver, Timing timing) {
  api::Event event = nullptr;
  const unsigned flags = timing == Timing::on ? 0 : api::kEventDisableTiming;
  KERN_TRY_VOID(driver.check("cuEventCreate", driver->event_create(&event, flags)));
  return Event(driver, event);
}

Event::Event(Event&& other) noexcept
    : driver_(other.driver_), event_(std::exchange(other.event_, nullptr)) {}

Event& Event::operator=(Event&& other) noexcept {
  std::swap(driver_, other.driver_);
  std::swap(event_, other.event_);
  return *this;
}

Event::~Event() {
  if (event_ != nullptr) (*driver_)->event_destroy(event_);
}

Result<bool> Event::is_done() const {
  const api::Status status = (*driver_)->event_query(event_);
  if (status == api::kNotReady) return false;
  KERN_TRY_VOID(driver_->check("cuEventQuery", status));
  return true;
}

Result<void> Event::synchronize() const {
  return driver_->check("cuEventSynchronize", (*driver_)->event_synchronize(event_));
}

Result<double> Event::milliseconds_since(const Event& first) const {
  float milliseconds = 0;
  KERN_TRY_VOID(driver_->check(
      "cuEventElapsedTime", (*driver_)->event_elapsed_time(&milliseconds, first.event_, event_)));
  return milliseconds;
}

// ---- streams ----

Result<Stream> Stream::create(const Driver& driver) {
  api::Stream stream = nullptr;
  KERN_TRY_VOID(
      driver.check("cuStreamCreate", driver->stream_create(&stream, api::kStreamNonBlocking)));
  return Stream(driver, stream);
}

Stream::Stream(Stream&& other) noexcept
    : driver_(other.driver_), stream_(std::exchange(other.stream_, nullptr)) {}

Stream& Stream::operator=(Stream&& other) noexcept {
  std::swap(driver_, other.driver_);
  std::swap(stream_, other.stream_);
  return *this;
}

Stream::~Stream() {
  if (stream_ != nullptr) (*driver_)->stream_destroy(stream_);
}

Result<void> Stream::copy_to_device(api::Pointer to, ByteSpan from) const {
  if (from.empty()) return {};
  return driver_->check("cuMemcpyHtoDAsync",
                        (*driver_)->memcpy_h_to_d_async(to, from.data(), from.size(), stream_));
}

Result<void> Stream::copy_to_host(MutableByteSpan to, api::Pointer from) const {
  if (to.empty()) return {};
  return driver_->check("cuMemcpyDtoHAsync",
                        (*driver_)->memcpy_d_to_h_async(to.data(), from, to.size(), stream_));
}

namespace {

/// The bytes of rows without gaps between them; nothing for others.
std::optional<size_t> close_bytes(const Rows& rows) {
  const bool close = rows.device_pitch == rows.row_bytes && rows.host_pitch == rows.row_bytes;
  if (rows.count > 1 && !close) return std::nullopt;
  return static_cast<size_t>(rows.row_bytes * rows.count);
}

api::RowsCopy rows_copy(bool to_host, std::byte* host, api::Pointer device, const Rows& rows) {
  api::RowsPlace here{}, there{};
  here.memory = api::kMemoryHost;
  here.host = host;
  here.pitch = static_cast<size_t>(rows.host_pitch);
  there.memory = api::kMemoryDevice;
  there.device = device;
  there.pitch = static_cast<size_t>(rows.device_pitch);
  return {to_host ? there : here, to_host ? here : there, static_cast<size_t>(rows.row_bytes),
          static_cast<size_t>(rows.count)};
}

}  // namespace

Result<void> Stream::copy_rows_to_device(api::Pointer to, const std::byte* from,
                                         const Rows& rows) const {
  if (const auto bytes = close_bytes(rows)) return copy_to_device(to, {from, *bytes});
  // What is read is not written: the driver's structure knows no const.
  const auto copy = rows_copy(false, const_cast<std::byte*>(from), to, rows);
  return driver_->check("cuMemcpy2DAsync", (*driver_)->memcpy_2d_async(&copy, stream_));
}

Result<void> Stream::copy_rows_to_host(std::byte* to, api::Pointer from, const Rows& rows) const {
  if (const auto bytes = close_bytes(rows)) return copy_to_host({to, *bytes}, from);
  const auto copy = rows_copy(true, to, from, rows);
  return driver_->check("cuMemcpy2DAsync", (*driver_)->memcpy_2d_async(&copy, stream_));
}

Result<void> Stream::copy_on_device(api::Pointer to, api::Pointer from, int64_t bytes) const {
  if (bytes == 0) return {};
  return driver_->check("cuMemcpyDtoDAsync", (*driver_)->memcpy_d_to_d_async(
                                                 to, from, static_cast<size_t>(bytes), stream_));
}

Result<void> Stream::fill(api::Pointer to, uint8_t value, int64_t bytes) const {
  if (bytes == 0) return {};
  return driver_->check("cuMemsetD8Async", (*driver_)->memset_d8_async(
                                               to, value, static_cast<size_t>(bytes), stream_));
}

Result<void> Stream::record(const Event& event) const {
  return driver_->check("cuEventRecord", (*driver_)->event_record(event.raw(), stream_));
}

Result<void> Stream::wait(const Event& event) const {
  return driver_->check("cuStreamWaitEvent",
                        (*driver_)->stream_wait_event(stream_, event.raw(), 0));
}

Result<void> Stream::synchronize() const {
  return driver_->check("cuStreamSynchronize", (*driver_)->stream_synchronize(stream_));
}

Result<bool> Stream::is_idle() const {
  const api::Status status = (*driver_)->stream_query(stream_);
  if (status == api::kNotReady) return false;
  KERN_TRY_VOID(driver_->check("cuStreamQuery", status));
  return true;
}

Result<void> Stream::begin_capture() const {
  return driver_->check("cuStreamBeginCapture",
                        (*driver_)->stream_begin_capture(stream_, api::kCaptureThreadLocal));
}

Result<Graph> Stream::end_capture() const {
  api::Graph captured = nullptr;
  KERN_TRY_VOID(
      driver_->check("cuStreamEndCapture", (*driver_)->stream_end_capture(stream_, &captured)));
  return Graph::instantiate(*driver_, captured);
}

// ---- graphs ----

Result<Graph> Graph::instantiate(const Driver& driver, api::Graph captured) {
  api::GraphExec exec = nullptr;
  const api::Status status = driver->graph_instantiate(&exec, captured, 0);
  driver->graph_destroy(captured);
  KERN_TRY_VOID(driver.check("cuGraphInstantiate", status));
  return Graph(driver, exec);
}

Graph::Graph(Graph&& other) noexcept
    : driver_(other.driver_), exec_(std::exchange(other.exec_, nullptr)) {}

Graph& Graph::operator=(Graph&& other) noexcept {
  std::swap(driver_, other.driver_);
  std::swap(exec_, other.exec_);
  return *this;
}

Graph::~Graph() {
  if (exec_ != nullptr) (*driver_)->graph_exec_destroy(exec_);
}

Result<void> Graph::upload(const Stream& stream) const {
  return driver_->check("cuGraphUpload", (*driver_)->graph_upload(exec_, stream.raw()));
}

Result<void> Graph::launch(const Stream& stream) const {
  return driver_->check("cuGraphLaunch", (*driver_)->graph_launch(exec_, stream.raw()));
}

}  // namespace kern::cuda
