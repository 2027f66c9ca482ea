#include "mapped_file.h"

#include "open_file.h"

#include <cerrno>
#include <system_error>

#include <sys/mman.h>
#include <unistd.h>

namespace torchmdla {

MappedFile::MappedFile(const OpenFile& file, uint64_t offset, uint64_t bytes)
    : skipped_(offset % static_cast<uint64_t>(sysconf(_SC_PAGESIZE))), bytes_(bytes + skipped_) {
  if (bytes == 0) return;
  void* const start = mmap(nullptr, bytes_, PROT_READ, MAP_SHARED, file.descriptor(),
                           static_cast<off_t>(offset - skipped_));
  if (start == MAP_FAILED)
    throw FileProblem(file.name() +
                      ": it cannot be mapped: " + std::generic_category().message(errno));
  start_ = static_cast<std::byte*>(start);
  madvise(start_, bytes_, MADV_WILLNEED);
}

MappedFile::~MappedFile() {
  if (start_) munmap(start_, bytes_);
}

} // namespace torchmdla
