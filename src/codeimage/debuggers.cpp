#include "debuggers.h"

#include "base/forks.h"

#include <elf.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <vector>

// gdb's JIT Compilation Interface, which specifies these names and the layout of the descriptor.
// gdb stops in the function and reads the list. Other libraries of the process (LLVM's) define
// both, too, and protected visibility keeps these apart from them.
extern "C" {

struct jit_code_entry {
  jit_code_entry* next_entry;
  jit_code_entry* prev_entry;
  const char* symfile_addr;
  uint64_t symfile_size;
};

struct jit_descriptor {
  uint32_t version;
  uint32_t action_flag;
  jit_code_entry* relevant_entry;
  jit_code_entry* first_entry;
};

__attribute__((visibility("protected"), used)) jit_descriptor __jit_debug_descriptor{1, 0, nullptr,
                                                                                     nullptr};

__attribute__((visibility("protected"), noinline, used)) void __jit_debug_register_code() {
  asm volatile("" ::: "memory");
}
}

namespace torchmdla {

namespace {

enum { no_action, register_action, unregister_action };

std::mutex debuggers_mutex; // guards the descriptor, its list, and perf's file

void notify_gdb(uint32_t action, jit_code_entry& entry) {
  __jit_debug_descriptor.action_flag = action;
  __jit_debug_descriptor.relevant_entry = &entry;
  __jit_debug_register_code();
  __jit_debug_descriptor.action_flag = no_action;
  __jit_debug_descriptor.relevant_entry = nullptr;
}

// --- an object file that contains only symbols ---

enum { no_section, text_section, symbols_section, strings_section, section_count };

#if defined(__aarch64__)
constexpr Elf64_Half elf_machine = EM_AARCH64;
#else
constexpr Elf64_Half elf_machine = EM_X86_64;
#endif

// The addresses of an executable (ET_EXEC) are those of this process.
constexpr Elf64_Ehdr elf_header{
    .e_ident = {ELFMAG0, ELFMAG1, ELFMAG2, ELFMAG3, ELFCLASS64, ELFDATA2LSB, EV_CURRENT},
    .e_type = ET_EXEC,
    .e_machine = elf_machine,
    .e_version = EV_CURRENT,
    .e_entry = 0,
    .e_phoff = 0,
    .e_shoff = sizeof(Elf64_Ehdr),
    .e_flags = 0,
    .e_ehsize = sizeof(Elf64_Ehdr),
    .e_phentsize = 0,
    .e_phnum = 0,
    .e_shentsize = sizeof(Elf64_Shdr),
    .e_shnum = section_count,
    .e_shstrndx = strings_section};

template <class Part> void append(std::string& file, const Part* parts, size_t count) {
  file.append(reinterpret_cast<const char*>(parts), count * sizeof(Part));
}

// Return the file: header, section headers, symbols, strings. It does not contain the code.
std::string elf_file(std::span<const std::byte> code, std::span<const CodeSymbol> symbols) {
  std::string strings(1, '\0'); // the string at offset 0 is empty
  const auto add_string = [&](const std::string& text) {
    const auto offset = static_cast<Elf64_Word>(strings.size());
    strings.append(text).push_back('\0');
    return offset;
  };
  std::vector<Elf64_Sym> table(1);
  for (const auto& [name, address, size] : symbols)
    table.push_back({add_string(name), ELF64_ST_INFO(STB_GLOBAL, STT_FUNC), STV_DEFAULT,
                     text_section, address, size});
  Elf64_Shdr sections[section_count]{};
  const auto describe = [&](int number, const char* name, Elf64_Word type, size_t offset,
                            size_t size) -> Elf64_Shdr& {
    auto& section = sections[number];
    section.sh_name = add_string(name), section.sh_type = type;
    section.sh_offset = offset, section.sh_size = size;
    section.sh_addralign = 1;
    return section;
  };
  auto& text = describe(text_section, ".text", SHT_NOBITS, 0, code.size());
  text.sh_flags = SHF_ALLOC | SHF_EXECINSTR;
  text.sh_addr = reinterpret_cast<uintptr_t>(code.data());
  auto& symtab = describe(symbols_section, ".symtab", SHT_SYMTAB,
                          sizeof elf_header + sizeof sections, table.size() * sizeof(Elf64_Sym));
  symtab.sh_link = strings_section;
  symtab.sh_info = 1; // the first symbol that is not local
  symtab.sh_addralign = alignof(Elf64_Sym);
  symtab.sh_entsize = sizeof(Elf64_Sym);
  auto& strtab =
      describe(strings_section, ".strtab", SHT_STRTAB, symtab.sh_offset + symtab.sh_size, 0);
  strtab.sh_size = strings.size();
  std::string file;
  append(file, &elf_header, 1);
  append(file, sections, section_count);
  append(file, table.data(), table.size());
  return file + strings;
}

// --- perf ---

bool is_perf_map_requested() {
  static const bool is_requested = [] {
    const char* value = std::getenv("TORCHMDLA_PERF_MAP");
    return value != nullptr && std::strcmp(value, "1") == 0;
  }();
  return is_requested;
}

// Open perf's file of this process, which must belong to this user. Return -1 if that fails.
int open_perf_map() {
  const auto path = "/tmp/perf-" + std::to_string(getpid()) + ".map";
  const int file =
      open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0600);
  struct stat status{};
  if (file >= 0 &&
      (fstat(file, &status) != 0 || !S_ISREG(status.st_mode) || status.st_uid != geteuid())) {
    close(file);
    return -1;
  }
  return file;
}

std::string perf_lines(std::span<const CodeSymbol> symbols) {
  std::string lines;
  char numbers[40];
  for (const auto& symbol : symbols) {
    snprintf(numbers, sizeof numbers, "%lx %lx ", static_cast<unsigned long>(symbol.address),
             static_cast<unsigned long>(symbol.size));
    lines += numbers + symbol.name + '\n';
  }
  return lines;
}

// Append `text`, if possible. A profile without names is better than a program that fails.
void append_to(int file, const std::string& text) {
  if (file < 0) return;
  [[maybe_unused]] const auto written = write(file, text.data(), text.size());
}

void write_perf_map(std::span<const CodeSymbol> symbols) {
  static pid_t process = 0; // process that the file belongs to
  static int file = -1;
  static std::string written_lines; // lines of this process and of those that it was forked from
  const auto lines = perf_lines(symbols);
  written_lines += lines;
  if (process == getpid()) {
    append_to(file, lines);
    return;
  }
  if (file >= 0) close(file);
  file = open_perf_map();
  process = getpid();
  append_to(file, written_lines);
}

} // namespace

