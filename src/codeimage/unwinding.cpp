#include "unwinding.h"

#include "base/forks.h"

#include <cstring>
#include <unordered_map>

extern "C" {
void __register_frame(const void*);
void __deregister_frame(const void*);
}

namespace torchmdla {

namespace {

// Rest of a common record: version, augmentation (FDEs have a pointer encoding), alignment factors
// of code and data, register of the return address, one byte of augmentation: the encoding.
#if defined(__aarch64__)
constexpr unsigned char common_record[] = {1, 'z', 'R', 0, 1, 0x7c, 30, 1};
#else
constexpr unsigned char common_record[] = {1, 'z', 'R', 0, 1, 0x78, 16, 1};
#endif
// Pointer encodings: signed, and relative to their own address.
constexpr unsigned char of_4_bytes = 0x1b, of_8_bytes = 0x1c;

// Check that the table can be walked and describes this code.
class TableCheck {
public:
  TableCheck(std::span<const std::byte> table, std::span<const std::byte> code)
      : table_(table), code_(code) {}

  void run() {
    size_t at = 0;
    while (const auto length = read<uint32_t>(at, table_.size())) {
      const size_t end = at + sizeof(uint32_t) + length;
      if (end > table_.size()) throw UnwindError("a record ends behind the table");
      check_record(at, end);
      at = end;
    }
    if (at + sizeof(uint32_t) != table_.size()) throw UnwindError("its end is not where it ends");
  }

private:
  void check_record(size_t at, size_t end) {
    const size_t distance_at = at + sizeof(uint32_t);
    const auto distance = read<uint32_t>(distance_at, end);
    if (distance == 0) {
      check_common(at, end);
      return;
    }
    const auto common = common_.find(distance_at - distance);
    if (common == common_.end()) throw UnwindError("a record of a function has no common one");
    const size_t range_at = distance_at + sizeof(uint32_t);
    if (common->second == of_8_bytes)
      check_range<int64_t>(range_at, end);
    else
      check_range<int32_t>(range_at, end);
  }

  void check_common(size_t at, size_t end) {
    const size_t start = at + 2 * sizeof(uint32_t);
    const auto encoding = read<unsigned char>(start + sizeof common_record, end);
    if (std::memcmp(&table_[start], common_record, sizeof common_record) != 0 ||
        (encoding != of_4_bytes && encoding != of_8_bytes))
      throw UnwindError("a common record has another form");
    common_[at] = encoding;
  }

  // Check the start of a function's code, relative to here, its size, and that its augmentation is
  // empty.
  template <class Number> void check_range(size_t at, size_t end) const {
    const auto begin = reinterpret_cast<uintptr_t>(&table_[at]) +
                       static_cast<uintptr_t>(static_cast<int64_t>(read<Number>(at, end)));
    const auto size = static_cast<uint64_t>(read<Number>(at + sizeof(Number), end));
    const auto offset = begin - reinterpret_cast<uintptr_t>(code_.data());
    if (offset > code_.size() || size > code_.size() - offset)
      throw UnwindError("a function is outside of the code");
    if (read<unsigned char>(at + 2 * sizeof(Number), end) != 0)
      throw UnwindError("a record of a function has another form");
  }

  // Return the number at `at`, which must not extend beyond `end`.
  template <class Number> Number read(size_t at, size_t end) const {
    if (at + sizeof(Number) > end) throw UnwindError("a record is cut short");
    Number number;
    std::memcpy(&number, &table_[at], sizeof number);
    return number;
  }

  std::span<const std::byte> table_, code_;
  std::unordered_map<size_t, unsigned char> common_; // encodings by record offset
};

} // namespace

UnwindTable::UnwindTable(std::span<const std::byte> table, std::span<const std::byte> code)
    : start_(table.data()) {
  TableCheck(table, code).run();
  const ForkGuard section;
  __register_frame(start_);
}

UnwindTable::~UnwindTable() {
  const ForkGuard section;
  __deregister_frame(start_);
}

} // namespace torchmdla
