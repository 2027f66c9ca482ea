// Runs a program of TorchScript in C++: run MODEL.pt CALL... [--calls N] [--threads N] [--save
// FILE]
//
// A call is its inputs between commas, each written as its sizes, with its dtype if that is not
// float32: 1x3x224x224, or 1x128:int64. Or it is @FILE, which holds the inputs, a list of tensors
// that torch.save wrote.
//
// Nothing here is torchmdla's but the statistics in the end: the library is linked ahead of
// libtorch, and torch::jit::load does the rest.

#include <torch/csrc/jit/serialization/pickle.h>
#include <torch/script.h>
#include <torchmdla/torchmdla.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

using Inputs = std::vector<c10::IValue>;

struct Options {
  std::string model, save;
  std::vector<std::string> calls;
  int repeat = 10, threads = 1;
};

double milliseconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  const std::chrono::duration<double, std::milli> taken = std::chrono::steady_clock::now() - start;
  return taken.count();
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);)
    parts.push_back(part);
  return parts;
}

torch::Tensor draw(const std::string& text) {
  const auto colon = text.find(':');
  std::vector<int64_t> sizes;
  for (const auto& size : split(text.substr(0, colon), 'x'))
    sizes.push_back(std::stoll(size));
  const auto dtype = colon == std::string::npos ? "float32" : text.substr(colon + 1);
  if (dtype == "float32") return torch::randn(sizes);
  TORCH_CHECK(dtype == "int64", "no dtype ", dtype, "; there are float32 and int64");
  return torch::randint(100, sizes);
}

Inputs inputs_of(const std::string& call) {
  Inputs inputs;
  if (call.starts_with('@')) {
    std::ifstream file(call.substr(1), std::ios::binary);
    const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
    const auto tensors = torch::jit::pickle_load(bytes);
    for (const auto& tensor : tensors.toListRef())
      inputs.push_back(tensor);
    return inputs;
  }
  for (const auto& input : split(call, ','))
    inputs.emplace_back(draw(input));
  return inputs;
}

Options parse(const std::vector<std::string>& arguments) {
  Options options;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto& one = arguments[i];
    const auto value = [&] {
      TORCH_CHECK(i + 1 < arguments.size(), one, " needs a value");
      return arguments[++i];
    };
    if (one == "--calls")
      options.repeat = std::stoi(value());
    else if (one == "--threads")
      options.threads = std::stoi(value());
    else if (one == "--save")
      options.save = value();
    else if (options.model.empty())
      options.model = one;
    else
      options.calls.push_back(one);
  }
  TORCH_CHECK(!options.calls.empty(),
              "usage: run MODEL.pt CALL... [--calls N] [--threads N] [--save FILE]");
  return options;
}

// Calls with each of the inputs in turn, on several threads; each thread begins with another one.
void serve(torch::jit::Module& module, const std::vector<Inputs>& calls,
           const std::vector<c10::IValue>& results, const Options& options) {
  std::vector<std::thread> threads;
  std::atomic<int> differing{0};
  for (int number = 0; number < options.threads; ++number)
    threads.emplace_back([&, number] {
      const torch::NoGradGuard no_grad;
      for (int turn = 0; turn < options.repeat; ++turn) {
        const auto which = static_cast<size_t>(number + turn) % calls.size();
        const auto result = module.forward(calls[which]);
        if (result.isTensor() && !torch::equal(result.toTensor(), results[which].toTensor()))
          ++differing;
      }
    });
  for (auto& thread : threads)
    thread.join();
  std::cout << options.threads << " threads: " << differing << " results differ from the first\n";
}

int main(int argc, char** argv) {
  try {
    const auto options = parse({argv + 1, argv + argc});
    const torch::NoGradGuard no_grad;
    torch::manual_seed(0);
    std::vector<Inputs> calls;
    std::ranges::transform(options.calls, std::back_inserter(calls), inputs_of);
    torch::jit::Module module;
    std::cout << "load " << milliseconds_of([&] { module = torch::jit::load(options.model); })
              << " ms\n";
    std::vector<c10::IValue> results;
    for (const auto& inputs : calls) {
      c10::IValue result;
      for (int call = 1; call <= options.repeat; ++call) {
        const auto taken = milliseconds_of([&] { result = module.forward(inputs); });
        if (call == 1) results.push_back(result);
        if (call == 1 || call == options.repeat)
          std::cout << "call " << call << ' ' << taken << " ms\n";
      }
    }
    if (options.threads > 1) serve(module, calls, results, options);
    if (!options.save.empty()) {
      const auto bytes = torch::jit::pickle_save(c10::ivalue::Tuple::create(results));
      std::ofstream(options.save, std::ios::binary)
          .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    }
    std::cout << torchmdla::statistics_as_json() << '\n';
  } catch (const c10::Error& error) {
    std::cerr << error.what_without_backtrace() << '\n';
    return 2;
  }
}
