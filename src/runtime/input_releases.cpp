#include "input_releases.h"

#include "device_calls.h"

namespace torchmdla {

namespace {

thread_local InputReleases* innermost = nullptr;

} // namespace

InputReleases::InputReleases(c10::ArrayRef<InputRelease> releases, c10::IValue* inputs)
    : releases_(releases), inputs_(inputs), outer_(innermost) {
  innermost = this;
}

InputReleases::~InputReleases() {
  innermost = outer_;
  if (outer_ == nullptr) free_workspace_after(std::chrono::steady_clock::now() - start_);
}

InputReleases* InputReleases::current() {
  return innermost;
}

void InputReleases::begin(size_t kernel) {
  for (; !releases_.empty() && releases_.front().kernel <= kernel; releases_ = releases_.slice(1))
    inputs_[releases_.front().input] = c10::IValue();
}

} // namespace torchmdla
