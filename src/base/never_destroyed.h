// Statics that are used until the process ends.
#pragma once

#include <utility>

namespace torchmdla {

// Object that is never destroyed, so that destructors of statics may use it.
template <class T> class NeverDestroyed {
public:
  template <class... Arguments>
  explicit NeverDestroyed(Arguments&&... arguments)
      : value_(std::forward<Arguments>(arguments)...) {}
  NeverDestroyed(const NeverDestroyed&) = delete;
  NeverDestroyed& operator=(const NeverDestroyed&) = delete;
  ~NeverDestroyed() {}

  T& operator*() { return value_; }
  T* operator->() { return &value_; }

private:
  union {
    T value_;
  };
};

} // namespace torchmdla
