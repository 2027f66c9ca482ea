// The modes that graphs of lazy devices run in.
#pragma once

#include <c10/core/AutogradState.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace torchmdla {

// Graphs run as plain eager code would, whatever the caller's thread is doing: gradients are the
// lazy device's own business, as autocast and functionalisation are.
class PlainModes {
public:
  PlainModes() : keys_(c10::default_included_set, c10::default_excluded_set) {
    c10::GradMode::set_enabled(false);
  }

private:
  const c10::InferenceMode inference_{false}; // restores grad mode too
  const c10::impl::ForceDispatchKeyGuard keys_;
};

} // namespace torchmdla
