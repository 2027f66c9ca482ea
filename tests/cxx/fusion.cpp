// Tests of the passes before groups are formed, and of the formation of groups. Graphs are parsed
// from text.

#include "fusion/fusion_pass.h"
#include "fusion/in_place.h"
#include "fusion/input_paths.h"
#include "fusion/list_appends.h"
#include "fusion/memory_order.h"
#include "testing.h"

#include <ATen/ATen.h>
#include <torch/csrc/jit/api/compilation_unit.h>
#include <torch/csrc/jit/ir/irparser.h>
#include <torch/csrc/jit/runtime/interpreter.h>
#include <torch/csrc/jit/testing/file_check.h>

#include <algorithm>

namespace torchmdla {

namespace {

using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Stack;
using torch::jit::testing::FileCheck;

// Parsed graph, and its values by name.
struct Parsed {
  explicit Parsed(const std::string& body, const std::string& inputs = "%i : Tensor")
      : graph(std::make_shared<Graph>()) {
    torch::jit::parseIR("graph(" + inputs + "):\n  %one : int = prim::Constant[value=1]()\n" + body,
                        graph.get(), values);
  }

  Node* node(const std::string& name) const { return values.at(name)->node(); }

  std::shared_ptr<Graph> graph;
  std::unordered_map<std::string, torch::jit::Value*> values;
};

DeviceTable table_of(std::vector<std::pair<const char*, OpRule>> rules) {
  DeviceTable table{"test", {}, {c10::kFloat}};
  for (auto& [name, rule] : rules) {
    const std::string full(name);
    const auto dot = full.find('.');
    const auto overload = dot == std::string::npos ? "" : full.substr(dot + 1);
    table.ops.emplace(c10::OperatorName(full.substr(0, dot), overload), std::move(rule));
  }
  return table;
}

DeviceTable computing() {
  const OpRule compute{OpKind::compute, {}};
  return table_of({{"aten::relu", compute}, {"aten::add.Tensor", compute}});
}

// Return the results of the graph in PyTorch's interpreter.
Stack results(const std::shared_ptr<Graph>& graph, Stack stack) {
  torch::jit::InterpreterState(torch::jit::Code(graph->copy(), "test")).run(stack);
  return stack;
}

void expect_same_results(const Parsed& parsed, const Stack& before, const Stack& inputs) {
  const auto after = results(parsed.graph, inputs);
  EXPECT_EQUAL(after.size(), before.size());
  for (size_t i = 0; i < after.size(); ++i)
    EXPECT(after[i].isTensor() ? after[i].toTensor().equal(before[i].toTensor())
                               : after[i] == before[i]);
}

Stack random_inputs(const Parsed& parsed) {
  Stack inputs;
  for (size_t i = 0; i < parsed.graph->inputs().size(); ++i)
    inputs.emplace_back(at::randn({3, 4}));
  return inputs;
}

bool has(const std::vector<Node*>& nodes, const Node* node) {
  return std::ranges::find(nodes, node) != nodes.end();
}

size_t count(const Parsed& parsed, const char* kind) {
  const auto nodes = parsed.graph->nodes();
  return std::count_if(nodes.begin(), nodes.end(), [&](const Node* node) {
    return node->kind() == c10::Symbol::fromQualString(kind);
  });
}

} // namespace

// --- memory_order.h

TEST(readers_stay_on_their_side_of_a_write) {
  const Parsed parsed(R"IR(
  %x : Tensor = aten::neg(%i)
  %z : Tensor = aten::neg(%i)
  %before : Tensor = aten::sin(%x)
  %written : Tensor = aten::add_(%x, %z, %one)
  %after : Tensor = aten::sin(%x)
  %other : Tensor = aten::sin(%z)
  return (%before, %written, %after, %other))IR");
  const torchmdla::Aliases aliases(parsed.graph);
  const MemoryOrder order(parsed.graph->block(), computing(), aliases);
  const auto* write = parsed.node("written");
  EXPECT(order.has_effects(write));
  EXPECT(!order.has_effects(parsed.node("before")));
  EXPECT(has(order.before(write), parsed.node("before")));
  EXPECT(has(order.before(parsed.node("after")), write));
  EXPECT(!has(order.before(write), parsed.node("other")));
  EXPECT(order.before(parsed.node("other")).empty());
}

TEST(write_inside_of_a_branch_counts_for_the_branch) {
  const Parsed parsed(R"IR(
  %x : Tensor = aten::neg(%i)
  %any : bool = aten::Bool(%i)
  %before : Tensor = aten::sin(%x)
  %branch : Tensor = prim::If(%any)
    block0():
      %written : Tensor = aten::add_(%x, %i, %one)
      -> (%written)
    block1():
      -> (%i)
  %after : Tensor = aten::sin(%x)
  return (%before, %branch, %after))IR");
  const torchmdla::Aliases aliases(parsed.graph);
  const MemoryOrder order(parsed.graph->block(), computing(), aliases);
  EXPECT(order.has_effects(parsed.node("branch")));
  EXPECT(has(order.before(parsed.node("branch")), parsed.node("before")));
  EXPECT(has(order.before(parsed.node("after")), parsed.node("branch")));
}

TEST(random_numbers_are_drawn_in_order) {
  const Parsed parsed(R"IR(
  %none : NoneType = prim::Constant()
  %p : float = prim::Constant[value=0.5]()
  %off : bool = prim::Constant[value=0]()
  %a : Tensor = aten::rand_like(%i, %none, %none, %none, %none, %none)
  %made : Tensor = aten::rrelu(%i, %p, %p, %off, %none)
  %b : Tensor = aten::rand_like(%i, %none, %none, %none, %none, %none)
  return (%a, %made, %b))IR");
  const torchmdla::Aliases aliases(parsed.graph);
  const auto* made = parsed.node("made");
  const MemoryOrder order(parsed.graph->block(), computing(), aliases);
  EXPECT(has(order.before(made), parsed.node("a")));
  EXPECT(has(order.before(parsed.node("b")), made));
  // This device supports the operator in inference, where it draws no random numbers. PyTorch marks
  // it as random even then.
  const auto table = table_of({{"aten::rrelu", {OpKind::cheap, {{"training", false}}}}});
  const MemoryOrder inference(parsed.graph->block(), table, aliases);
  EXPECT(!inference.has_effects(made) && inference.before(made).empty());
  EXPECT(has(inference.before(parsed.node("b")), parsed.node("a")));
}

// --- in_place.h

TEST(op_in_place_on_a_new_tensor_becomes_functional) {
  const Parsed parsed(R"IR(
  %x : Tensor = aten::neg(%i)
  %r : Tensor = aten::relu_(%x)
  %result : Tensor = aten::add(%x, %r, %one)
  return (%result))IR");
  const auto inputs = random_inputs(parsed);
  const auto before = results(parsed.graph, inputs);
  make_functional(parsed.graph, computing(), {});
  EXPECT(count(parsed, "aten::relu") == 1 && count(parsed, "aten::relu_") == 0);
  expect_same_results(parsed, before, inputs);
  restore_in_place(parsed.graph->block());
  FileCheck().check_not("aten::clone")->check("aten::relu_(")->run(*parsed.graph);
  expect_same_results(parsed, before, inputs);
}

TEST(op_in_place_comes_back_on_a_copy_where_others_read_the_tensor) {
  const Parsed parsed(R"IR(
  %x : Tensor = aten::neg(%i)
  %before : Tensor = aten::sin(%x)
  %r : Tensor = aten::relu_(%x)
  return (%before, %r))IR");
  const auto inputs = random_inputs(parsed);
  const auto before = results(parsed.graph, inputs);
  make_functional(parsed.graph, computing(), {});
  restore_in_place(parsed.graph->block());
  FileCheck().check("aten::clone")->check("aten::relu_(")->run(*parsed.graph);
  expect_same_results(parsed, before, inputs);
}

TEST(write_that_a_view_shows_stays) {
  const Parsed parsed(R"IR(
  %x : Tensor = aten::neg(%i)
  %view : Tensor = aten::t(%x)
  %r : Tensor = aten::relu_(%x)
  %later : Tensor = aten::sin(%view)
  return (%r, %later))IR");
  make_functional(parsed.graph, computing(), {});
  EXPECT_EQUAL(count(parsed, "aten::relu_"), size_t{1});
}

TEST(write_to_an_input_stays) {
  const Parsed parsed("  %r : Tensor = aten::relu_(%i)\n  return (%r)");
  make_functional(parsed.graph, computing(), {});
  EXPECT_EQUAL(count(parsed, "aten::relu_"), size_t{1});
}

TEST(op_in_place_that_is_not_taken_or_left_out_stays) {
  const Parsed parsed(R"IR(
  %x : Tensor = aten::neg(%i)
  %r : Tensor = aten::relu_(%x)
  return (%r))IR");
  make_functional(parsed.graph, table_of({}), {});
  EXPECT_EQUAL(count(parsed, "aten::relu_"), size_t{1});
  make_functional(parsed.graph, computing(), {parsed.node("r")});
  EXPECT_EQUAL(count(parsed, "aten::relu_"), size_t{1});
}

// --- list_appends.h

TEST(readers_of_a_list_get_it_as_it_then_is) {
  const Parsed parsed(R"IR(
  %zero : int = prim::Constant[value=0]()
  %y : Tensor = aten::neg(%i)
  %list : Tensor[] = prim::ListConstruct(%i)
  %short : int = aten::len(%list)
  %first : Tensor[] = aten::append(%list, %y)
  %both : Tensor = aten::cat(%list, %zero)
  %second : Tensor[] = aten::append(%list, %both)
  %all : Tensor = aten::cat(%list, %zero)
  %long : int = aten::len(%list)
  return (%short, %both, %all, %long))IR");
  const auto inputs = random_inputs(parsed);
  const auto before = results(parsed.graph, inputs);
  write_out_appends(parsed.graph);
  EXPECT_EQUAL(count(parsed, "aten::append"), size_t{0});
  EXPECT_EQUAL(count(parsed, "aten::len"), size_t{0});
  expect_same_results(parsed, before, inputs);
}

TEST(list_that_leaves_its_block_keeps_its_appends) {
  const Parsed parsed(R"IR(
  %list : Tensor[] = prim::ListConstruct(%i)
  %longer : Tensor[] = aten::append(%list, %i)
  return (%list))IR");
  write_out_appends(parsed.graph);
  EXPECT_EQUAL(count(parsed, "aten::append"), size_t{1});
}

TEST(list_that_is_told_from_another_keeps_its_appends) {
  const Parsed parsed(R"IR(
  %zero : int = prim::Constant[value=0]()
  %list : Tensor[] = prim::ListConstruct(%i)
  %longer : Tensor[] = aten::append(%list, %i)
  aten::clear(%list)
  %n : int = aten::len(%list)
  return (%n))IR");
  write_out_appends(parsed.graph);
  EXPECT_EQUAL(count(parsed, "aten::append"), size_t{1});
}

// --- input_paths.h

namespace {

// Module with a tensor in a submodule, and a graph with a group that reads the tensor.
struct ModuleReader {
  ModuleReader() {
    inner->addAttribute("weight", c10::TensorType::get());
    outer->addAttribute("inner", inner);
    auto* self = graph.addInput()->setType(outer);
    auto* x = graph.addInput();
    auto* read = graph.insertGetAttr(graph.insertGetAttr(self, "inner"), "weight");
    group = graph.insertNode(graph.create(group_symbol(), {read, x}));
    graph.registerOutput(group->output());
  }

