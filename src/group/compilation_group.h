// The run function of `mdla::CompilationGroup`: specialise, look up, compile, call or fall back.
#pragma once

#include "base/forks.h"
#include "fusion/input_paths.h"
#include "ghost_list.h"
#include "group_autograd.h"
#include "group_report.h"
#include "packaged.h"
#include "record.h"
#include "runtime/executable.h"
#include "signature.h"
#include "specialisations.h"
#include "speed_check.h"
#include "statistics.h"
#include "subgraph.h"
#include "symbols.h"
#include "training.h"

#include <torch/csrc/jit/ir/ir.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
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
  // Groups are compiled on another thread. Calls fall back until the code is ready.
  std::atomic<bool> background{false};
  // Groups are compiled for any sizes if sizes vary.
  std::atomic<bool> dynamic{true};
  // A group with more input combinations than this falls back for further ones.
  std::atomic<int64_t> max_specialisations{32};
  // Groups load their specialisations from packages.
  std::atomic<bool> packages{true};
  // Groups are those of programs without PyTorch, which have nothing else to run a single cheap
  // operator. Branches stay outside, because groups cannot be formed again for an attribute's
  // value.
  std::atomic<bool> lone_groups{false};
  // Each group keeps the inputs of its latest call (group_report.h).
  std::atomic<bool> keep_inputs{false};
};
Settings& settings();

// Arguments of a compilation.
struct CompileRequest {
  const Subgraph& subgraph;
  const Record& record;
  const std::vector<int64_t>& parameters; // indices of inputs that are weights
  const std::string& device;
  std::vector<std::string> bf16_products; // products that may use bfloat16 (signature.h)
};

// Arguments of a dynamic compilation: a typical call, and the symbols among its inputs' numbers.
struct DynamicRequest {
  CompileRequest typical;
  SymbolPlaces places; // symbols of the tensors' sizes and the integers among the inputs, in order
  Symbols values;
  bool written_out; // whether the program grows with the symbols
};

struct DynamicExecutable {
  std::shared_ptr<const Executable> executable;
  SizeProgram sizes;
};

// Failure to compile a group.
struct CompileFailure : std::runtime_error {
  using std::runtime_error::runtime_error;
  std::function<void()> raise; // throws the user's exception, in strict mode
  // Function that warns the user in other modes. `divided` is set if the group is compiled around
  // `excluded_nodes`.
  std::function<void(bool divided)> warn;
  std::vector<size_t> excluded_nodes;           // numbers of the nodes that caused the failure
  std::optional<int64_t> unroll_limit_exceeded; // a size that is too large to unroll
  bool may_succeed_at_other_sizes = false;      // a dynamic program may be possible at other sizes
  // Time until a retry. It is set if the failure may pass (a process was killed).
  std::optional<std::chrono::steady_clock::duration> retry_after;
};

// Function that reports a device fault in a group. It throws the user's exception if `strict` is
// set or an exception is pending. Otherwise it warns.
using ReportFault =
    std::function<void(const std::string& group, const std::string& fault, bool strict)>;
void report_fault(const std::string& group, const std::string& fault, bool strict);

// Identity of the result of a comparison with PyTorch's operators (speed_check.h).
struct SpeedRequest {
  std::shared_ptr<const Executable> executable;
  const std::string& group;
  const std::string& device;
  SpeedKey key;
};

// Functions of the compiler, which are called without locks and without the GIL. They throw
// CompileFailure. Any other exception (an interrupt) goes to the user, and the next call compiles
// again.
struct Compiler { // its functions are empty in a process without a compiler
  std::function<std::shared_ptr<const Executable>(const CompileRequest& request)> compile;
  std::function<DynamicExecutable(const DynamicRequest& request)> compile_dynamic;
  ReportFault report_fault = torchmdla::report_fault;
  // Functions that find and store the results of earlier processes.
  std::function<std::optional<SpeedFinding>(const SpeedRequest& request)> find_speed;
  std::function<void(const SpeedRequest& request, const SpeedFinding& finding)> store_speed;
};
void set_compiler(Compiler compiler);

// Function that runs a task later, on another thread.
using Background = std::function<void(std::function<void()> task)>;
void set_background(Background background);

// Settings of one group, which override the global ones.
struct GroupSettings {
  std::optional<bool> strict;
  std::optional<bool> background;
  std::optional<int64_t> max_specialisations;
};

