// A server that knows nothing of torchmdla: plain MODEL.pt SIZES [LIBRARY]. Run it as it is, or
// with LD_PRELOAD=…/libtorchmdla.so, or have it load that library by dlopen.

#include <torch/script.h>

#include <dlfcn.h>

#include <cstdint>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

int main(int argc, char** argv) {
  if (argc < 3) {
    std::cerr << "usage: plain MODEL.pt SIZES [LIBRARY]\n";
    return 2;
  }
  if (argc > 3) {
    void* library = dlopen(argv[3], RTLD_NOW);
    void* symbol = library ? dlsym(library, "torchmdla_take_package") : nullptr;
    if (!symbol) {
      std::cerr << dlerror() << '\n';
      return 2;
    }
    reinterpret_cast<int (*)(const char*)>(symbol)(argv[1]);
  }
  std::vector<int64_t> sizes;
  std::istringstream text(argv[2]);
  for (std::string size; std::getline(text, size, 'x');)
    sizes.push_back(std::stoll(size));
  const torch::NoGradGuard no_grad;
  auto module = torch::jit::load(argv[1]);
  const auto result = module.forward({torch::ones(sizes)}).toTensor();
  std::cout.precision(9);
  std::cout << result.sum().item<double>() << '\n';
}
