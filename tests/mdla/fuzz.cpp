// Fuzzes the emulator's readers: whatever a file holds, it is refused with a Fault, or runs.
//
// The first byte of an input says what the others are (kTargets). With clang this is a target of
// libFuzzer; any other compiler makes a program of its own that takes the same command line and
// goes on from what was not refused, without looking at coverage.
#include "binary.h"
#include "compiler.h"
#include "cycles.h"
#include "executor.h"
#include "report.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

namespace {

using Bytes = std::vector<uint8_t>;
using Random = std::minstd_rand;

// So small that no accepted program runs for long.
constexpr int64_t kCardBytes = 1 << 14;
constexpr size_t kMostBytes = 1 << 15;

mdla::Board small_board() {
  mdla::Board board = mdla::read_board("");
  board.maps_bytes = 2048, board.weights_bytes = 2048, board.accumulators = 1024;
  board.memory_bytes = kCardBytes;
  return board;
}

// Ordinary numbers, and such as formats have no room for.
float sample(int64_t index) {
  constexpr float kOdd[] = {std::numeric_limits<float>::quiet_NaN(),
                            std::numeric_limits<float>::infinity(), -3e38f, 0.0f};
  return index % 11 == 10 ? kOdd[index / 11 % 4] : static_cast<float>(index % 7) - 3;
}

void run(const mdla::Program& program) {
  mdla::layers_json(program), mdla::listing(program), mdla::total_cost(program);
  std::vector<uint8_t> memory(program.memory_bytes);
  std::copy(program.constants.begin(), program.constants.end(), memory.begin());
  std::vector<float> values(kCardBytes);
  for (int64_t index = 0; index < kCardBytes; ++index)
    values[index] = sample(index);
  for (mdla::Run kind : {mdla::Run::kDevice, mdla::Run::kSoftware}) {
    for (const mdla::Placed& input : program.inputs)
      mdla::write_tensor(input, program.precision, values.data(), memory.data());
    for (const mdla::Weighted& layer : program.weighted) {
      mdla::encode(values.data(), layer.weight_elements, program.precision, layer.weight_fraction,
                   false, memory.data() + layer.weights);
      if (layer.bias >= 0)
        mdla::encode(values.data(), layer.bias_elements, program.precision, layer.bias_fraction,
                     true, memory.data() + layer.bias);
    }
    mdla::execute(program, kind, memory.data());
    for (const mdla::Placed& output : program.outputs)
      mdla::read_tensor(output, program.precision, memory.data(), values.data());
  }
}

void program_target(std::string_view bytes) {
  run(mdla::read_binary(mdla::sealed(std::string(bytes)), kCardBytes));
}

void model_target(std::string_view bytes) {
  static const mdla::Board board = small_board();
  mdla::require(!bytes.empty(), "no precision");
  auto precision = static_cast<mdla::Precision>(static_cast<unsigned char>(bytes[0]) % 3);
  mdla::Network network = mdla::make_network(mdla::parse_onnx(bytes.substr(1)), "");
  mdla::Target target{precision, board, 1, 1, 0};
  run(mdla::read_binary(mdla::write_binary(mdla::compile(network, target, {})), kCardBytes));
}

void board_target(std::string_view bytes) {
  mdla::Board board = mdla::parse_board(std::string(bytes));
  mdla::host_cycles({{"x", {1, 3, 8, 8}, 0, 0}}, mdla::Precision::kFixed16, board);
}

struct Target {
  uint8_t letter;
  void (*test)(std::string_view);
};
constexpr Target kTargets[] = {{'p', program_target}, {'o', model_target}, {'b', board_target}};

// Whether an input was not refused.
bool passes(const uint8_t* data, size_t size) {
  for (const Target& target : kTargets) {
    if (size == 0 || data[0] != target.letter) continue;
    try {
      target.test({reinterpret_cast<const char*>(data) + 1, size - 1});
      return true;
    } catch (const mdla::Fault&) {
    }
  }
  return false;
}

// ---- damage that hits numbers of 8 bytes ----

int64_t odd_number(Random& random) {
  int64_t power = int64_t{1} << random() % 63;
  switch (random() % 6) {
  case 0:
    return static_cast<int64_t>(random() % 4) - 1;
  case 1:
    return power;
  case 2:
    return power - 1;
  case 3:
    return -power;
  case 4:
    return std::numeric_limits<int64_t>::max() - static_cast<int64_t>(random() % 64);
  default:
    return std::numeric_limits<int64_t>::min() + static_cast<int64_t>(random() % 64);
  }
}

// Fields are aligned after a program's texts of 8 bytes only, so that any place may be one.
void change_number(Bytes& bytes, Random& random) {
  if (bytes.size() < sizeof(int64_t)) return;
  auto place = [&] { return bytes.data() + random() % (bytes.size() - sizeof(int64_t) + 1); };
  uint64_t number = 0;
  uint8_t* at = place();
  switch (random() % 4) {
  case 0:
    number = static_cast<uint64_t>(odd_number(random));
    break;
  case 1: // another one
    std::memcpy(&number, place(), sizeof number);
    break;
  default: // a little more or less
    std::memcpy(&number, at, sizeof number);
    number += random() % 33 - uint64_t{16};
  }
  std::memcpy(at, &number, sizeof number);
}

void change(Bytes& bytes, Random& random) {
  size_t at = random() % bytes.size(), count = std::min<size_t>(random() % 64, bytes.size() - at);
  auto first = bytes.begin() + static_cast<std::ptrdiff_t>(at);
  switch (random() % 8) {
  case 0:
    bytes[at] ^= static_cast<uint8_t>(1 << random() % 8);
    break;
  case 1:
    bytes[at] = static_cast<uint8_t>(random());
    break;
  case 2:
    if (count < bytes.size()) bytes.erase(first, first + static_cast<std::ptrdiff_t>(count));
    break;
  case 3: {
    Bytes twice(first, first + static_cast<std::ptrdiff_t>(count));
    bytes.insert(first, twice.begin(), twice.end());
    break;
  }
  default:
    change_number(bytes, random);
  }
  if (bytes.size() > kMostBytes) bytes.resize(kMostBytes);
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  passes(data, size);
  return 0;
}

#ifdef MDLA_LIBFUZZER

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t most);

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t most,
                                          unsigned int seed) {
  Random random(seed);
  if (size == 0 || random() % 2) return LLVMFuzzerMutate(data, size, most);
  Bytes bytes(data, data + size);
  for (size_t times = 1 + random() % 4; times > 0; --times)
    change(bytes, random);
  size_t made = std::min(bytes.size(), most);
  std::memcpy(data, bytes.data(), made);
  return made;
}

