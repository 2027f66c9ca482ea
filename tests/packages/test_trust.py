"""Trust in packages: signatures, and owners of files."""

from __future__ import annotations

import os
import sys
import zipfile
from pathlib import Path

import package_files
import pytest
import torch
from package_files import Found, command, load_all, make_package, records, rewrite, write_example

import torchmdla
from torchmdla.compile_service import signatures
from torchmdla.packages import signing

# Signing needs this package, but checking does not.
pytest.importorskip("cryptography")

REQUIRED = "TORCHMDLA_REQUIRE_SIGNATURE"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of keys ``a`` and ``b``, an unsigned package, and a package signed by ``a``."""
    folder = tmp_path_factory.mktemp("trust")
    for name in ("a", "b"):
        signatures.generate_key(folder / name)
    make_package(folder / "unsigned.pt")
    signing.sign(folder / "unsigned.pt", folder / "a.pem", folder / "signed.pt")
    write_example(folder / "example")
    return folder


def find(folder: Path, path: Path, required: str | None = None) -> Found:
    environment = {} if required is None else {REQUIRED: required}
    outcome = load_all([path], folder / "example", **environment)[path]
    assert outcome.matches and not outcome.error
    return outcome


def assert_taken(outcome: Found) -> None:
    assert (outcome.packages, outcome.refused) == (1, [])


def assert_refused(outcome: Found, reason: str) -> None:
    assert outcome.packages == 0 and len(outcome.refused) == 1 and reason in outcome.refused[0], outcome


# --- demanded signatures


@pytest.mark.parametrize(
    ("name", "required", "reason"),
    [
        ("signed", "{0}/a.pub.pem", ""),
        ("signed", "{0}/b.pub.pem:{0}/a.pub.pem", ""),  # during a change of keys
        ("unsigned", "{0}/a.pub.pem", "not signed"),
        ("signed", "{0}/b.pub.pem", "is not a trusted key"),
        ("signed", "{0}/a.pem", "private key"),
        ("signed", "", "no files of public keys"),
        ("signed", ":", "no files of public keys"),
    ],
)
def test_demanded_keys(folder: Path, name: str, required: str, reason: str) -> None:
    outcome = find(folder, folder / f"{name}.pt", required.format(folder))
    if reason:
        assert_refused(outcome, reason)
    else:
        assert_taken(outcome)


def test_a_folder_of_keys(folder: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.pem").write_bytes((folder / f"{name}.pub.pem").read_bytes())
    (tmp_path / "README").write_text("not a key")
    assert_taken(find(folder, folder / "signed.pt", str(tmp_path)))
    tmp_path.chmod(0o777)
    assert_refused(find(folder, folder / "signed.pt", str(tmp_path)), "writable by others")


@pytest.mark.parametrize(
    ("name", "record", "reason"),
    [
        ("unsigned", signing.SIGNATURE, "not that of its content"),
        ("signed", package_files.TARGET, "is not the one that its index has"),
    ],
)
def test_a_record_of_another_package_is_refused(
    folder: Path, tmp_path: Path, name: str, record: str, reason: str
) -> None:
    other = make_package(tmp_path / "other.pt", width=24)
    signing.sign(other, folder / "a.pem")
    forged = rewrite(folder / f"{name}.pt", tmp_path / "forged.pt", {record: records(other)[record]})
    assert_refused(find(folder, forged, f"{folder / 'a.pub.pem'}"), reason)


def test_a_signature_of_the_index_alone_is_refused(folder: Path, tmp_path: Path) -> None:
    """A signature by a key for another purpose does not count as a package's signature."""
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    key = load_pem_private_key((folder / "a.pem").read_bytes(), None)
    index = records(folder / "unsigned.pt")[package_files.INDEX]
    number = bytes.fromhex(signatures.SigningKey(folder / "a.pem").number)
    record = signatures._FORMAT.seal({}, number + key.sign(index))  # type: ignore[union-attr, call-arg]
    forged = rewrite(folder / "unsigned.pt", tmp_path / "forged.pt", {signing.SIGNATURE: record})
    assert_refused(find(folder, forged, f"{folder / 'a.pub.pem'}"), "not that of its content")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "No such file"),
        (b"", "no public key in PEM"),
        (b"-----BEGIN PUBLIC KEY-----\nMCow\n-----END PUBLIC KEY-----\n", "not of Ed25519"),
    ],
)
@pytest.mark.sampled(1)
def test_a_key_that_cannot_be_read_refuses_everything(
    folder: Path, tmp_path: Path, content: bytes | None, reason: str
) -> None:
    """Another, valid key does not help, since the intended demand is unknown."""
    path = tmp_path / "key.pem"
    if content is not None:
        path.write_bytes(content)
    outcome = find(folder, folder / "signed.pt", f"{folder / 'a.pub.pem'}:{path}")
    assert_refused(outcome, reason)
    assert str(path) in outcome.refused[0]


def test_a_key_that_others_may_write_refuses_everything(folder: Path, tmp_path: Path) -> None:
    key = tmp_path / "key.pem"
    key.write_bytes((folder / "a.pub.pem").read_bytes())
    key.chmod(0o666)
    assert_refused(find(folder, folder / "signed.pt", f"{key}"), f"{key}: it is writable by others")


