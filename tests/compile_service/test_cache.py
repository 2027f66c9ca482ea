"""Artifacts on disk: trusted and untrusted files, size limits, and several processes at the same time."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
from child_process import run_python

from torchmdla.__main__ import main
from torchmdla.compile_service import cache as cache_module
from torchmdla.compile_service.cache import DiskCache
from torchmdla.compiler import artifact as artifact_module
from torchmdla.compiler.artifact import Artifact, Manifest


def key(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


def artifact(name: str, size: int = 100) -> Artifact:
    return Artifact(name.encode().ljust(size, b"."), Manifest(key(name), "entry", (), (), workspace_bytes=0))


def file_size(name: str) -> int:
    return len(artifact(name).to_bytes())


@pytest.fixture
def cache(tmp_path: Path) -> DiskCache:
    return DiskCache(tmp_path / "cache", limit=1 << 20)


def stored(cache: DiskCache, name: str = "a") -> Path:
    """Store an artifact, and return its file."""
    assert cache.store(key(name), artifact(name))
    path = cache.path / f"{key(name)}.artifact"
    assert path.exists()
    return path


class TestRoundTrip:
    def test_stored_artifacts_are_loaded(self, cache: DiskCache) -> None:
        stored(cache)
        assert cache.load(key("a")) == artifact("a")
        assert cache.load(key("b")) is None

    @pytest.mark.parametrize("limit", [1 << 20, 0])
    def test_unnamed_files_leave_nothing(self, limit: int, tmp_path: Path) -> None:
        cache = DiskCache(tmp_path / "cache", limit=limit)
        with cache.unnamed_file() as file:
            file.write(b"weights")
            assert (os.fstat(file.fileno()).st_dev == cache.path.stat().st_dev) if limit else not cache.path.exists()
        assert not cache.path.exists() or not list(cache.path.iterdir())

    def test_nothing_is_written_but_by_store(self, cache: DiskCache) -> None:
        assert cache.load(key("a")) is None
        assert cache.info().problem == ""
        assert cache.clear() == 0
        assert not cache.path.exists()

    def test_private_modes(self, tmp_path: Path) -> None:
        cache = DiskCache(tmp_path / "deep" / "cache")
        before = os.umask(0)
        try:
            path = stored(cache)
        finally:
            os.umask(before)
        assert stat.S_IMODE(cache.path.stat().st_mode) == 0o700
        assert stat.S_IMODE(path.stat().st_mode) == 0o600

    def test_store_replaces(self, cache: DiskCache) -> None:
        stored(cache)
        newer = artifact("a", size=500)
        assert cache.store(key("a"), newer)
        assert cache.load(key("a")) == newer
        assert len(list(cache.path.iterdir())) == 1

    @pytest.mark.parametrize("name", ["", "../" + 61 * "a", 64 * "g", 64 * "a" + "\n"])
    def test_only_keys_of_programs_become_file_names(self, cache: DiskCache, name: str) -> None:
        with pytest.raises(ValueError, match="not the key"):
            cache.load(name)
        with pytest.raises(ValueError, match="not the key"):
            cache.store(name, artifact("a"))

    def test_hit_counts_as_use(self, cache: DiskCache) -> None:
        path = stored(cache)
        os.utime(path, (1, 1))
        cache.load(key("a"))
        assert path.stat().st_mtime > 1


class TestDamage:
    @pytest.mark.parametrize(
        "damage",
        [
            lambda data: b"",
            lambda data: data[:20],
            lambda data: data[:-1],
            lambda data: data + b"x",
            lambda data: data[:-1] + bytes([data[-1] ^ 1]),
            lambda data: artifact("other").to_bytes(),
            lambda data: data[:16] + bytes(4) + data[20:],
        ],
        ids=["empty", "header only", "truncated", "longer", "one bit", "other program", "other ABI"],
    )
    def test_damaged_file_is_ignored_and_removed(self, cache: DiskCache, damage: object) -> None:
        path = stored(cache)
        path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]
        assert cache.load(key("a")) is None
        assert not path.exists()

    def test_manifest_with_other_fields_is_ignored_and_removed(
        self, cache: DiskCache, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = stored(cache)
        with monkeypatch.context() as patch:
            patch.setattr(artifact_module, "asdict", lambda manifest: {"arguments": [], "results": []})
            path.write_bytes(artifact("a").to_bytes())
        assert cache.load(key("a")) is None
        assert not path.exists()


class TestForeignFiles:
    @pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
    def test_file_that_others_may_write(self, cache: DiskCache, mode: int) -> None:
        path = stored(cache)
        path.chmod(mode)
        assert cache.load(key("a")) is None
        assert path.exists()

    def test_file_of_another_user(self, cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
        stored(cache)
        real = os.fstat

        def foreign(descriptor: int) -> os.stat_result:
            status = real(descriptor)
            fields = list(status)
            if stat.S_ISREG(status.st_mode):
                fields[stat.ST_UID] += 1
            return os.stat_result(fields)

        assert cache.load(key("a")) is not None
        monkeypatch.setattr(os, "fstat", foreign)
        assert cache.load(key("a")) is None

    def test_symbolic_link_is_not_followed_but_replaced(self, cache: DiskCache, tmp_path: Path) -> None:
        path = stored(cache)
        target = tmp_path / "target"
        path.rename(target)
        path.symlink_to(target)
        assert cache.load(key("a")) is None
        stored(cache)
        assert not path.is_symlink()
        assert target.exists()

    def test_fifo_does_not_block(self, cache: DiskCache) -> None:
        path = stored(cache)
        path.unlink()
        os.mkfifo(path)
        assert cache.load(key("a")) is None

    def test_file_larger_than_the_cache_is_not_read(self, cache: DiskCache) -> None:
        path = stored(cache)
        os.truncate(path, cache.limit + 1)
        assert cache.load(key("a")) is None

    def test_other_files_are_left_alone(self, cache: DiskCache) -> None:
        stored(cache)
        note = cache.path / "note.txt"
        note.write_text("mine")
        (cache.path / f"{key('folder')}.artifact").mkdir()
        assert cache.info().entries == 1
        assert cache.clear() == 1
        assert note.exists()


def refused(cache: DiskCache, because: str) -> None:
    """Check that the cache neither stores nor loads, and reports a reason with ``because``."""
    assert not cache.store(key("new"), artifact("new"))
    assert cache.load(key("a")) is None
    assert because in cache.info().problem


class TestFolder:
    @pytest.mark.parametrize("mode", [0o720, 0o702, 0o777, 0o1777])
    def test_writable_by_others(self, cache: DiskCache, mode: int) -> None:
        stored(cache)
        cache.path.chmod(mode)
        refused(cache, "writable by others")
        cache.path.chmod(0o755)
        assert cache.load(key("a")) is not None
        assert cache.info().problem == ""

    def test_of_another_user(self, cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
        stored(cache)
        monkeypatch.setattr(os, "geteuid", lambda: 4711)
        refused(cache, "not to 4711")

    def test_path_is_a_file(self, cache: DiskCache) -> None:
        cache.path.write_text("")
        refused(cache, "")
        assert cache.info().problem

    def test_cannot_be_created(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        cache = DiskCache(tmp_path / "file" / "cache")
        assert cache.info().problem
        refused(cache, "Not a directory")

    @pytest.mark.parametrize("error", [errno.EROFS, errno.EACCES, errno.EMFILE])
    def test_read_only(self, cache: DiskCache, monkeypatch: pytest.MonkeyPatch, error: int) -> None:
        stored(cache)
        real = os.open

        def read_only(path: object, flags: int, *args: int, **kwargs: int) -> int:
            if flags & os.O_CREAT:
                raise OSError(error, os.strerror(error))
            return real(path, flags, *args, **kwargs)  # type: ignore[arg-type]

        monkeypatch.setattr(os, "open", read_only)
        assert not cache.store(key("b"), artifact("b"))
        assert cache.info().problem == os.strerror(error)
        assert cache.load(key("a")) is not None

    def test_full(self, cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
        stored(cache)

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
            assert not cache.store(key("b"), artifact("b"))
        assert cache.info().problem == os.strerror(errno.ENOSPC)
        assert [path.name for path in cache.path.iterdir()] == [f"{key('a')}.artifact"], "half a file is left"
        stored(cache, "b")
        assert cache.info().problem == ""

    def test_removed_meanwhile(self, cache: DiskCache) -> None:
        path = stored(cache)
        path.unlink()
        cache.path.rmdir()
        assert cache.load(key("a")) is None
        stored(cache)

    def test_unsupported_system(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr(cache_module, "_SUPPORTED", False)
        refused(DiskCache(tmp_path), "not supported")
        assert DiskCache(tmp_path).clear() == 0


class TestBounds:
    def test_least_recently_used_go_first(self, tmp_path: Path) -> None:
        cache = DiskCache(tmp_path / "cache", limit=5 * file_size("a"))
        for age, name in enumerate("dcba"):
            os.utime(stored(cache, name), (1000 + age, 1000 + age))
        assert cache.load(key("d")) is not None
        stored(cache, "e")
        assert [name for name in "abcde" if cache.load(key(name))] == ["a", "b", "d", "e"]

    def test_size_stays_below_the_limit(self, tmp_path: Path) -> None:
        size = file_size("00")
        cache = DiskCache(tmp_path / "cache", limit=40 * size)
        for number in range(100):
            stored(cache, f"{number:02}")
            assert cache.info().size <= cache.limit
        assert cache.info().size >= cache.limit * 0.9

    def test_artifact_larger_than_the_limit(self, tmp_path: Path) -> None:
        cache = DiskCache(tmp_path / "cache", limit=1000)
        stored(cache)
        assert not cache.store(key("b"), artifact("b", size=1000))
        assert cache.info().problem == ""
        assert cache.load(key("a")) is not None

    def test_limit_zero_switches_it_off(self, tmp_path: Path) -> None:
        refused(DiskCache(tmp_path / "cache", limit=0), "limit")
        assert not (tmp_path / "cache").exists()

    def test_files_of_dead_writers_are_removed(self, cache: DiskCache) -> None:
        path = stored(cache)
        dead, alive = (path.with_name(f"{path.name}.{digits}.tmp") for digits in ("00ff", "11ff"))
        dead.write_text("half")
        os.utime(dead, (1, 1))
        alive.write_text("half")
        DiskCache(cache.path).store(key("b"), artifact("b"))
        assert not dead.exists()
        assert alive.exists()


_SHARER = """
import sys
sys.path[:0] = {path!r}
from pathlib import Path
from test_cache import artifact, key
from torchmdla.compile_service.cache import DiskCache
cache = DiskCache(Path({folder!r}), limit={limit})
hits = 0
for number in range(400):
    name = str(number % 20)
    assert cache.store(key(name), artifact(name)), cache.info()
    for other in range(0, 20, 3):
        loaded = cache.load(key(str(other)))
        assert loaded in (None, artifact(str(other)))
        hits += loaded is not None