// A number of an input that varies from call to call, as the graph around the group shows. It is
// the size of a tensor's dimension `number`, or an integer with `number` 0.
struct VaryingNumber {
  size_t input;
  size_t number;
  bool operator==(const VaryingNumber&) const = default;
};

// Description of a group in any kind of graph.
struct GroupDescription {
  std::shared_ptr<Subgraph> subgraph;
  std::string device;
  std::string name;                // shown in PyTorch's profiles with the group's number
  std::vector<int64_t> parameters; // indices of inputs that are weights
  InputPaths inputs;
  GroupSettings settings;
  // True if the group's graph, or the one it was derived from, ran before the group was formed. If
  // not, the group's first call is that run. Tracing only checks its result there, so it is not
  // compiled.
  bool has_run = true;
  std::vector<VaryingNumber> varying;
  bool is_asynchronous = false; // its inputs and results may be pending (runtime/pending.h)
};

// Counters of a group's calls, in cache lines apart from the data that each call reads.
struct alignas(64) CallCounts {
  StripedCount compiled;
  std::atomic<int64_t> recorded{0};
  std::atomic<int64_t> training{0};
  FallbackCounts fallbacks;
  ReasonCounts not_dynamic;
};

// Return whether compiled code may read these inputs, in the current dispatch modes.
bool may_read(c10::ArrayRef<c10::IValue> inputs);

class CompilationGroup : public std::enable_shared_from_this<CompilationGroup> {
public:
  explicit CompilationGroup(GroupDescription description);

  // Construct a group of a TorchScript graph.
  explicit CompilationGroup(const torch::jit::Node* node);

  // Construct a group that finds its inputs by `inputs` instead of using those of its node.
  CompilationGroup(const torch::jit::Node* node, InputPaths inputs);

  ~CompilationGroup();

  // Load the group's specialisations from packages, and pack its constants.
  void prepare();

  int64_t number() const { return number_; }
  GroupReport report() const;
  GroupCounts counts() const;
  CallTotals calls() const { return {calls_.compiled.total(), calls_.recorded}; }
  void forget_inputs() { keep_inputs({}); }

  // Pop the values from which the group finds its inputs, and push its outputs. If the call gives
  // up its inputs, compiled code drops each as soon as it does not read it any more.
  void run(torch::jit::Stack& stack, bool gives_up_inputs = false);

  // Return the specialisations that have code.
  std::vector<Specialisations::Entry> compiled() const;

  // Evict a specialisation. Running calls finish with it, and the next call makes it again. Return
  // false if it was evicted before.
  bool evict(const Specialisations::Entry& entry);

private:
  using Outcome = Specialisation::Outcome;

  struct CallKind {
    bool is_recorded_by_autograd;
    bool gives_up_inputs = false;
  };

  // A failure that is valid until `until`.
  struct RetryLater {
    Specialisations::Entry failed;
    std::chrono::steady_clock::time_point until;
  };

  // The right to compile for `signature`, and for all signatures that `pattern` covers, if set. The
  // last reference releases it.
  struct CompileTicket {
    CompileTicket(std::shared_ptr<CompilationGroup> group, Signature signature)
        : group(std::move(group)), signature(std::move(signature)) {}
    CompileTicket(const CompileTicket&) = delete;
    CompileTicket& operator=(const CompileTicket&) = delete;
    ~CompileTicket() { group->release(*this); }

    bool includes(const Signature& other) const;

    const std::shared_ptr<CompilationGroup> group;
    const Signature signature;
    const uint64_t process = process_number(); // a ticket is void in the child of a fork
    std::optional<Pattern> pattern;            // changed under the group's mutex
    EntryKinds kinds;                          // kinds of the signature's entries, if known
  };

