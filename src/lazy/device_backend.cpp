#include "device_backend.h"

#include "base/forks.h"
#include "base/never_destroyed.h"
#include "deferred/graph_runner.h"
#include "executor.h"
#include "failures.h"
#include "fusion/fusion_pass.h"
#include "kernels.h"

#include <ATen/FunctionalTensorWrapper.h>
#include <c10/util/Exception.h>
#include <torch/csrc/lazy/backend/backend_interface.h>
#include <torch/csrc/lazy/core/config.h>
#include <torch/csrc/lazy/core/tensor.h>
#include <torch/csrc/lazy/ts_backend/ts_backend_impl.h>

#include <atomic>
#include <iostream>
#include <mutex>

namespace torchmdla::lazy {

using torch::lazy::BackendDataPtr;
using torch::lazy::BackendDevice;
using torch::lazy::ComputationPtr;
using torch::lazy::TSData;

namespace {

using TextWriter = std::function<std::string(std::shared_ptr<const Computation>)>;

struct State {
  std::mutex mutex;
  std::shared_ptr<GraphRunner> runner;       // guarded by mutex
  std::shared_ptr<LazyBackend> backend;      // guarded by mutex
  std::shared_ptr<const Computation> latest; // guarded by mutex
  TextWriter text_writer;                    // guarded by mutex
  std::atomic<bool> verbose{false};
  std::atomic<int64_t> graphs{0}, runs{0};
};

// Return the state. It is never destroyed, because PyTorch's static objects run graphs until the
// process ends.
State& state() {
  static NeverDestroyed<State> instance;
  return *instance;
}

// Set a field of the state. The former value may own Python objects and is released without the
// mutex. The release acquires the GIL, and the thread that holds the GIL may wait for the mutex.
template <class Field> void store(Field State::* field, Field value) {
  const ForkSafeLock guard(state().mutex);
  std::swap(state().*field, value);
}

// Program that torchmdla's groups run.
class GroupedProgram : public LazyProgram {
public:
  explicit GroupedProgram(GraphRunner::Prepared prepared) : prepared_(std::move(prepared)) {}

  std::vector<c10::IValue> run(std::vector<c10::IValue> inputs) override {
    return GraphRunner::run(prepared_, std::move(inputs));
  }

private:
  const GraphRunner::Prepared prepared_;
};

// Compile a graph by the backend that the user set. Return null if there is none or it rejects the
// graph.
std::shared_ptr<LazyProgram> compile_with_backend(const std::shared_ptr<torch::jit::Graph>& graph) {
  const auto backend = [] {
    const ForkSafeLock guard(state().mutex);
    return state().backend;
  }();
  if (!backend) return nullptr;
  try {
    return backend->compile(graph);
  } catch (const std::exception& error) {
    TORCH_WARN("torchmdla.lazy: the backend could not compile a graph, which runs without it: ",
               error.what());
    return nullptr;
  }
}

std::shared_ptr<LazyProgram> compile(const std::shared_ptr<torch::jit::Graph>& graph) {
  if (auto program = compile_with_backend(graph)) return program;
  const auto runner = [] {
    const ForkSafeLock guard(state().mutex);
    return state().runner;
  }();
  return std::make_shared<GroupedProgram>(runner->prepare(graph));
}

// Result of a graph. It has an error instead of a value if the computation failed.
class LazyData : public TSData {
public:
  using TSData::TSData;

  void Assign(const torch::lazy::BackendData& data) override {
    TSData::Assign(data);
    error = static_cast<const LazyData&>(data).error;
  }

  // Errors count as values, since PyTorch otherwise assumes that the data is still being computed.
  bool HasValue() const override { return error || TSData::HasValue(); }

