// Target of a `cmem` pointer of the C API: one network on a card.
#pragma once

#include "card.h"
#include "flags.h"
#include "pipeline.h"

#include <memory>

namespace mdla {

// Arrays as the C API passes them. The context checks them against the network.
struct InputArrays {
  const float* const* data;
  const uint64_t* elements;
  unsigned count;
};
struct OutputArrays {
  float** data;
  const uint64_t* elements;
  unsigned count;
};

// Shapes of the network's outputs, in the form that ie_compile and ie_init return.
struct OutputShapes {
  std::vector<unsigned> dims;
  std::vector<std::vector<uint64_t>> sizes;
  std::vector<uint64_t*> pointers;
};

// Thread-safe network on a card. Its functions throw on failure.
class Context {
public:
  ~Context();

  void set_flag(const std::string& name, const std::string& value);
  // Return a flag or a measurement, or nullopt for an unknown name.
  std::optional<Info> info(const std::string& name);

  // Compile the ONNX file `model` and load it. Write the program to the file `binary`, unless that
  // is "". `samples`: inputs for calibration; may be empty.
  void compile(const std::string& model, const std::string& binary, const std::string& inshapes,
               const InputArrays& samples, Context* linked);
  void init(const std::string& binary, Context* linked);
  OutputShapes& output_shapes() { return shapes_; }

  void run(const InputArrays& inputs, const OutputArrays& outputs, bool software);
  // Start an inference. Return false if all buffers are in use and the flag blockingmode is 0.
  bool put(const InputArrays& inputs, void* user);
  // Get the oldest result. Return false if there is none and blockingmode is 0.
  bool get(const OutputArrays& outputs, void** user);

  void read(uint64_t address, void* data, uint64_t bytes, int card);
  void write(uint64_t address, const void* data, uint64_t bytes, int card);
  void write_weights(const float* weights, int64_t count, const float* bias, int64_t bias_count,
                     int64_t layer);

  void set_error(const std::string& text);

private:
  void load(Program program, Context* linked);
  void unload();
  std::shared_ptr<Card> card();
  std::shared_ptr<Pipeline> pipeline();
  const Program& program() const;
  void check(const InputArrays& inputs) const;
  void check(const OutputArrays& outputs) const;
  void infer(const float* const* inputs, float* const* outputs, bool software);
  void infer(Job& job);
  uint8_t* card_bytes(uint64_t address, uint64_t bytes, int card);
  void set_shapes();
  void print_debug() const;
  std::optional<Info> program_info(const std::string& name);

  std::mutex mutex_; // guards all members but `error_`; a pipeline guards its own state
  Flags flags_;
  std::shared_ptr<Card> card_;
  std::unique_ptr<Program> program_;
  int64_t base_ = 0; // address of the network's memory on the card
  OutputShapes shapes_;
  std::shared_ptr<Pipeline> pipeline_;
  std::mutex error_mutex_; // guards `error_`
  std::string error_;
};

} // namespace mdla
