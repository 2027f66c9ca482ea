// Runs a call of a model: run_call MODEL THREADS INPUTS OUTPUTS
//
// INPUTS has for each input its rank, its sizes and its data. The program writes the data of the
// outputs to OUTPUTS, and prints a line for each: its dtype and its sizes.

#include <torchmdla/runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

namespace {

struct Memory {
  std::vector<int64_t> sizes;
  std::vector<char> data;
  int32_t dtype;

  tmdla_tensor view() {
    return {data.data(), dtype, static_cast<int32_t>(sizes.size()), sizes.data(), nullptr};
  }

  void allocate() {
    size_t bytes = 1;
    switch (dtype) {
    case TMDLA_UINT8:
    case TMDLA_INT8:
    case TMDLA_BOOL:
      break;
    case TMDLA_INT16:
    case TMDLA_FLOAT16:
    case TMDLA_BFLOAT16:
      bytes = 2;
      break;
    case TMDLA_INT32:
    case TMDLA_FLOAT32:
      bytes = 4;
      break;
    default:
      bytes = 8;
    }
    for (const auto size : sizes)
      bytes *= static_cast<size_t>(size);
    data.resize(bytes);
  }
};

void check(tmdla_status status) {
  if (status == TMDLA_OK) return;
  std::cerr << status << ' ' << tmdla_last_error() << '\n';
  std::exit(1);
}

template <class Number> Number read(std::istream& file) {
  Number number{};
  file.read(reinterpret_cast<char*>(&number), sizeof number);
  return number;
}

std::vector<tmdla_tensor> views_of(std::vector<Memory>& tensors) {
  std::vector<tmdla_tensor> views;
  for (auto& tensor : tensors)
    views.push_back(tensor.view());
  return views;
}

std::vector<Memory> read_inputs(const tmdla_model* model, const char* path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<Memory> inputs(tmdla_input_count(model));
  for (size_t i = 0; i < inputs.size(); ++i) {
    tmdla_info info;
    check(tmdla_input(model, i, &info));
    inputs[i].dtype = info.dtype;
    inputs[i].sizes.resize(read<int64_t>(file));
    for (auto& size : inputs[i].sizes)
      size = read<int64_t>(file);
    inputs[i].allocate();
    file.read(inputs[i].data.data(), static_cast<std::streamsize>(inputs[i].data.size()));
  }
  if (!file) std::exit(2);
  return inputs;
}

std::vector<Memory> allocate_outputs(const tmdla_model* model, std::vector<Memory>& inputs) {
  const auto views = views_of(inputs);
  std::vector<Memory> outputs(tmdla_output_count(model));
  for (size_t i = 0; i < outputs.size(); ++i) {
    tmdla_info info;
    check(tmdla_output(model, i, &info));
    outputs[i].dtype = info.dtype;
    outputs[i].sizes.resize(static_cast<size_t>(info.rank));
    check(tmdla_output_sizes(model, views.data(), views.size(), i, outputs[i].sizes.data()));
    outputs[i].allocate();
  }
  return outputs;
}

} // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  const tmdla_options options{TMDLA_API_VERSION, std::atoi(argv[2]), 0};
  tmdla_model* model = nullptr;
  check(tmdla_load(argv[1], &options, &model));
  check(tmdla_verify(model));
  auto inputs = read_inputs(model, argv[3]);
  auto outputs = allocate_outputs(model, inputs);
  const auto from = views_of(inputs), to = views_of(outputs);
  for (int call = 0; call < 2; ++call)
    check(tmdla_run(model, from.data(), from.size(), to.data(), to.size()));
  std::ofstream file(argv[4], std::ios::binary);
  for (const auto& output : outputs) {
    std::cout << output.dtype;
    for (const auto size : output.sizes)
      std::cout << ' ' << size;
    std::cout << '\n';
    file.write(output.data.data(), static_cast<std::streamsize>(output.data.size()));
  }
  tmdla_free(model);
}