#else

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace {

Bytes current;

[[maybe_unused]] void keep_current() {
  std::ofstream("crash-input", std::ios::binary)
      .write(reinterpret_cast<const char*>(current.data()),
             static_cast<std::streamsize>(current.size()));
  std::fprintf(stderr, "the input is in crash-input\n");
}

void read_inputs(const std::filesystem::path& path, std::vector<Bytes>& inputs) {
  if (std::filesystem::is_directory(path)) {
    for (const auto& entry : std::filesystem::directory_iterator(path))
      read_inputs(entry.path(), inputs);
    return;
  }
  std::ifstream file(path, std::ios::binary);
  inputs.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

} // namespace

// Arguments: -max_total_time=SECONDS, files and folders of inputs to start from.
int main(int count, char** arguments) {
  using Clock = std::chrono::steady_clock;
  int64_t seconds = 0, runs = 0, passed = 0;
  std::vector<Bytes> inputs;
  const std::string limit = "-max_total_time=";
  for (int index = 1; index < count; ++index) {
    std::string argument = arguments[index];
    if (argument.starts_with(limit))
      seconds = std::stoll(argument.substr(limit.size()));
    else if (!argument.starts_with("-"))
      read_inputs(argument, inputs);
  }
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_set_death_callback(keep_current);
#endif
  for (const Bytes& input : inputs) {
    current = input;
    passed += passes(current.data(), current.size());
  }
  std::printf("%lld of %zu inputs run\n", static_cast<long long>(passed), inputs.size());
  std::erase_if(inputs, [](const Bytes& input) { return input.empty(); });
  if (seconds == 0 || inputs.empty()) return 0;
  Random random(std::random_device{}());
  passed = 0;
  constexpr size_t kMostInputs = 20000;
  for (auto end = Clock::now() + std::chrono::seconds(seconds); Clock::now() < end; ++runs) {
    current = inputs[random() % inputs.size()];
    for (size_t times = 1 + random() % 4; times > 0; --times)
      change(current, random);
    if (!passes(current.data(), current.size())) continue;
    ++passed;
    if (inputs.size() < kMostInputs && random() % 16 == 0) inputs.push_back(current);
  }
  std::printf("Done %lld runs in %lld second(s), %lld not refused\n", static_cast<long long>(runs),
              static_cast<long long>(seconds), static_cast<long long>(passed));
}

#endif
