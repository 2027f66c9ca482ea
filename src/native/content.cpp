#include "content.h"

#include "base/byte_reader.h"
#include "base/device_library.h"
#include "codeimage/size_fields.h"

#include <algorithm>
#include <cstring>

namespace torchmdla::native {

namespace {

constexpr size_t max_symbols = 4;
constexpr uint64_t weight_alignment = 64;
constexpr int most_nesting = 64; // of types and constants

void check(bool holds, const char* reason) {
  if (!holds) throw BadBytes(reason);
}

// Scope of one level of nesting.
class Nesting {
public:
  explicit Nesting(int& depth) : depth_(depth) {
    check(++depth_ <= most_nesting, "types or constants are nested too deeply");
  }
  ~Nesting() { --depth_; }

private:
  int& depth_;
};

// Reader of a file's content. Each part is checked against the parts before it.
class ContentReader {
public:
  ContentReader(std::span<const std::byte> bytes, uint64_t weight_bytes, const std::byte* weights)
      : reader_(bytes), weight_bytes_(weight_bytes), weights_(weights) {}

  Content read() {
    content_.weights = reader_.list([&] { return read_weight(); });
    read_constants();
    content_.targets = reader_.list([&] { return read_target(); });
    check(!content_.targets.empty(), "it has no code");
    for (const auto& target : content_.targets)
      check_arities(target.groups);
    read_methods();
    if (reader_.truth()) content_.direct = read_direct();
    check(reader_.at_end(), "it is longer than its length field");
    return std::move(content_);
  }

private:
  // Weights and constants

  Weight read_weight() {
    Weight weight{reader_.count(), reader_.count(), {}};
    std::ranges::copy(reader_.bytes(weight.digest.size()), weight.digest.begin());
    check(weight.offset % weight_alignment == 0, "a weight is not aligned");
    check(weight.offset <= weight_bytes_ && weight.bytes <= weight_bytes_ - weight.offset,
          "the file is cut short: weights are missing");
    return weight;
  }

  void read_constants() {
    auto& program = content_.program;
    program.arena = std::make_unique<Arena>();
    program.constants = reader_.list([&] { return read_constant(); });
    std::ranges::for_each(program.constants, make_immortal);
  }

  // The order of kinds is that of `_CONSTANTS` in torchmdla/packages/native_program.py.
  Value read_constant() {
    const Nesting level(depth_);
    auto& arena = *content_.program.arena;
    switch (static_cast<Kind>(reader_.byte())) {
    case Kind::none:
      return {};
    case Kind::boolean:
      return reader_.truth();
    case Kind::integer:
      return reader_.integer();
    case Kind::real:
      return reader_.real();
    case Kind::device:
      return Value::device();
    case Kind::string:
      return new_string(arena, reader_.text());
    case Kind::tensor:
      return read_tensor();
    case Kind::list:
      return read_items(new_list(arena, 0));
    case Kind::dict:
      return read_items(new_dict(arena, 0));
    case Kind::tuple:
      return read_tuple(Kind::tuple);
    case Kind::object:
      return read_tuple(Kind::object);
    }
    throw BadBytes("a constant is of an unknown kind");
  }

  Value read_items(Value list) {
    auto& items = *static_cast<List*>(list.heap());
    for (auto left = reader_.count(); left != 0; --left)
      append(items, read_constant());
    check(list.kind() == Kind::list || items.size % 2 == 0, "a dictionary lacks a value");
    return list;
  }

  Value read_tuple(Kind kind) {
    const auto items = reader_.list([&] { return read_constant(); });
    auto tuple = new_tuple(*content_.program.arena, items.size(), kind);
    std::ranges::copy(items, static_cast<Tuple*>(tuple.heap())->items());
    return tuple;
  }

  Value read_tensor() {
    const auto dtype = reader_.byte();
    const auto sizes = reader_.integers(), strides = reader_.integers();
    const auto& weight = content_.weights[index(content_.weights.size())];
    check(element_bytes(dtype) > 0, "a tensor has an unknown dtype");
    check(sizes.size() == strides.size() && sizes.size() <= most_dimensions,
          "a constant has more sizes than strides, or fewer, or too many");
    check(std::ranges::all_of(sizes, [](int64_t size) { return size >= 0; }),
          "a constant has a negative size");
    check(is_within(sizes, strides, weight.bytes / element_bytes(dtype)),
          "a constant is outside of its weight");
    return wrap_tensor(*content_.program.arena, Storage::Owner::file,
                       const_cast<std::byte*>(weights_ + weight.offset), weight.bytes, dtype, sizes,
                       strides);
  }

  // Targets

  Target read_target() {
    Target target;
    target.name = reader_.text();
    const auto features = reader_.list([&] { return reader_.text(); });
    target.features = {features.begin(), features.end()};
    target.devices = take_devices(target.features);
    target.images = reader_.list([&] { return reader_.bytes(reader_.count()); });
    images_ = target.images.size();
    target.groups = reader_.list([&] { return read_group(); });
    return target;
  }

