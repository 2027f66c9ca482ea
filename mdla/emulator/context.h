// What a `cmem` of the C API points at: one network on a card.
#pragma once

#include "card.h"
#include "flags.h"
#include "pipeline.h"

#include <memory>

namespace mdla {

// Arrays as the C API passes them, checked against the network.
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

// The network's outputs as ie_compile and ie_init return them.
struct OutputShapes {
  std::vector<unsigned> dims;
  std::vector<std::vector<uint64_t>> sizes;
  std::vector<uint64_t*> pointers;
};

// Safe to use from several threads. Members throw what goes wrong.
class Context {
public:
  ~Context();

  void set_flag(const std::string& name, const std::string& value);
  // Nothing for an unknown name.
  std::optional<Info> info(const std::string& name);

  // `samples`: inputs to calibrate with, or none.
  void compile(const std::string& model, const std::string& binary, const std::string& inshapes,
               const InputArrays& samples, Context* linked);
  void init(const std::string& binary, Context* linked);
  OutputShapes& output_shapes() { return shapes_; }

  void run(const InputArrays& inputs, const OutputArrays& outputs, bool software);
  // False: all buffers are in use and the flag blockingmode is 0.
  bool put(const InputArrays& inputs, void* user);
  // False: no result and blockingmode is 0.
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

  std::mutex mutex_; // of everything but the error and what a pipeline guards itself
  Flags flags_;
  std::shared_ptr<Card> card_;
  std::unique_ptr<Program> program_;
  int64_t base_ = 0; // of the network's memory on the card
  OutputShapes shapes_;
  std::shared_ptr<Pipeline> pipeline_;
  std::mutex error_mutex_;
  std::string error_;
};

} // namespace mdla
