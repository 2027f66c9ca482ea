#include "recurrent.h"

#include <ATen/ATen.h>

namespace torchmdla::acap {

namespace {

bool is_defined(const MaybeTensor& tensor) {
  return tensor && tensor->defined();
}

at::Tensor add_if_defined(const at::Tensor& tensor, const MaybeTensor& other) {
  return is_defined(other) ? tensor + *other : tensor;
}

// Return the derivative of sigmoid or tanh, given the value of the function.
at::Tensor sigmoid_slope(const at::Tensor& value) {
  return value * (1 - value);
}

at::Tensor tanh_slope(const at::Tensor& value) {
  return 1 - value * value;
}

at::Tensor bias_gradient(const at::Tensor& gates, bool has_bias) {
  return has_bias ? gates.sum(0) : at::Tensor();
}

} // namespace

std::tuple<at::Tensor, at::Tensor, at::Tensor>
lstm_cell(const at::Tensor& input_gates, const at::Tensor& hidden_gates, const at::Tensor& cell,
          const MaybeTensor& input_bias, const MaybeTensor& hidden_bias) {
  const auto gates =
      (add_if_defined(input_gates, input_bias) + add_if_defined(hidden_gates, hidden_bias))
          .chunk(4, 1);
  const auto in = gates[0].sigmoid(), forget = gates[1].sigmoid(), update = gates[2].tanh(),
             out = gates[3].sigmoid();
  const auto new_cell = forget * cell + in * update;
  return {out * new_cell.tanh(), new_cell, at::cat({in, forget, update, out}, 1)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor>
lstm_cell_backward(const MaybeTensor& grad_hidden, const MaybeTensor& grad_cell,
                   const at::Tensor& cell, const at::Tensor& new_cell, const at::Tensor& workspace,
                   bool has_bias) {
  if (!is_defined(grad_hidden) && !is_defined(grad_cell)) return {};
  const auto gates = workspace.chunk(4, 1);
  const auto &in = gates[0], &forget = gates[1], &update = gates[2], &out = gates[3];
  const auto shown = new_cell.tanh();
  auto grad_new = is_defined(grad_cell) ? *grad_cell : at::zeros_like(new_cell);
  auto grad_out = at::zeros_like(out);
  if (is_defined(grad_hidden)) {
    grad_new = grad_new + *grad_hidden * out * tanh_slope(shown);
    grad_out = *grad_hidden * shown * sigmoid_slope(out);
  }
  const auto grad_gates =
      at::cat({grad_new * update * sigmoid_slope(in), grad_new * cell * sigmoid_slope(forget),
               grad_new * in * tanh_slope(update), grad_out},
              1);
  return {grad_gates, grad_new * forget, bias_gradient(grad_gates, has_bias)};
}

std::tuple<at::Tensor, at::Tensor> gru_cell(const at::Tensor& input_gates,
                                            const at::Tensor& hidden_gates,
                                            const at::Tensor& hidden, const MaybeTensor& input_bias,
                                            const MaybeTensor& hidden_bias) {
  const auto from_input = add_if_defined(input_gates, input_bias).chunk(3, 1);
  const auto from_hidden = add_if_defined(hidden_gates, hidden_bias).chunk(3, 1);
  const auto reset = (from_input[0] + from_hidden[0]).sigmoid();
  const auto keep = (from_input[1] + from_hidden[1]).sigmoid();
  const auto candidate = (from_input[2] + reset * from_hidden[2]).tanh();
  return {(hidden - candidate) * keep + candidate,
          at::cat({reset, keep, candidate, hidden, from_hidden[2]}, 1)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>
gru_cell_backward(const at::Tensor& grad_hidden, const at::Tensor& workspace, bool has_bias) {
  const auto saved = workspace.chunk(5, 1);
  const auto &reset = saved[0], &keep = saved[1], &candidate = saved[2], &hidden = saved[3],
             &from_hidden = saved[4];
  const auto grad_candidate = grad_hidden * (1 - keep) * tanh_slope(candidate);
  const auto grad_keep = grad_hidden * (hidden - candidate) * sigmoid_slope(keep);
  const auto grad_reset = grad_candidate * from_hidden * sigmoid_slope(reset);
  const auto grad_input = at::cat({grad_reset, grad_keep, grad_candidate}, 1);
  const auto grad_product = at::cat({grad_reset, grad_keep, grad_candidate * reset}, 1);
  return {grad_input, grad_product, grad_hidden * keep, bias_gradient(grad_input, has_bias),
          bias_gradient(grad_product, has_bias)};
}

} // namespace torchmdla::acap
