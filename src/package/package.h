// Files that hold artifacts of their groups (torchmdla/packages/ writes them).
//
// A program's file is an archive; a package is some of its records: an index, which names the
// targets, and a block for each of these. Both are sealed (support/sealed_block.h), and the index
// has the digests of the blocks, so that who trusts the index trusts the package.
#pragma once

#include "group/packaged.h"
#include "support/byte_reader.h"

#include <c10/core/Allocator.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

namespace torchmdla {

class OpenFile;

// Bytes of a file, and what keeps them.
struct FileRecord {
  std::span<const std::byte> bytes;
  std::shared_ptr<const void> owner;
};

// A package's record by its name; nullopt where the archive has none of that name.
using ReadRecord = std::function<std::optional<FileRecord>(const std::string& name)>;

// Where a package comes from.
struct PackageSource {
  ReadRecord read;
  ReadRecord map;                 // nullopt, too, where a record can only be read
  std::string name;               // for messages
  const OpenFile* file = nullptr; // null where the program itself handed over the bytes
  std::optional<ProgramLife> program = std::nullopt; // that is loaded, where it is known
};

// What groups have to know of a package, made known to them (add_package in group/packaged.h);
// false where the archive has none. What is damaged, of another version or for other processors
// alone, not signed where that is demanded, or, where it is not, in a file that another user may
// have written, is refused: it is counted and warned of, and the program runs without.
bool take_package(const PackageSource& source);

} // namespace torchmdla
