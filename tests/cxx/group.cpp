// Tests of signatures, specialisations and sizes that vary.

#include "group/ghost_list.h"
#include "group/script_subgraph.h"
#include "group/signature.h"
#include "group/specialisations.h"
#include "group/speed_check.h"
#include "group/symbols.h"
#include "testing.h"

#include <ATen/ATen.h>
#include <torch/csrc/jit/ir/irparser.h>

#include <chrono>
#include <cmath>
#include <limits>
#include <memory>

namespace torchmdla {

namespace {

Signature signature_of(const c10::IValue& value) {
  Signature signature;
  EXPECT(append_signature(value, signature));
  return signature;
}

// Return the signatures of calls with one tensor of these sizes. All numbers may vary.
std::vector<Signature> signatures_of(const std::vector<std::vector<int64_t>>& all_sizes) {
  std::vector<Signature> signatures;
  for (const auto& sizes : all_sizes)
    signatures.push_back(signature_of(at::empty(sizes)));
  return signatures;
}

// Return the pattern that the last of these calls gets after the others.
std::optional<Pattern> pattern_of(const std::vector<std::vector<int64_t>>& all_sizes,
                                  const std::set<SymbolPlaces>& refused = {}) {
  const auto signatures = signatures_of(all_sizes);
  std::vector<const Signature*> earlier;
  for (size_t i = 0; i + 1 < signatures.size(); ++i)
    earlier.push_back(&signatures[i]);
  return choose_pattern(signatures.back(), entry_kinds(at::empty(all_sizes.back())), earlier,
                        refused);
}

// Return the places of a signature: first dtype with rank, and strides, which are fixed, then
// sizes.
SymbolPlaces places(std::vector<int32_t> of_sizes) {
  of_sizes.insert(of_sizes.begin(), {fixed, fixed});
  return of_sizes;
}

using Operation = SizeProgram::Operation;
constexpr SizeProgram::Node symbol_0{Operation::symbol, int64_t{0}, 0, 0};

// Return the result of an operation on the first symbol and a number.
std::vector<int64_t> computed(Operation operation, int64_t number, int64_t symbol) {
  const SizeProgram program({symbol_0, {Operation::constant, number, 0, 0}, {operation, 0, 0, 1}},
                            {2}, {});
  Symbols values{symbol};
  EXPECT(program.extend(values));
  return {values.begin() + 1, values.end()};
}

using Values = std::vector<int64_t>;

} // namespace

TEST(specialisations_are_evicted_from_later_ones_alone) {
  const auto entry = [](int64_t size, bool dynamic) {
    auto made = std::make_shared<Specialisation>();
    made->signature = signature_of(at::empty({size, 8}));
    if (dynamic) made->pattern = pattern_of({{2, 8}, {3, 8}, {size, 8}});
    return made;
  };
  const auto two = entry(2, false), three = entry(3, false), any = entry(4, true);
  const auto all = Specialisations().with(two).with(three).with(any);
  const auto fewer = all.without(two);
  Symbols values;
  EXPECT(all.find(two->signature) == two.get() && !fewer.find(two->signature));
  EXPECT(fewer.find(three->signature) == three.get());
  EXPECT(fewer.find_dynamic(two->signature, values) == any.get() && values[0] == 2);
  EXPECT(!fewer.without(any).find_dynamic(two->signature, values));
  EXPECT_EQUAL(fewer.without(two).size(), 2);
}

TEST(results_of_comparisons_are_found_by_threads_and_magnitude) {
  const SpeedResults results;
  const auto key = [](std::vector<int64_t> symbols) { return SpeedKey::of_call(symbols); };
  const auto threads = key({}).threads;
  EXPECT(!results.find(key({})));
  const auto* fixed = results.add({key({}), {}, nullptr});
  const auto* small = results.add({key({5, 3}), {{2, 1}, SpeedChoice::eager}, nullptr});
  EXPECT(results.find(key({})) == fixed && results.find(key({4, 2})) == small);
  EXPECT(!results.find(key({4, 4})) && !results.find({threads + 1, 0}));
  EXPECT(results.all() == std::vector({fixed, small}));
}

TEST(slow_kernels_are_left_out_with_their_nodes) {
  using Nodes = std::vector<size_t>;
  // Node 3 takes no time in eager PyTorch, and kernel 2 has no nodes.
  const std::vector<double> nodes{4, 4, 4, 0};
  const auto excluded = [&](const std::vector<Nodes>& of_kernels, std::vector<double> kernels) {
    return nodes_of_slow_kernels(of_kernels, kernels, nodes);
  };
  EXPECT(excluded({{0}, {2, 1, 3}, {}}, {1, 20, 1}) == Nodes({1, 2, 3}));
  // Within the tolerance, kernels are not slow.
  EXPECT(excluded({{0}, {1, 2}}, {1, 8.1}).empty());
  // Kernels that share a node are compared as one.
  EXPECT(excluded({{0}, {1}, {1, 2}}, {1, 7, 0.5}).empty());
  EXPECT(excluded({{0}, {1}, {1, 2}}, {1, 8, 0.5}) == Nodes({1, 2}));
  // The other kernels must make up for the division.
  EXPECT(excluded({{0}, {1, 2}}, {3.9, 20}).empty());
  EXPECT(excluded({{0}, {1, 2}}, {20, 20}).empty());
  // Code whose kernels are not observed, and operators that are not timed, cannot be divided.
  EXPECT(excluded({{0}, {1, 2}}, {}).empty());
  EXPECT(nodes_of_slow_kernels({{0}, {1}}, {1, 20}, {}).empty());
}

TEST(a_subgraph_that_writes_its_input_is_known) {
  const auto writes_inputs = [](const std::string& body) {
    auto graph = std::make_shared<torch::jit::Graph>();
    torch::jit::parseIR("graph(%i : Tensor):\n" + body + "  return (%o)\n", graph.get());
    return ScriptSubgraph(graph, "cpu", false, {}).writes_inputs();
  };
  EXPECT(writes_inputs("  %o : Tensor = aten::relu_(%i)\n"));
  EXPECT(writes_inputs("  %v : Tensor = aten::t(%i)\n  %o : Tensor = aten::relu_(%v)\n"));
  EXPECT(!writes_inputs("  %v : Tensor = aten::tanh(%i)\n  %o : Tensor = aten::relu_(%v)\n"));
}

TEST(use_is_noted_once_for_each_growth) {
  const UseRecord use;
  ++memory_use().allocation_epoch;
  EXPECT(use.update());
  EXPECT(!use.update());
  ++memory_use().allocation_epoch;
  EXPECT(use.update() && use.epoch() == memory_use().allocation_epoch);
}

TEST(evicted_specialisation_that_comes_back_is_known) {
  Specialisation made;
  made.signature = signature_of(at::empty({2, 8}));
  GhostList ghosts;
  EXPECT(!ghosts.time_of_eviction(made));
  ghosts.add(made);
  EXPECT_EQUAL(ghosts.signatures().size(), 1);
  EXPECT(ghosts.time_of_eviction(made));
  EXPECT(!ghosts.time_of_eviction(made));
}

TEST(a_pattern_that_was_evicted_is_found_for_other_sizes) {
  Specialisation made;
  made.signature = signature_of(at::empty({4, 8}));
  made.pattern = pattern_of({{2, 8}, {3, 8}, {4, 8}});
  GhostList ghosts;
  ghosts.add(made);
  const auto other = signature_of(at::empty({9, 8}));
  const auto found = ghosts.pattern_for(other);
  EXPECT(found && found->typical == other && found->typical_values()[0] == 9);
  EXPECT(!ghosts.pattern_for(signature_of(at::empty({9, 7}))));
}

TEST(memory_that_is_restored_soon_is_protected) {
  using std::chrono::minutes;
  const auto now = UseRecord::Clock::now();
  const UseRecord soon, late, never;
  soon.lose(now - minutes(1));
  late.lose(now - minutes(3));
  for (const auto* use : {&soon, &late, &never})
    use->restore(minutes(2));
  EXPECT(soon.is_protected(now, minutes(2)) && !soon.is_protected(now + minutes(5), minutes(2)));
  EXPECT(!late.is_protected(now, minutes(2)) && !never.is_protected(now, minutes(2)));
}

TEST(signature_tells_strides_apart) {
  const auto plain = at::empty({2, 3, 4, 5});
  const auto last = plain.contiguous(at::MemoryFormat::ChannelsLast);
  EXPECT(signature_of(plain) == signature_of(at::empty({2, 3, 4, 5})));
  EXPECT(signature_of(plain) != signature_of(last));
  EXPECT(signature_of(last) == signature_of(at::empty({2, 4, 5, 3}).permute({0, 3, 1, 2})));
  EXPECT(signature_of(last) != signature_of(at::empty({5, 4, 3, 2}).permute({3, 2, 1, 0})));
}

TEST(signature_takes_gaps_of_one_kind_to_be_equal) {
  const auto cut = [](int64_t width, int64_t columns) {
    return at::empty({4, width}).slice(1, 0, columns);
  };
  EXPECT(signature_of(cut(10, 3)) == signature_of(cut(11, 3)));
  EXPECT(signature_of(cut(10, 3)) != signature_of(at::empty({4, 3})));
  EXPECT(signature_of(cut(10, 3)) != signature_of(at::empty({3}).expand({4, 3})));
  EXPECT(signature_of(at::empty({4, 1}).expand({4, 3})) !=
         signature_of(at::empty({3}).expand({4, 3})));
}

TEST(signature_tells_kinds_of_values_apart) {
  EXPECT(signature_of(int64_t{1}) != signature_of(true));
  EXPECT(signature_of(c10::IValue()) != signature_of(int64_t{0}));
  EXPECT(signature_of(at::empty({2}, at::kInt)) != signature_of(at::empty({2})));
  EXPECT(signature_of(std::string("a")) != signature_of(std::vector<int64_t>{'a'}));
  EXPECT(signature_of(std::vector<at::Tensor>{at::empty({2}), at::empty({3})}) !=
         signature_of(std::vector<at::Tensor>{at::empty({3}), at::empty({2})}));
}

TEST(signature_leaves_out_what_floats_are) {
  EXPECT(signature_of(1.5) == signature_of(2.5));
  EXPECT(signature_of(std::vector<double>{1.5}) != signature_of(std::vector<double>{2.5}));
}

TEST(signature_refuses_what_no_group_takes) {
  Signature signature;
  EXPECT(!append_signature(c10::ivalue::Tuple::create({}), signature));
  EXPECT(signature.empty());
}

TEST(sizes_and_integers_may_vary) {
  using enum EntryKind;
  EXPECT((entry_kinds(at::empty({2, 3})) == EntryKinds{constant, strides, number, inner_size}));
  EXPECT((entry_kinds(int64_t{4}) == EntryKinds{constant, number}));
  EXPECT((entry_kinds(true) == EntryKinds{constant, constant}));
  EXPECT((entry_kinds(std::vector<at::Tensor>{at::empty({2})}) ==
          EntryKinds{constant, constant, constant, strides, number}));
}

TEST(pattern_needs_two_earlier_calls) {
  EXPECT(!pattern_of({{2, 8}, {3, 8}}));
  const auto pattern = pattern_of({{2, 8}, {3, 8}, {4, 8}});
  EXPECT(pattern);
  EXPECT_EQUAL(c10::ArrayRef(pattern->places), c10::ArrayRef(places({0, fixed})));
  EXPECT_EQUAL(pattern->typical_values()[0], 4);
}

TEST(pattern_of_growth_needs_one_call_with_sizes_one_less) {
  const auto growth = [](const at::Tensor& earlier, const at::Tensor& tensor) {
    const auto before = signature_of(earlier), now = signature_of(tensor);
    return pattern_of_growth(now, entry_kinds(tensor), {&before}, {});
  };
  const auto pattern = growth(at::empty({8, 5}), at::empty({8, 6}));
  EXPECT(pattern);
  EXPECT_EQUAL(c10::ArrayRef(pattern->places), c10::ArrayRef(places({fixed, 0})));
  EXPECT(growth(at::empty({5, 8}).t(), at::empty({8, 6})));
  EXPECT(!growth(at::empty({5, 8}).t(), at::empty({8, 5})));
  EXPECT(!growth(at::empty({8, 5}), at::empty({8, 7})));
  EXPECT(!growth(at::empty({8, 6}), at::empty({8, 5})));
  EXPECT(!growth(at::empty({8, 1}), at::empty({8, 2})));
  EXPECT(!growth(at::empty({5, 8}), at::empty({6, 8})));
}

TEST(pattern_takes_sizes_that_are_always_equal_for_one) {
  const auto same = pattern_of({{5, 5}, {6, 6}, {7, 7}});
  EXPECT(same && same->symbols == 1);
  const auto other = pattern_of({{5, 6}, {6, 6}, {7, 7}});
  EXPECT(other && other->symbols == 2);
}

TEST(pattern_has_no_size_below_two) {
  EXPECT(!pattern_of({{1, 8}, {3, 8}, {4, 8}}));
  const auto pattern = pattern_of({{2, 8}, {3, 8}, {4, 8}});
  const auto calls = signatures_of({{9, 8}, {1, 8}, {9, 7}});
  Symbols values;
  EXPECT(pattern->covers(calls[0], values) && values[0] == 9);
  EXPECT(!pattern->covers(calls[1], values));
  EXPECT(!pattern->covers(calls[2], values));
}

TEST(pattern_covers_only_equal_sizes_where_one_symbol_stands) {
  const auto pattern = pattern_of({{5, 5}, {6, 6}, {7, 7}});
  const auto calls = signatures_of({{8, 8}, {8, 9}});
  Symbols values;
  EXPECT(pattern->covers(calls[0], values));
  EXPECT(!pattern->covers(calls[1], values));
}

TEST(pattern_that_is_refused_gives_way_to_the_next) {
  const std::vector<std::vector<int64_t>> calls{{2, 8}, {3, 8}, {4, 7}, {4, 6}, {4, 8}};
  const auto all = pattern_of(calls);
  EXPECT(all && all->symbols == 2);
  const auto next = pattern_of(calls, {all->places});
  EXPECT(next && next->symbols == 1);
  EXPECT(next->places != all->places);
}

TEST(pattern_has_no_more_symbols_than_most) {
  std::vector<std::vector<int64_t>> calls(3);
  for (int64_t i = 0; i < 3; ++i)
    for (int64_t j = 0; j <= static_cast<int64_t>(max_symbols); ++j)
      calls[i].push_back(2 + i * (j + 1) + 10 * j);
  EXPECT(!pattern_of(calls));
}

TEST(pattern_of_a_length_takes_the_number_next_to_it) {
  const auto signature = signature_of(at::empty({4, 33}));
  const auto kinds = entry_kinds(at::empty({4, 33}));
  const auto pattern = pattern_without(32, signature, kinds, {});
  EXPECT(pattern && pattern->written_out);
  EXPECT_EQUAL(c10::ArrayRef(pattern->places), c10::ArrayRef(places({fixed, 0})));
  EXPECT(!pattern_without(32, signature, kinds, {pattern->places}));
}

TEST(size_program_divides_as_python_does) {
  EXPECT_EQUAL(c10::ArrayRef(computed(Operation::floor_div, -2, 7)), c10::ArrayRef(Values{-4}));
  EXPECT_EQUAL(c10::ArrayRef(computed(Operation::mod, -2, 7)), c10::ArrayRef(Values{-1}));
  EXPECT_EQUAL(c10::ArrayRef(computed(Operation::floor_div, 2, 7)), c10::ArrayRef(Values{3}));
  EXPECT_EQUAL(c10::ArrayRef(computed(Operation::mod, 3, 7)), c10::ArrayRef(Values{1}));
}

TEST(size_program_is_exact_in_64_bits) {
  constexpr int64_t largest = std::numeric_limits<int64_t>::max();
  for (const int64_t number : {(int64_t{1} << 53) + 1, (int64_t{1} << 62) + 1, largest}) {
    EXPECT_EQUAL(c10::ArrayRef(computed(Operation::floor_div, 3, number)),
                 c10::ArrayRef(Values{number / 3}));
    EXPECT_EQUAL(c10::ArrayRef(computed(Operation::mod, 10, number)),
                 c10::ArrayRef(Values{number % 10}));
    EXPECT_EQUAL(c10::ArrayRef(computed(Operation::add, -3, number)),
                 c10::ArrayRef(Values{number - 3}));
    EXPECT_EQUAL(c10::ArrayRef(computed(Operation::lt, number - 1, number)),
                 c10::ArrayRef(Values{0}));
  }
}

TEST(size_program_does_not_hold_where_an_integer_has_more_bits) {
  for (const auto operation : {Operation::add, Operation::mul}) {
    const SizeProgram program(
        {symbol_0, {Operation::constant, int64_t{2}, 0, 0}, {operation, int64_t{0}, 0, 1}}, {2},
        {});
    Symbols values{std::numeric_limits<int64_t>::max()};
    EXPECT(!program.extend(values));
  }
}

TEST(size_program_holds_calls_to_its_conditions) {
  const SizeProgram even({symbol_0,
                          {Operation::constant, int64_t{2}, 0, 0},
                          {Operation::mod, 0, 0, 1},
                          {Operation::logical_not, 0, 2, 0}},
                         {}, {3});
  Symbols eight{8}, nine{9};
  EXPECT(even.extend(eight));
  EXPECT(!even.extend(nine));
}

TEST(size_program_refuses_what_is_no_number) {
  const SizeProgram program(
      {symbol_0, {Operation::constant, int64_t{0}, 0, 0}, {Operation::div, 0, 0, 1}}, {2}, {});
  Symbols values{8};
  EXPECT(!program.extend(values));
}

TEST(size_program_has_operands_before_their_users) {
  EXPECT_THROW(SizeProgram({{Operation::floor, 0, 1, 0}, symbol_0}, {}, {}), std::runtime_error);
  EXPECT_THROW(SizeProgram({symbol_0}, {1}, {}), std::runtime_error);
}

} // namespace torchmdla
