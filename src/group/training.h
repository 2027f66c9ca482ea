// Training steps of groups: a forward and a backward program for each signature.
//
// A call for which backward is expected runs the forward program, and its autograd node runs the
// backward program. PyTorch runs the first call with new inputs. Its backward shows which outputs
// receive gradients, and the next call compiles for these.
#pragma once

#include "group_autograd.h"
#include "signature.h"
#include "subgraph.h"
#include "training_program.h"

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace torchmdla {

// Strides of a tensor; nullopt for other values.
using OptionalStrides = std::optional<std::vector<int64_t>>;

// Arguments of the compilation of a training step.
struct TrainingRequest {
  const Subgraph& subgraph;
  c10::ArrayRef<c10::IValue> inputs;
  const std::vector<int64_t>& parameters; // indices of inputs that are weights
  const std::string& device;
  const GradientFlags& used;                   // the outputs that receive gradients
  const std::vector<OptionalStrides>& strides; // of eager's outputs
};

// Function that compiles a training step. It throws CompileFailure (compilation_group.h).
using TrainingCompiler =
    std::function<std::shared_ptr<const TrainingProgram>(const TrainingRequest& request)>;
void set_training_compiler(TrainingCompiler compiler);

class TrainingSteps {
public:
  TrainingSteps(std::shared_ptr<Subgraph> subgraph, std::string device,
                std::vector<int64_t> parameters, BackwardPredictor predictor);

  enum class Outcome { compiled, observed, none };

  // Run a call that autograd records: by its program, or as PyTorch runs it to observe it. If
  // neither is possible, the stack stays unchanged.
  Outcome run(torch::jit::Stack& stack, size_t num_inputs);

private:
  // Calls with the same signature, floats and flags of inputs.
  struct Kind {
    Kind(Signature key, GradientFlags inputs, bool has_new_flags)
        : key(std::move(key)), inputs(std::move(inputs)), has_new_flags(has_new_flags) {}

    const Signature key;
    const GradientFlags inputs; // the inputs that require grad
    const bool has_new_flags;   // whether no earlier kind has the same flags
    const std::shared_ptr<UsedOutputs> used = std::make_shared<UsedOutputs>();
    // The members below are guarded by the mutex of TrainingSteps. The first call sets them.
    bool is_observed = false;
    GradientFlags outputs; // the outputs that require grad
    std::vector<OptionalStrides> strides;
    std::vector<bool> versioned; // input tensors whose version a call changes
    bool is_being_compiled = false;
    // By the outputs that receive gradients; null after a failure.
    std::vector<std::pair<GradientFlags, std::shared_ptr<const TrainingProgram>>> programs;
  };

  std::shared_ptr<Kind> find_kind(const Signature& key, const GradientFlags& inputs);
  void observe(Kind& kind, torch::jit::Stack& stack, size_t num_inputs);
  std::shared_ptr<const TrainingProgram> find_program(Kind& kind, const GradientFlags& used,
                                                      c10::ArrayRef<c10::IValue> inputs);
  std::shared_ptr<const TrainingProgram> compile(const Kind& kind, const GradientFlags& used,
                                                 c10::ArrayRef<c10::IValue> inputs);
  void run(const std::shared_ptr<const TrainingProgram>& program, const Kind& kind,
           const GradientFlags& used, torch::jit::Stack& stack, size_t num_inputs) const;

  const std::shared_ptr<Subgraph> subgraph_;
  const std::string device_;
  const std::vector<int64_t> parameters_;
  const BackwardPredictor predictor_;
  std::mutex mutex_; // guards kinds_ and their members
  std::vector<std::shared_ptr<Kind>> kinds_;
};

} // namespace torchmdla
