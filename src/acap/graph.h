// Graph of functional ATen calls that have not run yet. The values of acap tensors are computed
// from it.
#pragma once

#include "base/forks.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <memory>
#include <mutex>
#include <variant>
#include <vector>

namespace torchmdla::acap {

class Node;

// A tensor that is either pending (the result of a node) or computed (a plain CPU tensor). A
// pending value holds the graph that computes it; nothing else holds the graph.
struct Value {
  // Construct a computed value.
  explicit Value(at::Tensor computed);

  // Construct a pending value; `meta` has its dtype and sizes.
  Value(at::Tensor meta_tensor, std::shared_ptr<Node> producer)
      : meta(std::move(meta_tensor)), node(std::move(producer)) {}
  Value(const Value&) = delete;
  Value& operator=(const Value&) = delete;
  ~Value();

  const at::Tensor meta;      // on the meta device
  std::shared_ptr<Node> node; // null once computed; guarded by graph_mutex()
  at::Tensor tensor;          // undefined while pending; guarded by graph_mutex()
};
using ValuePtr = std::shared_ptr<Value>;

// Argument of a node: a constant, a tensor, or a list of tensors in which null represents None. A
// node's operands are in the order of its schema.
using Operand = std::variant<c10::IValue, ValuePtr, std::vector<ValuePtr>>;

class Node : public std::enable_shared_from_this<Node> {
public:
  Node(c10::OperatorHandle called, std::vector<Operand> arguments, std::vector<at::Tensor> types);
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;
  ~Node();

  const uint64_t number; // in program order
  const c10::OperatorHandle op;
  std::vector<Operand> operands;
  std::vector<at::Tensor> metas; // types of the results; elements of lists are listed one by one
  std::vector<std::weak_ptr<Value>> results;
  uint64_t running_in = 0; // process number; guarded by graph_mutex()

  // Return whether a thread of this process runs the node. The result is false in the child of a
  // fork during a run by another thread.
  bool is_running() const { return running_in == process_number(); }

  // Visit the values among the operands, including the elements of lists.
  template <class Visit> void for_each_input(Visit visit) const {
    for (const auto& operand : operands) {
      if (const auto* value = std::get_if<ValuePtr>(&operand)) {
        if (*value) visit(*value);
      } else if (const auto* list = std::get_if<std::vector<ValuePtr>>(&operand)) {
        for (const auto& element : *list)
          if (element) visit(element);
      }
    }
  }
};

// Return the mutex that guards the content of values and storages. It is never held while ops run,
// while meta kernels infer types (some are in Python), or while a thread waits for anything else.
std::mutex& graph_mutex();

// Append a call of `op` and return its results. `metas` are the results as meta tensors; elements
// of lists are listed one by one.
std::vector<ValuePtr> append(const c10::OperatorHandle& op, std::vector<Operand> operands,
                             const std::vector<at::Tensor>& metas);

// Append a call with one result and return that.
ValuePtr append(const char* name, const char* overload, std::vector<Operand> operands,
                const at::Tensor& meta);

// Return the number of nodes that currently exist.
size_t pending_nodes();

// Run the nodes that `values` need, so that all values are computed on return. Other results of
// these nodes that are still referenced are kept. Exceptions of PyTorch are passed on, and those of
// the compiler if it is strict or interrupted. The values are then still pending.
void compute(const std::vector<ValuePtr>& values);

// Return the pending nodes that `values` need, in program order, so that repeated code produces
// equal graphs. graph_mutex() must be held.
std::vector<Node*> pending_nodes_of(const std::vector<ValuePtr>& values);

} // namespace torchmdla::acap