  // Append the call's signature. Return why the call must fall back, or nullopt.
  // `is_recorded_by_autograd` is set if autograd records the call.
  std::optional<std::string> reason_to_fall_back(c10::ArrayRef<c10::IValue> inputs,
                                                 bool is_recorded_by_autograd,
                                                 Signature& signature) const;
  bool run_existing(const Specialisations& specialisations, const Signature& signature,
                    CallKind kind, torch::jit::Stack& stack);
  bool is_known(const Signature& signature) const;
  Specialisations::Entry find_retry_later(const Signature& signature);
  bool load_packaged(const Signature& signature, c10::ArrayRef<c10::IValue> inputs);
  PackagedList packaged_specialisations();
  bool load(const PackagedSpecialisation& packaged,
            std::optional<c10::ArrayRef<c10::IValue>> inputs);
  void run_specialised(const Specialisation& specialisation, CallKind kind,
                       torch::jit::Stack& stack);
  void run_compiled(const Specialisation& specialisation, c10::ArrayRef<int64_t> symbols,
                    CallKind kind, torch::jit::Stack& stack);
  const SpeedResult* check_speed(const Specialisation& specialisation,
                                 c10::ArrayRef<int64_t> symbols, const torch::jit::Stack& stack);
  std::optional<SpeedFinding> compare(const Specialisation& specialisation, const SpeedKey& key,
                                      c10::ArrayRef<int64_t> symbols,
                                      c10::ArrayRef<c10::IValue> inputs);
  Subgraph::Division replacement(const SpeedFinding& finding);
  void run_with_node(const Specialisation& specialisation, c10::ArrayRef<int64_t> symbols,
                     torch::jit::Stack& stack);
  void limit_growth(const Specialisation& specialisation) const;
  bool call(const Specialisation& specialisation, c10::ArrayRef<int64_t> symbols, CallKind kind,
            torch::jit::Stack& stack);
  void run_for_training(torch::jit::Stack& stack);
  bool is_first_run();
  void specialise(const Signature& signature, CallKind kind, torch::jit::Stack& stack);
  Record run_and_record(torch::jit::Stack& stack) const;
  std::shared_ptr<CompileTicket>
  acquire_ticket(const Signature& signature, Fallback& refusal,
                 std::optional<c10::ArrayRef<c10::IValue>> inputs = std::nullopt);
  std::optional<Fallback> reason_not_to_compile(const Signature& signature) const;
  std::optional<Pattern> plan_pattern(const CompileTicket& ticket) const;
  bool plan_pattern_without(int64_t size, CompileTicket& ticket);
  std::set<SymbolPlaces> refused_places() const;
  EntryKinds entry_kinds_of_call(c10::ArrayRef<c10::IValue> inputs) const;
  bool is_known_to_vary(const VaryingNumber& number) const;
  void release(const CompileTicket& ticket);
  void compile(std::shared_ptr<CompileTicket> ticket, Record record);
  void compile(CompileTicket& ticket, const Record& record);
  bool compile_dynamic(const CompileTicket& ticket, const Record& record);
  void compile_static(CompileTicket& ticket, const Record& record);
  Subgraph::Division divide(const std::vector<size_t>& excluded_nodes);
  void split(Specialisation& specialisation, std::vector<size_t> excluded_nodes);
  void publish(std::shared_ptr<Specialisation> specialisation);
  void note_failure(Specialisation& specialisation, const CompileFailure& failure);
  void retry_later(const Signature& signature, const CompileFailure& failure);
  void fall_back(torch::jit::Stack& stack);
  void keep_inputs(c10::ArrayRef<c10::IValue> inputs);
  template <class Reason> void count_fallback(const Reason& reason);
  void fall_back(torch::jit::Stack& stack, Fallback reason);
  bool has_code(const Signature& signature) const;
  decltype(PendingCall::recover) recovery(c10::ArrayRef<c10::IValue> inputs);
  void note_fault(const std::string& fault, bool has_python_error);

  bool strict() const { return group_.settings.strict.value_or(settings().strict); }
  bool background() const { return group_.settings.background.value_or(settings().background); }
  int64_t max_specialisations() const {
    return group_.settings.max_specialisations.value_or(settings().max_specialisations);
  }

  const GroupDescription group_;
  const int64_t number_ = next_group_number();
  const std::string name_;
  mutable CallCounts calls_;
  std::atomic<bool> is_fault_reported_{false};
  std::atomic<bool> has_run_;
  const BackwardPredictor backward_predictor_;
  TrainingSteps training_steps_;

  // Specialisations, which are replaced under `mutex_`.
  RcuCell<const Specialisations> specialisations_{std::make_shared<const Specialisations>()};
  ForkRobustMutex package_mutex_;                     // held while code is loaded from a package
  std::optional<std::optional<Structure>> structure_; // guarded by package_mutex_
  mutable std::mutex mutex_;                          // guards the members below
  std::vector<c10::IValue> last_inputs_;              // kept if Settings::keep_inputs is set
  GhostList ghost_list_;
  std::vector<const CompileTicket*> tickets_;
  std::map<SymbolPlaces, int> refusals_; // how often places could not be symbols
  std::map<std::vector<size_t>, Subgraph::Division> divisions_; // by the nodes left out
  std::vector<RetryLater> retries_;
};

} // namespace torchmdla
