#include "group.h"

#include "base/byte_reader.h"
#include "error.h"
#include "signature.h"

#include <algorithm>
#include <cstddef>

namespace torchmdla::native {

namespace {

constexpr size_t buffers_before_arguments = 3; // workspace, packed buffers, symbols

// Blocks of an arena for the time of a call.
class Scratch {
public:
  explicit Scratch(Arena& arena) : arena_(arena) {}
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() {
    while (last_) {
      const auto block = *last_;
      arena_.release(last_, block.bytes);
      last_ = block.before;
    }
  }

  std::byte* allocate(size_t bytes) {
    bytes += Arena::alignment;
    auto* const memory = static_cast<std::byte*>(arena_.allocate(bytes));
    last_ = new (memory) Block{last_, bytes};
    return memory + Arena::alignment;
  }

private:
  struct Block {
    Block* before;
    size_t bytes;
  };
  Arena& arena_;
  Block* last_ = nullptr;
};

bool is_aligned(const Tensor& tensor) {
  const auto width = std::min(tensor.width(), alignof(std::max_align_t));
  return reinterpret_cast<uintptr_t>(tensor.data()) % width == 0;
}

bool is_dense(const Tensor& tensor, std::span<const int64_t> permutation) {
  int64_t step = 1;
  for (size_t i = permutation.size(); i-- > 0;) {
    const auto dimension = static_cast<size_t>(permutation[i]);
    const auto size = tensor.sizes()[dimension];
    if (size == 0) return true;
    if (size != 1 && tensor.strides()[dimension] != step) return false;
    step *= size;
  }
  return true;
}

// Return the address of the tensor's elements in the order of the permutation, copied if needed.
void* address_of(const Tensor& tensor, const Numbers& permutation, Scratch& scratch) {
  if (permutation.size() != tensor.rank)
    throw BadBytes("a model's file: an argument has another rank");
  if (is_dense(tensor, permutation) && is_aligned(tensor)) return tensor.data();
  auto* const copy = scratch.allocate(tensor.count() * tensor.width());
  copy_elements(copy, dense_strides(tensor.sizes(), permutation), tensor.data(), tensor.strides(),
                tensor.sizes(), tensor.width());
  return copy;
}

const Value& input_of(const Argument& argument, Inputs inputs) {
  const auto& input = *inputs[argument.index];
  if (argument.element == Argument::whole) return input;
  const auto items = input.items();
  if (argument.element < 0 || static_cast<size_t>(argument.element) >= items.size())
    throw BadBytes("a model's file: an argument is an element that its list does not have");
  return items[static_cast<size_t>(argument.element)];
}

void* address_of(const Argument& argument, const void* weight, Inputs inputs,
                 const Dimensions& symbols, Scratch& scratch) {
  switch (argument.source) {
  case Argument::Source::input:
    return address_of(input_of(argument, inputs).tensor(), argument.permutation, scratch);
  case Argument::Source::scalar:
    return const_cast<double*>(inputs[argument.index]->real_address());
  case Argument::Source::size:
    return const_cast<int64_t*>(symbols.begin() + argument.index);
  case Argument::Source::weight:
    return const_cast<void*>(weight);
  case Argument::Source::unused:
    break;
  }
  return nullptr;
}

Dimensions at(const Numbers& numbers, const Varying& varying, std::span<const int64_t> symbols) {
  Dimensions values(numbers);
  for (const auto& [place, polynomial] : varying)
    values[place] = polynomial.at(symbols);
  return values;
}

void check_bounds(std::span<const int64_t> sizes, std::span<const int64_t> strides, size_t count) {
  if (!is_within(sizes, strides, count))
    throw BadBytes("a model's file: an output is outside of its memory");
}

} // namespace

Dimensions LoadedGroup::sizes_of(const TensorOutput& output, const Choice& choice) {
  return at(output.sizes, output.varying_sizes, choice.symbols);
}

Dimensions LoadedGroup::strides_of(const TensorOutput& output, const Choice& choice) {
  return at(output.strides, output.varying_strides, choice.symbols);
}

LoadedGroup::Choice LoadedGroup::choose(Inputs inputs) const {
  Choice choice;
  // Code for other strides is right, too: its inputs are copied. Specialisations for any sizes come
  // after those for fixed ones.
  for (const auto strides : {Strides::compared, Strides::ignored})
    for (const auto& code : codes_)
      if (covers(*code.specialisation, inputs, strides, choice.symbols)) {
        choice.code = &code;
        return choice;
      }
  refuse(inputs);
}

void LoadedGroup::refuse(Inputs inputs) const {
  std::string known;
  for (const auto& code : codes_)
    known += (known.empty() ? "" : "; ") + signature_text(*code.specialisation);
  if (known.find('?') != std::string::npos)
    known += ", where ? is 2 or more, and as large as what the program computes of it needs";
  const auto place = group_->source.empty() ? "" : " for the operators at " + group_->source;
  throw Error(TMDLA_WRONG_TENSOR, "the model has no code" + place + " for inputs " +
                                      signature_text(inputs) + ", but for " +
                                      (known.empty() ? "none" : known));
}

void LoadedGroup::run_into(const Choice& choice, Inputs inputs, std::span<std::byte*> places,
                           Arena& arena) const {
  const auto& [code, symbols] = choice;
  const auto& arguments = code->specialisation->arguments;
  Scratch scratch(arena);
  const auto count = buffers_before_arguments + arguments.size() + places.size();
  auto** const buffers = reinterpret_cast<void**>(scratch.allocate(count * sizeof(void*)));
  auto** next = buffers + buffers_before_arguments;
  for (size_t i = 0; i < arguments.size(); ++i)
    *next++ = address_of(arguments[i], code->weights[i], inputs, symbols, scratch);
  std::ranges::copy(places, next);
  const auto workspace = code->workspace
                             ? code->workspace(symbols.begin())
                             : static_cast<int64_t>(code->specialisation->workspace_bytes);
  if (workspace < 0) throw BadBytes("a model's file: a workspace is of a negative size");
  buffers[0] = code->context ? code->context : scratch.allocate(static_cast<size_t>(workspace));
  buffers[1] = const_cast<void**>(code->packed.data());
  buffers[2] = const_cast<int64_t*>(symbols.begin());
  auto status = code->entry(buffers);
  for (auto* const result : places)
    if (status == 0 && code->wait) status = code->wait(result);
  if (status == 0) return;
  const std::string fault = code->fault ? code->fault() : "";
  if (!fault.empty()) throw Error(TMDLA_FAILED, "the device fails: " + fault);
  throw Error(TMDLA_FAILED, "the model reports an error: an index out of bounds, a division by "
                            "zero, or a check that does not hold");
}

void LoadedGroup::run(const Choice& choice, Inputs inputs, std::span<Value* const> outputs,
                      std::span<const Value> constants, Arena& arena) const {
  const auto& specialisation = *choice.code->specialisation;
  Scratch scratch(arena);
  const auto results = specialisation.owners.size();
  auto** const places = reinterpret_cast<std::byte**>(scratch.allocate(results * sizeof(void*)));
  for (size_t result = 0; result < results; ++result) {
    const auto owner = specialisation.owners[result];
    const auto& output = std::get<TensorOutput>(specialisation.outputs[owner]);
    const auto sizes = sizes_of(output, choice), strides = strides_of(output, choice);
    check_bounds(sizes, strides, element_count(sizes));
    *outputs[owner] = new_tensor(arena, output.dtype, sizes, strides);
    places[result] = outputs[owner]->tensor().data();
  }
  run_into(choice, inputs, {places, results}, arena);
  for (size_t i = 0; i < outputs.size(); ++i) {
    const auto& output = specialisation.outputs[i];
    if (const auto* const tensor = std::get_if<TensorOutput>(&output)) {
      const auto owner = specialisation.owners[tensor->result];
      if (owner == i) continue;
      const auto& base = outputs[owner]->tensor();
      const auto sizes = sizes_of(*tensor, choice), strides = strides_of(*tensor, choice);
      check_bounds(sizes, strides, base.storage->bytes / element_bytes(tensor->dtype));
      *outputs[i] = view_of(arena, base, tensor->dtype, sizes, strides, 0);
    } else if (const auto* const list = std::get_if<NumbersOutput>(&output)) {
      *outputs[i] = new_integers(arena, at(list->numbers, list->varying, choice.symbols));
    } else if (const auto* const number = std::get_if<Polynomial>(&output)) {
      *outputs[i] = Value(number->at(choice.symbols));
    } else {
      *outputs[i] = constants[std::get<ConstantOutput>(output).constant];
    }
  }
}

} // namespace torchmdla::native
