// Packages: compiled groups that are stored in a program's file (torchmdla/packages/ writes them).
//
// A program's file is an archive. A package consists of some of its records: an index, which names
// the targets, and one block for each target. Both are sealed (support/sealed_block.h). The index
// contains the digests of the blocks, so a reader that trusts the index can trust the package.
#pragma once

#include "base/byte_reader.h"
#include "group/packaged.h"

#include <c10/core/Allocator.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

namespace torchmdla {

class OpenFile;

// Bytes of a file, and the owner of their memory.
struct FileRecord {
  std::span<const std::byte> bytes;
  std::shared_ptr<const void> owner;
};

// Function that returns a package's record by name, or nullopt if the archive has no such record.
using ReadRecord = std::function<std::optional<FileRecord>(const std::string& name)>;

// Source of a package.
struct PackageSource {
  ReadRecord read;
  ReadRecord map;                 // also returns nullopt if the record cannot be mapped
  std::string name;               // for messages
  const OpenFile* file = nullptr; // null if the program passed the bytes instead of a file name
  std::optional<ProgramLife> program = std::nullopt; // the loaded program, if known
};

// Read the package of `source` and add it to those that groups search (add_package in
// group/packaged.h). Return false if the archive has no package.
//
// A package is refused if it is damaged, has another version, or has no code for this processor. It
// is also refused if a signature is required and missing or wrong. If no signature is required, a
// package in a file that another user may have written is refused. A refusal is counted and causes
// a warning, and the program runs without the package.
bool load_package(const PackageSource& source);

} // namespace torchmdla
