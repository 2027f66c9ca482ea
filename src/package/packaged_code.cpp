#include "packaged_code.h"

#include "codeimage/size_fields.h"
#include "device_code.h"
#include "group/statistics.h"
#include "runtime/fingerprint.h"
#include "runtime/kernel_times.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <bit>
#include <optional>
#include <string>
#include <utility>

namespace torchmdla {

namespace {

using Source = InputBinding::Source;

// Argument of packaged code: a constant of the subgraph, an input of the group or a size.
struct PackagedInput {
  Source source;
  size_t index;
  std::optional<size_t> element;
  std::vector<int64_t> permutation; // order in which the code expects a constant's dimensions
  bool unversioned;

  InputBinding bind(const Subgraph& subgraph, size_t num_inputs) const {
    if (source != Source::constant) {
      TORCH_CHECK(source == Source::size || index < num_inputs, "the code takes input ", index,
                  " of a group that has ", num_inputs);
      return {source, index, element, {}, unversioned};
    }
    const auto tensor = subgraph.constant(index, element).detach();
    TORCH_CHECK(static_cast<size_t>(tensor.dim()) == permutation.size(),
                "a constant has another number of dimensions");
    return {source, 0, std::nullopt, tensor.permute(permutation).contiguous(), unversioned};
  }
};

// Saved output of a pack, at `offset` in the weights of the target.
struct PackedWeight {
  size_t offset;
  uint64_t content_hash;
  std::vector<uint64_t> parameters; // hashes of the contents of the parameters that it was made of
};

struct PackagedPack {
  std::string symbol, recipe;
  std::vector<size_t> arguments;
  int64_t bytes;
  std::optional<PackedWeight> packed;

  // Return the saved output. Return null if there is none, the weights are not mapped, or its
  // content has changed.
  std::shared_ptr<const PrebuiltBuffer> find_prebuilt(const PackagedContent& content) const {
    if (!packed || content.weights.empty()) return nullptr;
    const auto* data = content.weights.data() + packed->offset;
    if (content_hash(data, bytes) != packed->content_hash) {
      statistics().packages.refused.count(
          "packed weights are not what they were when they were saved: they are packed anew");
      return nullptr;
    }
    return std::make_shared<PrebuiltBuffer>(
        PrebuiltBuffer{data, packed->parameters, content.weights_owner});
  }
};

class PackagedCode final : public PackagedSpecialisation {
public:
  size_t image = 0;
  std::string entry, workspace, fault;
  int64_t workspace_bytes = 0;
  std::vector<PackagedPack> packs;
  std::vector<PackagedInput> inputs;
  std::vector<OutputBinding> outputs;
  std::vector<std::string> kernels;
  std::shared_ptr<const PackagedContent> content;