  Group read_group() {
    Group group{reader_.text(), reader_.count(), reader_.count(), {}};
    inputs_ = group.inputs;
    group.specialisations = reader_.list([&] { return read_specialisation(); });
    for (const auto& specialisation : group.specialisations)
      check(specialisation.outputs.size() == group.outputs, "code has another number of outputs");
    return group;
  }

  // All targets have the same groups.
  void check_arities(const std::vector<Group>& groups) {
    const auto& expected = content_.targets[0].groups;
    check(groups.size() == expected.size(), "a target has other groups than another one");
    for (size_t i = 0; i < groups.size(); ++i)
      check(groups[i].inputs == expected[i].inputs && groups[i].outputs == expected[i].outputs,
            "a target has other groups than another one");
  }

  Specialisation read_specialisation() {
    Specialisation specialisation{};
    specialisation.image = index(images_);
    specialisation.entry = reader_.text();
    specialisation.workspace = reader_.text();
    specialisation.workspace_bytes = reader_.count();
    specialisation.signature = reader_.integers();
    specialisation.places = reader_.integers();
    specialisation.symbols = reader_.count();
    check(specialisation.symbols <= max_symbols, "there are too many symbols");
    check(specialisation.places.empty() ||
              specialisation.places.size() == specialisation.signature.size(),
          "a signature has more symbols than numbers, or fewer");
    for (const auto place : specialisation.places)
      check(place >= Specialisation::fixed && place < static_cast<int64_t>(specialisation.symbols),
            "an input has an unknown symbol");
    known_symbols_ = specialisation.symbols;
    if (reader_.truth()) {
      specialisation.sizes = read_size_program(reader_, specialisation.symbols);
      known_symbols_ += specialisation.sizes->computed();
    }
    check(known_symbols_ <= dimension_limit, "there are too many symbols");
    specialisation.arguments = reader_.list([&] { return read_argument(); });
    specialisation.packs = reader_.list([&] { return index(content_.weights.size()); });
    specialisation.outputs = reader_.list([&] { return read_output(); });
    specialisation.owners = owners_of(specialisation.outputs);
    return specialisation;
  }

  size_t index(size_t count) {
    const auto number = reader_.count();
    check(number < count, "a name is unknown");
    return number;
  }

  Argument read_argument() {
    constexpr uint8_t sources = 5;
    const auto source = reader_.byte();
    check(source < sources, "an argument comes from nowhere");
    const size_t counts[sources] = {inputs_, inputs_, known_symbols_, content_.weights.size(),
                                    /*unused=*/1};
    Argument argument{static_cast<Argument::Source>(source), index(counts[source]),
                      reader_.integer(), reader_.integers()};
    auto sorted = argument.permutation;
    std::ranges::sort(sorted);
    for (size_t i = 0; i < sorted.size(); ++i)
      check(sorted[i] == static_cast<int64_t>(i),
            "an input's order of dimensions is not a permutation");
    return argument;
  }

  Output read_output() {
    switch (reader_.byte()) {
    case 0:
      return read_tensor_output();
    case 1: {
      NumbersOutput output{reader_.integers(), {}};
      check(output.numbers.size() <= dimension_limit, "an output has too many numbers");
      output.varying = read_varying(reader_, output.numbers.size(), known_symbols_);
      return output;
    }
    case 2:
      return read_polynomial(reader_, known_symbols_);
    case 3:
      return ConstantOutput{index(content_.program.constants.size())};
    }
    throw BadBytes("an output is of an unknown kind");
  }

  TensorOutput read_tensor_output() {
    TensorOutput output{
        reader_.count(), reader_.byte(), reader_.integers(), reader_.integers(), {}, {}};
    check(element_bytes(output.dtype) > 0, "a tensor has an unknown dtype");
    check(output.sizes.size() == output.strides.size() && output.sizes.size() <= most_dimensions,
          "a tensor has more sizes than strides, or fewer, or too many");
    output.varying_sizes = read_varying(reader_, output.sizes.size(), known_symbols_);
    output.varying_strides = read_varying(reader_, output.strides.size(), known_symbols_);
    return output;
  }

  static std::vector<size_t> owners_of(const std::vector<Output>& outputs) {
    std::vector<size_t> owners(outputs.size(), outputs.size());
    size_t results = 0;
    for (size_t i = outputs.size(); i-- > 0;) {
      const auto* const tensor = std::get_if<TensorOutput>(&outputs[i]);
      if (!tensor) continue;
      check(tensor->result < outputs.size(), "there are more results than outputs");
      owners[tensor->result] = i;
      results = std::max(results, tensor->result + 1);
    }
    owners.resize(results);
    for (const auto owner : owners)
      check(owner < outputs.size(), "a result is not an output");
    return owners;
  }

  // Methods

  void read_methods() {
    auto& program = content_.program;
    program.sources = reader_.list([&] { return reader_.text(); });
    program.attributes =
        reader_.list([&] { return Attribute{reader_.text(), index(program.constants.size())}; });
    operators_ = reader_.list([&] { return read_operator(); });
    std::vector<Arity> groups;
    for (const auto& group : content_.targets[0].groups)
      groups.push_back({group.inputs, group.outputs});
    program.methods = reader_.list([&] { return read_method(); });
    for (const auto& method : program.methods)
      verify(program, method, groups);
  }

