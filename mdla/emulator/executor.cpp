#include "executor.h"

#include "products.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

namespace mdla {
namespace {

// ---- number formats ----

template <class Element> constexpr bool kFixed = !std::is_same_v<Element, float>;
template <class Element> using Accumulator = std::conditional_t<kFixed<Element>, int64_t, float>;

// Call visit with a null pointer to the element type of a precision.
template <class Visit> void with_element(Precision precision, Visit visit) {
  switch (precision) {
  case Precision::kFloat32:
    return visit(static_cast<float*>(nullptr));
  case Precision::kFixed8:
    return visit(static_cast<int8_t*>(nullptr));
  default:
    return visit(static_cast<int16_t*>(nullptr));
  }
}

// ---- walking over tiles and memory together ----

struct Axis {
  int64_t count, tile_step, memory_step;
};

// Merge axes, so that the same walk has few and long axes. The last axis is the innermost.
std::vector<Axis> compact(const std::vector<Axis>& axes) {
  std::vector<Axis> merged;
  for (const Axis& axis : axes) {
    if (axis.count == 1) continue;
    bool is_adjacent = !merged.empty() && merged.back().tile_step == axis.tile_step * axis.count &&
                       merged.back().memory_step == axis.memory_step * axis.count;
    if (is_adjacent)
      merged.back() = {merged.back().count * axis.count, axis.tile_step, axis.memory_step};
    else
      merged.push_back(axis);
  }
  if (merged.empty()) merged.push_back({1, 1, 1});
  return merged;
}

// Call run(tile offset, memory offset, innermost axis) for all positions of the other axes.
template <class Visit> void walk(const std::vector<Axis>& axes, Visit run) {
  for (const Axis& axis : axes)
    if (axis.count == 0) return;
  std::vector<int64_t> at(axes.size(), 0);
  int64_t tile = 0, memory = 0;
  while (true) {
    run(tile, memory, axes.back());
    int64_t axis = static_cast<int64_t>(axes.size()) - 2;
    for (; axis >= 0; --axis) {
      tile += axes[axis].tile_step, memory += axes[axis].memory_step;
      if (++at[axis] < axes[axis].count) break;
      tile -= at[axis] * axes[axis].tile_step, memory -= at[axis] * axes[axis].memory_step;
      at[axis] = 0;
    }
    if (axis < 0) return;
  }
}

// ---- one cluster ----

template <class Element> class Cluster {
public:
  explicit Cluster(uint8_t* memory) : memory_(memory) {}

  void operator()(const Load& load);
  void operator()(const Accumulate& accumulate);
  void operator()(const Convolve& convolve);
  void operator()(const Pool& pool);
  void operator()(const Divide& divide);
  void operator()(const Move& move);
  void operator()(const Combine& combine);
  void operator()(const Activate& activate);
  void operator()(const Softmax& softmax);
  void operator()(const Interpolate& interpolate);
  void operator()(const Store& store);

private:
  using Sum = Accumulator<Element>;

  template <class T = Element> T* at(int64_t address) const {
    return reinterpret_cast<T*>(memory_ + address);
  }
  void gather(const Convolve& convolve, const Element* maps, int64_t first, int64_t count,
              int64_t columns);
  template <class Wide>
  void multiply(const Convolve& convolve, int64_t group, int64_t first, int64_t count,
                int64_t columns, std::vector<Wide>& products);
  bool narrow_sums_fit(const Convolve& convolve, int64_t depth) const;

  uint8_t* memory_;
  std::vector<Element> maps_, weights_, columns_;
  std::vector<Sum> accumulators_;
  std::vector<float> floats_;
  std::vector<int32_t> integers_;
  std::vector<double> doubles_;
};

template <class Element> void Cluster<Element>::operator()(const Load& load) {
  std::vector<Element>& buffer = load.unit == Unit::kMaps ? maps_ : weights_;
  int64_t count = elements(load.dims);
  bool whole = true, any = true;
  std::vector<Axis> axes;
  int64_t step = count, start = 0;
  for (int axis = 0; axis < kRank; ++axis) {
    int64_t size = load.dims[axis], extent = load.extent[axis];
    step /= size;
    whole = whole && extent == size;
    any = any && extent > 0;
    start += load.offset[axis] * step;
    // Only a single element can have a spread larger than the tile; it has no effect then.
    axes.push_back({extent, step * std::min(load.spread[axis], size), load.strides[axis]});
  }
  buffer.resize(count);
  if (!whole) std::fill(buffer.begin(), buffer.end(), static_cast<Element>(load.fill));
  if (!any) return;
  const Element* memory = at(load.address);
  walk(compact(axes), [&](int64_t tile, int64_t from, const Axis& run) {
    Element* to = buffer.data() + start + tile;
    if (run.tile_step == 1 && run.memory_step == 1)
      std::memcpy(to, memory + from, run.count * sizeof(Element));
    else
      for (int64_t index = 0; index < run.count; ++index)
        to[index * run.tile_step] = memory[from + index * run.memory_step];
  });
}

template <class Element> void Cluster<Element>::operator()(const Accumulate& accumulate) {
  accumulators_.assign(accumulate.channels * accumulate.pixels, 0);
  if (accumulate.address < 0) return;
  const Sum* bias = at<Sum>(accumulate.address);
  for (int64_t channel = 0; channel < accumulate.channels; ++channel)
    std::fill_n(accumulators_.data() + channel * accumulate.pixels, accumulate.pixels,
                bias[channel]);
}

// Set columns_[cin · kernel, columns] to the operands of `count` outputs, beginning at `first`.
template <class Element>
void Cluster<Element>::gather(const Convolve& convolve, const Element* maps, int64_t first,
                              int64_t count, int64_t columns) {
  const Window& window = convolve.window;
  int64_t row = 0;
  auto gather_row = [&](const Element* plane, int64_t kd, int64_t kh, int64_t kw) {
    Element* to = columns_.data() + row++ * columns;
    for (int64_t pixel = first; pixel < first + count;) {
      int64_t w = pixel % window.out[2], h = pixel / window.out[2] % window.out[1],
              d = pixel / (window.out[2] * window.out[1]);
      int64_t run = std::min(window.out[2] - w, first + count - pixel);
      int64_t in_d = d * window.stride[0] + kd * window.dilation[0];
      int64_t in_h = h * window.stride[1] + kh * window.dilation[1];
      const Element* from = plane + (in_d * window.in[1] + in_h) * window.in[2] +
                            w * window.stride[2] + kw * window.dilation[2];
      if (window.stride[2] == 1)
        std::memcpy(to, from, run * sizeof(Element));
      else
        for (int64_t index = 0; index < run; ++index)
          to[index] = from[index * window.stride[2]];
      to += run, pixel += run;
    }
    std::fill(to, columns_.data() + row * columns, Element{0});
  };
  for (int64_t channel = 0; channel < convolve.cin; ++channel)
    for (int64_t kd = 0; kd < window.kernel[0]; ++kd)
      for (int64_t kh = 0; kh < window.kernel[1]; ++kh)
        for (int64_t kw = 0; kw < window.kernel[2]; ++kw)
          gather_row(maps + channel * elements(window.in), kd, kh, kw);
}

template <class Element>
template <class Wide>
void Cluster<Element>::multiply(const Convolve& convolve, int64_t group, int64_t first,
                                int64_t count, int64_t columns, std::vector<Wide>& products) {
  int64_t depth = convolve.cin * elements(convolve.window.kernel),
          pixels = elements(convolve.window.out);
  products.resize(convolve.cout * columns);
  product(weights_.data() + group * convolve.cout * depth, columns_.data(), products.data(),
          convolve.cout, depth, columns);
  for (int64_t channel = 0; channel < convolve.cout; ++channel) {
    Sum* sums = accumulators_.data() + (group * convolve.cout + channel) * pixels + first;
    const Wide* product_row = products.data() + channel * columns;
    for (int64_t index = 0; index < count; ++index)
      sums[index] = added(sums[index], static_cast<Sum>(product_row[index]));
  }
}

// Return whether every sum of products fits in 32 bits. The bound is the largest input times the
// largest sum of absolute weights of an output.
template <class Element>
bool Cluster<Element>::narrow_sums_fit(const Convolve& convolve, int64_t depth) const {
  int32_t largest = 0;
  for (Element value : maps_)
    largest = std::max(largest, std::abs(static_cast<int32_t>(value)));
  int64_t heaviest = 0;
  for (int64_t row = 0; row < convolve.groups * convolve.cout; ++row) {
    int64_t weight = 0;
    for (int64_t k = 0; k < depth; ++k)
      weight += std::abs(static_cast<int32_t>(weights_[row * depth + k]));
    heaviest = std::max(heaviest, weight);
  }
  return heaviest * largest <= std::numeric_limits<int32_t>::max();
}

template <class Element> void Cluster<Element>::operator()(const Convolve& convolve) {
  const Window& window = convolve.window;
  int64_t plane = elements(window.in), pixels = elements(window.out),
          depth = convolve.cin * elements(window.kernel);
  // Number of gathered elements that stay in the cache of a core.
  constexpr int64_t kGathered = 1 << 16;
  int64_t columns = std::clamp<int64_t>(kGathered / depth / kColumnBlock, 1, 16) * kColumnBlock;
  columns = pixels == 1 ? 1 : std::min(columns, ceil_div(pixels, kColumnBlock) * kColumnBlock);
  columns_.resize(depth * columns);
  bool narrow = true;
  if constexpr (kFixed<Element>) narrow = narrow_sums_fit(convolve, depth);
  for (int64_t group = 0; group < convolve.groups; ++group)
    for (int64_t first = 0; first < pixels; first += columns) {
      int64_t count = std::min(columns, pixels - first);
      gather(convolve, maps_.data() + group * convolve.cin * plane, first, count, columns);
      if constexpr (!kFixed<Element>)
        multiply(convolve, group, first, count, columns, floats_);
      else if (narrow)
        multiply(convolve, group, first, count, columns, integers_);
      else
        multiply(convolve, group, first, count, columns, doubles_);
    }
}

template <class Element> void Cluster<Element>::operator()(const Pool& pool) {
  const Window& window = pool.window;
  bool largest = pool.kind == PoolKind::kMax;
  int64_t plane = elements(window.in);
  Sum none = 0;
  if (largest)
    none = kFixed<Element> ? std::numeric_limits<Sum>::lowest()
                           : -std::numeric_limits<float>::infinity();
  if (pool.first) accumulators_.assign(pool.planes * elements(window.out), none);
  Sum* sum = accumulators_.data();
  auto add_window = [&](const Element* from) {
    for (int64_t kd = 0; kd < window.kernel[0]; ++kd)
      for (int64_t kh = 0; kh < window.kernel[1]; ++kh)
        for (int64_t kw = 0; kw < window.kernel[2]; ++kw) {
          Sum value = from[(kd * window.dilation[0] * window.in[1] + kh * window.dilation[1]) *
                               window.in[2] +
                           kw * window.dilation[2]];
          *sum = largest ? std::max(*sum, value) : added(*sum, value);
        }
    ++sum;
  };
  for (int64_t index = 0; index < pool.planes; ++index)
    for (int64_t d = 0; d < window.out[0]; ++d)
      for (int64_t h = 0; h < window.out[1]; ++h)
        for (int64_t w = 0; w < window.out[2]; ++w)
          add_window(maps_.data() + index * plane +
                     (d * window.stride[0] * window.in[1] + h * window.stride[1]) * window.in[2] +
                     w * window.stride[2]);
}

template <class Element> void Cluster<Element>::operator()(const Divide& divide) {
  int64_t up = std::max<int64_t>(divide.gain, 0), down = std::max<int64_t>(-divide.gain, 0);
  Sum* sum = accumulators_.data();
  for (int64_t plane = 0; plane < divide.planes; ++plane)
    for (int64_t depth : divide.depth)
      for (int64_t height : divide.height)
        for (int64_t width : divide.width) {
          int64_t by = depth * height * width;
          if constexpr (!kFixed<Element>)
            *sum /= static_cast<float>(by);
          else
            *sum = divided(shifted(*sum, -up), by << down);
          ++sum;
        }
}

template <class Element> void Cluster<Element>::operator()(const Move& move) {
  accumulators_.assign(maps_.begin(), maps_.begin() + move.count);
}

template <class Element> void Cluster<Element>::operator()(const Combine& combine) {
  accumulators_.assign(combine.count, 0);
  Sum left_factor = static_cast<Sum>(int64_t{1} << combine.maps_shift);
  Sum right_factor = static_cast<Sum>(int64_t{1} << combine.weights_shift);
  auto each = [&](auto operation) {
    for (int64_t index = 0; index < combine.count; ++index)
      accumulators_[index] = operation(maps_[index] * left_factor, weights_[index] * right_factor);
  };
  switch (combine.kind) {
  case CombineKind::kAdd:
    return each([](Sum left, Sum right) { return left + right; });
  case CombineKind::kSub:
    return each([](Sum left, Sum right) { return left - right; });
  case CombineKind::kMul:
    return each([](Sum left, Sum right) { return left * right; });
  }
}

template <class Element> void Cluster<Element>::operator()(const Activate& activate) {
  auto each = [&](auto function) {
    for (int64_t index = 0; index < activate.count; ++index) {
      Sum& sum = accumulators_[index];
      if constexpr (!kFixed<Element>)
        sum = static_cast<float>(function(static_cast<double>(sum)));
      else
        sum = to_fixed(function(from_fixed(static_cast<double>(sum), activate.fraction_in)),
                       activate.fraction_out, -kAccumulatorLimit, kAccumulatorLimit);
    }
  };
  double slope = activate.parameter;
  switch (activate.function) {
  case Function::kLeakyRelu:
    return each([slope](double value) { return value < 0 ? value * slope : value; });
  case Function::kTanh:
    return each([](double value) { return std::tanh(value); });
  case Function::kSigmoid:
    return each([](double value) { return 1 / (1 + std::exp(-value)); });
  case Function::kNone:
    return;
  }
}

template <class Element> void Cluster<Element>::operator()(const Softmax& softmax) {
  accumulators_.assign(softmax.rows * softmax.columns, 0);
  std::vector<double> row(softmax.columns);
  for (int64_t index = 0; index < softmax.rows; ++index) {
    const Element* from = maps_.data() + index * softmax.columns;
    Element most = *std::max_element(from, from + softmax.columns);
    double sum = 0;
    for (int64_t column = 0; column < softmax.columns; ++column) {
      double below = static_cast<double>(from[column]) - static_cast<double>(most);
      row[column] = std::exp(kFixed<Element> ? from_fixed(below, softmax.fraction_in) : below);
      sum += row[column];
    }
    for (int64_t column = 0; column < softmax.columns; ++column) {
      Sum& to = accumulators_[index * softmax.columns + column];
      if constexpr (!kFixed<Element>)
        to = static_cast<float>(row[column] / sum);
      else
        to = to_fixed(row[column] / sum, softmax.fraction_out, -kAccumulatorLimit,
                      kAccumulatorLimit);
    }
  }
}

template <class Element> void Cluster<Element>::operator()(const Interpolate& interpolate) {
  int64_t out = static_cast<int64_t>(interpolate.first.size()), in = interpolate.in,
          inner = interpolate.inner;
  accumulators_.assign(interpolate.outer * out * inner, 0);
  for (int64_t place = 0; place < out; ++place) {
    int64_t first = interpolate.first[place], second = interpolate.second[place];
    double weight = interpolate.weight[place];
    Sum one = kFixed<Element> ? Sum(int64_t{1} << kLerpFraction) : Sum(1);
    Sum right =
        kFixed<Element> ? Sum(to_fixed(weight, kLerpFraction, 0, 1 << kLerpFraction)) : Sum(weight);
    for (int64_t outer = 0; outer < interpolate.outer; ++outer) {
      const Element* a = maps_.data() + (outer * in + first) * inner;
      const Element* b = maps_.data() + (outer * in + second) * inner;
      Sum* to = accumulators_.data() + (outer * out + place) * inner;
      for (int64_t index = 0; index < inner; ++index)
        to[index] = a[index] * (one - right) + b[index] * right;
    }
  }
}

template <class Element> void Cluster<Element>::operator()(const Store& store) {
  Element* memory = at(store.address);
  std::vector<Axis> axes;
  int64_t step = elements(store.dims);
  for (int axis = 0; axis < kRank; ++axis) {
    step /= store.dims[axis];
    axes.push_back({store.dims[axis], step, store.strides[axis]});
  }
  Sum low = static_cast<Sum>(store.low), high = static_cast<Sum>(store.high);
  walk(compact(axes), [&](int64_t tile, int64_t to, const Axis& run) {
    const Sum* from = accumulators_.data() + tile;
    for (int64_t index = 0; index < run.count; ++index) {
      Sum value = from[index * run.tile_step];
      if constexpr (kFixed<Element>) value = shifted(value, store.shift);
      // NaN stays NaN.
      value = value < low ? low : value > high ? high : value;
      memory[to + index * run.memory_step] = static_cast<Element>(value);
    }
  });
}

template <class Stored>
void encode_as(const float* values, int64_t count, int64_t fraction, double low, double high,
               Stored* to) {
  double scale = std::ldexp(1.0, static_cast<int>(fraction));
  for (int64_t index = 0; index < count; ++index) {
    if constexpr (std::is_same_v<Stored, float>)
      to[index] = values[index];
    else
      to[index] = static_cast<Stored>(nearest(values[index] * scale, low, high));
  }
}

template <class Element> void execute_as(const Program& program, Run run, uint8_t* memory) {
  for (const ProgramLayer& layer : program.layers)
    for (const std::vector<Instruction>& code : run == Run::kDevice ? layer.code : layer.software) {
      Cluster<Element> cluster(memory);
      for (const Instruction& instruction : code)
        std::visit(cluster, instruction);
    }
}

} // namespace

void execute(const Program& program, Run run, uint8_t* memory) {
  with_element(program.precision, [&](auto* element) {
    execute_as<std::remove_pointer_t<decltype(element)>>(program, run, memory);
  });
}

void encode(const float* values, int64_t count, Precision precision, int64_t fraction,
            bool as_accumulators, void* bytes) {
  with_element(precision, [&](auto* element) {
    using Element = std::remove_pointer_t<decltype(element)>;
    if (as_accumulators)
      encode_as(values, count, fraction, -kAccumulatorLimit, kAccumulatorLimit,
                static_cast<Accumulator<Element>*>(bytes));
    else
      encode_as(values, count, fraction, std::numeric_limits<Element>::lowest(),
                std::numeric_limits<Element>::max(), static_cast<Element*>(bytes));
  });
}

void write_tensor(const Placed& tensor, Precision precision, const float* values, uint8_t* memory) {
  encode(values, elements(tensor.shape), precision, tensor.fraction, false,
         memory + tensor.address);
}

void read_tensor(const Placed& tensor, Precision precision, const uint8_t* memory, float* values) {
  with_element(precision, [&](auto* element) {
    using Element = std::remove_pointer_t<decltype(element)>;
    const Element* from = reinterpret_cast<const Element*>(memory + tensor.address);
    int64_t count = elements(tensor.shape);
    for (int64_t index = 0; index < count; ++index)
      values[index] = static_cast<float>(
          kFixed<Element> ? from_fixed(static_cast<double>(from[index]), tensor.fraction)
                          : static_cast<double>(from[index]));
  });
}

} // namespace mdla
