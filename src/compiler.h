// The run function of `mdla::CompilationGroup`: specialise, look up, compile, call or fall back.
#pragma once

#include "executable.h"
#include "input_paths.h"
#include "record.h"
#include "signature.h"
#include "statistics.h"
#include "subgraph.h"
#include "symbols.h"

#include <torch/csrc/jit/ir/ir.h>

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
  // Compile for any sizes where they vary.
  std::atomic<bool> dynamic{true};
  // A group with more input combinations than this falls back for further ones.
  std::atomic<int64_t> max_specialisations{32};
};
Settings& settings();

// What a compilation starts from.
struct CompileRequest {
  const Subgraph& subgraph;
  const Record& record;
  const std::vector<int64_t>& parameters; // indices of inputs that are weights
  const std::string& device;
};

// What was seen where the symbols have `values`.
struct RecordedSample {
  Symbols values;
  Record record;
};

// What a dynamic compilation starts from: the call's own record and values, and those of samples.
struct DynamicRequest {
  CompileRequest typical;
  Symbols values;
  const std::vector<RecordedSample>& samples;
};

// Whether the executable would do what a record saw eager ops do where the symbols have `values`.
using Agreement = std::function<bool(const Record& record, const Symbols& values)>;

struct DynamicExecutable {
  std::shared_ptr<const Executable> executable;
  Agreement agrees;
};

// The group cannot be compiled.
struct CompileFailure : std::runtime_error {
  using std::runtime_error::runtime_error;
  std::function<void()> raise;     // throws it as the user's exception, for strict mode
  std::function<void()> warn;      // tells the user, for other modes
  std::optional<int64_t> too_long; // a size that only a dynamic program may have
};

// Tells the user that the device failed in a group: throws the user's exception if `strict` or if
// one is held, else warns.
using TellFault =
    std::function<void(const std::string& group, const std::string& fault, bool strict)>;

// Called without any lock held and without the GIL. They throw CompileFailure; any other exception
// (an interrupt) goes to the user and the compilation is tried again at the next call.
struct Compiler {
  std::function<std::shared_ptr<const Executable>(const CompileRequest& request)> compile;
  std::function<DynamicExecutable(const DynamicRequest& request)> compile_dynamic;
  TellFault tell_fault;
};
void set_compiler(Compiler compiler);

// Runs tasks later, on another thread.
using Background = std::function<void(std::function<void()> task)>;
void set_background(Background background);

// What one group does otherwise than the settings say.
struct GroupSettings {
  std::optional<bool> strict;
  std::optional<bool> background;
  std::optional<int64_t> max_specialisations;
};

// A group, whatever kind of graph it is in.
struct GroupDescription {
  std::shared_ptr<Subgraph> subgraph;
  std::string device;
  std::string name;                // in PyTorch's profiles
  std::vector<int64_t> parameters; // indices of inputs that are weights
  InputPaths inputs;
  GroupSettings settings;
};

class CompilationGroup : public std::enable_shared_from_this<CompilationGroup> {
public:
  explicit CompilationGroup(GroupDescription description);

  // A group of a TorchScript graph.
  explicit CompilationGroup(const torch::jit::Node* node);

  // One that finds its inputs elsewhere than among those of its node.
  CompilationGroup(const torch::jit::Node* node, InputPaths inputs);

  // Takes the values that the group finds its inputs from off the stack and pushes its outputs.
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

  // Immutable once published, but for the domain, which grows.
  struct DynamicSpecialisation {
    Pattern pattern;
    DynamicExecutable compiled;
    Domain domain;
    DynamicSpecialisation* next = nullptr;
  };

  // The right to compile for `signature`, and for all that `pattern` covers if there is one. Given
  // back with the last reference.
  struct Claim {
    Claim(std::shared_ptr<CompilationGroup> group, Signature signature)
        : group(std::move(group)), signature(std::move(signature)) {}
    Claim(const Claim&) = delete;
    Claim& operator=(const Claim&) = delete;
    ~Claim() { group->release(*this); }

    bool includes(const Signature& other) const;

    const std::shared_ptr<CompilationGroup> group;
    const Signature signature;
    std::optional<Pattern> pattern;  // changes under the group's mutex
    std::vector<c10::IValue> inputs; // of the call, where there may be a pattern
  };

  std::optional<Fallback> reason_to_fall_back(c10::ArrayRef<c10::IValue> inputs,
                                              Signature& signature) const;
  const Specialisation* find(const Signature& signature) const;
  DynamicSpecialisation* find_dynamic(const Signature& signature, Symbols& values) const;
  void run_specialised(const Specialisation& specialisation, torch::jit::Stack& stack);
  void run_compiled(const Executable& executable, c10::ArrayRef<int64_t> symbols,
                    torch::jit::Stack& stack);
  void run_dynamic(DynamicSpecialisation& specialisation, const Symbols& values,
                   const Signature& signature, torch::jit::Stack& stack);
  void specialise(const Signature& signature, torch::jit::Stack& stack);
  std::shared_ptr<Claim> claim(const Signature& signature, Fallback& refusal,
                               std::optional<c10::ArrayRef<c10::IValue>> inputs = std::nullopt);
  std::optional<Fallback> refusal(const Signature& signature) const;
  std::optional<Pattern> plan(const Signature& signature, c10::ArrayRef<c10::IValue> inputs) const;
  bool plan_without(int64_t size, Claim& claim);
  std::vector<bool> may_vary(c10::ArrayRef<c10::IValue> inputs) const;
  void release(const Claim& claim);
  void compile(std::shared_ptr<Claim> claim, Record record);
  void compile(Claim& claim, const Record& record);
  bool compile_dynamic(const Claim& claim, const Record& record);
  std::vector<RecordedSample> record_samples(const Claim& claim) const;
  void compile_static(Claim& claim, const Record& record);
  void publish(std::unique_ptr<Specialisation> specialisation);
  void fall_back(torch::jit::Stack& stack);
  void fall_back(torch::jit::Stack& stack, Fallback reason);

  bool strict() const { return group_.settings.strict.value_or(settings().strict); }
  bool background() const { return group_.settings.background.value_or(settings().background); }
  int64_t max_specialisations() const {
    return group_.settings.max_specialisations.value_or(settings().max_specialisations);
  }

  const GroupDescription group_;
  std::atomic<bool> fault_told_{false};

  // Readers walk the lists from the newest without a lock; entries live as long as the group.
  std::atomic<const Specialisation*> newest_{nullptr};
  std::atomic<DynamicSpecialisation*> newest_dynamic_{nullptr};
  std::mutex mutex_; // guards what follows
  std::vector<std::unique_ptr<Specialisation>> specialisations_;
  std::vector<std::unique_ptr<DynamicSpecialisation>> dynamic_;
  std::vector<const Claim*> claims_;
  std::set<SymbolPlaces> refused_; // cannot be symbols
};

} // namespace torchmdla
