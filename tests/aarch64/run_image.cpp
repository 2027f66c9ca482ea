// Maps an image of tests/linked_code.py and prints what its functions compute: run_image IMAGE

#include "codeimage/image.h"
#include "runtime/device_calls.h"

#include <cstdint>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <iostream>
#include <iterator>
#include <new>
#include <span>
#include <vector>

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  std::ifstream file(argv[1], std::ios::binary);
  const std::vector<char> data{std::istreambuf_iterator<char>(file), {}};
  try {
    const torchmdla::Image image(
        std::as_bytes(std::span(data)), [](const std::string& name) -> void* {
          if (name == "labs")
            return reinterpret_cast<void*>(static_cast<long (*)(long)>(std::labs));
          return torchmdla::address_of_symbol(name);
        });
    const auto call = [&](const char* name, int64_t number) {
      return reinterpret_cast<int64_t (*)(int64_t)>(image.symbol(name))(number);
    };
    std::cout << call("entry", -3) << ' ' << call("entry", 4) << ' ' << call("by_pointer", -8);
    try {
      call("too_much", 0);
    } catch (const std::bad_alloc&) {
      std::cout << " no memory\n"; // which the device call threw through the image
    }
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
