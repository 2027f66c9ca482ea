// What acap tensors are computed from: a graph of functional ATen calls that have not run yet.
#pragma once

#include "support/forks.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <memory>
#include <mutex>
#include <variant>
#include <vector>

namespace torchmdla::acap {

class Node;

// A tensor that is pending, the result of a node, or at hand, a plain CPU tensor. It holds the
// graph that it is computed from until it is computed; nothing else does.
struct Value {
  // At hand.
  explicit Value(at::Tensor computed);

  // Pending; `meta` tells dtype and sizes.
  Value(at::Tensor meta_tensor, std::shared_ptr<Node> producer)
      : meta(std::move(meta_tensor)), node(std::move(producer)) {}
  Value(const Value&) = delete;
  Value& operator=(const Value&) = delete;
  ~Value();

  const at::Tensor meta;      // on the meta device
  std::shared_ptr<Node> node; // null once computed; guarded by graph_mutex()
  at::Tensor tensor;          // undefined before; guarded by graph_mutex()
};
using ValuePtr = std::shared_ptr<Value>;

// An argument of a node, in its schema's order: whatever is no tensor, a tensor, or a list of
// tensors with null for None.
using Operand = std::variant<c10::IValue, ValuePtr, std::vector<ValuePtr>>;

class Node : public std::enable_shared_from_this<Node> {
public:
  Node(c10::OperatorHandle called, std::vector<Operand> arguments, std::vector<at::Tensor> types);
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;
  ~Node();

  const uint64_t number; // in the program's order
  const c10::OperatorHandle op;
  std::vector<Operand> operands;
  std::vector<at::Tensor> metas; // its results' types; flat: lists' elements one by one
  std::vector<std::weak_ptr<Value>> results;
  uint64_t running_in = 0; // the number of the process; guarded by graph_mutex()

  // Not in the child of a fork that came while another thread ran it.
  bool is_running() const { return running_in == process_number(); }

  // The values among the operands, lists' elements one by one.
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

// Guards what values and storages are made of. Never held while ops run, while meta kernels infer
// types (some are in Python), or while anything is waited for but itself.
std::mutex& graph_mutex();

// A call of `op`; `metas` are its results as meta tensors, lists' elements one by one.
std::vector<ValuePtr> append(const c10::OperatorHandle& op, std::vector<Operand> operands,
                             const std::vector<at::Tensor>& metas);

// One with one result.
ValuePtr append(const char* name, const char* overload, std::vector<Operand> operands,
                const at::Tensor& meta);

// Nodes that exist at this moment.
size_t pending_nodes();

// Runs what `values` need, and keeps whatever else comes out of that and is still referred to. On
// return all have tensors. Throws what PyTorch throws, or what the compiler throws where it is
// strict or interrupted; the values are pending then as before.
void compute(const std::vector<ValuePtr>& values);

// The pending nodes that `values` need, in the program's order, so that a program that repeats
// itself makes equal graphs. graph_mutex() must be held.
std::vector<Node*> pending_nodes_of(const std::vector<ValuePtr>& values);

} // namespace torchmdla::acap
