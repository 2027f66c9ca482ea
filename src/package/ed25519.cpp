#include "ed25519.h"

#include <utility>

#include <dlfcn.h>

namespace torchmdla {

namespace {

struct CloseLibrary {
  void operator()(void* handle) const { dlclose(handle); }
};
using LibraryHandle = std::unique_ptr<void, CloseLibrary>;

LibraryHandle first_library(const SonameList& names) {
  for (const auto& name : names)
    if (void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) return LibraryHandle(handle);
  return nullptr;
}

// Set `function` to the library's function `name`. Return false if the library does not have it.
template <class Function>
bool find_function(const LibraryHandle& library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(library.get(), name));
  return function != nullptr;
}

const unsigned char* as_octets(const std::byte* bytes) {
  return reinterpret_cast<const unsigned char*>(bytes);
}

// Functions of OpenSSL's libcrypto. Manual pages: EVP_PKEY_new_raw_public_key(3),
// EVP_DigestVerifyInit(3), EVP_SIGNATURE-ED25519(7).
struct LibcryptoFunctions {
  static constexpr int ed25519 = 1087; // EVP_PKEY_ED25519 of openssl/evp.h, which never changes

  void* (*new_raw_public_key)(int type, void* engine, const unsigned char* key, size_t bytes);
  void (*free_key)(void* key);
  void* (*new_context)();
  void (*free_context)(void* context);
  int (*begin)(void* context, void** key_context, const void* hash, void* engine, void* key);
  int (*verify)(void* context, const unsigned char* signature, size_t signature_bytes,
                const unsigned char* message, size_t message_bytes);
  void (*clear_errors)();

  bool find_in(const LibraryHandle& library) {
    return find_function(library, "EVP_PKEY_new_raw_public_key", new_raw_public_key) &&
           find_function(library, "EVP_PKEY_free", free_key) &&
           find_function(library, "EVP_MD_CTX_new", new_context) &&
           find_function(library, "EVP_MD_CTX_free", free_context) &&
           find_function(library, "EVP_DigestVerifyInit", begin) &&
           find_function(library, "EVP_DigestVerify", verify) &&
           find_function(library, "ERR_clear_error", clear_errors);
  }
};

class LibcryptoChecker final : public SignatureChecker {
public:
  LibcryptoChecker(LibraryHandle library, const LibcryptoFunctions& functions)
      : library_(std::move(library)), functions_(functions) {}

  bool accepts(const Ed25519Signature& signature, std::span<const std::byte> message,
               const PublicKey& key) const override {
    using Owned = std::unique_ptr<void, void (*)(void*)>;
    const Owned made(functions_.new_raw_public_key(LibcryptoFunctions::ed25519, nullptr,
                                                   as_octets(key.data()), key.size()),
                     functions_.free_key);
    const Owned context(functions_.new_context(), functions_.free_context);
    const bool accepted =
        made && context &&
        functions_.begin(context.get(), nullptr, nullptr, nullptr, made.get()) == 1 &&
        functions_.verify(context.get(), as_octets(signature.data()), signature.size(),
                          as_octets(message.data()), message.size()) == 1;
    // An error that stays in the thread's queue would look like a failure of the program's own next
    // call of OpenSSL.
    if (!accepted) functions_.clear_errors();
    return accepted;
  }

private:
  const LibraryHandle library_;
  const LibcryptoFunctions functions_;
};

// Functions of libsodium. See "Public-key signatures" in its manual.
struct LibsodiumFunctions {
  int (*init)();
  int (*verify)(const unsigned char* signature, const unsigned char* message,
                unsigned long long message_bytes, const unsigned char* key);

  bool find_in(const LibraryHandle& library) {
    return find_function(library, "sodium_init", init) &&
           find_function(library, "crypto_sign_verify_detached", verify) && init() >= 0;
  }
};

class LibsodiumChecker final : public SignatureChecker {
public:
  LibsodiumChecker(LibraryHandle library, const LibsodiumFunctions& functions)
      : library_(std::move(library)), functions_(functions) {}

  bool accepts(const Ed25519Signature& signature, std::span<const std::byte> message,
               const PublicKey& key) const override {
    return functions_.verify(as_octets(signature.data()), as_octets(message.data()), message.size(),
                             as_octets(key.data())) == 0;
  }

private:
  const LibraryHandle library_;
  const LibsodiumFunctions functions_;
};

template <class Checker, class Functions>
std::unique_ptr<const SignatureChecker> checker_of(const SonameList& names) {
  auto library = first_library(names);
  Functions functions{};
  if (!library || !functions.find_in(library)) return nullptr;
  return std::make_unique<const Checker>(std::move(library), functions);
}

std::unique_ptr<const SignatureChecker> checker_of_system() {
  if (auto found = libcrypto_checker({"libcrypto.so.3", "libcrypto.so.1.1"})) return found;
  return libsodium_checker({"libsodium.so.26", "libsodium.so.23"});
}

} // namespace

std::unique_ptr<const SignatureChecker> libcrypto_checker(const SonameList& names) {
  return checker_of<LibcryptoChecker, LibcryptoFunctions>(names);
}

std::unique_ptr<const SignatureChecker> libsodium_checker(const SonameList& names) {
  return checker_of<LibsodiumChecker, LibsodiumFunctions>(names);
}

const SignatureChecker& signature_checker() {
  // It is never destroyed, because programs may load files while the process exits.
  static const auto& found = *new std::unique_ptr<const SignatureChecker>(checker_of_system());
  if (!found)
    throw std::runtime_error("signatures cannot be checked here: there is neither OpenSSL's "
                             "libcrypto (libcrypto.so.3 or libcrypto.so.1.1) nor libsodium "
                             "(libsodium.so.26 or libsodium.so.23)");
  return *found;
}

} // namespace torchmdla
