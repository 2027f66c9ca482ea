#include "structure.h"

#include <unordered_map>

namespace torchmdla::acap {

namespace {

class Writer {
public:
  void add(const Node& node) {
    write(reinterpret_cast<uintptr_t>(&node.op.schema()));
    for (const auto& operand : node.operands)
      std::visit([&](const auto& argument) { write_operand(argument); }, operand);
    for (const auto& result : node.results) {
      if (const auto value = result.lock()) indices_.emplace(value.get(), next_);
      ++next_;
    }
  }

  Structure finish(const std::vector<ValuePtr>& outputs) {
    for (const auto& output : outputs)
      write_operand(output);
    if (!has_key_) structure_.key.clear();
    return std::move(structure_);
  }

private:
  template <class Plain> void write(const Plain& plain) {
    structure_.key.append(reinterpret_cast<const char*>(&plain), sizeof plain);
  }

  template <class List> void write_list(char tag, const List& list) {
    write(tag);
    write(list.size());
    for (const auto& element : list)
      write(element);
  }

  void write_operand(const ValuePtr& value) {
    const auto [found, is_new] = indices_.emplace(value.get(), next_);
    write('v');
    write(found->second);
    if (!is_new) return;
    // At hand, and not seen before.
    ++next_;
    structure_.inputs.emplace_back(value->tensor);
    write(value->meta.scalar_type());
    write_list('t', value->meta.sizes());
  }

  void write_operand(const std::vector<ValuePtr>& values) {
    write('l');
    write(values.size());
    for (const auto& value : values) {
      if (value)
        write_operand(value);
      else
        write('n');
    }
  }

  void write_operand(const c10::IValue& constant) {
    if (constant.isNone()) {
      write('n');
    } else if (constant.isInt()) {
      write('i');
      write(constant.toInt());
    } else if (constant.isBool()) {
      write('b');
      write(constant.toBool());
    } else if (constant.isDouble()) {
      write('d');
      structure_.floats.push_back(constant.toDouble());
    } else if (constant.isIntList()) {
      write_list('I', constant.toDimVector());
    } else if (constant.isDoubleList()) {
      write_list('D', constant.toDoubleVector());
    } else if (constant.isString()) {
      write_list('s', constant.toStringRef());
    } else if (constant.isDevice()) {
      write('c'); // the CPU: all of a graph is there
    } else {
      has_key_ = false;
    }
  }

  Structure structure_;
  bool has_key_ = true;
  std::unordered_map<const Value*, int64_t> indices_;
  int64_t next_ = 0;
};

} // namespace

Structure structure_of(const std::vector<Node*>& nodes, const std::vector<ValuePtr>& outputs) {
  Writer writer;
  for (const auto* node : nodes)
    writer.add(*node);
  return writer.finish(outputs);
}

} // namespace torchmdla::acap
