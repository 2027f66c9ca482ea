#include "graph.h"

#include "base/forks.h"
#include "eager_replay.h"
#include "group/statistics.h"
#include "jit_graph.h"
#include "python/python_objects.h"

#include <ATen/EmptyTensor.h>
#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <unordered_map>
#include <unordered_set>

namespace torchmdla::acap {

namespace {

std::atomic<size_t> live_nodes{0};
std::atomic<uint64_t> nodes_created{0};

std::condition_variable& run_ended() {
  static std::condition_variable ended;
  return ended;
}

// Release of operands without recursion. In a chain of nodes, each may be the last holder of the
// one before. Destructors would then nest as deep as the program is long. The outermost destructor
// releases them in a loop instead.
class Releases {
public:
  void add(std::vector<Operand>&& operands) {
    waiting_.push_back(std::move(operands));
    if (is_releasing_) return;
    is_releasing_ = true;
    while (!waiting_.empty()) {
      const auto released = std::move(waiting_.back());
      waiting_.pop_back();
    }
    is_releasing_ = false;
  }

private:
  std::vector<std::vector<Operand>> waiting_;
  bool is_releasing_ = false;
};

Releases& releases() {
  thread_local Releases instance;
  return instance;
}

at::Tensor meta_like(const at::Tensor& tensor) {
  return at::detail::empty_strided_meta(tensor.sizes(), tensor.strides(), tensor.scalar_type());
}

} // namespace

Value::Value(at::Tensor computed) : meta(meta_like(computed)), tensor(std::move(computed)) {}

Value::~Value() = default;

Node::Node(c10::OperatorHandle called, std::vector<Operand> arguments,
           std::vector<at::Tensor> types)
    : number(nodes_created.fetch_add(1, std::memory_order_relaxed)), op(called),
      operands(std::move(arguments)), metas(std::move(types)) {
  live_nodes.fetch_add(1, std::memory_order_relaxed);
}

Node::~Node() {
  live_nodes.fetch_sub(1, std::memory_order_relaxed);
  releases().add(std::move(operands));
}

std::mutex& graph_mutex() {
  static std::mutex mutex;
  return mutex;
}

size_t pending_nodes() {
  return live_nodes.load(std::memory_order_relaxed);
}

namespace {

// Replace booleans by integers where the schema has a number, because TorchScript's numbers exclude
// booleans.
void convert_booleans(const c10::FunctionSchema& schema, std::vector<Operand>& operands) {
  for (size_t i = 0; i < operands.size(); ++i) {
    auto* constant = std::get_if<c10::IValue>(&operands[i]);
    if (constant && constant->isBool() &&
        c10::NumberType::get()->isSubtypeOf(*schema.arguments()[i].type()))
      *constant = static_cast<int64_t>(constant->toBool());
  }
}

} // namespace

std::vector<ValuePtr> append(const c10::OperatorHandle& op, std::vector<Operand> operands,
                             const std::vector<at::Tensor>& metas) {
  convert_booleans(op.schema(), operands);
  auto node = std::make_shared<Node>(op, std::move(operands), metas);
  std::vector<ValuePtr> results;
  for (const auto& meta : metas) {
    results.push_back(meta.defined() ? std::make_shared<Value>(meta, node) : nullptr);
    node->results.emplace_back(results.back());
  }
  return results;
}

ValuePtr append(const char* name, const char* overload, std::vector<Operand> operands,
                const at::Tensor& meta) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
  return append(op, std::move(operands), std::vector<at::Tensor>{meta}).front();
}

std::vector<Node*> pending_nodes_of(const std::vector<ValuePtr>& values) {
  std::vector<Node*> nodes;
  std::unordered_set<const Node*> visited;
  const auto add = [&](const ValuePtr& value) {
    if (value->node && visited.insert(value->node.get()).second) nodes.push_back(value->node.get());
  };
  for (const auto& value : values)
    add(value);
  for (size_t i = 0; i < nodes.size(); ++i)
    nodes[i]->for_each_input(add);
  std::sort(nodes.begin(), nodes.end(),
            [](const Node* a, const Node* b) { return a->number < b->number; });
  return nodes;
}

namespace {

// Part of the graph that runs as one unit.
struct Segment {
  std::vector<Node*> nodes; // operands before users
  std::vector<std::shared_ptr<Node>> owners;
  std::vector<ValuePtr> outputs;
  Runnable runnable;
  std::exception_ptr fault; // set if there is no runnable
};

// Return the results of `nodes` that are referenced from outside of these nodes.
std::vector<ValuePtr> outputs_of(const std::vector<Node*>& nodes) {
  std::unordered_map<const Value*, long> used_inside;
  for (const auto* node : nodes)
    node->for_each_input([&](const ValuePtr& value) { ++used_inside[value.get()]; });
  std::vector<ValuePtr> outputs;
  for (const auto* node : nodes)
    for (const auto& result : node->results)
      if (auto value = result.lock(); value && value.use_count() > 1 + used_inside[value.get()])
        outputs.push_back(std::move(value));
  return outputs;
}

// Return the part of the graph that computes `values`, marked as running. It is empty if nothing is
// pending. Wait while another thread runs some of its nodes.
Segment acquire_segment(const std::vector<ValuePtr>& values) {
  const ForkGuard section; // covers the wait, too: a forked child has no thread that notifies
  std::unique_lock<std::mutex> lock(graph_mutex());
  auto nodes = pending_nodes_of(values);
  const auto is_running = [](const Node* node) { return node->is_running(); };
  while (std::any_of(nodes.begin(), nodes.end(), is_running)) {
    run_ended().wait(lock);
    nodes = pending_nodes_of(values);
  }
  Segment segment;
  if (nodes.empty()) return segment;
  segment.outputs = outputs_of(nodes);
  try {
    segment.runnable = prepare(nodes, segment.outputs);
  } catch (const std::exception&) {
    segment.fault = std::current_exception();
  }
  for (auto* node : nodes) {
    node->running_in = process_number();
    segment.owners.push_back(node->shared_from_this());
  }
  segment.nodes = std::move(nodes);
  return segment;
}

// Run the part as groups. If that fails, run it op by op: an error is then the failing op's own,
// and an internal fault does not lose values.
std::vector<at::Tensor> run(const Segment& part) {
  std::string fault;
  try {
    if (part.fault) std::rethrow_exception(part.fault);
    return run(part.runnable);
  } catch (const PassingError&) {
    throw;
  } catch (const c10::Error& error) {
    fault = error.what_without_backtrace();
  } catch (const std::exception& error) {
    fault = error.what();
  }
  auto tensors = run_op_by_op(part.nodes, part.outputs);
  statistics().fallbacks.count("acap: a graph ran op by op: " + fault.substr(0, fault.find('\n')));
  return tensors;
}

} // namespace

void compute(const std::vector<ValuePtr>& values) {
  auto part = acquire_segment(values);
  if (part.nodes.empty()) return;
  const auto end_run = c10::make_scope_exit([&] {
    {
      const ForkSafeLock guard(graph_mutex());
      for (auto* node : part.nodes)
        node->running_in = 0;
    }
    run_ended().notify_all();
  });
  auto tensors = run(part);
  const ForkSafeLock guard(graph_mutex());
  for (size_t i = 0; i < part.outputs.size(); ++i) {
    part.outputs[i]->tensor = std::move(tensors[i]);
    part.outputs[i]->node.reset(); // `part` keeps the node until the lock is released
  }
}

} // namespace torchmdla::acap
