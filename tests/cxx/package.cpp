// Tests of the trust in packages: digests, seals, signatures, keys, owners of files.

#include "base/open_file.h"
#include "base/sealed_block.h"
#include "base/sha256.h"
#include "package/ed25519.h"
#include "package/public_keys.h"
#include "testing.h"
#include "torchmdla/torchmdla.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include <sys/stat.h>
#include <unistd.h>

namespace torchmdla {

namespace {

using Octets = std::vector<std::byte>;

int digit(char c) {
  return c <= '9' ? c - '0' : c - 'a' + 10;
}

Octets from_hex(std::string_view text) {
  Octets bytes;
  for (size_t i = 0; i < text.size(); i += 2)
    bytes.push_back(static_cast<std::byte>(digit(text[i]) << 4 | digit(text[i + 1])));
  return bytes;
}

template <class Array> Array array_of(std::string_view hex) {
  Array array{};
  std::ranges::copy(from_hex(hex), array.begin());
  return array;
}

Octets octets(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

struct SignedMessage {
  std::string_view key, message, signature;
};

// Tests 1 to 3 of RFC 8032, section 7.1.
constexpr SignedMessage of_rfc8032[] = {
    {"d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a", "",
     "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b"
     "46b"
     "d25bf5f0595bbe24655141438e7a100b"},
    {"3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c", "72",
     "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11"
     "d8c"
     "387b2eaeb4302aeeb00d291612bb0c00"},
    {"fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025", "af82",
     "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984dc"
     "659"
     "4a7c15e9716ed28dc027beceea1ec40a"}};

// Check a library's checker. A library that is missing on this machine is tested on others.
void expect_checks(const SignatureChecker& checker) {
  if (!checker) return;
  for (const auto& [key_hex, message_hex, signature_hex] : of_rfc8032) {
    const auto key = array_of<PublicKey>(key_hex);
    const auto signature = array_of<Ed25519Signature>(signature_hex);
    const auto message = from_hex(message_hex);
    EXPECT(checker(signature, message, key));
    auto longer = message;
    longer.push_back(std::byte{0});
    EXPECT(!checker(signature, longer, key));
    for (size_t i = 0; i < signature.size(); ++i) {
      auto altered = signature;
      altered[i] ^= std::byte{1};
      EXPECT(!checker(altered, message, key));
    }
    auto other = key;
    other[0] ^= std::byte{1};
    EXPECT(!checker(signature, message, other));
  }
}

// Temporary file, which the destructor removes.
class TemporaryFile {
public:
  TemporaryFile() {
    const int descriptor = mkstemp(path_.data());
    TORCH_CHECK(descriptor >= 0, "no temporary file");
    close(descriptor);
  }
  ~TemporaryFile() { std::remove(path_.c_str()); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  const std::string& path() const { return path_; }
  void write(std::string_view text) const { std::ofstream(path_, std::ios::binary) << text; }
  void set_mode(mode_t mode) const { chmod(path_.c_str(), mode); }

private:
  std::string path_ = std::filesystem::temp_directory_path() / "torchmdla-XXXXXX";
};

constexpr std::string_view public_key_pem =
    "-----BEGIN PUBLIC KEY-----\n"
    "MCowBQYDK2VwAyEA/FHNjmIYoaONpH7QAjDwWAgW7RO6MwOsXeuRFUiQgCU=\n"
    "-----END PUBLIC KEY-----\n";

} // namespace

// The messages are those of FIPS 180-2, appendix B, and the empty message.
TEST(sha256_of_known_messages) {
  const auto expect = [](std::string_view message, std::string_view digest) {
    EXPECT(sha256(octets(message)) == array_of<Digest>(digest));
  };
  expect("", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  expect("abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  expect("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
         "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  expect(std::string(1000000, 'a'),
         "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

// torchmdla/compiler/checksummed.py wrote the block: Format(b"magic", 3, ...).seal({"a": 1},
// b"content").
TEST(block_that_python_sealed_is_open) {
  const auto block = from_hex(
      "6d6167696300000000000000000000000300000083a17c7cb39aa4e3dd5acba3e3073424cd073f3ece3f2093b7e0"
      "59458606ec52080000000000000007000000000000007b2261223a20317d636f6e74656e74");
  const BlockFormat format{"magic", 3, "a block"};
  EXPECT(std::ranges::equal(content_of(block, format), octets("content")));
  for (size_t i = 0; i < block.size(); ++i) {
    auto altered = block;
    altered[i] ^= std::byte{1};
    EXPECT_THROW(content_of(altered, format), BadBytes);
    EXPECT_THROW(content_of(std::span(block).first(i), format), BadBytes);
  }
}

TEST(libcrypto_checks_signatures) {
  expect_checks(libcrypto_checker({"libcrypto.so.3", "libcrypto.so.1.1"}));
}

TEST(libsodium_checks_signatures) {
  expect_checks(libsodium_checker({"libsodium.so.26", "libsodium.so.23"}));
}

TEST(library_that_is_missing_checks_nothing) {
  EXPECT(!libcrypto_checker({"libcrypto-of-nobody.so"}));
  EXPECT(!libsodium_checker({"libsodium-of-nobody.so"}));
  EXPECT(!libcrypto_checker({"libc.so.6"})); // it lacks the functions
}

TEST(public_key_of_a_pem_file) {
  EXPECT(public_key_in(public_key_pem) == array_of<PublicKey>(of_rfc8032[2].key));
}

TEST(what_is_no_public_key_is_refused) {
  const std::string pem(public_key_pem);
  EXPECT_THROW(public_key_in(""), std::runtime_error);
  EXPECT_THROW(public_key_in(pem.substr(0, pem.size() / 2)), std::runtime_error);
  EXPECT_THROW(public_key_in(pem + pem), std::runtime_error);
  EXPECT_THROW(public_key_in("-----BEGIN PRIVATE KEY-----\n" + pem), std::runtime_error);
  const auto with = [&](std::string_view was, std::string_view is) {
    auto altered = pem;
    return altered.replace(altered.find(was), was.size(), is);
  };
  EXPECT_THROW(public_key_in(with("MCow", "MCo!")), std::runtime_error);
  EXPECT_THROW(public_key_in(with("K2Vw", "K2Vv")), std::runtime_error); // identifier of X25519
  EXPECT_THROW(public_key_in(with("gCU=", "")), std::runtime_error);
}

TEST(file_that_others_may_write_has_an_owner_problem) {
  const TemporaryFile file;
  file.set_mode(0644);
  EXPECT_EQUAL(OpenFile(file.path()).owner_problem(), "");
  for (const mode_t mode : {0664, 0646}) {
    file.set_mode(mode);
    EXPECT(OpenFile(file.path()).owner_problem().find("chmod") != std::string::npos);
  }
}

// The file that is checked must be the file that is read, even if the path is replaced meanwhile.
TEST(open_file_stays_the_one_that_was_opened) {
  const TemporaryFile first, second;
  first.write("first");
  second.write("second");
  second.set_mode(0666);
  const OpenFile file(first.path());
  std::filesystem::copy_file(second.path(), first.path() + ".new");
  std::filesystem::rename(first.path() + ".new", first.path());
  Octets read(16);
  read.resize(file.read(0, read));
  EXPECT(read == octets("first"));
  EXPECT_EQUAL(file.owner_problem(), "");
}

TEST(what_is_no_file_is_not_opened) {
  EXPECT_THROW(OpenFile("/nowhere/at/all"), FileProblem);
  EXPECT_THROW(OpenFile("/dev/null"), FileProblem);
}

TEST(keys_that_others_may_write_are_refused) {
  const TemporaryFile file;
  file.write(public_key_pem);
  file.set_mode(0644);
  EXPECT_EQUAL(read_public_keys({file.path()}).size(), 1U);
  file.set_mode(0666);
  EXPECT_THROW(read_public_keys({file.path()}), FileProblem);
  EXPECT_THROW(read_public_keys({}), FileProblem);
}

TEST(enabling_with_a_key_that_cannot_be_read_throws) {
  Options options;
  options.trusted_keys = {"/nowhere/at/all.pem"};
  EXPECT_THROW(enable(options), c10::ValueError);
}

} // namespace torchmdla
