// Loaded model: its code is mapped into this process, and its weights are mapped from the file.
#pragma once

#include "codeimage/image.h"
#include "model_file.h"
#include "tensor.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace torchmdla::native {

// Model of a file. Any number of threads may use it concurrently. Its functions throw Error,
// FileProblem, BadBytes or ImageError if a file or a tensor is invalid.
class Model {
public:
  Model(const std::string& path, int threads, bool any_owner);

  const std::vector<Port>& inputs() const { return file_.content().inputs; }
  const std::vector<Port>& outputs() const { return file_.content().outputs; }

  Numbers output_sizes(std::span<const TensorView> inputs, size_t output) const;
  void run(std::span<const TensorView> inputs, std::span<const TensorView> outputs) const;
  void verify() const { file_.verify(); }

  int threads() const { return threads_; }
  void set_threads(int threads);

private:
  // Code of a specialisation in this process.
  struct Code {
    const Specialisation* specialisation;
    std::shared_ptr<const Image> image;
    int32_t (*entry)(void* const* buffers);
    int64_t (*workspace)(const int64_t* symbols);
    std::vector<const void*> packed;
  };

  // Code and values of the symbols that a call uses for its inputs.
  struct Choice {
    const Code* code;
    Numbers symbols;
  };

  void load_code();
  void check_inputs(std::span<const TensorView> inputs, bool with_data) const;
  void check_outputs(std::span<const TensorView> outputs, const Choice& choice) const;
  Choice choose(std::span<const TensorView> inputs) const;

  ModelFile file_;
  std::vector<Code> codes_;
  std::atomic<int> threads_;
};

} // namespace torchmdla::native
