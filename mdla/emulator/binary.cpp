#include "binary.h"

#include "verifier.h"

#include <cstring>
#include <type_traits>

namespace mdla {
namespace {

constexpr char kMagic[8] = {'M', 'D', 'L', 'A', 'E', 'M', 'U', '\n'};
constexpr int64_t kVersion = 2;

struct Header {
  char magic[8];
  int64_t version, length;
  uint64_t checksum; // checksum of the payload
};

// Return the 64-bit FNV-1a hash.
uint64_t checksum(std::string_view bytes) {
  uint64_t hash = 14695981039346656037u;
  for (unsigned char byte : bytes)
    hash = (hash ^ byte) * 1099511628211u;
  return hash;
}

template <class T>
concept Scalar = std::is_arithmetic_v<T> || std::is_enum_v<T>;

class Writer {
public:
  std::string bytes;

  template <class T> void operator()(const char*, T& field) { write(field); }

private:
  template <Scalar T> void write(const T& value) { raw(&value, sizeof value); }
  void write(const std::string& text) {
    write(static_cast<int64_t>(text.size()));
    raw(text.data(), text.size());
  }
  template <class T, size_t size> void write(std::array<T, size>& values) {
    for (T& value : values)
      write(value);
  }
  template <class T> void write(std::vector<T>& values) {
    write(static_cast<int64_t>(values.size()));
    for (T& value : values)
      write(value);
  }
  void write(Instruction& instruction) {
    write(static_cast<int64_t>(instruction.index()));
    std::visit([this](auto& code) { code.fields(*this); }, instruction);
  }
  template <class T>
  void write(T& record)
    requires requires(T& some, Writer& writer) { some.fields(writer); }
  {
    record.fields(*this);
  }
  void raw(const void* from, size_t count) { bytes.append(static_cast<const char*>(from), count); }
};

class Reader {
public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}

  template <class T> void operator()(const char*, T& field) { read(field); }
  bool done() const { return rest_.empty(); }

private:
  template <Scalar T> void read(T& value) { std::memcpy(&value, take(sizeof value), sizeof value); }
  void read(std::string& text) {
    int64_t count = length(1);
    text.assign(take(count), count);
  }
  template <class T, size_t size> void read(std::array<T, size>& values) {
    for (T& value : values)
      read(value);
  }
  template <class T> void read(std::vector<T>& values) {
    values.resize(length(Scalar<T> ? sizeof(T) : sizeof(int64_t)));
    for (T& value : values)
      read(value);
  }
  void read(Instruction& instruction) {
    int64_t opcode = 0;
    read(opcode);
    make<0>(opcode, instruction);
    std::visit([this](auto& code) { code.fields(*this); }, instruction);
  }
  template <class T>
  void read(T& record)
    requires requires(T& some, Reader& reader) { some.fields(reader); }
  {
    record.fields(*this);
  }

  template <size_t index> void make(int64_t opcode, Instruction& instruction) {
    if constexpr (index == std::variant_size_v<Instruction>)
      refuse("the binary has an unknown opcode, ", opcode);
    else if (opcode == static_cast<int64_t>(index))
      instruction.emplace<index>();
    else
      make<index + 1>(opcode, instruction);
  }
  // Read the length of a list. Each element has at least `least` bytes.
  int64_t length(size_t least) {
    int64_t count = 0;
    read(count);
    require(count >= 0 && static_cast<uint64_t>(count) <= rest_.size() / least,
            "the binary is cut");
    return count;
  }
  const char* take(size_t count) {
    require(count <= rest_.size(), "the binary is cut");
    const char* from = rest_.data();
    rest_.remove_prefix(count);
    return from;
  }

  std::string_view rest_;
};

} // namespace

std::string write_binary(const Program& program) {
  Writer writer;
  Program(program).fields(writer);
  return sealed(writer.bytes);
}

std::string sealed(const std::string& payload) {
  Header header{{}, kVersion, static_cast<int64_t>(payload.size()), checksum(payload)};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  return std::string(reinterpret_cast<const char*>(&header), sizeof header) + payload;
}

Program read_binary(const std::string& bytes, int64_t card_bytes) {
  Header header;
  require(bytes.size() >= sizeof header && std::memcmp(bytes.data(), kMagic, sizeof kMagic) == 0,
          "this is not a binary of the emulator");
  std::memcpy(&header, bytes.data(), sizeof header);
  require(header.version == kVersion, "the binary has version ", header.version,
          ", the emulator reads ", kVersion, ": compile the model again");
  std::string_view payload(bytes.data() + sizeof header, bytes.size() - sizeof header);
  require(header.length == static_cast<int64_t>(payload.size()),
          "the binary is cut: ", payload.size(), " bytes of ", header.length);
  require(header.checksum == checksum(payload), "the binary is damaged: its checksum is another");
  Reader reader(payload);
  Program program;
  program.fields(reader);
  require(reader.done(), "the binary is damaged: it has more than a program");
  verify(program, card_bytes);
  return program;
}

} // namespace mdla