  std::exception_ptr error;
};

std::exception_ptr error_of(const BackendDataPtr& data) {
  const auto* computed = dynamic_cast<const LazyData*>(data.get());
  return computed ? computed->error : nullptr;
}

Outcome to_outcome(const BackendDataPtr& data) {
  if (auto error = error_of(data)) return error;
  auto& ts_data = static_cast<TSData&>(*data);
  return ts_data.scalar ? c10::IValue(*ts_data.scalar) : c10::IValue(ts_data.data());
}

BackendDataPtr to_data(const Outcome& outcome, const BackendDevice& device) {
  if (const auto* error = std::get_if<std::exception_ptr>(&outcome)) {
    auto data = std::make_shared<LazyData>(torch::lazy::Shape(), device);
    data->error = *error;
    return data;
  }
  const auto& tensor = value_of(outcome).toTensor();
  return std::make_shared<LazyData>(
      tensor, torch::lazy::Shape(tensor.scalar_type(), tensor.sizes()), device);
}

// Run a computation. An error affects only the values that depend on it, and is noted.
std::vector<Outcome> run(const Computation& computation, const std::vector<Outcome>& inputs) {
  try {
    std::vector<c10::IValue> values;
    values.reserve(inputs.size());
    for (const auto& input : inputs)
      values.push_back(value_of(input));
    const auto outputs = computation.program().run(std::move(values));
    return {outputs.begin(), outputs.end()};
  } catch (...) {
    auto outcomes = run_call_by_call(*computation.graph(), inputs);
    // The error of a single call is more specific than that of the graph.
    const auto error = first_error(outcomes);
    record_error(error ? error : std::current_exception());
    return outcomes;
  }
}

// PyTorch's own backend, except for compilation and execution.
class DeviceBackend : public torch::lazy::BackendImplInterface {
public:
  // --- compilation and execution -----------------------------------------------------------------

  std::unique_ptr<torch::lazy::LoweringContext>
  CreateLoweringContext(const std::string& name, BackendDevice device,
                        c10::ArrayRef<const torch::lazy::Node*> post_order,
                        torch::lazy::Util::EmissionMap emitted) const override {
    return std::make_unique<LoweringContext>(name, std::move(device), post_order,
                                             std::move(emitted));
  }

  std::unique_ptr<torch::lazy::LoweringContext>
  CreateLoweringContext(const std::string& name, BackendDevice device) const override {
    return std::make_unique<LoweringContext>(name, std::move(device));
  }

  std::vector<ComputationPtr> Compile(std::vector<ComputationPtr> instances) const override {
    if (state().verbose)
      std::cout << "Received " << instances.size() << " computation instances at Compile!"
                << std::endl;
    for (const auto& instance : instances) {
      const auto computation = std::static_pointer_cast<Computation>(instance);
      ++state().graphs;
      // PyTorch otherwise treats each read of a value as the end of a step.
      computation->in_mark_step = in_mark_step();
      computation->set_program(compile(computation->graph()));
      store<std::shared_ptr<const Computation>>(&State::latest, computation);
    }
    return instances;
  }

  std::vector<BackendDataPtr> ExecuteComputation(ComputationPtr computation,
                                                 c10::ArrayRef<BackendDataPtr> arguments,
                                                 const BackendDevice& device) const override {
    ++state().runs;
    std::vector<Outcome> inputs;
    inputs.reserve(arguments.size());
    for (const auto& argument : arguments)
      inputs.push_back(to_outcome(argument));
    std::vector<BackendDataPtr> results;
    for (const auto& outcome : run(static_cast<const Computation&>(*computation), inputs))
      results.push_back(to_data(outcome, device));
    if (state().verbose)
      std::cout << "Received " << arguments.size() << " arguments, and returned " << results.size()
                << " results during ExecuteCompile!" << std::endl;
    return results;
  }

  std::string GetComputationBackendText(const ComputationPtr computation) const override {
    const auto writer = [] {
      const ForkSafeLock guard(state().mutex);
      return state().text_writer;
    }();
    const auto ours = std::static_pointer_cast<const Computation>(computation);
    return writer ? writer(ours) : ours->to_string();
  }

  BackendDataPtr CreateDataPlaceholder(const BackendDevice& device,
                                       const torch::lazy::Shape& shape) const override {
    return std::make_shared<LazyData>(shape, device);
  }

  at::Tensor MakeTensorFromComputationData(const BackendDataPtr data,
                                           std::optional<at::ScalarType> dtype) const override {
    rethrow_recorded_error();
    if (const auto error = error_of(data)) std::rethrow_exception(error);
    return base_.MakeTensorFromComputationData(data, dtype);
  }

  // --- calls that are passed to PyTorch ----------------------------------------------------------

