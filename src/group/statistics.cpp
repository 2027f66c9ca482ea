#include "statistics.h"

#include "support/forks.h"

namespace torchmdla {

const char* describe(Fallback reason) {
  switch (reason) {
  case Fallback::switched_off:
    return "torchmdla is switched off";
  case Fallback::dispatch_mode:
    return "a dispatch mode (autocast, vmap, TorchDispatchMode, …) is active";
  case Fallback::input_kind:
    return "an input is not a plain strided CPU tensor";
  case Fallback::requires_grad:
    return "grad mode is on, an input requires grad, and backward is expected";
  case Fallback::saved_tensors:
    return "an input requires grad, and hooks on saved tensors or tensors of inference mode keep "
           "it "
           "from being saved";
  case Fallback::tangent:
    return "an input has a forward-mode gradient";
  case Fallback::being_compiled:
    return "this specialisation is being compiled";
  case Fallback::too_many_specialisations:
    return "the group has too many specialisations";
  case Fallback::status:
    return "the compiled code reported an error";
  case Fallback::count:
    break;
  }
  return "";
}

void Statistics::count(const std::string& reason) {
  const Guard guard(mutex_);
  ++failures_[reason];
}

void Statistics::count_not_dynamic(const std::string& reason) {
  const Guard guard(mutex_);
  ++not_dynamic_[reason];
}

std::map<std::string, int64_t> Statistics::not_dynamic() const {
  const Guard guard(mutex_);
  return not_dynamic_;
}

std::map<std::string, int64_t> Statistics::fallbacks() const {
  const Guard guard(mutex_);
  auto counts = failures_;
  for (size_t i = 0; i < fallbacks_.size(); ++i)
    if (const auto number = fallbacks_[i].load())
      counts[describe(static_cast<Fallback>(i))] = number;
  return counts;
}

void Statistics::reset() {
  const Guard guard(mutex_);
  failures_.clear();
  not_dynamic_.clear();
  for (auto& number : fallbacks_)
    number = 0;
  groups = specialisations = dynamic = 0;
}

Statistics& statistics() {
  static Statistics instance;
  return instance;
}

} // namespace torchmdla
