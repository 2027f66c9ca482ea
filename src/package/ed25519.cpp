#include "ed25519.h"

#include <dlfcn.h>

namespace torchmdla {

namespace {

using LibraryHandle = std::shared_ptr<void>;

LibraryHandle first_library(const SonameList& names) {
  for (const auto& name : names)
    if (void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) return {handle, dlclose};
  return nullptr;
}

// Set `function` to the library's function `name`. Return false if the library does not have it.
template <class Function>
bool find_function(const LibraryHandle& library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(library.get(), name));
  return function != nullptr;
}

const unsigned char* as_octets(std::span<const std::byte> bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}

// Functions of OpenSSL's libcrypto. Manual pages: EVP_PKEY_new_raw_public_key(3),
// EVP_DigestVerifyInit(3), EVP_SIGNATURE-ED25519(7).
struct LibcryptoFunctions {
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

} // namespace

SignatureChecker libcrypto_checker(const SonameList& names) {
  constexpr int ed25519 = 1087; // EVP_PKEY_ED25519 of openssl/evp.h, which never changes
  const auto library = first_library(names);
  LibcryptoFunctions functions{};
  if (!library || !functions.find_in(library)) return nullptr;
  return [library, functions](const Ed25519Signature& signature, std::span<const std::byte> message,
                              const PublicKey& key) {
    using Owned = std::unique_ptr<void, void (*)(void*)>;
    const Owned owned_key(
        functions.new_raw_public_key(ed25519, nullptr, as_octets(key), key.size()),
        functions.free_key);
    const Owned context(functions.new_context(), functions.free_context);
    const bool is_accepted =
        owned_key && context &&
        functions.begin(context.get(), nullptr, nullptr, nullptr, owned_key.get()) == 1 &&
        functions.verify(context.get(), as_octets(signature), signature.size(), as_octets(message),
                         message.size()) == 1;
    // An error that stays in the thread's queue would look like a failure of the program's own next
    // call of OpenSSL.
    if (!is_accepted) functions.clear_errors();
    return is_accepted;
  };
}

// See "Public-key signatures" in libsodium's manual.
SignatureChecker libsodium_checker(const SonameList& names) {
  const auto library = first_library(names);
  int (*init)();
  int (*verify)(const unsigned char* signature, const unsigned char* message,
                unsigned long long message_bytes, const unsigned char* key);
  if (!library || !find_function(library, "sodium_init", init) ||
      !find_function(library, "crypto_sign_verify_detached", verify) || init() < 0)
    return nullptr;
  return [library, verify](const Ed25519Signature& signature, std::span<const std::byte> message,
                           const PublicKey& key) {
    return verify(as_octets(signature), as_octets(message), message.size(), as_octets(key)) == 0;
  };
}

const SignatureChecker& signature_checker() {
  // It is never destroyed, because programs may load files while the process exits.
  static const auto& checker = *new SignatureChecker([] {
    auto libcrypto = libcrypto_checker({"libcrypto.so.3", "libcrypto.so.1.1"});
    return libcrypto ? libcrypto : libsodium_checker({"libsodium.so.26", "libsodium.so.23"});
  }());
  if (!checker)
    throw std::runtime_error("signatures cannot be checked here: there is neither OpenSSL's "
                             "libcrypto (libcrypto.so.3 or libcrypto.so.1.1) nor libsodium "
                             "(libsodium.so.26 or libsodium.so.23)");
  return checker;
}

} // namespace torchmdla