  c10::IValue module_with(const at::Tensor& weight) const {
    auto inside = c10::ivalue::Object::create({unit, inner}, 1);
    inside->setSlot(0, weight);
    auto outside = c10::ivalue::Object::create({unit, outer}, 1);
    outside->setSlot(0, inside);
    return outside;
  }

  std::shared_ptr<torch::jit::CompilationUnit> unit =
      std::make_shared<torch::jit::CompilationUnit>();
  c10::ClassTypePtr inner = c10::ClassType::create("__torch__.Inner", unit, /*is_module=*/true);
  c10::ClassTypePtr outer = c10::ClassType::create("__torch__.Outer", unit, /*is_module=*/true);
  std::shared_ptr<Graph> owner = std::make_shared<Graph>();
  Graph& graph = *owner;
  Node* group = nullptr;
};

} // namespace

TEST(group_finds_attributes_of_modules) {
  const ModuleReader reader;
  read_attributes_in_groups(reader.owner, group_symbol(), {});
  EXPECT_EQUAL(c10::Join(" ", reader.group->ss(paths_attribute())), "0.inner.weight 1");
  const InputPaths paths(reader.group);
  EXPECT_EQUAL(paths.num_values(), size_t{2});
  const auto weight = at::ones({2}), x = at::zeros({3});
  const Stack values{reader.module_with(weight), x};
  const auto inputs = paths.find(values);
  EXPECT(inputs.size() == 2 && inputs[0].toTensor().is_same(weight));
  EXPECT(inputs[1].toTensor().is_same(x));
  const auto own = paths.of({0}).find(values);
  EXPECT(own.size() == 1 && own[0].toTensor().is_same(weight));
  Stack stack{int64_t{7}, values[0], values[1]};
  paths.expand(stack);
  EXPECT(stack.size() == 3 && stack[0].toInt() == 7 && stack[1].toTensor().is_same(weight));
}

TEST(group_is_given_attributes_that_the_graph_sets) {
  for (const auto* name : {"weight", "inner"}) {
    const ModuleReader reader;
    read_attributes_in_groups(reader.owner, group_symbol(), {{name}, false});
    const auto last = std::string(name) == "weight" ? "0 1" : "0.weight 1";
    const bool has_paths = reader.group->hasAttribute(paths_attribute());
    EXPECT_EQUAL(has_paths ? c10::Join(" ", reader.group->ss(paths_attribute())) : "0 1", last);
  }
  const ModuleReader reader;
  read_attributes_in_groups(reader.owner, group_symbol(), {{}, true});
  EXPECT(!reader.group->hasAttribute(paths_attribute()));
}

// --- fusion_pass.h

TEST(groups_are_what_the_device_takes) {
  const Parsed parsed(R"IR(
  %a : Tensor = aten::relu(%i)
  %b : Tensor = aten::add(%a, %i, %one)
  %apart : Tensor = aten::sin(%b)
  %c : Tensor = aten::relu(%apart)
  return (%c))IR");
  EXPECT_EQUAL(fuse_groups(parsed.graph, computing()), size_t{2});
  EXPECT_EQUAL(count(parsed, "aten::relu"), size_t{0});
  EXPECT_EQUAL(count(parsed, "aten::sin"), size_t{1});
}

TEST(groups_leave_out_other_dtypes) {
  const Parsed parsed(R"IR(
  %a : Tensor = aten::relu(%i)
  %b : Tensor = aten::relu(%a)
  return (%b))IR",
                      "%i : Double(3, 4)");
  EXPECT_EQUAL(fuse_groups(parsed.graph, computing()), size_t{1});
  EXPECT_EQUAL(count(parsed, "aten::relu"), size_t{1});
}

