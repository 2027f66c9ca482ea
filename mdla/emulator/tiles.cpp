#include "tiles.h"

#include <algorithm>
#include <functional>

namespace mdla {
namespace {

int64_t half(int64_t size) {
  return ceil_div(size, 2);
}

// Call visit(start, count) for pieces of `size` elements. The last piece may be shorter.
template <class Visit> void for_pieces(int64_t total, int64_t size, Visit visit) {
  for (int64_t start = 0; start < total; start += size)
    visit(start, std::min(size, total - start));
}

int64_t offset_of(const Index& strides, const Index& at) {
  int64_t offset = 0;
  for (int axis = 0; axis < kRank; ++axis)
    offset += strides[axis] * at[axis];
  return offset;
}

// Return the number of input elements that `out` outputs need along each axis, in spread
// coordinates.
Spatial window_input(const Window& window, const Spatial& out) {
  Spatial in;
  for (int axis = 0; axis < 3; ++axis)
    in[axis] = (out[axis] - 1) * window.stride[axis] +
               (window.kernel[axis] - 1) * window.dilation[axis] + 1;
  return in;
}

// Visitor of layers, which writes their tiles.
class Tiler {
public:
  Tiler(const Layer& layer, const Placement& placement, const Budget& budget)
      : layer_(layer), placement_(placement), budget_(budget) {}

  std::vector<Tile> tiles;

  void operator()(const ConvLayer& conv);
  void operator()(const PoolLayer& pool);
  void operator()(const CombineLayer& combine);
  void operator()(const MoveLayer& move);
  void operator()(const SoftmaxLayer& softmax);
  void operator()(const ResizeLayer& resize);

private:
  struct ConvTile {
    int64_t groups, cout, cin;
    Spatial out;
  };
  struct ConvPlace {
    int64_t image, group, channel;
    Spatial out;
  };

  [[noreturn]] void overflow(const char* what) const {
    refuse("node \"", layer_.name, "\" (", layer_.type, "): ", what,
           " does not fit the on-chip buffers");
  }
  bool fixed() const { return placement_.precision != Precision::kFloat32; }
  int64_t fraction(TensorId tensor) const { return placement_.fraction[tensor]; }
  double stored(double value, int64_t fraction) const;

  Load load(Unit unit, const View& view, const Index& start, const Index& dims) const;
  Store store(const View& view, const Index& start, const Index& dims, int64_t from_fraction) const;

  ConvTile conv_tile(const ConvLayer& conv) const;
  void conv_at(const ConvLayer& conv, const ConvPlace& at, const ConvTile& tile);
  Load conv_maps(const ConvLayer& conv, const ConvPlace& at, const ConvTile& size, int64_t k) const;
  void whole_pool(const PoolLayer& pool);
  void pool_at(const PoolLayer& pool, int64_t plane, const Spatial& at, int64_t planes,
               const Spatial& out);
  Divide divide(const PoolLayer& pool, int64_t planes, const Spatial& at, const Spatial& out) const;
  void blocks(const Index& dims, int64_t most,
              const std::function<void(const Index&, const Index&)>& visit);

