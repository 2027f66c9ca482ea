// Python's lock, for code that has no Python: the library runs in programs without it.
#pragma once

namespace torchmdla {

// How the extension lets go of the lock and takes it again.
struct PythonLock {
  void* (*release)();           // null where this thread does not have it
  void (*take)(void* released); // what `release` returned
};
void set_python_lock(PythonLock lock);

// Lets other threads run Python meanwhile, if this one could.
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
