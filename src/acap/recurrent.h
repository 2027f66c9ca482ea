// The cells of recurrent networks, which PyTorch asks a device for as one op each.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

namespace torchmdla::acap {

using MaybeTensor = std::optional<at::Tensor>;

// With `gates` hidden sizes wide products of input and weights [B, 4H]; the new hidden and cell
// state [B, H], and what backward needs: the gates after their activations [B, 4H].
std::tuple<at::Tensor, at::Tensor, at::Tensor>
lstm_cell(const at::Tensor& input_gates, const at::Tensor& hidden_gates, const at::Tensor& cell,
          const MaybeTensor& input_bias, const MaybeTensor& hidden_bias);

// Gradients of the gates [B, 4H], the old cell state, and the bias.
std::tuple<at::Tensor, at::Tensor, at::Tensor>
lstm_cell_backward(const MaybeTensor& grad_hidden, const MaybeTensor& grad_cell,
                   const at::Tensor& cell, const at::Tensor& new_cell, const at::Tensor& workspace,
                   bool has_bias);

// From products [B, 3H]; the new hidden state [B, H], and what backward needs [B, 5H].
std::tuple<at::Tensor, at::Tensor> gru_cell(const at::Tensor& input_gates,
                                            const at::Tensor& hidden_gates,
                                            const at::Tensor& hidden, const MaybeTensor& input_bias,
                                            const MaybeTensor& hidden_bias);

// Gradients of both products, the old hidden state, and both biases.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>
gru_cell_backward(const at::Tensor& grad_hidden, const at::Tensor& workspace, bool has_bias);

} // namespace torchmdla::acap