def test_require_signatures(folder: Path) -> None:
    """Demand signatures in this process. A wrong file of keys changes nothing."""
    counts = torchmdla._C.statistics

    def taken() -> int:
        return sum(counts()["packages"].values())

    try:
        torchmdla.require_signatures([folder / "a.pub.pem"])
        torch.jit.load(folder / "unsigned.pt")
        assert list(counts()["refused"]) == ["the package is not signed (python -m torchmdla sign)"]
        with pytest.raises(ValueError, match=r"missing\.pem: No such file"):
            torchmdla.require_signatures([folder / "missing.pem"])
        with pytest.raises(ValueError, match="no files of public keys"):
            torchmdla.require_signatures([])
        with pytest.raises(TypeError, match="a sequence of paths"):
            torchmdla.require_signatures(str(folder / "a.pub.pem"))
        torchmdla.reset_stats()
        torch.jit.load(folder / "unsigned.pt")
        assert taken() == 0
        torch.jit.load(folder / "signed.pt")
        assert taken() == 1
    finally:
        torchmdla.require_signatures(None)
    torch.jit.load(folder / "unsigned.pt")
    assert taken() == 2


# --- owners


@pytest.mark.parametrize("mode", [0o664, 0o646])
@pytest.mark.sampled(1)
def test_a_file_that_others_may_write_is_refused(folder: Path, tmp_path: Path, mode: int) -> None:
    path = rewrite(folder / "signed.pt", tmp_path / "model.pt", {})
    path.chmod(mode)
    outcome = find(folder, path)
    assert_refused(outcome, "chmod go-w, or sign the package")
    # If keys are demanded, the owner of the file does not matter.
    assert_taken(find(folder, path, f"{folder / 'a.pub.pem'}"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_file_of_another_user_is_refused(folder: Path, tmp_path: Path) -> None:
    path = rewrite(folder / "signed.pt", tmp_path / "model.pt", {})
    os.chown(path, 12345, -1)
    assert_refused(find(folder, path), "belongs to user 12345: chown it")
    assert_taken(find(folder, path, f"{folder / 'a.pub.pem'}"))


def test_a_name_may_lead_to_the_file(folder: Path, tmp_path: Path) -> None:
    """Model stores use many links. The checks apply to the target file."""
    link = tmp_path / "model.pt"
    link.symlink_to(folder / "unsigned.pt")
    assert_taken(find(folder, link))


def test_saved_files_are_writable_by_their_owner_only(tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        path = make_package(tmp_path / "model.pt")
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o644
    assert [file.name for file in tmp_path.iterdir()] == ["model.pt"]


# --- signing


def test_signing_changes_nothing_else(folder: Path) -> None:
    """Signing preserves all bytes of the records and between them, so PyTorch's alignment stays."""
    was, signed = (folder / name for name in ("unsigned.pt", "signed.pt"))
    with zipfile.ZipFile(was) as archive, zipfile.ZipFile(signed) as other:
        assert other.namelist()[:-1] == archive.namelist()
        assert other.testzip() is None
        before_directory = archive.start_dir
    assert signed.read_bytes()[:before_directory] == was.read_bytes()[:before_directory]
    assert torchmdla.packages.info(was).signer == ""  # type: ignore[union-attr]
    assert torchmdla.packages.info(signed).signer == signatures.SigningKey(folder / "a.pem").number  # type: ignore[union-attr]


def test_a_signature_is_replaced(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    signing.sign(folder / "signed.pt", folder / "b.pem", path)
    with zipfile.ZipFile(path) as archive:
        assert sum(name.endswith(signing.SIGNATURE) for name in archive.namelist()) == 1
    assert_taken(find(folder, path, f"{folder / 'b.pub.pem'}"))
    assert_refused(find(folder, path, f"{folder / 'a.pub.pem'}"), "is not a trusted key")


def test_save_signs(folder: Path, tmp_path: Path) -> None:
    path = make_package(tmp_path / "model.pt", sign=folder / "a.pem")
    assert_taken(find(folder, path, f"{folder / 'a.pub.pem'}"))


@pytest.mark.sampled(0)
def test_commands(tmp_path: Path) -> None:
    key = tmp_path / "key"
    generated = command("keys", "generate", key)
    assert generated.returncode == 0 and f"{key}.pub.pem" in generated.stdout
    assert Path(f"{key}.pem").stat().st_mode & 0o777 == 0o600
    again = command("keys", "generate", key)
    assert again.returncode == 2 and "File exists" in again.stderr
    model = make_package(tmp_path / "model.pt")
    signed = command("sign", model, "--key", f"{key}.pem", "-o", tmp_path / "signed.pt")
    assert signed.returncode == 0 and "signed by key" in signed.stdout
    assert signing.SIGNATURE in records(tmp_path / "signed.pt") and signing.SIGNATURE not in records(model)
    assert command("sign", model, "--key", f"{key}.pem").returncode == 0
    assert signing.SIGNATURE in records(model)
    refused = command("sign", model, "--key", f"{key}.pub.pem")
    assert refused.returncode == 2 and "no private key" in refused.stderr


def test_damaged_packages_are_not_signed(folder: Path, tmp_path: Path) -> None:
    key = folder / "a.pem"
    plain = tmp_path / "plain.pt"
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), plain)
    with pytest.raises(ValueError, match="holds no package"):
        signing.sign(plain, key)
    other = make_package(tmp_path / "other.pt", width=24)
    swapped = rewrite(
        folder / "unsigned.pt", tmp_path / "swapped.pt", {package_files.TARGET: records(other)[package_files.TARGET]}
    )
    was = swapped.read_bytes()
    with pytest.raises(ValueError, match="is not the one that the index has"):
        signing.sign(swapped, key)
    assert swapped.read_bytes() == was
    (tmp_path / "text.pt").write_text("no archive")
    with pytest.raises(ValueError, match=r"text\.pt holds no package"):
        signing.sign(tmp_path / "text.pt", key)


def test_signing_without_cryptography_names_the_package_to_install(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(ImportError, match=r"pip install torchmdla\[sign\]"):
        signing.sign(folder / "unsigned.pt", folder / "a.pem")
