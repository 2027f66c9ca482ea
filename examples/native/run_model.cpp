// Runs a model of float32 on numbers in a file, and prints what it computes:
//
//     c++ -std=c++20 run_model.cpp $(python -m torchmdla_runtime) -o run_model
//     ./run_model model.tmdla numbers.bin
#include "model.hpp"

#include <cstdio>
#include <exception>
#include <fstream>

int main(int argc, char** argv) try {
  if (argc != 3) {
    std::fprintf(stderr, "usage: %s model.tmdla numbers.bin\n", argv[0]);
    return 2;
  }
  const Model model(argv[1]);
  auto inputs = model.inputs();
  std::ifstream file(argv[2], std::ios::binary);
  file.exceptions(std::ios::failbit);
  for (auto& input : inputs)
    file.read(reinterpret_cast<char*>(input.data.data()),
              static_cast<std::streamsize>(input.data.size() * sizeof(float)));
  for (const auto& output : model(inputs))
    for (const float number : output.data)
      std::printf("%.9g\n", number);
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