struct DebuggerEntry::Registered {
  std::string file;
  jit_code_entry entry;
};

DebuggerEntry::DebuggerEntry(std::span<const std::byte> code, std::span<const CodeSymbol> symbols)
    : registered_(new Registered{elf_file(code, symbols), {}}) {
  auto& entry = registered_->entry;
  entry.symfile_addr = registered_->file.data();
  entry.symfile_size = registered_->file.size();
  const ForkSafeLock guard(debuggers_mutex);
  entry.next_entry = __jit_debug_descriptor.first_entry;
  if (entry.next_entry != nullptr) entry.next_entry->prev_entry = &entry;
  __jit_debug_descriptor.first_entry = &entry;
  notify_gdb(register_action, entry);
  if (is_perf_map_requested()) write_perf_map(symbols);
}

DebuggerEntry::~DebuggerEntry() {
  const ForkSafeLock guard(debuggers_mutex);
  auto& entry = registered_->entry;
  if (entry.prev_entry != nullptr)
    entry.prev_entry->next_entry = entry.next_entry;
  else
    __jit_debug_descriptor.first_entry = entry.next_entry;
  if (entry.next_entry != nullptr) entry.next_entry->prev_entry = entry.prev_entry;
  notify_gdb(unregister_action, entry);
}

} // namespace torchmdla
