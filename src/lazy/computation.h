// Lowering of pending lazy tensors.
#pragma once

#include "torchmdla/lazy_backend.h"

#include <torch/csrc/lazy/ts_backend/ts_lowering_context.h>

#include <memory>
#include <utility>
#include <vector>

namespace torchmdla::lazy {

// A canonical graph (canonical.h). Its tensors have dtypes and sizes.
class Computation : public torch::lazy::TSComputation {
public:
  // Output and parameter that are the new and the old value of one tensor.
  struct Alias {
    size_t output;
    size_t parameter;
  };

  Computation(std::shared_ptr<torch::jit::Graph> graph, std::vector<Alias> aliases)
      : TSComputation(graph), aliases_(std::move(aliases)) {}

  const std::vector<Alias>& aliases() const { return aliases_; }

  // Set the program, once, before the first run.
  void set_program(std::shared_ptr<LazyProgram> program) { program_ = std::move(program); }
  LazyProgram& program() const { return *program_; }

private:
  const std::vector<Alias> aliases_;
  std::shared_ptr<LazyProgram> program_;
};

class LoweringContext : public torch::lazy::TSLoweringContext {
public:
  using TSLoweringContext::TSLoweringContext;

  size_t AddResult(const torch::lazy::Output& output) override;
  torch::lazy::ComputationPtr Build() override;

private:
  void write_types();
  std::vector<Computation::Alias> aliases() const;

  std::vector<torch::lazy::Output> results_;
};

} // namespace torchmdla::lazy
