// A model as a C++ object: the C interface, with exceptions and owners.
#pragma once

#include <torchmdla/runtime.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

inline void check(tmdla_status status) {
  if (status != TMDLA_OK) throw std::runtime_error(tmdla_last_error());
}

// A dense tensor of float32.
struct Tensor {
  std::vector<int64_t> sizes;
  std::vector<float> data;

  explicit Tensor(std::span<const int64_t> sizes)
      : sizes(sizes.begin(), sizes.end()),
        data(std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies())) {}

  tmdla_tensor view() {
    return {data.data(), TMDLA_FLOAT32, static_cast<int32_t>(sizes.size()), sizes.data(), nullptr};
  }
};

// A model of float32 whose sizes are fixed. Threads may share it.
class Model {
public:
  explicit Model(const std::string& path, int threads = 0) {
    const tmdla_options options{TMDLA_API_VERSION, threads, 0};
    tmdla_model* loaded = nullptr;
    check(tmdla_load(path.c_str(), &options, &loaded));
    model_.reset(loaded);
  }

  std::vector<Tensor> inputs() const { return tensors(tmdla_input, tmdla_input_count(model_.get())); }

  std::vector<Tensor> operator()(std::vector<Tensor>& inputs) const {
    auto outputs = tensors(tmdla_output, tmdla_output_count(model_.get()));
    const auto given = views(inputs), results = views(outputs);
    check(tmdla_run(model_.get(), given.data(), given.size(), results.data(), results.size()));
    return outputs;
  }

private:
  using Describe = tmdla_status (*)(const tmdla_model*, size_t, tmdla_info*);

  std::vector<Tensor> tensors(Describe describe, size_t count) const {
    std::vector<Tensor> made;
    for (size_t i = 0; i < count; ++i) {
      tmdla_info info;
      check(describe(model_.get(), i, &info));
      made.emplace_back(std::span(info.sizes, static_cast<size_t>(info.rank)));
    }
    return made;
  }

  static std::vector<tmdla_tensor> views(std::vector<Tensor>& tensors) {
    std::vector<tmdla_tensor> made;
    for (auto& tensor : tensors)
      made.push_back(tensor.view());
    return made;
  }

  struct Free {
    void operator()(tmdla_model* model) const { tmdla_free(model); }
  };
  std::unique_ptr<tmdla_model, Free> model_;
};
