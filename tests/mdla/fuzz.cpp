// Fuzzes the emulator's readers: whatever a file holds, it is refused with a Fault, or runs.
#include "binary.h"
#include "compiler.h"
#include "cycles.h"
#include "executor.h"
#include "fuzzing.h"
#include "report.h"

#include <algorithm>
#include <limits>

namespace {

// So small that no accepted program runs for long.
constexpr int64_t kCardBytes = 1 << 14;

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

template <void (*test)(std::string_view)> bool accepts(std::string_view bytes) {
  try {
    test(bytes);
    return true;
  } catch (const mdla::Fault&) {
    return false;
  }
}

} // namespace

const std::vector<fuzzing::Target> fuzzing::kTargets = {
    {'p', accepts<program_target>}, {'o', accepts<model_target>}, {'b', accepts<board_target>}};
