// Cells of recurrent networks. PyTorch requires each as one op of a device.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

namespace torchmdla::acap {

using MaybeTensor = std::optional<at::Tensor>;

// Compute an LSTM cell from the products of input and weights [B, 4H]. Return the new hidden and
// cell state [B, H], and the workspace for backward: the activated gates [B, 4H].
std::tuple<at::Tensor, at::Tensor, at::Tensor>
lstm_cell(const at::Tensor& input_gates, const at::Tensor& hidden_gates, const at::Tensor& cell,
          const MaybeTensor& input_bias, const MaybeTensor& hidden_bias);

// Return the gradients of the gates [B, 4H], the old cell state, and the bias.
std::tuple<at::Tensor, at::Tensor, at::Tensor>
lstm_cell_backward(const MaybeTensor& grad_hidden, const MaybeTensor& grad_cell,
                   const at::Tensor& cell, const at::Tensor& new_cell, const at::Tensor& workspace,
                   bool has_bias);

// Compute a GRU cell from products [B, 3H]. Return the new hidden state [B, H] and the workspace
// for backward [B, 5H].
std::tuple<at::Tensor, at::Tensor> gru_cell(const at::Tensor& input_gates,
                                            const at::Tensor& hidden_gates,
                                            const at::Tensor& hidden, const MaybeTensor& input_bias,
                                            const MaybeTensor& hidden_bias);

// Return the gradients of both products, the old hidden state, and both biases.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>
gru_cell_backward(const at::Tensor& grad_hidden, const at::Tensor& workspace, bool has_bias);

} // namespace torchmdla::acap
