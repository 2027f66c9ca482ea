// Loaded model: its code is mapped into this process, and its weights are mapped from the file.
#pragma once

#include "group.h"
#include "model_file.h"
#include "tensor.h"

#include <atomic>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace torchmdla::native {

// Model of a file. Any number of threads may use it concurrently. Its functions throw Error,
// FileProblem, BadBytes or ImageError if a file or a tensor is invalid.
class Model {
public:
  Model(const std::string& path, int threads, bool any_owner);

  const Program& program() const { return file_.content().program; }
  std::span<const LoadedGroup> groups() const { return groups_; }
  const std::string& target() const { return target_->name; }
  void verify() const { file_.verify(); }

  int threads() const { return threads_; }
  void set_threads(int threads);

  // Models that are one group. Others have neither inputs nor outputs here.
  std::span<const Port> inputs() const;
  std::span<const Port> outputs() const;
  Dimensions output_sizes(std::span<const TensorView> inputs, size_t output) const;
  void run(std::span<const TensorView> inputs, std::span<const TensorView> outputs) const;

private:
  void load_code();

  ModelFile file_;
  const Target* target_; // the one with the most features that this processor has
  std::vector<LoadedGroup> groups_;
  std::atomic<int> threads_;
};

} // namespace torchmdla::native