TEST(groups_leave_out_the_nodes_that_they_are_told_to) {
  const Parsed parsed(R"IR(
  %a : Tensor = aten::relu(%i)
  %b : Tensor = aten::relu(%a)
  %c : Tensor = aten::relu(%b)
  return (%c))IR");
  const size_t second = 2; // node 0 is a constant, node 1 is the first relu
  std::vector<Refusal> refusals;
  const auto collect = [&](const Ungrouped& one) { refusals.push_back(one.refusal); };
  EXPECT_EQUAL(fuse_groups(parsed.graph, computing(), {.left_out = {second}, .ungrouped = collect}),
               size_t{2});
  EXPECT_EQUAL(count(parsed, "aten::relu"), size_t{1});
  EXPECT(refusals == std::vector{Refusal::left_out});
}

TEST(group_does_not_reach_over_a_write) {
  const std::string across = R"IR(
  %x : Tensor = aten::neg(%i)
  %view : Tensor = aten::t(%x)
  %a : Tensor = aten::relu(%x)
  %written : Tensor = aten::sin_(%view)
  %b : Tensor = aten::relu(%x)
  %result : Tensor = aten::add(%a, %b, %one)
  return (%result))IR";
  const Parsed parsed(across);
  EXPECT_EQUAL(fuse_groups(parsed.graph, computing()), size_t{2});
  FileCheck()
      .check("mdla::CompilationGroup")
      ->check("aten::sin_")
      ->check("mdla::CompilationGroup")
      ->run(*parsed.graph);
}

} // namespace torchmdla
