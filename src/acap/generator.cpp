#include "generator.h"

#include <ATen/CPUGeneratorImpl.h>

namespace torchmdla::acap {

namespace {

class GeneratorImpl : public c10::GeneratorImpl {
public:
  explicit GeneratorImpl(at::Generator cpu)
      : c10::GeneratorImpl(c10::Device(c10::DeviceType::PrivateUse1, 0),
                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        cpu_(std::move(cpu)) {}

  const at::Generator& cpu() const { return cpu_; }

  void set_current_seed(uint64_t seed) override { cpu_.set_current_seed(seed); }
  void set_offset(uint64_t offset) override { cpu_.set_offset(offset); }
  uint64_t get_offset() const override { return cpu_.get_offset(); }
  uint64_t current_seed() const override { return cpu_.current_seed(); }
  uint64_t seed() override { return cpu_.seed(); }
  void set_state(const c10::TensorImpl& state) override {
    cpu_.unsafeGetGeneratorImpl()->set_state(state);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return cpu_.unsafeGetGeneratorImpl()->get_state();
  }

private:
  // PyTorch takes ownership of the clone.
  c10::GeneratorImpl* clone_impl() const override { return new GeneratorImpl(cpu_.clone()); }

  at::Generator cpu_;
};

} // namespace

const at::Generator& default_generator() {
  static const auto generator =
      at::make_generator<GeneratorImpl>(at::detail::getDefaultCPUGenerator());
  return generator;
}

at::Generator make_generator() {
  return at::make_generator<GeneratorImpl>(at::detail::createCPUGenerator());
}

at::Generator cpu_generator(const at::Generator& generator) {
  const auto* acap_generator =
      generator.defined() ? dynamic_cast<const GeneratorImpl*>(generator.unsafeGetGeneratorImpl())
                          : nullptr;
  return acap_generator ? acap_generator->cpu() : generator;
}

} // namespace torchmdla::acap
