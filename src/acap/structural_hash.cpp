#include "structural_hash.h"

#include "base/byte_key.h"

#include <unordered_map>

namespace torchmdla::acap {

namespace {

class StructureWriter {
public:
  void add(const Node& node) {
    key_.add(reinterpret_cast<uintptr_t>(&node.op.schema()));
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
    if (has_key_) structure_.key = key_.take();
    return std::move(structure_);
  }

private:
  template <class List> void write_list(char tag, const List& list) {
    key_.add(tag);
    key_.add_list(list);
  }

  void write_operand(const ValuePtr& value) {
    const auto [entry, is_new] = indices_.emplace(value.get(), next_);
    key_.add('v');
    key_.add(entry->second);
    if (!is_new) return;
    // The value is computed and has not been visited before.
    ++next_;
    structure_.inputs.emplace_back(value->tensor);
    key_.add(value->meta.scalar_type());
    write_list('t', value->meta.sizes());
  }

  void write_operand(const std::vector<ValuePtr>& values) {
    key_.add('l');
    key_.add(values.size());
    for (const auto& value : values) {
      if (value)
        write_operand(value);
      else
        key_.add('n');
    }
  }

  void write_operand(const c10::IValue& constant) {
    if (constant.isNone()) {
      key_.add('n');
    } else if (constant.isInt()) {
      key_.add('i');
      key_.add(constant.toInt());
    } else if (constant.isBool()) {
      key_.add('b');
      key_.add(constant.toBool());
    } else if (constant.isDouble()) {
      key_.add('d');
      structure_.floats.push_back(constant.toDouble());
    } else if (constant.isIntList()) {
      write_list('I', constant.toDimVector());
    } else if (constant.isDoubleList()) {
      write_list('D', constant.toDoubleVector());
    } else if (constant.isString()) {
      key_.add('s');
      key_.add(constant.toStringRef());
    } else if (constant.isDevice()) {
      key_.add('c'); // always the CPU in a graph
    } else {
      has_key_ = false;
    }
  }

  Structure structure_;
  ByteKey key_;
  bool has_key_ = true;
  std::unordered_map<const Value*, int64_t> indices_;
  int64_t next_ = 0;
};

} // namespace

Structure structure_of(const std::vector<Node*>& nodes, const std::vector<ValuePtr>& outputs) {
  StructureWriter writer;
  for (const auto* node : nodes)
    writer.add(*node);
  return writer.finish(outputs);
}

} // namespace torchmdla::acap