  void PrepareToExit() const override { base_.PrepareToExit(); }
  void SetRngSeed(size_t seed) const override { base_.SetRngSeed(seed); }
  const torch::lazy::IrBuilder* GetIrBuilder() const override { return base_.GetIrBuilder(); }
  BackendDataPtr MakeComputationDataFromTensor(const at::Tensor& tensor,
                                               const torch::lazy::Shape& shape,
                                               const BackendDevice& device) const override {
    return base_.MakeComputationDataFromTensor(tensor, shape, device);
  }
  BackendDataPtr MakeComputationDataFromScalar(const at::Scalar& scalar,
                                               const BackendDevice& device) const override {
    return base_.MakeComputationDataFromScalar(scalar, device);
  }
  BackendDataPtr GetComputationDataFromNode(const torch::lazy::Node* node) const override {
    return base_.GetComputationDataFromNode(node);
  }
  std::vector<std::string>
  GetCompilationDevices(const std::string& device,
                        c10::ArrayRef<std::string> devices) const override {
    return base_.GetCompilationDevices(device, devices);
  }
  std::shared_ptr<torch::lazy::BackendDeviceType> GetDefaultDeviceType() const override {
    return base_.GetDefaultDeviceType();
  }
  void SetDefaultDeviceType(int8_t type) override { base_.SetDefaultDeviceType(type); }
  int64_t GetDefaultDeviceOrdinal() const override { return base_.GetDefaultDeviceOrdinal(); }
  void SetDefaultDeviceOrdinal(int64_t ordinal) override { base_.SetDefaultDeviceOrdinal(ordinal); }
  at::DeviceType EagerFallbackDeviceType() const override {
    return base_.EagerFallbackDeviceType();
  }
  std::vector<BackendDevice> GetBackendDevices() const override {
    return base_.GetBackendDevices();
  }
  BackendDevice GetBackendDevice(c10::Device device) const override {
    return base_.GetBackendDevice(device);
  }
  std::string CreateMetricReport() const override { return base_.CreateMetricReport(); }

private:
  torch::lazy::BackendImplInterface& base_ = *torch::lazy::GetTSBackendImpl();
};

// Register the device. Both instances are never destroyed: PyTorch's static objects do not own
// them, but use them until the process ends.
void register_device() {
  static const bool registered = [] {
    torch::lazy::InitTorchScriptBackend();
    // 0 and 1 are constants of the graph; other numbers are arguments.
    FLAGS_torch_lazy_handle_special_scalars = true;
    // Python's stack is not recorded, because that is expensive at every operator.
    FLAGS_torch_lazy_ir_debug = false;
    register_kernels();
    static NeverDestroyed<DeviceBackend> backend;
    static NeverDestroyed<Executor> executor;
    const torch::lazy::BackendRegistrar registrar(&*backend);
    torch::lazy::LazyGraphExecutor::Register(&*executor);
    return true;
  }();
  static_cast<void>(registered);
}

} // namespace

void initialise(const std::string& device) {
  store(&State::runner, std::make_shared<GraphRunner>(group_symbol(), device));
  register_device();
  torch::lazy::LazyGraphExecutor::Get()->ClearComputationCache();
}

void set_backend(std::shared_ptr<LazyBackend> backend) {
  store(&State::backend, std::move(backend));
  // Computations that were compiled before do not use the new backend.
  torch::lazy::LazyGraphExecutor::Get()->ClearComputationCache();
}

std::shared_ptr<const Computation> latest_computation() {
  const ForkSafeLock guard(state().mutex);
  return state().latest;
}

std::shared_ptr<const Computation> pending_computation(const std::vector<at::Tensor>& tensors) {
  std::vector<torch::lazy::LazyTensorPtr> pending;
  for (const auto& tensor : tensors) {
    if (at::functionalization::impl::isFunctionalTensor(tensor))
      at::functionalization::impl::sync(tensor);
    pending.push_back(torch::lazy::TryGetLtcTensor(tensor));
    TORCH_CHECK_TYPE(pending.back(), "a tensor is on ", tensor.device(),
                     ", not on the lazy device");
  }
  TORCH_CHECK_VALUE(!pending.empty(), "no tensors are given");
  const auto context = torch::lazy::LoweringContext::Create("pending", pending[0]->GetDevice());
  std::vector<int64_t> ids;
  for (const auto& tensor : pending) {
    context->AddResult(tensor->GetIrValue());
    ids.push_back(tensor->GetUniqueId());
  }
  set_synced_tensors(std::move(ids));
  return std::static_pointer_cast<const Computation>(context->Build());
}

Counts counts() {
  return {state().graphs, state().runs};
}

void reset_counts() {
  state().graphs = state().runs = 0;
}

void set_verbose(bool on) {
  state().verbose = on;
}

void set_text_writer(TextWriter writer) {
  store(&State::text_writer, std::move(writer));
}

} // namespace torchmdla::lazy