assert hits > 400, hits
"""


@pytest.mark.sampled(0)
def test_processes_share_a_folder_that_is_too_small_for_them(tmp_path: Path) -> None:
    limit = 10 * file_size("00")
    path = [str(Path(__file__).parents[1]), *sys.path]
    script = _SHARER.format(path=path, folder=str(tmp_path / "cache"), limit=limit)
    processes = [subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE) for _ in range(2)]
    errors = [process.communicate()[1].decode() for process in processes]
    assert [process.returncode for process in processes] == [0, 0], errors
    names = [file.name for file in (tmp_path / "cache").iterdir()]
    assert names and not [name for name in names if name.endswith(".tmp")]
    assert DiskCache(tmp_path / "cache").info().size <= limit + file_size("00")


class TestEnvironment:
    def test_folder_and_size(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("TORCHMDLA_CACHE_DIR", str(tmp_path / "chosen"))
        monkeypatch.setenv("TORCHMDLA_CACHE_SIZE", "3M")
        assert (DiskCache().path, DiskCache().limit) == (tmp_path / "chosen", 3 << 20)

    @pytest.mark.parametrize(
        ("text", "size"),
        [("", 1 << 30), ("0", 0), ("1234", 1234), ("2K", 2048), ("1 GiB", 1 << 30), ("4gb", 4 << 30), ("1T", 1 << 40)],
    )
    def test_sizes(self, monkeypatch: pytest.MonkeyPatch, text: str, size: int) -> None:
        monkeypatch.setenv("TORCHMDLA_CACHE_SIZE", text)
        assert DiskCache().limit == size

    @pytest.mark.parametrize("text", ["much", "-1", "1.5G", "G"])
    def test_size_that_is_none(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str) -> None:
        monkeypatch.setenv("TORCHMDLA_CACHE_SIZE", text)
        with pytest.warns(RuntimeWarning, match=f"TORCHMDLA_CACHE_SIZE is not a size .*'{text}'"):
            cache = DiskCache(tmp_path / "cache")
        refused(cache, "TORCHMDLA_CACHE_SIZE is not a size")

    def test_relative_folder_does_not_move_with_the_process(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("TORCHMDLA_CACHE_DIR", "here")
        monkeypatch.chdir(tmp_path)
        cache = DiskCache()
        monkeypatch.chdir("/")
        assert cache.path == tmp_path / "here"

    def test_no_home(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.delenv("TORCHMDLA_CACHE_DIR", raising=False)
        monkeypatch.setattr(cache_module.platformdirs, "user_cache_dir", lambda *_, **__: "~/.cache/torchmdla")
        monkeypatch.setattr(os.path, "expanduser", lambda path: path)
        monkeypatch.chdir(tmp_path)
        refused(DiskCache(), "no home")
        assert list(tmp_path.iterdir()) == []


class TestCommandLine:
    @pytest.fixture(autouse=True)
    def folder(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
        monkeypatch.setenv("COLUMNS", "300")
        monkeypatch.setenv("TORCHMDLA_CACHE_DIR", str(tmp_path / "[cache]"))
        return tmp_path / "[cache]"

    def test_info_and_clear(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        stored(DiskCache(), "a")
        stored(DiskCache(), "b")
        assert main(["cache", "info"]) == 0
        shown = dict(line.strip().split("  ", 1) for line in capsys.readouterr().out.splitlines())
        shown = {name: value.strip() for name, value in shown.items()}
        assert shown.pop("size").endswith(" bytes")
        assert shown == {
            "path": str(folder),
            "artifacts": "2",
            "measured kernels": "0",
            "limit": "1 GiB",
            "in use": "yes",
        }
        assert main(["cache", "clear"]) == 0
        assert capsys.readouterr().out == f"2 artifacts removed from {folder}\n"
        assert DiskCache().info().entries == 0

    def test_info_reports_the_reason_against_use(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        folder.mkdir(mode=0o700)
        folder.chmod(0o777)
        main(["cache", "info"])
        assert "no: the folder is writable by others (mode 0777)" in capsys.readouterr().out

    def test_environment(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["info"]) == 0
        out = capsys.readouterr().out
        for name in ("torchmdla", "torch", "torch-mlir", "devices", "cpu: target"):
            assert f"\n{name} " in f"\n{out}"

    @pytest.mark.parametrize(("arguments", "status"), [(["--version"], 0), (["--help"], 0), (["cache"], 2), ([], 2)])
    def test_exit_status(self, arguments: list[str], status: int, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        assert caught.value.code == status
        assert "torchmdla" in "".join(capsys.readouterr())


def test_the_service_is_found_in_its_old_place() -> None:
    import torchmdla.compiler
    from torchmdla.compile_service import service

    with pytest.warns(DeprecationWarning, match=r"torchmdla\.compile_service\.service"):
        assert torchmdla.compiler.service is service
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = torchmdla.compiler.nothing


COMPILE = """
    import sys, torch, torchmdla
    torchmdla.compile(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh()).eval(), torch.randn(2, 8))
    stats = torchmdla.stats()
    print(stats.compiled, stats.cache_hits, "llvmlite" in sys.modules, len(stats.fallbacks))
"""


def test_a_second_process_loads_artifacts_without_the_compiler_library(tmp_path: Path) -> None:
    first, second = (run_python(COMPILE, TORCHMDLA_CACHE_DIR=str(tmp_path)).stdout.split() for _ in range(2))
    assert first[:2] == ["1", "0"] and second == ["0", "1", "False", "0"]


def test_a_damaged_description_of_the_machine_is_made_anew(tmp_path: Path) -> None:
    run_python(COMPILE, TORCHMDLA_CACHE_DIR=str(tmp_path))
    (description,) = tmp_path.glob("*.host")
    whole = description.read_bytes()
    description.write_bytes(whole[:-3] + b"xxx")
    assert run_python(COMPILE, TORCHMDLA_CACHE_DIR=str(tmp_path)).stdout.split()[1] == "1"
    assert description.read_bytes() == whole
