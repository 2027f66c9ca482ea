// Calls a program with state on each chunk of a stream of float32 samples, and prints the first number of each result.
// Two threads have a session each, of one program:
//
//     stream model.tmdla SAMPLES RATE < samples.bin
#include "session.hpp"

#include <cstdio>
#include <exception>
#include <thread>

namespace {

using Chunks = std::vector<std::vector<float>>;

Chunks read_chunks(size_t size) {
  Chunks chunks;
  std::vector<float> chunk(size);
  while (std::fread(chunk.data(), sizeof(float), size, stdin) == size)
    chunks.push_back(chunk);
  return chunks;
}

std::vector<float> run(const tmdla_model* program, Chunks chunks, int64_t rate) {
  Session session(program);
  const auto forward = session.method("forward");
  std::vector<float> results;
  for (auto& chunk : chunks) {
    const int64_t sizes[] = {1, static_cast<int64_t>(chunk.size())};
    const tmdla_tensor tensor{chunk.data(), TMDLA_FLOAT32, 2, sizes, nullptr};
    const tmdla_value arguments[] = {value_of(tensor), value_of(rate)};
    const auto& result = session.call(forward, std::span(arguments, rate > 0 ? 2 : 1));
    results.push_back(*static_cast<const float*>(result.as.tensor->data));
  }
  return results;
}

} // namespace

int main(int argc, char** argv) try {
  if (argc != 4) throw std::runtime_error("usage: stream model.tmdla SAMPLES RATE < samples.bin");
  const tmdla_options options{TMDLA_API_VERSION, 1, 0};
  tmdla_model* loaded = nullptr;
  check(tmdla_load(argv[1], &options, &loaded));
  const std::unique_ptr<tmdla_model, decltype(&tmdla_free)> program(loaded, tmdla_free);
  const auto chunks = read_chunks(std::stoul(argv[2]));
  const auto rate = std::stoll(argv[3]);

  std::vector<float> other;
  std::exception_ptr failure;
  std::thread thread([&] {
    try {
      other = run(program.get(), chunks, rate);
    } catch (...) {
      failure = std::current_exception();
    }
  });
  std::vector<float> results;
  try {
    results = run(program.get(), chunks, rate);
  } catch (...) {
    failure = std::current_exception();
  }
  thread.join();
  if (failure) std::rethrow_exception(failure);
  if (results != other) throw std::runtime_error("the threads have other results");
  for (const auto result : results)
    std::printf("%.9g\n", static_cast<double>(result));
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
