#include "context.h"

#include "binary.h"
#include "executor.h"
#include "files.h"
#include "microndla.h"
#include "report.h"

#include <cstdio>
#include <cstring>

namespace mdla {
namespace {

// Split the arrays into samples. They contain the inputs of one sample after the other.
std::vector<std::vector<const float*>> split_samples(const Network& network,
                                                     const InputArrays& arrays) {
  size_t inputs = network.inputs.size();
  require(inputs > 0 && arrays.count > 0 && arrays.count % inputs == 0, arrays.count,
          " calibration arrays for a network of ", inputs, " inputs");
  std::vector<std::vector<const float*>> samples(arrays.count / inputs);
  for (size_t index = 0; index < arrays.count; ++index) {
    const Network::Port& port = network.inputs[index % inputs];
    int64_t count = elements(port.shape);
    require(arrays.data[index] && static_cast<int64_t>(arrays.elements[index]) == count,
            "calibration array ", index, " has ", arrays.elements[index], " elements for input \"",
            port.name, "\" of ", count);
    samples[index / inputs].push_back(arrays.data[index]);
  }
  return samples;
}

template <class Text> std::string join(const std::vector<Placed>& tensors, Text text_of) {
  std::string out;
  for (const Placed& tensor : tensors)
    out += (out.empty() ? "" : ";") + text_of(tensor);
  return out;
}

std::string names(const std::vector<Placed>& tensors) {
  return join(tensors, [](const Placed& tensor) { return tensor.name; });
}

std::string shapes(const std::vector<Placed>& tensors) {
  return join(tensors, [](const Placed& tensor) { return text(tensor.shape); });
}

} // namespace

Context::~Context() {
  pipeline_.reset();
  unload();
}

void Context::set_flag(const std::string& name, const std::string& value) {
  std::lock_guard lock(mutex_);
  flags_.set(name, value);
}

void Context::compile(const std::string& model, const std::string& binary,
                      const std::string& inshapes, const InputArrays& samples, Context* linked) {
  Target target;
  {
    std::lock_guard lock(mutex_);
    target = flags_.target();
  }
  require(target.precision != Precision::kVariable || samples.count > 0,
          "the precision \"variable\" needs calibration inputs: ie_compile_vfp");
  Network network = make_network(read_onnx(model), inshapes);
  std::vector<double> ranges;
  bool calibrates =
      target.precision == Precision::kVariable || target.precision == Precision::kFixed8;
  if (samples.count > 0 && calibrates)
    ranges = calibrate(network, target, split_samples(network, samples));
  Program compiled = mdla::compile(network, target, ranges);
  if (!binary.empty()) write_file(binary, write_binary(compiled));
  load(std::move(compiled), linked);
}

void Context::init(const std::string& binary, Context* linked) {
  int64_t card_bytes = 0;
  {
    std::lock_guard lock(mutex_);
    card_bytes = flags_.board().memory_bytes;
  }
  load(read_binary(read_file(binary), card_bytes), linked);
}

void Context::load(Program program, Context* linked) {
  std::shared_ptr<Card> shared = linked && linked != this ? linked->card() : card();
  std::shared_ptr<Pipeline> ended; // destroyed after `lock`, for which its thread may wait
  std::lock_guard lock(mutex_);
  ended = std::move(pipeline_);
  if (ended) ended->end();
  unload();
  card_ = shared;
  {
    std::lock_guard card_lock(card_->mutex);
    base_ =
        card_->allocate(program.memory_bytes, flags_.first_address(), flags_.board().memory_bytes);
    uint8_t* memory = card_->memory.data() + base_;
    std::memset(memory, 0, program.memory_bytes);
    std::memcpy(memory, program.constants.data(), program.constants.size());
  }
  program.constants.clear(), program.constants.shrink_to_fit();
  program_ = std::make_unique<Program>(std::move(program));
  set_shapes();
  print_debug();
}

void Context::unload() {
  if (!program_) return;
  std::lock_guard card_lock(card_->mutex);
  card_->release(base_);
  program_.reset();
}

std::shared_ptr<Card> Context::card() {
  std::lock_guard lock(mutex_);
  if (!card_) card_ = std::make_shared<Card>();
  return card_;
}

const Program& Context::program() const {
  require(program_ != nullptr, "the context has no network: call ie_compile or ie_init first");
  return *program_;
}

void Context::set_shapes() {
  shapes_ = {};
  for (const Placed& output : program_->outputs) {
    shapes_.dims.push_back(static_cast<unsigned>(output.shape.size()));
    shapes_.sizes.emplace_back(output.shape.begin(), output.shape.end());
  }
  for (std::vector<uint64_t>& sizes : shapes_.sizes)
    shapes_.pointers.push_back(sizes.data());
}

void Context::print_debug() const {
  if (flags_.debug('b'))
    std::fprintf(stderr, "mdla: %zu layers, %lld bytes at %lld, %lld cycles\n",
                 program_->layers.size(), static_cast<long long>(program_->memory_bytes),
                 static_cast<long long>(base_),
                 static_cast<long long>(total_cost(*program_).cycles));
  if (flags_.debug('n')) std::fprintf(stderr, "%s\n", layers_json(*program_).c_str());
  if (flags_.debug('I')) std::fprintf(stderr, "%s", listing(*program_).c_str());
}

void Context::check(const InputArrays& inputs) const {
  const std::vector<Placed>& wanted = program().inputs;
  require(inputs.count == wanted.size(), inputs.count, " inputs for a network of ", wanted.size());
  require(inputs.count == 0 || (inputs.data && inputs.elements), "the inputs are null");
  for (size_t index = 0; index < wanted.size(); ++index)
    require(inputs.data[index] &&
                inputs.elements[index] == static_cast<uint64_t>(elements(wanted[index].shape)),
            "input \"", wanted[index].name, "\" has ", inputs.elements[index],
            " elements instead of ", elements(wanted[index].shape));
}

void Context::check(const OutputArrays& outputs) const {
  const std::vector<Placed>& expected = program().outputs;
  require(outputs.count == expected.size(), outputs.count, " outputs for a network of ",
          expected.size());
  require(outputs.data && outputs.elements, "the outputs are null");
  for (size_t index = 0; index < expected.size(); ++index)
    require(outputs.data[index] &&
                outputs.elements[index] >= static_cast<uint64_t>(elements(expected[index].shape)),
            "output \"", expected[index].name, "\" has room for ", outputs.elements[index], " of ",
            elements(expected[index].shape), " elements");
}

// Run one inference. The caller has locked the context's mutex.
void Context::infer(const float* const* inputs, float* const* outputs, bool software) {
  std::lock_guard card_lock(card_->mutex);
  uint8_t* memory = card_->memory.data() + base_;
  Precision precision = program_->precision;
  for (size_t index = 0; index < program_->inputs.size(); ++index)
    write_tensor(program_->inputs[index], precision, inputs[index], memory);
  execute(*program_, software || flags_.software() ? Run::kSoftware : Run::kDevice, memory);
  for (size_t index = 0; index < program_->outputs.size(); ++index)
    read_tensor(program_->outputs[index], precision, memory, outputs[index]);
}

void Context::run(const InputArrays& inputs, const OutputArrays& outputs, bool software) {
  std::lock_guard lock(mutex_);
  check(inputs);
  check(outputs);
  infer(inputs.data, outputs.data, software);
}

void Context::infer(Job& job) {
  try {
    std::lock_guard lock(mutex_);
    std::vector<const float*> inputs;
    std::vector<uint64_t> sizes;
    std::vector<float*> outputs;
    for (const std::vector<float>& input : job.inputs)
      inputs.push_back(input.data()), sizes.push_back(input.size());
    // The context may have loaded another network since the inputs were put.
    check(InputArrays{inputs.data(), sizes.data(), static_cast<unsigned>(inputs.size())});
    for (const Placed& output : program().outputs)
      outputs.push_back(job.outputs.emplace_back(elements(output.shape)).data());
    infer(inputs.data(), outputs.data(), false);
  } catch (const std::exception& error) {
    job.error = error.what();
  }
}

std::shared_ptr<Pipeline> Context::pipeline() {
  std::lock_guard lock(mutex_);
  if (!pipeline_)
    pipeline_ = std::make_shared<Pipeline>(static_cast<size_t>(program().buffers),
                                           [this](Job& job) { infer(job); });
  return pipeline_;
}

bool Context::put(const InputArrays& inputs, void* user) {
  std::shared_ptr<Pipeline> queue = pipeline();
  Job job;
  bool wait = false;
  {
    std::lock_guard lock(mutex_);
    check(inputs);
    wait = flags_.blocking();
  }
  for (unsigned index = 0; index < inputs.count; ++index)
    job.inputs.emplace_back(inputs.data[index], inputs.data[index] + inputs.elements[index]);
  job.user = user;
  return queue->put(std::move(job), wait);
}

bool Context::get(const OutputArrays& outputs, void** user) {
  std::shared_ptr<Pipeline> queue = pipeline();
  bool wait = false;
  {
    std::lock_guard lock(mutex_);
    check(outputs);
    wait = flags_.blocking();
  }
  Job job;
  if (!queue->get(job, wait)) return false;
  if (user) *user = job.user;
  require(job.error.empty(), job.error);
  require(job.outputs.size() == outputs.count, "the result is of another network");
  for (unsigned index = 0; index < outputs.count; ++index) {
    require(job.outputs[index].size() <= outputs.elements[index],
            "the result is of another network");
    std::copy(job.outputs[index].begin(), job.outputs[index].end(), outputs.data[index]);
  }
  return true;
}

// Return a pointer to bytes of the card's memory. The caller has locked the card's mutex.
uint8_t* Context::card_bytes(uint64_t address, uint64_t bytes, int card) {
  require(card == 0, "card ", card, ": the emulator keeps all cards' memory in card 0");
  std::vector<uint8_t>& memory = card_->memory;
  require(bytes <= memory.size() && address <= memory.size() - bytes, bytes, " bytes at ", address,
          " of a memory of ", memory.size());
  return memory.data() + address;
}

void Context::read(uint64_t address, void* data, uint64_t bytes, int card) {
  std::shared_ptr<Card> from = this->card();
  std::lock_guard card_lock(from->mutex);
  std::memcpy(data, card_bytes(address, bytes, card), bytes);
}

void Context::write(uint64_t address, const void* data, uint64_t bytes, int card) {
  std::shared_ptr<Card> to = this->card();
  std::lock_guard card_lock(to->mutex);
  std::memcpy(card_bytes(address, bytes, card), data, bytes);
}

void Context::write_weights(const float* weights, int64_t count, const float* bias,
                            int64_t bias_count, int64_t layer) {
  std::lock_guard lock(mutex_);
  const std::vector<Weighted>& all = program().weighted;
  int64_t last = static_cast<int64_t>(all.size()) - 1;
  if (layer == -1)
    for (layer = last; layer >= 0 && !all[layer].linear;)
      --layer;
  require(layer >= 0 && layer <= last, "there is no such layer with weights; the network has ",
          all.size());
  const Weighted& to = all[layer];
  require(!weights || count == to.weight_elements, "layer ", layer, " has ", to.weight_elements,
          " weights, not ", count);
  require(!bias || (to.bias >= 0 && bias_count == to.bias_elements), "layer ", layer, " has ",
          to.bias_elements, " biases, not ", bias_count);
  std::lock_guard card_lock(card_->mutex);
  uint8_t* memory = card_->memory.data() + base_;
  if (weights)
    encode(weights, count, program_->precision, to.weight_fraction, false, memory + to.weights);
  if (bias) encode(bias, bias_count, program_->precision, to.bias_fraction, true, memory + to.bias);
}

void Context::set_error(const std::string& text) {
  std::lock_guard lock(error_mutex_);
  error_ = text;
}

std::optional<Info> Context::program_info(const std::string& name) {
  using Get = Info (*)(const Program&);
  static const std::map<std::string, Get> table{
      {"inshapes", [](const Program& program) -> Info { return shapes(program.inputs); }},
      {"outshapes", [](const Program& program) -> Info { return shapes(program.outputs); }},
      {"innames", [](const Program& program) -> Info { return names(program.inputs); }},
      {"outnames", [](const Program& program) -> Info { return names(program.outputs); }},
      {"layers", [](const Program& program) -> Info { return layers_json(program); }},
      {"instructions", [](const Program& program) -> Info { return listing(program); }},
      {"nlayers",
       [](const Program& program) -> Info { return static_cast<int32_t>(program.layers.size()); }},
      {"cycles", [](const Program& program) -> Info { return total_cost(program).cycles; }},
      {"input_cycles", [](const Program& program) -> Info { return program.input_cycles; }},
      {"output_cycles", [](const Program& program) -> Info { return program.output_cycles; }},
      {"macs", [](const Program& program) -> Info { return total_cost(program).macs; }},
      {"bytes_loaded",
       [](const Program& program) -> Info { return total_cost(program).bytes_loaded; }},
      {"bytes_stored",
       [](const Program& program) -> Info { return total_cost(program).bytes_stored; }},
      {"bytes_transferred",
       [](const Program& program) -> Info { return total_cost(program).bytes_transferred; }},
      {"utilisation",
       [](const Program& program) -> Info {
         return static_cast<float>(utilisation(program, total_cost(program)));
       }},
      {"hwtime",
       [](const Program& program) -> Info {
         return static_cast<float>(milliseconds(program, total_cost(program).cycles));
       }},
      {"memory_bytes", [](const Program& program) -> Info { return program.memory_bytes; }},
  };
  auto entry = table.find(name);
  if (entry == table.end()) return std::nullopt;
  return entry->second(program());
}

std::optional<Info> Context::info(const std::string& name) {
  if (name == "error") {
    std::lock_guard lock(error_mutex_);
    return error_;
  }
  std::lock_guard lock(mutex_);
  using Get = Info (*)(Context&);
  static const std::map<std::string, Get> table{
      {"version", [](Context&) -> Info { return std::string(IE_VERSION); }},
      {"build", [](Context&) -> Info { return std::string("torchmdla emulator"); }},
      {"hwversion", [](Context& context) -> Info { return context.flags_.board().name; }},
      {"hwbuild", [](Context&) -> Info { return std::string("emulated"); }},
      {"freq",
       [](Context& context) -> Info {
         return static_cast<int32_t>(context.flags_.board().clock_mhz);
       }},
      {"maxcluster",
       [](Context& context) -> Info {
         return static_cast<int32_t>(context.flags_.board().clusters);
       }},
      {"maxfpga",
       [](Context& context) -> Info { return static_cast<int32_t>(context.flags_.board().fpgas); }},
      {"busy_comp",
       [](Context& context) -> Info {
         return static_cast<int32_t>(context.pipeline_ && context.pipeline_->busy());
       }},
      {"base_address", [](Context& context) -> Info { return context.base_; }},
      {"print_flags", [](Context& context) -> Info { return context.flags_.print(); }},
      {"help", [](Context&) -> Info { return Flags::help(); }},
      {"addroff",
       [](Context& context) -> Info {
         return context.base_ + (context.program_ ? context.program_->memory_bytes : 0);
       }},
  };
  auto entry = table.find(name);
  if (entry != table.end()) return entry->second(*this);
  if (std::optional<Info> flag = flags_.get(name)) return flag;
  return program_info(name);
}

} // namespace mdla