  const Operator* read_operator() {
    const auto name = reader_.text();
    const auto* const op = find_operator(name);
    if (!op) throw BadBytes("its program uses " + name + ", which this runtime does not have");
    return op;
  }

  Method read_method() {
    Method method{reader_.text(), reader_.text(), {}, 0, 0, {}, {}};
    method.parameters = reader_.list([&] { return read_parameter(); });
    method.registers = static_cast<uint32_t>(read_words(1)[0]);
    check(method.registers <= most_registers, "a method has too many registers");
    const auto words = read_words(reader_.count());
    for (size_t next = 0; next < words.size();)
      next = add_instruction(method, std::span(words).subspan(next)) + next;
    return method;
  }

  std::vector<uint32_t> read_words(size_t count) {
    check(count <= most_words, "a method is too long");
    const auto bytes = reader_.bytes(count * sizeof(uint32_t));
    std::vector<uint32_t> words(count);
    if (count > 0) std::memcpy(words.data(), bytes.data(), bytes.size());
    return words;
  }

  // Read the first instruction of the words. Return its length.
  size_t add_instruction(Method& method, std::span<const uint32_t> words) {
    constexpr size_t head = 3;
    check(words.size() >= head, "an instruction is cut short");
    Instruction instruction{static_cast<Opcode>(words[0] & 0xff),
                            words[0] >> 8 & 0xfff,
                            words[0] >> 20,
                            static_cast<uint32_t>(method.operands.size()),
                            words[1],
                            words[2]};
    check(instruction.code < Opcode::count, "an instruction is unknown");
    const size_t operands = instruction.outputs + instruction.inputs;
    check(words.size() - head >= operands, "an instruction is cut short");
    if (instruction.code == Opcode::call) {
      check(instruction.detail < operators_.size(), "an operator is unknown");
      instruction.op = operators_[instruction.detail];
    }
    method.most_operands = std::max(method.most_operands, operands);
    method.operands.insert(method.operands.end(), words.begin() + head,
                           words.begin() + static_cast<std::ptrdiff_t>(head + operands));
    method.instructions.push_back(instruction);
    return head + operands;
  }

  Parameter read_parameter() {
    Parameter parameter{reader_.text(), reader_.text(), read_type(), std::nullopt};
    if (reader_.truth()) parameter.fallback = reader_.count();
    return parameter;
  }

  Type read_type() {
    const Nesting level(depth_);
    const auto kind = reader_.byte();
    check(kind <= static_cast<uint8_t>(Type::Kind::alternatives), "a type is unknown");
    Type type{static_cast<Type::Kind>(kind), reader_.list([&] { return read_type(); })};
    const auto count = type.arguments.size();
    check((type.kind != Type::Kind::list || count == 1) &&
              (type.kind != Type::Kind::dict || count == 2),
          "a type has too many arguments, or too few");
    return type;
  }

  // Models that are one group

  Direct read_direct() {
    Direct direct;
    direct.inputs = reader_.list([&] { return read_port(); });
    direct.outputs = reader_.list([&] { return read_port(); });
    direct.input_numbers = reader_.list([&] { return index(direct.inputs.size()); });
    const auto& groups = content_.targets[0].groups;
    check(!groups.empty() && direct.input_numbers.size() == groups[0].inputs,
          "the model's group has other inputs");
    direct.output_numbers = reader_.list([&] { return index(groups[0].outputs); });
    check(direct.output_numbers.size() == direct.outputs.size(),
          "the model's group has other outputs");
    for (const auto& target : content_.targets)
      for (const auto& specialisation : target.groups[0].specialisations)
        check_outputs(direct, specialisation);
    return direct;
  }

  static void check_outputs(const Direct& direct, const Specialisation& specialisation) {
    for (size_t i = 0; i < direct.outputs.size(); ++i) {
      const auto& output = specialisation.outputs[direct.output_numbers[i]];
      const auto* const tensor = std::get_if<TensorOutput>(&output);
      check(tensor && tensor->dtype == direct.outputs[i].dtype &&
                tensor->sizes.size() == direct.outputs[i].sizes.size(),
            "an output of the model is another tensor in its code");
    }
  }

  Port read_port() {
    Port port{reader_.text(), reader_.byte(), reader_.integers()};
    check(element_bytes(port.dtype) > 0, "a tensor has an unknown dtype");
    check(port.sizes.size() <= most_dimensions, "a tensor has too many dimensions");
    return port;
  }

  static constexpr uint32_t most_registers = 1 << 20;
  static constexpr size_t most_words = size_t{1} << 40;

  ByteReader reader_;
  uint64_t weight_bytes_;
  const std::byte* weights_;
  size_t images_ = 0, inputs_ = 0; // of the target and the group that are read
  size_t known_symbols_ = 0;       // including the computed ones
  int depth_ = 0;
  std::vector<const Operator*> operators_;
  Content content_;
};

} // namespace

Content read_content(std::span<const std::byte> bytes, uint64_t weight_bytes,
                     const std::byte* weights) {
  return ContentReader(bytes, weight_bytes, weights).read();
}

} // namespace torchmdla::native