  const Layer& layer_;
  const Placement& placement_;
  const Budget& budget_;
};

double Tiler::stored(double value, int64_t fraction) const {
  if (!fixed()) return value;
  StoredRange range = stored_range(placement_.precision);
  return static_cast<double>(to_fixed(value, fraction, range.low, range.high));
}

Load Tiler::load(Unit unit, const View& view, const Index& start, const Index& dims) const {
  Load instruction;
  instruction.unit = unit;
  instruction.address = placement_.element(view) +
                        offset_of(view.strides, start) * element_bytes(placement_.precision);
  instruction.dims = instruction.extent = dims;
  instruction.strides = view.strides;
  instruction.spread.fill(1);
  return instruction;
}

Store Tiler::store(const View& view, const Index& start, const Index& dims,
                   int64_t from_fraction) const {
  Store instruction;
  instruction.address = placement_.element(view) +
                        offset_of(view.strides, start) * element_bytes(placement_.precision);
  instruction.dims = dims, instruction.strides = view.strides;
  int64_t to = fraction(view.tensor);
  instruction.shift = fixed() ? from_fraction - to : 0;
  instruction.low = stored(layer_.low, to), instruction.high = stored(layer_.high, to);
  return instruction;
}

// ---- sums of products ----

Tiler::ConvTile Tiler::conv_tile(const ConvLayer& conv) const {
  ConvTile tile{conv.groups, conv.cout, conv.cin, conv.window.out};
  int64_t kernel = elements(conv.window.kernel);
  auto halve = [](int64_t& size, int64_t least) {
    bool can = size > least;
    if (can) size = half(size);
    return can;
  };
  auto halve_space = [&] {
    return halve(tile.out[0], 1) || halve(tile.out[1], 1) || halve(tile.out[2], 16);
  };
  while (true) {
    int64_t in = elements(window_input(conv.window, tile.out));
    if (tile.groups * tile.cout * tile.cin * kernel > budget_.weights) {
      int64_t& larger = tile.cin > 4 * tile.cout ? tile.cin : tile.cout;
      if (!halve(tile.groups, 1) && !halve(larger, 1) && !halve(tile.cin, 1)) overflow("a kernel");
    } else if (tile.groups * tile.cin * in > budget_.maps) {
      if (!halve(tile.groups, 1) && !halve_space() && !halve(tile.cin, 1) && !halve(tile.out[2], 1))
        overflow("a window");
    } else if (tile.groups * tile.cout * elements(tile.out) > budget_.accumulators) {
      bool split = budget_.channels_first
                       ? halve(tile.cout, 16) || halve(tile.groups, 1) || halve_space()
                       : halve_space() || halve(tile.groups, 1) || halve(tile.cout, 16);
      if (!split && !halve(tile.cout, 1) && !halve(tile.out[2], 1)) overflow("an output");
    } else {
      return tile;
    }
  }
}

Load Tiler::conv_maps(const ConvLayer& conv, const ConvPlace& at, const ConvTile& size,
                      int64_t k) const {
  Spatial in = window_input(conv.window, size.out);
  Index start{at.image, at.group, k, 0, 0, 0}, dims{1, size.groups, size.cin, in[0], in[1], in[2]};
  Index offset{}, extent = dims, spread;
  spread.fill(1);
  for (int axis = 0; axis < 3; ++axis) {
    int64_t step = conv.spread[axis];
    int64_t from = at.out[axis] * conv.window.stride[axis] - conv.pad[axis];
    int64_t first = from > 0 ? ceil_div(from, step) : 0;
    int64_t end = from + in[axis] > 0 ? ceil_div(from + in[axis], step) : 0;
    extent[3 + axis] = std::max<int64_t>(std::min(end, conv.extent[axis]) - first, 0);
    bool any = extent[3 + axis] > 0;
    start[3 + axis] = any ? first : 0;
    offset[3 + axis] = any ? first * step - from : 0;
    spread[3 + axis] = step;
  }
  Load instruction = load(Unit::kMaps, conv.x, start, dims);
  instruction.offset = offset, instruction.extent = extent, instruction.spread = spread;
  return instruction;
}

void Tiler::conv_at(const ConvLayer& conv, const ConvPlace& at, const ConvTile& tile) {
  ConvTile size{std::min(tile.groups, conv.groups - at.group),
                std::min(tile.cout, conv.cout - at.channel), tile.cin, tile.out};
  for (int axis = 0; axis < 3; ++axis)
    size.out[axis] = std::min(tile.out[axis], conv.window.out[axis] - at.out[axis]);
  int64_t bias = -1;
  if (conv.bias != kNoTensor)
    bias = placement_.address[conv.bias] +
           (at.group * conv.cout + at.channel) * accumulator_bytes(placement_.precision);
  Tile code{Accumulate{size.groups * size.cout, elements(size.out), bias}};
  for_pieces(conv.cin, tile.cin, [&](int64_t k, int64_t cin) {
    size.cin = cin;
    Convolve convolve{size.groups, cin, size.cout, conv.window};
    convolve.window.out = size.out, convolve.window.in = window_input(conv.window, size.out);
    View w = conv.w;
    w.start += at.image * conv.w_image_stride;
    const Spatial& kernel = conv.window.kernel;
    Index w_dims{size.groups, size.cout, cin, kernel[0], kernel[1], kernel[2]};
    code.push_back(conv_maps(conv, at, size, k));
    code.push_back(load(Unit::kWeights, w, {at.group, at.channel, k, 0, 0, 0}, w_dims));
    code.push_back(convolve);
  });
  Index start{at.image, at.group, at.channel, at.out[0], at.out[1], at.out[2]};
  Index dims{1, size.groups, size.cout, size.out[0], size.out[1], size.out[2]};
  code.push_back(store(conv.y, start, dims, fraction(conv.x.tensor) + fraction(conv.w.tensor)));
  tiles.push_back(std::move(code));
}

void Tiler::operator()(const ConvLayer& conv) {
  ConvTile tile = conv_tile(conv);
  const Spatial& out = conv.window.out;
  auto over_space = [&](auto visit) {
    for (int64_t image = 0; image < conv.images; ++image)
      for (int64_t d = 0; d < out[0]; d += tile.out[0])
        for (int64_t h = 0; h < out[1]; h += tile.out[1])
          for (int64_t w = 0; w < out[2]; w += tile.out[2])
            visit(image, Spatial{d, h, w});
  };
  // A tile covers up to tile.groups groups, and up to tile.cout channels of each.
  auto over_channels = [&](auto visit) {
    for (int64_t group = 0; group < conv.groups; group += tile.groups)
      for (int64_t channel = 0; channel < conv.cout; channel += tile.cout)
        visit(group, channel);
  };
  if (budget_.weights_stay)
    over_channels([&](int64_t group, int64_t channel) {
      over_space([&](int64_t image, const Spatial& at) {
        conv_at(conv, {image, group, channel, at}, tile);
      });
    });
  else
    over_space([&](int64_t image, const Spatial& at) {
      over_channels([&](int64_t group, int64_t channel) {
        conv_at(conv, {image, group, channel, at}, tile);
      });
    });
}

// ---- pools ----

// Return the number of elements in each window along an axis that an average counts.
std::vector<int64_t> window_counts(const PoolLayer& pool, int axis, int64_t at, int64_t out) {
  std::vector<int64_t> counts;
  const Window& window = pool.window;
  for (int64_t place = at; place < at + out; ++place) {
    int64_t from = place * window.stride[axis] - pool.pad[axis], to = from + window.kernel[axis];
    int64_t low = pool.include_pad ? from : std::max<int64_t>(from, 0);
    int64_t high = std::min(to, window.in[axis] + (pool.include_pad ? pool.pad_end[axis] : 0));
    counts.push_back(std::max<int64_t>(high - low, 1));
  }
  return counts;
}

Divide Tiler::divide(const PoolLayer& pool, int64_t planes, const Spatial& at,
                     const Spatial& out) const {
  int64_t gain = fixed() ? fraction(pool.y) - fraction(pool.x) : 0;
  return {planes, gain, window_counts(pool, 0, at[0], out[0]),
          window_counts(pool, 1, at[1], out[1]), window_counts(pool, 2, at[2], out[2])};
}

View planes_view(TensorId tensor, const Spatial& sizes) {
  return {tensor, 0, {0, 0, elements(sizes), sizes[1] * sizes[2], sizes[2], 1}};
}

void Tiler::pool_at(const PoolLayer& pool, int64_t plane, const Spatial& at, int64_t planes,
                    const Spatial& out) {
  Pool code{pool.kind, 1, planes, pool.window};
  code.window.out = out;
  Index start{0, 0, plane, 0, 0, 0}, dims{1, 1, planes, 1, 1, 1}, offset{}, extent = dims;
  code.window.in = window_input(pool.window, out);
  for (int axis = 0; axis < 3; ++axis) {
    int64_t in = code.window.in[axis];
    int64_t from = at[axis] * pool.window.stride[axis] - pool.pad[axis];
    int64_t first = std::max<int64_t>(from, 0), end = std::min(from + in, pool.window.in[axis]);
    dims[3 + axis] = in;
    extent[3 + axis] = std::max<int64_t>(end - first, 0);
    start[3 + axis] = extent[3 + axis] ? first : 0;
    offset[3 + axis] = extent[3 + axis] ? first - from : 0;
  }
  Load maps = load(Unit::kMaps, planes_view(pool.x, pool.window.in), start, dims);
  maps.offset = offset, maps.extent = extent;
  if (pool.kind == PoolKind::kMax) maps.fill = stored_range(placement_.precision).low;
  Tile tile{maps, code};
  if (pool.average) tile.push_back(divide(pool, planes, at, out));
  int64_t from_fraction = pool.average ? fraction(pool.y) : fraction(pool.x);
  tile.push_back(store(planes_view(pool.y, pool.window.out), {0, 0, plane, at[0], at[1], at[2]},
                       {1, 1, planes, out[0], out[1], out[2]}, from_fraction));
  tiles.push_back(std::move(tile));
}

// Pool whole planes that are too large for the buffer. Each plane is one window, which is loaded in
// pieces.
void Tiler::whole_pool(const PoolLayer& pool) {
  int64_t size = pool.window.in[2];
  for (int64_t plane = 0; plane < pool.planes; ++plane) {
    Tile tile;
    for_pieces(size, budget_.maps, [&](int64_t start, int64_t count) {
      tile.push_back(load(Unit::kMaps, planes_view(pool.x, pool.window.in),
                          {0, 0, plane, 0, 0, start}, {1, 1, 1, 1, 1, count}));
      Window window = pool.window;
      window.in = window.kernel = {1, 1, count};
      tile.push_back(Pool{pool.kind, start == 0, 1, window});
    });
    if (pool.average) tile.push_back(divide(pool, 1, {0, 0, 0}, {1, 1, 1}));
    tile.push_back(store(planes_view(pool.y, {1, 1, 1}), {0, 0, plane, 0, 0, 0}, {1, 1, 1, 1, 1, 1},
                         pool.average ? fraction(pool.y) : fraction(pool.x)));
    tiles.push_back(std::move(tile));
  }
}

void Tiler::operator()(const PoolLayer& pool) {
  const Window& window = pool.window;
  bool whole = window.kernel == window.in && elements(window.out) == 1 && elements(pool.pad) == 0;
  if (whole && window.in[0] * window.in[1] == 1 && window.in[2] > budget_.maps)
    return whole_pool(pool);
  int64_t planes = pool.planes;
  Spatial out = window.out;
  auto fits = [&] {
    int64_t in = checked_product(planes, elements(window_input(window, out)));
    return in <= budget_.maps && planes * elements(out) <= budget_.accumulators;
  };
  while (!fits()) {
    int64_t* shrinks[] = {&planes, &out[0], &out[1], &out[2]};
    auto largest = std::find_if(std::begin(shrinks), std::end(shrinks),
                                [](int64_t* size) { return *size > 1; });
    if (largest == std::end(shrinks)) overflow("a window");
    **largest = half(**largest);
  }
  for_pieces(pool.planes, planes, [&](int64_t plane, int64_t plane_count) {
    for_pieces(window.out[0], out[0], [&](int64_t d, int64_t depth) {
      for_pieces(window.out[1], out[1], [&](int64_t h, int64_t height) {
        for_pieces(window.out[2], out[2], [&](int64_t w, int64_t width) {
          pool_at(pool, plane, {d, h, w}, plane_count, {depth, height, width});
        });
      });
    });
  });
}

// ---- elementwise ----

// Call visit(start, dims) for blocks of at most `most` elements.
void Tiler::blocks(const Index& dims, int64_t most,
                   const std::function<void(const Index&, const Index&)>& visit) {
  Index piece = dims;
  for (int axis = 0; axis < kRank && elements(piece) > most; ++axis) {
    int64_t inner = elements(piece) / piece[axis];
    piece[axis] = std::max<int64_t>(1, most / inner);
  }
  Index start{};
  while (true) {
    Index count;
    for (int axis = 0; axis < kRank; ++axis)
      count[axis] = std::min(piece[axis], dims[axis] - start[axis]);
    visit(start, count);
    int axis = kRank - 1;
    while (axis >= 0 && (start[axis] += piece[axis]) >= dims[axis])
      start[axis--] = 0;
    if (axis < 0) return;
  }
}

void Tiler::operator()(const CombineLayer& combine) {
  int64_t a = fraction(combine.a.tensor), b = fraction(combine.b.tensor);
  bool product = combine.kind == CombineKind::kMul;
  int64_t common = product ? a + b : std::max(a, b);
  int64_t most = std::min({budget_.maps, budget_.weights, budget_.accumulators});
  blocks(combine.dims, most, [&](const Index& start, const Index& dims) {
    Combine code{combine.kind, elements(dims), 0, 0};
    if (fixed() && !product) code.maps_shift = common - a, code.weights_shift = common - b;
    tiles.push_back({load(Unit::kMaps, combine.a, start, dims),
                     load(Unit::kWeights, combine.b, start, dims), code,
                     store(combine.y, start, dims, common)});
  });
}

void Tiler::operator()(const MoveLayer& move) {
  int64_t from = fraction(move.x.tensor), to = fraction(move.y.tensor);
  blocks(move.dims, std::min(budget_.maps, budget_.accumulators),
         [&](const Index& start, const Index& dims) {
           Index x_start{}, offset{}, extent;
           for (int axis = 0; axis < kRank; ++axis) {
             int64_t first = std::max(start[axis], move.offset[axis]);
             int64_t end =
                 std::min(start[axis] + dims[axis], move.offset[axis] + move.extent[axis]);
             extent[axis] = std::max<int64_t>(end - first, 0);
             x_start[axis] = extent[axis] ? first - move.offset[axis] : 0;
             offset[axis] = extent[axis] ? first - start[axis] : 0;
           }
           Load maps = load(Unit::kMaps, move.x, x_start, dims);
           maps.offset = offset, maps.extent = extent, maps.fill = stored(move.fill, from);
           Tile tile{maps, Move{elements(dims)}};
           bool plain = move.function == Function::kNone;
           if (!plain)
             tile.push_back(Activate{move.function, elements(dims), from, to, move.parameter});
           tile.push_back(store(move.y, start, dims, plain ? from : to));
           tiles.push_back(std::move(tile));
         });
}

void Tiler::operator()(const SoftmaxLayer& softmax) {
  View x{softmax.x, 0, {0, 0, 0, softmax.columns * softmax.inner, 1, softmax.inner}};
  View y = x;
  y.tensor = softmax.y;
  int64_t rows = std::min(budget_.maps, budget_.accumulators) / softmax.columns;
  if (rows == 0) overflow("a row");
  int64_t to = fraction(softmax.y);
  blocks(
      {1, 1, 1, 1, softmax.outer, softmax.inner}, rows, [&](const Index& at, const Index& count) {
        Index start{0, 0, 0, at[4], at[5], 0}, dims{1, 1, 1, count[4], count[5], softmax.columns};
        tiles.push_back({load(Unit::kMaps, x, start, dims),
                         Softmax{count[4] * count[5], softmax.columns, fraction(softmax.x), to},
                         store(y, start, dims, to)});
      });
}

void Tiler::operator()(const ResizeLayer& resize) {
  int64_t out = static_cast<int64_t>(resize.first.size());
  View x{resize.x, 0, {0, 0, 0, resize.in * resize.inner, resize.inner, 1}};
  View y{resize.y, 0, {0, 0, 0, out * resize.inner, resize.inner, 1}};
  int64_t lines = std::min(budget_.maps / resize.in, budget_.accumulators / out);
  if (lines == 0) overflow("a line");
  int64_t from = fraction(resize.x) + kLerpFraction;
  blocks({1, 1, 1, 1, resize.outer, resize.inner}, lines, [&](const Index& at, const Index& count) {
    Index start{0, 0, 0, at[4], 0, at[5]};
    Interpolate code{count[4], resize.in, count[5], resize.first, resize.second, resize.weight};
    tiles.push_back({load(Unit::kMaps, x, start, {1, 1, 1, count[4], resize.in, count[5]}), code,
                     store(y, start, {1, 1, 1, count[4], out, count[5]}, from)});
  });
}

} // namespace

std::vector<Tile> make_tiles(const Layer& layer, const Placement& placement, const Budget& budget) {
  Tiler tiler(layer, placement, budget);
  std::visit(tiler, layer.operation);
  return std::move(tiler.tiles);
}

} // namespace mdla
