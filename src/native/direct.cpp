// Models that are one group: a call without a session.

#include "base/byte_reader.h"
#include "error.h"
#include "model.h"
#include "thread_pool.h"

#include <algorithm>

namespace torchmdla::native {

namespace {

std::string port_text(const char* kind, size_t number, const Port& port) {
  return std::string(kind) + " " + std::to_string(number) + " (" + port.name + ")";
}

void check_tensor(const char* kind, size_t number, const Port& port, const TensorView& tensor,
                  bool with_data) {
  const auto refuse = [&](const std::string& problem) {
    throw Error(TMDLA_WRONG_TENSOR, port_text(kind, number, port) + " " + problem);
  };
  if (tensor.dtype != port.dtype)
    refuse("is " + dtype_name(port.dtype) + ", and " + dtype_name(tensor.dtype) + " is given");
  if (tensor.sizes.size() != port.sizes.size())
    refuse("has " + std::to_string(port.sizes.size()) + " dimensions, and " +
           sizes_text(tensor.sizes) + " is given");
  const auto count = element_count(tensor.sizes);
  if (with_data && count > 0 && !tensor.data) refuse("has no data");
}

void check_count(const char* kind, size_t expected, size_t actual) {
  if (actual != expected)
    throw Error(TMDLA_WRONG_TENSOR, "the model has " + std::to_string(expected) + " " + kind +
                                        ", and " + std::to_string(actual) + " are given");
}

Dimensions strides_of(const TensorView& tensor) {
  return tensor.strides.empty() ? contiguous(tensor.sizes) : Dimensions(tensor.strides);
}

bool is_aligned(const TensorView& tensor) {
  const auto width = std::min<size_t>(element_bytes(tensor.dtype), alignof(std::max_align_t));
  return reinterpret_cast<uintptr_t>(tensor.data) % width == 0;
}

// Memory of the calling thread, which it keeps.
Arena& thread_arena() {
  thread_local Arena arena;
  return arena;
}

// The inputs of the model's group as values in memory of this thread.
class DirectCall {
public:
  DirectCall(const Direct& direct, const LoadedGroup& group, std::span<const TensorView> tensors,
             bool with_data)
      : direct_(direct) {
    check_count("inputs", direct.inputs.size(), tensors.size());
    for (size_t i = 0; i < tensors.size(); ++i)
      check_tensor("input", i, direct.inputs[i], tensors[i], with_data);
    for (const auto number : direct.input_numbers) {
      const auto& tensor = tensors[number];
      // Only the code reads the memory, and it stays within the sizes and strides.
      values_.push_back(wrap_tensor(thread_arena(), Storage::Owner::caller, tensor.data, 0,
                                    tensor.dtype, tensor.sizes, strides_of(tensor)));
    }
    for (const auto& value : values_)
      inputs_.push_back(&value);
    choice_ = group.choose(inputs_);
  }

  const TensorOutput& output(size_t number) const {
    return std::get<TensorOutput>(
        choice_.code->specialisation->outputs[direct_.output_numbers[number]]);
  }
  Dimensions sizes(size_t number) const { return LoadedGroup::sizes_of(output(number), choice_); }

  void check_outputs(std::span<const TensorView> tensors) const {
    check_count("outputs", direct_.outputs.size(), tensors.size());
    for (size_t i = 0; i < tensors.size(); ++i) {
      check_tensor("output", i, direct_.outputs[i], tensors[i], /*with_data=*/true);
      if (!std::ranges::equal(std::span<const int64_t>(sizes(i)), tensors[i].sizes))
        throw Error(TMDLA_WRONG_TENSOR, port_text("output", i, direct_.outputs[i]) + " is " +
                                            sizes_text(sizes(i)) + " for these inputs, and " +
                                            sizes_text(tensors[i].sizes) + " is given");
    }
  }

  // Compute the outputs. A result that is one output of the layout that the code writes needs no
  // copy.
  void run(const LoadedGroup& group, std::span<const TensorView> tensors) const {
    const auto& specialisation = *choice_.code->specialisation;
    std::vector<std::byte*> places;
    std::vector<Value> results;
    for (size_t result = 0; result < specialisation.owners.size(); ++result) {
      const auto in_place = only_output(result, tensors);
      const auto& owner =
          std::get<TensorOutput>(specialisation.outputs[specialisation.owners[result]]);
      results.push_back(in_place ? Value()
                                 : new_tensor(thread_arena(), owner.dtype,
                                              LoadedGroup::sizes_of(owner, choice_)));
      places.push_back(in_place ? in_place->data : results.back().tensor().data());
    }
    group.run_into(choice_, inputs_, places, thread_arena());
    for (size_t i = 0; i < tensors.size(); ++i)
      if (const auto& result = results[output(i).result]; result.is_tensor())
        copy_out(i, result.tensor(), tensors[i]);
  }

private:
  // Return the only output of a result if the code can write to it.
  const TensorView* only_output(size_t result, std::span<const TensorView> tensors) const {
    const TensorView* found = nullptr;
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (output(i).result != result) continue;
      if (found) return nullptr;
      found = &tensors[i];
      const auto strides = LoadedGroup::strides_of(output(i), choice_);
      if (!is_aligned(tensors[i]) || !has_strides(tensors[i], strides)) return nullptr;
    }
    return found;
  }

  void copy_out(size_t number, const Tensor& result, const TensorView& tensor) const {
    const auto strides = LoadedGroup::strides_of(output(number), choice_);
    const auto width = element_bytes(tensor.dtype);
    // The strides come from the file, so check that they stay in the buffer.
    if (!is_within(tensor.sizes, strides, result.storage->bytes / width))
      throw BadBytes("a model's file: an output is outside of its memory");
    copy_elements(tensor.data, strides_of(tensor), result.data(), strides, tensor.sizes, width);
  }

  const Direct& direct_;
  std::vector<Value> values_;
  std::vector<const Value*> inputs_;
  LoadedGroup::Choice choice_;
};

const Direct& direct_of(const std::optional<Direct>& direct) {
  if (!direct)
    throw Error(TMDLA_INVALID_ARGUMENT,
                "the model is a program of several steps: call its methods by a session");
  return *direct;
}

} // namespace

std::span<const Port> Model::inputs() const {
  const auto& direct = file_.content().direct;
  return direct ? std::span<const Port>(direct->inputs) : std::span<const Port>();
}

std::span<const Port> Model::outputs() const {
  const auto& direct = file_.content().direct;
  return direct ? std::span<const Port>(direct->outputs) : std::span<const Port>();
}

Dimensions Model::output_sizes(std::span<const TensorView> inputs, size_t output) const {
  const DirectCall call(direct_of(file_.content().direct), groups_[0], inputs, /*with_data=*/false);
  return call.sizes(output);
}

void Model::run(std::span<const TensorView> inputs, std::span<const TensorView> outputs) const {
  const DirectCall call(direct_of(file_.content().direct), groups_[0], inputs, /*with_data=*/true);
  call.check_outputs(outputs);
  const ThreadLimit limit(threads_);
  call.run(groups_[0], outputs);
}

} // namespace torchmdla::native
