#include "content.h"

#include "base/byte_reader.h"
#include "codeimage/size_fields.h"

#include <algorithm>
#include <ranges>

namespace torchmdla::native {

namespace {

// Sizes of 0 and 1 are never symbols, because they change broadcasting and strides.
constexpr int64_t least_symbol = 2;
constexpr size_t max_symbols = 4;
constexpr uint64_t weight_alignment = 64;

void check(bool holds, const char* reason) {
  if (!holds) throw BadBytes(reason);
}

Numbers at(const Numbers& numbers, const Varying& varying, std::span<const int64_t> symbols) {
  auto values = numbers;
  for (const auto& [place, polynomial] : varying)
    values[place] = polynomial.at(symbols);
  return values;
}

// Reader of a file's content. Each part is checked against the parts before it.
class ContentReader {
public:
  ContentReader(std::span<const std::byte> bytes, uint64_t weight_bytes)
      : reader_(bytes), weight_bytes_(weight_bytes) {}

  Content read() {
    const auto features = reader_.list([&] { return reader_.text(); });
    content_.features = {features.begin(), features.end()};
    content_.inputs = reader_.list([&] { return read_port(); });
    content_.outputs = reader_.list([&] { return read_port(); });
    content_.weights = reader_.list([&] { return read_weight(); });
    content_.images = reader_.list([&] { return reader_.bytes(reader_.count()); });
    content_.specialisations = reader_.list([&] { return read_specialisation(); });
    check(!content_.specialisations.empty(), "it has no code");
    check(reader_.at_end(), "it is longer than its length field");
    return std::move(content_);
  }

private:
  Port read_port() {
    Port port{reader_.text(), reader_.byte(), reader_.integers()};
    check(element_bytes(port.dtype) > 0, "a tensor has an unknown dtype");
    return port;
  }

  Weight read_weight() {
    Weight weight{reader_.count(), reader_.count(), {}};
    std::ranges::copy(reader_.bytes(weight.digest.size()), weight.digest.begin());
    check(weight.offset % weight_alignment == 0, "a weight is not aligned");
    check(weight.offset <= weight_bytes_ && weight.bytes <= weight_bytes_ - weight.offset,
          "the file is cut short: weights are missing");
    return weight;
  }

  Specialisation read_specialisation() {
    Specialisation specialisation{};
    specialisation.image = index(content_.images.size());
    specialisation.entry = reader_.text();
    specialisation.workspace = reader_.text();
    specialisation.workspace_bytes = reader_.count();
    specialisation.symbols = reader_.count();
    check(specialisation.symbols <= max_symbols, "there are too many symbols");
    specialisation.inputs = reader_.list([&] { return read_input(specialisation.symbols); });
    check_ranks(specialisation.inputs, content_.inputs);
    known_symbols_ = specialisation.symbols;
    if (reader_.truth()) {
      specialisation.sizes = read_size_program(reader_, specialisation.symbols);
      known_symbols_ += specialisation.sizes->computed();
    }
    specialisation.arguments = reader_.list([&] { return read_argument(); });
    specialisation.packs = reader_.list([&] { return index(content_.weights.size()); });
    specialisation.outputs = reader_.list([&] { return read_output(); });
    check_ranks(specialisation.outputs, content_.outputs);
    specialisation.owners = owners_of(specialisation.outputs);
    return specialisation;
  }

  size_t index(size_t count) {
    const auto number = reader_.count();
    check(number < count, "a name is unknown");
    return number;
  }

  InputLayout read_input(size_t symbols) {
    InputLayout input{reader_.integers(), reader_.integers(), reader_.integers()};
    const auto rank = input.sizes.size();
    check(input.symbols.size() == rank && input.permutation.size() == rank,
          "an input has more sizes than strides, or fewer");
    for (const auto symbol : input.symbols)
      check(symbol >= InputLayout::fixed && symbol < static_cast<int64_t>(symbols),
            "an input has an unknown symbol");
    auto sorted = input.permutation;
    std::ranges::sort(sorted);
    for (size_t i = 0; i < rank; ++i)
      check(sorted[i] == static_cast<int64_t>(i),
            "an input's order of dimensions is not a permutation");
    return input;
  }

  Argument read_argument() {
    constexpr uint8_t sources = 4;
    const auto source = reader_.byte();
    check(source < sources, "an argument comes from nowhere");
    const size_t counts[sources] = {content_.inputs.size(), content_.weights.size(), known_symbols_,
                                    /*unused=*/1};
    return {static_cast<Argument::Source>(source), index(counts[source])};
  }

  OutputLayout read_output() {
    OutputLayout output{reader_.count(), reader_.integers(), reader_.integers(), {}, {}};
    check(output.sizes.size() == output.strides.size(),
          "a tensor has more sizes than strides, or fewer");
    output.varying_sizes = read_varying(reader_, output.sizes.size(), known_symbols_);
    output.varying_strides = read_varying(reader_, output.strides.size(), known_symbols_);
    return output;
  }

  template <class Layout>
  static void check_ranks(const std::vector<Layout>& layouts, const std::vector<Port>& ports) {
    check(layouts.size() == ports.size(), "code is for another number of tensors");
    for (size_t i = 0; i < ports.size(); ++i)
      check(layouts[i].sizes.size() == ports[i].sizes.size(), "code is for another rank");
  }

  static std::vector<size_t> owners_of(const std::vector<OutputLayout>& outputs) {
    std::vector<size_t> owners(outputs.size(), outputs.size());
    size_t results = 0;
    for (size_t i = outputs.size(); i-- > 0;) {
      check(outputs[i].result < outputs.size(), "there are more results than outputs");
      owners[outputs[i].result] = i;
      results = std::max(results, outputs[i].result + 1);
    }
    owners.resize(results);
    for (const auto owner : owners)
      check(owner < outputs.size(), "a result is not an output");
    return owners;
  }

  ByteReader reader_;
  uint64_t weight_bytes_;
  size_t known_symbols_ = 0; // including the computed ones
  Content content_;
};

} // namespace

Numbers OutputLayout::sizes_at(std::span<const int64_t> symbols) const {
  return at(sizes, varying_sizes, symbols);
}

Numbers OutputLayout::strides_at(std::span<const int64_t> symbols) const {
  return at(strides, varying_strides, symbols);
}

std::optional<Numbers> Specialisation::symbols_at(std::span<const TensorView> tensors) const {
  Numbers values(symbols, 0);
  for (size_t i = 0; i < inputs.size(); ++i)
    for (size_t k = 0; k < inputs[i].sizes.size(); ++k) {
      const auto size = tensors[i].sizes[k];
      const auto symbol = inputs[i].symbols[k];
      if (symbol == InputLayout::fixed) {
        if (size != inputs[i].sizes[k]) return std::nullopt;
        continue;
      }
      auto& value = values[static_cast<size_t>(symbol)];
      if (value == 0) value = size;
      if (value != size || size < least_symbol) return std::nullopt;
    }
  if (sizes && !sizes->extend(values)) return std::nullopt;
  return values;
}

Content read_content(std::span<const std::byte> bytes, uint64_t weight_bytes) {
  return ContentReader(bytes, weight_bytes).read();
}

} // namespace torchmdla::native
