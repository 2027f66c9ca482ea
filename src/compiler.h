// The run function of `mdla::CompilationGroup`: specialise, look up, compile, call or fall back.
#pragma once

#include "executable.h"
#include "record.h"
#include "signature.h"
#include "statistics.h"

#include <torch/csrc/jit/ir/ir.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/csrc/jit/runtime/interpreter.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

namespace torchmdla {

struct Settings {
  std::atomic<bool> enabled{false};
  std::atomic<bool> strict{false};
  // Compile beside the program, which falls back until the code is there.
  std::atomic<bool> background{false};
  // A group with more input combinations than this falls back for further ones.
  std::atomic<int64_t> max_specialisations{32};
};
Settings& settings();

// What a compilation starts from.
struct CompileRequest {
  std::shared_ptr<torch::jit::Graph> graph;
  const Record& record;
  const std::vector<int64_t>& parameters; // indices of inputs that are module attributes
  const std::string& device;
};

// The group cannot be compiled. `raise` throws it as the user's exception, for strict mode.
struct CompileFailure : std::runtime_error {
  CompileFailure(const std::string& reason, std::function<void()> raise_error)
      : std::runtime_error(reason), raise(std::move(raise_error)) {}
  std::function<void()> raise;
};

// Called without any lock held and without the GIL. Throws CompileFailure; any other exception
// (an interrupt) goes to the user and the compilation is tried again at the next call.
using CompileFunction =
    std::function<std::shared_ptr<const Executable>(const CompileRequest& request)>;
void set_compile_function(CompileFunction function);

// Runs tasks later, on another thread.
using Background = std::function<void(std::function<void()> task)>;
void set_background(Background background);

class CompilationGroup : public std::enable_shared_from_this<CompilationGroup> {
public:
  explicit CompilationGroup(const torch::jit::Node* node);

  // Takes the group's inputs from the stack and pushes its outputs.
  void run(torch::jit::Stack& stack);

private:
  enum class Outcome { compiled, split, failed };

  // Immutable once published.
  struct Specialisation {
    Signature signature;
    Outcome outcome = Outcome::failed;
    std::shared_ptr<const Executable> executable;
    std::string failure;
    std::function<void()> raise;
    const Specialisation* next = nullptr;
  };

  // A value of the subgraph that must be `wanted` for its node to be compiled.
  struct Condition {
    std::string value;
    c10::IValue wanted;
  };

  std::optional<Fallback> reason_to_fall_back(c10::ArrayRef<c10::IValue> inputs,
                                              Signature& signature) const;
  const Specialisation* find(const Signature& signature) const;
  void run_specialised(const Specialisation& specialisation, torch::jit::Stack& stack);
  void specialise(const Signature& signature, torch::jit::Stack& stack);
  bool conditions_hold(const Record& record) const;
  std::optional<Fallback> claim(const Signature& signature);
  void release(const Signature& signature);
  std::unique_ptr<Specialisation> compile(const Signature& signature, const Record& record) const;
  const Specialisation& publish(std::unique_ptr<Specialisation> specialisation);
  void run_differentiable(torch::jit::Stack& stack);
  void run_split(torch::jit::Stack& stack);
  void fall_back(torch::jit::Stack& stack);
  void fall_back(torch::jit::Stack& stack, Fallback reason);

  const std::shared_ptr<torch::jit::Graph> graph_;
  const std::string device_;
  const std::string name_;
  const std::vector<int64_t> parameters_;
  const size_t num_inputs_;
  std::vector<Condition> conditions_;

  std::once_flag interpreted_once_;
  std::optional<torch::jit::Code> interpreted_; // set under interpreted_once_

  std::once_flag differentiable_once_;
  std::optional<torch::jit::GraphExecutor> differentiable_; // set under differentiable_once_

  std::once_flag split_once_;
  std::optional<torch::jit::Code> split_; // set under split_once_

  // Readers walk the list from `newest_` without a lock; entries live as long as the group.
  std::atomic<const Specialisation*> newest_{nullptr};
  std::mutex mutex_;
  std::vector<std::unique_ptr<Specialisation>> specialisations_; // guarded by mutex_
  std::set<std::vector<int64_t>> being_compiled_;                // guarded by mutex_
};

} // namespace torchmdla