  std::shared_ptr<const Executable> load(const Subgraph& subgraph,
                                         size_t num_inputs) const override {
    const auto num_outputs = subgraph.num_outputs().value_or(outputs.size());
    TORCH_CHECK(outputs.size() == num_outputs, "the code has ", outputs.size(),
                " outputs, the group ", num_outputs);
    CodeNames names{entry, workspace, fault, {}};
    for (const auto& pack : packs)
      names.packs.push_back(pack.symbol);
    const auto loaded = load_device_code(content->images.at(image), names);
    CompiledCode code{loaded.entry,
                      {},
                      workspace_bytes,
                      loaded.workspace,
                      loaded.owner,
                      loaded.fault,
                      std::make_shared<KernelTimes>(kernels)};
    code.competes_with_eager = loaded.competes_with_eager;
    code.context = loaded.context;
    code.asynchronous = {loaded.wait, loaded.forget, loaded.fault};
    for (size_t i = 0; i < packs.size(); ++i)
      code.packs.push_back({loaded.packs[i], packs[i].recipe, packs[i].arguments, packs[i].bytes,
                            loaded.releases.empty() ? nullptr : loaded.releases[i],
                            packs[i].find_prebuilt(*content), loaded.context});
    std::vector<InputBinding> bindings;
    for (const auto& input : inputs)
      bindings.push_back(input.bind(subgraph, num_inputs));
    return std::make_shared<Executable>(std::move(code), std::move(bindings), outputs);
  }
};

// Upper limit for numbers of bytes in a package: more than the memory of any machine.
constexpr int64_t max_bytes = int64_t(1) << 40;

int64_t read_bytes(ByteReader& reader) {
  const auto bytes = reader.integer();
  if (bytes < 0 || bytes > max_bytes) throw BadBytes("invalid number of bytes");
  return bytes;
}

template <class Kind> Kind kind(ByteReader& reader, size_t count) {
  const auto number = reader.byte();
  if (number >= count) throw BadBytes("unknown kind " + std::to_string(number));
  return static_cast<Kind>(number);
}

std::optional<size_t> optional_count(ByteReader& reader) {
  const auto number = reader.integer();
  return number < 0 ? std::nullopt : std::optional(static_cast<size_t>(number));
}

// Read a dtype. Throw BadBytes if programs cannot compute tensors of it.
c10::ScalarType read_dtype(ByteReader& reader) {
  const auto dtype =
      kind<c10::ScalarType>(reader, static_cast<size_t>(c10::ScalarType::NumOptions));
  const bool is_computed = dtype == at::kBool || at::isFloatingType(dtype) ||
                           at::isIntegralType(dtype, false) || at::isComplexType(dtype);
  if (!is_computed) throw BadBytes("nothing is computed of dtype " + std::string(toString(dtype)));
  return dtype;
}

// Throw BadBytes unless memory can hold a tensor of these sizes and strides. The stride of a
// dimension of size 1 is not used, but it must be within the limit, too.
void check_layout(const OutputTensor& tensor) {
  int64_t end = 0;
  for (size_t i = 0; i < tensor.sizes.size(); ++i) {
    const auto size = tensor.sizes[i], stride = tensor.strides[i];
    int64_t span = 0;
    if (size < 0 || stride < 0 ||
        __builtin_mul_overflow(std::max<int64_t>(size - 1, 1), stride, &span) ||
        __builtin_add_overflow(end, span, &end) || end > max_bytes)
      throw BadBytes("invalid sizes or strides");
  }
}

// `symbols` is here and below the number of symbols, including the computed ones.
OutputTensor read_tensor(ByteReader& reader, size_t symbols) {
  OutputTensor tensor{};
  tensor.result = reader.count();
  tensor.dtype = read_dtype(reader);
  tensor.sizes = reader.integers();
  tensor.strides = reader.integers();
  if (tensor.sizes.size() != tensor.strides.size())
    throw BadBytes("a tensor has more sizes than strides, or fewer");
  check_layout(tensor);
  tensor.varying_sizes = read_varying(reader, tensor.sizes.size(), symbols);
  tensor.varying_strides = read_varying(reader, tensor.strides.size(), symbols);
  if (reader.truth()) {
    if (tensor.dtype != at::kByte && tensor.dtype != at::kChar)
      throw BadBytes("a quantised tensor is not of integers of 8 bits");
    const auto scale = reader.real();
    tensor.quantisation = Quantisation{scale, reader.integer()};
  }
  return tensor;
}

OutputList read_numbers(ByteReader& reader, size_t symbols) {
  OutputList list{reader.integers(), {}};
  list.varying = read_varying(reader, list.numbers.size(), symbols);
  return list;
}

c10::List<bool> read_booleans(ByteReader& reader) {
  c10::List<bool> list;
  for (const auto flag : reader.list([&] { return reader.byte(); }))
    list.push_back(flag != 0);
  return list;
}

// Read a value. Its kind is the index of its reader.
c10::IValue read_value(ByteReader& reader) {
  using Read = c10::IValue (*)(ByteReader&);
  static constexpr Read readers[] = {
      [](ByteReader&) { return c10::IValue(); },
      [](ByteReader& from) { return c10::IValue(from.truth()); },
      [](ByteReader& from) { return c10::IValue(from.integer()); },
      [](ByteReader& from) { return c10::IValue(from.real()); },
      [](ByteReader& from) { return c10::IValue(from.text()); },
      [](ByteReader& from) { return c10::IValue(c10::Device(from.text())); },
      [](ByteReader& from) { return c10::IValue(from.integers()); },
      [](ByteReader& from) { return c10::IValue(read_booleans(from)); },
      [](ByteReader& from) { return c10::IValue(from.list([&] { return from.real(); })); },
  };
  return readers[kind<size_t>(reader, std::size(readers))](reader);
}

OutputBinding read_output(ByteReader& reader, size_t symbols) {
  enum Kind : uint8_t { tensor, numbers, number, constant, count };
  const auto output = kind<Kind>(reader, count);
  if (output == tensor) return read_tensor(reader, symbols);
  if (output == numbers) return read_numbers(reader, symbols);
  if (output == number) return read_polynomial(reader, symbols);
  return read_value(reader);
}

PackagedInput read_input(ByteReader& reader, size_t symbols) {
  constexpr size_t sources = 5;
  PackagedInput input{};
  input.source = kind<Source>(reader, sources);
  input.index = reader.count();
  if (input.source == Source::size && input.index >= symbols)
    throw BadBytes("the code takes an unknown symbol");
  input.element = optional_count(reader);
  input.permutation = reader.integers();
  input.unversioned = reader.truth();
  return input;
}

PackedWeight read_packed(ByteReader& reader, int64_t bytes, const PackagedContent& content) {
  constexpr size_t alignment = 64;
  PackedWeight packed{reader.count(), std::bit_cast<uint64_t>(reader.integer()), {}};
  packed.parameters = reader.list([&] { return std::bit_cast<uint64_t>(reader.integer()); });
  if (packed.offset % alignment != 0)
    throw BadBytes("a packed weight is not aligned to cache lines");
  const auto end = packed.offset + static_cast<size_t>(bytes);
  if (!content.weights.empty() && (end < packed.offset || end > content.weights.size()))
    throw BadBytes("a packed weight goes beyond the others");
  return packed;
}

PackagedPack read_pack(ByteReader& reader, const PackagedContent& content) {
  PackagedPack pack;
  pack.symbol = reader.text();
  if (pack.symbol.empty()) throw BadBytes("a pack has no function");
  pack.recipe = reader.text();
  pack.arguments = reader.counts();
  pack.bytes = read_bytes(reader);
  if (reader.truth()) pack.packed = read_packed(reader, pack.bytes, content);
  return pack;
}

Pattern read_pattern(ByteReader& reader, const Signature& typical) {
  Pattern pattern{typical, {}, reader.count(), false};
  if (pattern.symbols > max_symbols) throw BadBytes("there are too many symbols");
  for (const auto place : reader.integers()) {
    if (place < fixed || place >= static_cast<int64_t>(pattern.symbols))
      throw BadBytes("an input has an unknown symbol");
    pattern.places.push_back(static_cast<int32_t>(place));
  }
  if (pattern.places.size() != typical.size())
    throw BadBytes("a pattern does not fit its signature");
  return pattern;
}

// Read the part that all kinds of specialisation have. Return the number of symbols.
size_t read_head(ByteReader& reader, PackagedSpecialisation& specialisation) {
  std::ranges::copy(reader.bytes(specialisation.structure.size()),
                    specialisation.structure.begin());
  const auto signature = reader.integers();
  specialisation.signature.append(signature.begin(), signature.end());
  for (const auto& [input, bits] : reader.list([&] {
         const auto input = reader.count();
         return std::pair(input, reader.integer());
       }))
    specialisation.bits.emplace_back(input, bits);
  if (!reader.truth()) return 0;
  specialisation.pattern = read_pattern(reader, specialisation.signature);
  specialisation.sizes = read_size_program(reader, specialisation.pattern->symbols);
  return specialisation.pattern->symbols + specialisation.sizes.computed();
}

// Specialisation without code: the group leaves out some nodes and runs in groups around them.
class PackagedDivision final : public PackagedSpecialisation {
public:
  std::shared_ptr<const Executable> load(const Subgraph&, size_t) const override { return nullptr; }
};

void read_code(ByteReader& reader, size_t symbols, PackagedCode& code) {
  code.image = reader.count();
  if (code.image >= code.content->images.size())
    throw BadBytes("a specialisation has an unknown image");
  code.entry = reader.text();
  code.workspace = reader.text();
  code.fault = reader.text();
  code.workspace_bytes = read_bytes(reader);
  code.packs = reader.list([&] { return read_pack(reader, *code.content); });
  code.inputs = reader.list([&] { return read_input(reader, symbols); });
  code.outputs = reader.list([&] { return read_output(reader, symbols); });
  code.kernels = reader.list([&] { return reader.text(); });
}

} // namespace

std::shared_ptr<const PackagedSpecialisation>
read_specialisation(ByteReader& reader, const std::shared_ptr<const PackagedContent>& content) {
  if (reader.truth()) {
    auto division = std::make_shared<PackagedDivision>();
    read_head(reader, *division);
    if (division->pattern) throw BadBytes("a division is dynamic");
    division->excluded_nodes = reader.counts();
    return division;
  }
  auto code = std::make_shared<PackagedCode>();
  code->content = content;
  const auto symbols = read_head(reader, *code);
  read_code(reader, symbols, *code);
  return code;
}

} // namespace torchmdla
