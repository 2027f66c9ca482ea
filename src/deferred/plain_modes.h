// Modes in which graphs of lazy devices run.
#pragma once

#include <c10/core/AutogradState.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace torchmdla {

// Scope with the modes of plain eager code, regardless of the caller's thread. The lazy device
// itself handles gradients, autocast and functionalisation.
class PlainModes {
public:
  PlainModes() : keys_(c10::default_included_set, c10::default_excluded_set) {
    c10::GradMode::set_enabled(false);
  }

private:
  const c10::InferenceMode inference_{false}; // also restores the gradient mode
  const c10::impl::ForceDispatchKeyGuard keys_;
};

} // namespace torchmdla
