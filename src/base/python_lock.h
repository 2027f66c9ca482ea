// The GIL, for code that does not use Python: the library also runs in programs without it.
#pragma once

namespace torchmdla {

// Functions by which the extension releases the GIL and takes it again.
struct PythonLock {
  void* (*release)();           // returns null if this thread does not have it
  void (*take)(void* released); // called with the result of `release`
};
void set_python_lock(PythonLock lock);

// Scope in which other threads can run Python. It releases the GIL if this thread has it.
class WithoutGil {
public:
  WithoutGil();
  ~WithoutGil();
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

private:
  void* released_ = nullptr;
};

} // namespace torchmdla
