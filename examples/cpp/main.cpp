// Runs a program of TorchScript: `run model.pt 1x3x224x224 [CALLS]`. Nothing in it is torchmdla's: the library is linked ahead
// of libtorch, and torch::jit::load does the rest.
#include <torch/script.h>
#include <torchmdla/torchmdla.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

namespace {

double milliseconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

std::vector<int64_t> sizes_in(std::string text) {
  std::ranges::replace(text, 'x', ' ');
  std::istringstream stream(text);
  return {std::istream_iterator<int64_t>(stream), {}};
}

} // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::cerr << "usage: " << argv[0] << " MODEL.pt SIZES [CALLS]\n";
    return 2;
  }
  const torch::NoGradGuard no_grad;
  torch::jit::Module module;
  std::cout << "load " << milliseconds_of([&] { module = torch::jit::load(argv[1]); }) << " ms\n";
  torch::manual_seed(0);
  const std::vector<torch::jit::IValue> inputs{torch::randn(sizes_in(argv[2]))};
  torch::Tensor result;
  const int calls = argc > 3 ? std::stoi(argv[3]) : 10;
  for (int call = 1; call <= calls; ++call) {
    const auto taken = milliseconds_of([&] { result = module.forward(inputs).toTensor(); });
    if (call == 1 || call == calls) std::cout << "call " << call << ' ' << taken << " ms\n";
  }
  std::cout << "sum " << result.sum().item<double>() << '\n' << torchmdla::statistics_as_json() << '\n';
}
