#include "weight_inputs.h"

#include "fusion/graph_values.h"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <unordered_set>

namespace torchmdla {

using torch::jit::Node;
using torch::jit::Use;
using torch::jit::Value;

namespace {

using Names = std::unordered_set<std::string>;

// Names of weights in ATen's schemas, for any operator.
const Names weight_arguments{"weight", "bias",           "running_mean", "running_var",
                             "w_ih",   "w_hh",           "b_ih",         "b_hh",
                             "params", "in_proj_weight", "in_proj_bias"};

// Names of arguments that are weights in matrix products, by operator.
const std::unordered_map<std::string, Names> product_arguments{
    {"aten::mm", {"mat2"}},
    {"aten::bmm", {"mat2"}},
    {"aten::matmul", {"other"}},
    {"aten::addmm", {"self", "mat2"}},
    {"aten::baddbmm", {"self", "batch2"}},
    {"aten::mv", {"self"}},
    {"aten::addmv", {"input", "mat"}},
};

// Operators whose result is their first input in another form.
const Names forms{
    "aten::t",
    "aten::transpose",
    "aten::permute",
    "aten::view",
    "aten::_unsafe_view",
    "aten::reshape",
    "aten::_reshape_alias",
    "aten::expand",
    "aten::unsqueeze",
    "aten::squeeze",
    "aten::flatten",
    "aten::detach",
    "aten::alias",
    "aten::contiguous",
    "aten::to",
    "aten::_to_copy",
    "aten::clone",
    "aten::slice",
    "aten::select",
    "aten::narrow",
    "aten::as_strided",
    "aten::view_copy",
    "aten::t_copy",
    "aten::transpose_copy",
    "aten::permute_copy",
    "aten::expand_copy",
    "aten::unsqueeze_copy",
    "aten::squeeze_copy",
    "aten::detach_copy",
    "aten::alias_copy",
    "aten::slice_copy",
    "aten::select_copy",
};

bool is_weight(const Value* value);

bool is_weight_use(const Use& use) {
  const auto* node = use.user;
  const std::string kind = node->kind().toQualString();
  if (node->kind() == c10::prim::ListConstruct) return is_weight(node->output());
  if (use.offset == 0 && forms.count(kind)) return is_weight(node->output());
  const auto* schema = node->maybeSchema();
  if (!schema || use.offset >= schema->arguments().size()) return false;
  const auto& argument = schema->arguments()[use.offset].name();
  const auto product = product_arguments.find(kind);
  if (product != product_arguments.end()) return product->second.count(argument) != 0;
  return weight_arguments.count(argument) != 0;
}

bool is_weight(const Value* value) {
  const auto& uses = value->uses();
  return !uses.empty() && std::all_of(uses.begin(), uses.end(), is_weight_use);
}

} // namespace

std::vector<size_t> weight_inputs(const torch::jit::Graph& graph) {
  std::vector<size_t> indices;
  const auto inputs = graph.inputs();
  for (size_t i = 0; i < inputs.size(); ++i)
    if (is_tensor(inputs[i]) && is_weight(inputs[i])) indices.push_back(i);
  return indices;
}

} // namespace torchmdla
