#include "python_lock.h"

namespace torchmdla {

namespace {

PythonLock& python_lock() {
  static PythonLock instance{nullptr, nullptr};
  return instance;
}

} // namespace

void set_python_lock(PythonLock lock) {
  python_lock() = lock;
}

WithoutGil::WithoutGil() {
  if (python_lock().release) released_ = python_lock().release();
}

WithoutGil::~WithoutGil() {
  if (released_) python_lock().take(released_);
}

} // namespace torchmdla
