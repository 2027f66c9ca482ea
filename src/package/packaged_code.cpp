#include "packaged_code.h"

#include "runtime/device_calls.h"
#include "runtime/image.h"
#include "runtime/kernel_times.h"
#include "size_fields.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

namespace torchmdla {

namespace {

using Source = InputBinding::Source;

// A constant of the subgraph, or an input, as an argument.
struct PackagedInput {
  Source source;
  size_t index;
  std::optional<size_t> element;
  std::vector<int64_t> permutation; // of a constant
  bool unversioned;

  InputBinding bind(const Subgraph& subgraph) const {
    if (source != Source::constant) return {source, index, element, {}, unversioned};
    const auto tensor = subgraph.constant(index, element).detach();
    TORCH_CHECK(static_cast<size_t>(tensor.dim()) == permutation.size(),
                "a constant has another number of dimensions");
    return {source, 0, std::nullopt, tensor.permute(permutation).contiguous(), unversioned};
  }
};

struct PackagedPack {
  std::string symbol, recipe;
  std::vector<size_t> arguments;
  int64_t bytes;
};

struct ImageOwner : CodeOwner {
  explicit ImageOwner(std::span<const std::byte> data) : image(data, address_of_symbol) {}
  const Image image;
};

// A function of an image; none for an empty name.
template <class Function> Function function(const Image& image, const std::string& name) {
  if (name.empty()) return nullptr;
  auto* address = image.symbol(name);
  TORCH_CHECK(address, "the code has no function ", name);
  return reinterpret_cast<Function>(address);
}

class PackagedCode final : public PackagedSpecialisation {
public:
  size_t image = 0;
  std::string entry, workspace, fault;
  int64_t workspace_bytes = 0;
  std::vector<PackagedPack> packs;
  std::vector<PackagedInput> inputs;
  std::vector<OutputBinding> outputs;
  std::vector<std::string> kernels;
  std::shared_ptr<const PackagedImages> images;

  std::shared_ptr<const Executable> load(const Subgraph& subgraph) const override {
    const auto owner = std::make_shared<ImageOwner>(images->images.at(image));
    const auto& mapped = owner->image;
    CompiledCode code{function<Entry>(mapped, entry),
                      {},
                      workspace_bytes,
                      function<int64_t (*)(const int64_t*)>(mapped, workspace),
                      owner,
                      function<const char* (*)()>(mapped, fault),
                      std::make_shared<KernelTimes>(kernels)};
    for (const auto& [symbol, recipe, arguments, bytes] : packs)
      code.packs.push_back({function<Entry>(mapped, symbol), recipe, arguments, bytes});
    std::vector<InputBinding> bindings;
    for (const auto& input : inputs)
      bindings.push_back(input.bind(subgraph));
    return std::make_shared<Executable>(std::move(code), std::move(bindings), outputs);
  }
};

// --- reading

template <class Kind> Kind kind(ByteReader& reader, size_t count) {
  const auto number = reader.byte();
  if (number >= count) throw BadBytes("there is no kind " + std::to_string(number));
  return static_cast<Kind>(number);
}

std::optional<size_t> optional_count(ByteReader& reader) {
  const auto number = reader.integer();
  return number < 0 ? std::nullopt : std::optional(static_cast<size_t>(number));
}

OutputTensor read_tensor(ByteReader& reader) {
  OutputTensor tensor{};
  tensor.result = reader.count();
  tensor.dtype = kind<c10::ScalarType>(reader, static_cast<size_t>(c10::ScalarType::NumOptions));
  tensor.sizes = reader.integers();
  tensor.strides = reader.integers();
  if (tensor.sizes.size() != tensor.strides.size())
    throw BadBytes("a tensor has more sizes than strides, or fewer");
  tensor.varying_sizes = read_varying(reader, tensor.sizes.size());
  tensor.varying_strides = read_varying(reader, tensor.strides.size());
  if (reader.truth()) {
    const auto scale = reader.real();
    tensor.quantisation = Quantisation{scale, reader.integer()};
  }
  return tensor;
}

OutputList read_numbers(ByteReader& reader) {
  OutputList list{reader.integers(), {}};
  list.varying = read_varying(reader, list.numbers.size());
  return list;
}

c10::IValue read_value(ByteReader& reader) {
  enum Tag : uint8_t {
    none,
    boolean,
    integer,
    real,
    text,
    device,
    integers,
    booleans,
    reals,
    count
  };
  switch (kind<Tag>(reader, count)) {
  case none:
    return {};
  case boolean:
    return reader.truth();
  case integer:
    return reader.integer();
  case real:
    return reader.real();
  case text:
    return reader.text();
  case device:
    return c10::Device(reader.text());
  case integers:
    return reader.integers();
  case booleans: {
    c10::List<bool> list;
    for (const auto flag : reader.list([&] { return reader.byte(); }))
      list.push_back(flag != 0);
    return list;
  }
  case reals:
    return reader.list([&] { return reader.real(); });
  case count:
    break;
  }
  return {};
}

OutputBinding read_output(ByteReader& reader) {
  enum Kind : uint8_t { tensor, numbers, number, constant, count };
  switch (kind<Kind>(reader, count)) {
  case tensor:
    return read_tensor(reader);
  case numbers:
    return read_numbers(reader);
  case number:
    return read_polynomial(reader);
  case constant:
  case count:
    break;
  }
  return read_value(reader);
}

PackagedInput read_input(ByteReader& reader) {
  constexpr size_t sources = 5;
  PackagedInput input{};
  input.source = kind<Source>(reader, sources);
  input.index = reader.count();
  input.element = optional_count(reader);
  input.permutation = reader.integers();
  input.unversioned = reader.truth();
  return input;
}

PackagedPack read_pack(ByteReader& reader) {
  PackagedPack pack;
  pack.symbol = reader.text();
  pack.recipe = reader.text();
  pack.arguments = reader.counts();
  pack.bytes = static_cast<int64_t>(reader.count());
  return pack;
}

Pattern read_pattern(ByteReader& reader, const Signature& typical) {
  Pattern pattern{typical, {}, reader.count(), false};
  if (pattern.symbols > most_symbols) throw BadBytes("there are too many symbols");
  for (const auto place : reader.integers()) {
    if (place < fixed || place >= static_cast<int64_t>(pattern.symbols))
      throw BadBytes("an input is of a symbol that there is not");
    pattern.places.push_back(static_cast<int32_t>(place));
  }
  if (pattern.places.size() != typical.size()) throw BadBytes("a pattern is not of its signature");
  return pattern;
}

void read_head(ByteReader& reader, PackagedSpecialisation& made) {
  std::ranges::copy(reader.bytes(made.structure.size()), made.structure.begin());
  const auto signature = reader.integers();
  made.signature.append(signature.begin(), signature.end());
  for (const auto& [input, bits] : reader.list([&] {
         const auto input = reader.count();
         return std::pair(input, reader.integer());
       }))
    made.bits.emplace_back(input, bits);
  if (!reader.truth()) return;
  made.pattern = read_pattern(reader, made.signature);
  made.sizes = read_size_program(reader, made.pattern->symbols);
}

// One that compiles nothing.
class PackagedDivision final : public PackagedSpecialisation {
public:
  std::shared_ptr<const Executable> load(const Subgraph&) const override { return nullptr; }
};

void read_code(ByteReader& reader, PackagedCode& made) {
  made.image = reader.count();
  if (made.image >= made.images->images.size())
    throw BadBytes("a specialisation is of an image that there is not");
  made.entry = reader.text();
  made.workspace = reader.text();
  made.fault = reader.text();
  made.workspace_bytes = static_cast<int64_t>(reader.count());
  made.packs = reader.list([&] { return read_pack(reader); });
  made.inputs = reader.list([&] { return read_input(reader); });
  made.outputs = reader.list([&] { return read_output(reader); });
  made.kernels = reader.list([&] { return reader.text(); });
}

} // namespace

std::shared_ptr<const PackagedSpecialisation>
read_specialisation(ByteReader& reader, const std::shared_ptr<const PackagedImages>& images) {
  if (reader.truth()) {
    auto made = std::make_shared<PackagedDivision>();
    read_head(reader, *made);
    made->left_out = reader.counts();
    return made;
  }
  auto made = std::make_shared<PackagedCode>();
  made->images = images;
  read_head(reader, *made);
  read_code(reader, *made);
  return made;
}

} // namespace torchmdla
