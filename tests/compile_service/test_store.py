"""Artifacts that machines share: trust, the cost of a bad store, and a single compile for simultaneous starts."""

from __future__ import annotations

import contextlib
import http.server
import multiprocessing
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from forking import in_child
from scripted_device import scripted_artifact, scripted_program

from torchmdla.__main__ import main
from torchmdla.cli import doctor
from torchmdla.compile_service import lease, remote, store
from torchmdla.compile_service.authentication import SharedSecret, Signatures
from torchmdla.compile_service.cache import DiskCache
from torchmdla.compile_service.remote import RemoteFolder, Unreachable
from torchmdla.compile_service.service import CompilerService
from torchmdla.compile_service.signatures import generate_key
from torchmdla.compile_service.store import Store, entry_name
from torchmdla.compiler.program import Program
from torchmdla.errors import CompileError

_fork = multiprocessing.get_context("fork")


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_bytes(b"a secret of more than thirty-two bytes\n")
    path.chmod(0o400)
    return path


@pytest.fixture(scope="session")
def s3() -> Iterator[Callable[[], str]]:
    """Yield a function that creates buckets in a local S3 server.

    The server answers one request at a time, because moto answers 500 to some simultaneous requests.
    """
    pytest.importorskip("s3fs")
    moto = pytest.importorskip("moto.server")
    import fsspec
    from werkzeug.serving import make_server

    application, turn = moto.DomainDispatcherApplication(moto.create_backend_app), threading.Lock()

    def answer(environment: Any, start_response: Any) -> list[bytes]:
        with turn:
            return list(application(environment, start_response))

    running = make_server("127.0.0.1", 0, answer, threaded=True, request_handler=moto.MotoRequestHandler)
    thread = threading.Thread(target=running.serve_forever, daemon=True)
    thread.start()
    host, port = running.server_address[:2]
    fsspec.config.conf["s3"] = {"endpoint_url": f"http://{host}:{port}", "key": "a", "secret": "b"}
    names = iter(range(1000))

    def bucket() -> str:
        name = f"store-{next(names)}"
        fsspec.filesystem("s3", skip_instance_cache=True).mkdir(name)
        return f"s3://{name}/artifacts"

    yield bucket
    running.shutdown()
    thread.join()
    del fsspec.config.conf["s3"]


@pytest.fixture(params=["folder", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "store") if request.param == "folder" else str(request.getfixturevalue("s3")())


def a_store(url: str, secret: Path, seconds: float = 30.0) -> Store:
    return Store(RemoteFolder(url, seconds), SharedSecret(str(secret)))


def machine(folder: Path, shared: Store | None) -> CompilerService:
    """Return a service with its own cache, as on another machine."""
    return CompilerService(cache=DiskCache(folder), store=shared, in_process=True)


def in_processes(count: int, function: Callable[[int], object]) -> None:
    """Call ``function(number)`` in ``count`` forked processes, and check that none fails."""
    processes = [_fork.Process(target=function, args=(number,)) for number in range(count)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == count * [0]


def compiles(file: Path) -> int:
    return len(file.read_text().splitlines()) if file.exists() else 0


class TestSharing:
    def test_machines_share_artifacts(self, url: str, secret: Path, tmp_path: Path) -> None:
        program = scripted_program(f"count {tmp_path / 'log'}")
        first, second = (machine(tmp_path / name, a_store(url, secret)) for name in "ab")
        assert first.compile(program).source == "compiled"
        outcome = second.compile(program)
        assert (outcome.source, outcome.artifact) == ("store", scripted_artifact(program, b"counted"))
        assert machine(tmp_path / "b", None).compile(program).source == "disk"
        assert compiles(tmp_path / "log") == 1
        first_counts, second_counts = first.store_statistics(), second.store_statistics()
        assert (first_counts.misses, first_counts.stored, first_counts.hits) == (1, 1, 0)
        assert (second_counts.misses, second_counts.stored, second_counts.hits) == (0, 0, 1)
        assert first_counts.bytes_written == second_counts.bytes_read > 0
        assert second.statistics()["store_hits"] == 1

    def test_a_lease_is_gone_afterwards(self, secret: Path, tmp_path: Path) -> None:
        program = scripted_program("echo x")
        machine(tmp_path / "a", a_store(str(tmp_path / "store"), secret)).compile(program)
        assert [path.name for path in (tmp_path / "store").rglob("*.*")] == [f"{program.key}.entry"]

    def test_an_artifact_that_does_not_load_is_compiled_and_replaced(self, secret: Path, tmp_path: Path) -> None:
        program = scripted_program(f"count {tmp_path / 'log'}")
        shared = a_store(str(tmp_path / "store"), secret)
        shared.put(program.key, scripted_artifact(program, b"of another mind"))
        service = machine(tmp_path / "a", shared)
        assert service.compile(program).source == "store"
        service.forget(program.key)
        assert service.compile(program).source == "compiled"
        assert shared.load(program.key) == scripted_artifact(program, b"counted")

    def test_after_a_fork(self, url: str, secret: Path, tmp_path: Path) -> None:
        program = scripted_program("echo x")
        shared = a_store(url, secret)
        machine(tmp_path / "a", shared).compile(program)

        def child() -> bool:
            outcome = machine(tmp_path / "b", shared).compile(program)
            return (outcome.source, shared.statistics().hits) == ("store", 1)

        assert in_child(child) == 0


def _flipped(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


class TestTrust:
    @pytest.mark.parametrize(
        "damage",
        [
            lambda data: b"",
            lambda data: data[:10],
            lambda data: data[:-1],
            lambda data: data + b"x",
            lambda data: _flipped(data, 0),
            lambda data: _flipped(data, 17),
            lambda data: _flipped(data, 30),
            lambda data: _flipped(data, len(data) - 1),
            lambda data: data[:16] + b"\xff\xff\xff\xff" + data[20:],
            lambda data: data[52:],
        ],
        ids=["empty", "header", "short", "long", "magic", "length", "proof", "content", "long proof", "no proof"],
    )
    def test_damaged_entries_are_refused_recompiled_and_replaced(
        self, secret: Path, tmp_path: Path, damage: Callable[[bytes], bytes]
    ) -> None:
        program = scripted_program(f"count {tmp_path / 'log'}")
        url = str(tmp_path / "store")
        machine(tmp_path / "a", a_store(url, secret)).compile(program)
        entry = tmp_path / "store" / entry_name(program.key)
        whole = entry.read_bytes()
        entry.write_bytes(damage(whole))
        service = machine(tmp_path / "b", a_store(url, secret))
        assert service.compile(program).source == "compiled"
        assert sum(service.store_statistics().refused.values()) == 1
        assert entry.read_bytes() == whole

    def test_another_secret(self, url: str, secret: Path, tmp_path: Path) -> None:
        program = scripted_program("echo x")
        machine(tmp_path / "a", a_store(url, secret)).compile(program)
        other = tmp_path / "other"
        other.write_bytes(b"y" * 32)
        other.chmod(0o400)
        service = machine(tmp_path / "b", a_store(url, other))
        assert service.compile(program).source == "compiled"
        assert list(service.store_statistics().refused) == [store._NOT_AUTHENTIC]

    def test_an_entry_under_another_name(self, secret: Path, tmp_path: Path) -> None:
        programs = [scripted_program(f"echo {name}") for name in "xy"]
        url = str(tmp_path / "store")
        machine(tmp_path / "a", a_store(url, secret)).compile(programs[0])
        files = [tmp_path / "store" / entry_name(program.key) for program in programs]
        files[1].parent.mkdir(exist_ok=True)
        files[0].rename(files[1])
        service = machine(tmp_path / "b", a_store(url, secret))
        assert service.compile(programs[1]).artifact == scripted_artifact(programs[1], b"y")
        assert list(service.store_statistics().refused) == [store._NOT_AUTHENTIC]

    def test_an_artifact_of_another_program_that_is_authentic(self, secret: Path, tmp_path: Path) -> None:
        """A trusted machine has made a mistake."""
        programs = [scripted_program(f"echo {name}") for name in "xy"]
        shared = a_store(str(tmp_path / "store"), secret)
        shared.put(programs[0].key, scripted_artifact(programs[1], b"y"))
        assert shared.load(programs[0].key) is None
        assert shared.statistics().refused == {"the artifact of another program": 1}

    def test_an_entry_that_is_too_large(
        self, url: str, secret: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        program = scripted_program("echo x")
        shared = a_store(url, secret)
        shared.put(program.key, scripted_artifact(program, b"x" * 10_000))
        monkeypatch.setattr(store, "LARGEST_ENTRY", 5000)
        service = machine(tmp_path / "b", shared)
        assert service.compile(program).source == "compiled"
        assert shared.statistics().problems == {"a file is longer than what is kept may be": 1}

    def test_a_link_in_the_place_of_a_lease_is_not_followed(self, secret: Path, tmp_path: Path) -> None:
        program = scripted_program("echo x")
        precious = tmp_path / "precious"
        precious.write_text("kept")
        entry = tmp_path / "store" / entry_name(program.key)
        entry.parent.mkdir(parents=True)
        entry.with_suffix(".lease").symlink_to(precious)
        entry.symlink_to(precious)
        machine(tmp_path / "a", a_store(str(tmp_path / "store"), secret)).compile(program)
        assert precious.read_text() == "kept"
        assert not entry.is_symlink()


class TestSignatures:
    @pytest.fixture(autouse=True)
    def keys(self, tmp_path: Path) -> None:
        for name in "ab":
            generate_key(tmp_path / name)

    def signing(self, folder: Path, trusted: str, sign: str | None) -> Store:
        proof = Signatures([str(folder / f"{trusted}.pub.pem")], sign and str(folder / f"{sign}.pem"))
        return Store(RemoteFolder(str(folder / "store"), 30.0), proof)

    @pytest.mark.parametrize(("trusted", "source"), [("a", "store"), ("b", "compiled")])
    def test_by_whom(self, tmp_path: Path, trusted: str, source: str) -> None:
        program = scripted_program("echo x")
        machine(tmp_path / "1", self.signing(tmp_path, "a", "a")).compile(program)
        service = machine(tmp_path / "2", self.signing(tmp_path, trusted, None))
        assert service.compile(program).source == source
        assert bool(service.store_statistics().refused) == (source == "compiled")

    def test_machines_without_a_key_only_read(self, tmp_path: Path) -> None:
        service = machine(tmp_path / "1", self.signing(tmp_path, "a", None))
        assert service.compile(scripted_program("echo x")).source == "compiled"
        assert not list(tmp_path.glob("store/*"))

    def test_a_proof_of_a_lease_is_none_of_an_artifact(self, tmp_path: Path) -> None:
        program = scripted_program("echo x")
        shared = self.signing(tmp_path, "a", "a")
        content = scripted_artifact(program, b"x").to_bytes()
        shared.folder.write(entry_name(program.key), shared.seal("lease", program.key, content))
        assert shared.load(program.key) is None


class TestTrouble:
    def test_a_store_that_is_down_costs_a_compile_and_is_left_alone(self, secret: Path, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("no folder")
        service = machine(tmp_path / "a", a_store(str(tmp_path / "file" / "store"), secret))
        for number in range(3):
            assert service.compile(scripted_program(f"echo {number}")).source == "compiled"
        counts = service.store_statistics()
        assert sum(counts.problems.values()) == 1
        assert counts.skipped >= 3

    def test_it_is_asked_again_later(self, secret: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(remote, "_FIRST_PAUSE", 0.0)
        (tmp_path / "store").write_text("no folder")
        shared = a_store(str(tmp_path / "store"), secret)
        service = machine(tmp_path / "a", shared)
        service.compile(scripted_program("echo 1"))
        (tmp_path / "store").unlink()
        service.compile(scripted_program("echo 2"))
        assert shared.statistics().stored == 1

    def test_one_that_does_not_answer(self, secret: Path, tmp_path: Path) -> None:
        """An entry is a FIFO, so opening it waits forever for a writer."""
        program = scripted_program("echo x")
        entry = tmp_path / "store" / entry_name(program.key)
        entry.parent.mkdir(parents=True)
        os.mkfifo(entry)
        service = machine(tmp_path / "a", a_store(str(tmp_path / "store"), secret, seconds=0.2))
        assert service.compile(program).source == "compiled"
        assert service.store_statistics().problems == {"no answer within 0.2 s": 1}

    def test_threads_that_hang_are_few(self, secret: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(remote, "_FIRST_PAUSE", 0.0)
        entry = tmp_path / "store" / "fifo"
        entry.parent.mkdir(parents=True)
        os.mkfifo(entry)
        folder = RemoteFolder(str(tmp_path / "store"), seconds=0.05)
        tried = []
        for _ in range(2 * remote._MOST_ABANDONED):
            with pytest.raises(Unreachable) as raised:
                folder.read("fifo", 100)
            tried.append(raised.value.is_tried)
        assert sum(tried) == remote._MOST_ABANDONED

    @pytest.mark.parametrize("name", ["no-such-bucket/x", "store-denied/x"])
    def test_an_s3_that_refuses(self, s3: object, secret: Path, tmp_path: Path, name: str) -> None:
        service = machine(tmp_path / "a", a_store(f"s3://{name}", secret))
        assert service.compile(scripted_program("echo x")).source == "compiled"
        assert service.store_statistics().stored == 0
        assert service.store_statistics().problems


class _Handler(http.server.BaseHTTPRequestHandler):
    """A handler that serves one file at every address. ``behaviour`` selects how it fails."""

    data = b""
    behaviour = "serve"

    def do_HEAD(self) -> None:
        self._head()

    def do_GET(self) -> None:
        self._head()
        if self.behaviour == "endless":
            while True:
                self.wfile.write(bytes(1 << 16))
        if self.behaviour == "slow":
            time.sleep(2.0)
        self.wfile.write(self.data)

    def _head(self) -> None:
        if self.behaviour == "fail":
            self.send_error(500)
            return
        self.send_response(200)
        if self.behaviour != "endless":
            self.send_header("Content-Length", str(len(self.data)))
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


class TestHttp:
    @pytest.fixture
    def serve(self) -> Iterator[Callable[[bytes, str], str]]:
        servers = []

        def start(data: bytes, behaviour: str) -> str:
            handler = type("Handler", (_Handler,), {"data": data, "behaviour": behaviour})
            server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
            server.daemon_threads = True
            server.handle_error = lambda *_: None  # type: ignore[method-assign]
            servers.append(server)
            threading.Thread(target=server.serve_forever, daemon=True).start()
            return f"http://127.0.0.1:{server.server_port}/artifacts"

        yield start
        for server in servers:
            server.shutdown()
            server.server_close()

    @pytest.mark.parametrize(
        ("behaviour", "source"),
        [("serve", "store"), ("endless", "compiled"), ("slow", "compiled"), ("fail", "compiled")],
    )
    def test_behaviour(
        self,
        serve: Callable[[bytes, str], str],
        secret: Path,
        tmp_path: Path,
        behaviour: str,
        source: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        pytest.importorskip("aiohttp")
        monkeypatch.setattr(store, "LARGEST_ENTRY", 1 << 20)
        program = scripted_program("echo x")
        data = a_store(str(tmp_path), secret).seal("artifact", program.key, scripted_artifact(program, b"x").to_bytes())
        shared = a_store(serve(data, behaviour), secret, seconds=0.5 if behaviour == "slow" else 30.0)
        assert not shared.may_write
        service = machine(tmp_path / "a", shared)
        assert service.compile(program).source == source
        assert sum(shared.statistics().problems.values()) == (source == "compiled")


class TestOneCompile:
    """A single compile for processes that start together, each with its own cache."""

    def start(self, count: int, url: str, secret: Path, folder: Path, program: Program) -> list[Any]:
        barrier, sources = _fork.Barrier(count), _fork.SimpleQueue()

        def one(number: int) -> None:
            service = machine(folder / str(number), a_store(url, secret))
            barrier.wait()
            outcomes = service.compile(program)
            assert outcomes.artifact == scripted_artifact(program, b"counted")
            sources.put(outcomes.source)

        in_processes(count, one)
        return [sources.get() for _ in range(count)]

    @pytest.mark.sampled(0)
    def test_two_hundred_compile_once(self, secret: Path, tmp_path: Path) -> None:
        program = scripted_program(f"slowly 0.5 {tmp_path / 'log'}")
        sources = self.start(200, str(tmp_path / "store"), secret, tmp_path, program)
        assert sources.count("store") + sources.count("compiled") == 200
        assert 1 <= compiles(tmp_path / "log") <= 5
        assert sources.count("compiled") == compiles(tmp_path / "log")

    @pytest.mark.sampled(0)
    def test_by_s3(self, s3: Callable[[], str], secret: Path, tmp_path: Path) -> None:
        program = scripted_program(f"slowly 0.5 {tmp_path / 'log'}")
        sources = self.start(12, s3(), secret, tmp_path, program)
        assert sources.count("compiled") == compiles(tmp_path / "log") <= 2

    def test_with_a_cache_in_common_and_no_store(self, tmp_path: Path) -> None:
        program = scripted_program(f"slowly 0.3 {tmp_path / 'log'}")

        in_processes(20, lambda _: machine(tmp_path / "cache", None).compile(program))
        assert compiles(tmp_path / "log") == 1
        assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".artifact"]

    def test_another_process_is_done_before_the_turn(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        program = scripted_program(f"slowly 0 {tmp_path / 'log'}")
        first, second = (machine(tmp_path / "cache", None) for _ in range(2))
        lock = DiskCache.lock

        def late(cache: DiskCache, key: str, patience: float) -> contextlib.AbstractContextManager[bool]:
            if cache is second.cache:
                first.compile(program)
            return lock(cache, key, patience)

        monkeypatch.setattr(DiskCache, "lock", late)
        assert second.compile(program).source == "disk"
        assert compiles(tmp_path / "log") == 1

    def test_a_holder_that_was_killed_is_followed_by_another(
        self, secret: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(lease, "EXPIRY", 1.0)
        monkeypatch.setattr(lease, "RENEWAL", 0.2)
        url = str(tmp_path / "store")
        program = scripted_program(f"hang {tmp_path}")
        holder = _fork.Process(target=lambda: machine(tmp_path / "a", a_store(url, secret)).compile(program))
        holder.start()
        while not (tmp_path / "pid").exists():
            time.sleep(0.01)
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
        holder.join()
        (tmp_path / "go").touch()
        shared = a_store(url, secret)
        assert machine(tmp_path / "b", shared).compile(program).source == "compiled"
        assert (shared.statistics().waits, shared.statistics().stored) == (1, 1)

    @pytest.mark.sampled(0)
    def test_a_holder_at_work_is_waited_for(
        self, secret: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A holder at work is waited for even longer than the time after which a holder counts as gone."""
        monkeypatch.setattr(lease, "EXPIRY", 3.0)  # A busy machine may keep the holder from writing for a while.
        monkeypatch.setattr(lease, "RENEWAL", 0.1)
        url = str(tmp_path / "store")
        program = scripted_program(f"slowly 5 {tmp_path / 'log'}")
        sources = self.start(3, url, secret, tmp_path, program)
        assert sorted(sources) == ["compiled", "store", "store"]

    def test_failing_programs_are_tried_by_each_machine(self, secret: Path, tmp_path: Path) -> None:
        program = scripted_program("fail x")

        def one(_: int) -> None:
            with pytest.raises(CompileError, match="no such luck"):
                machine(tmp_path / str(os.getpid()), a_store(str(tmp_path / "store"), secret)).compile(program)

        in_processes(4, one)
        assert not list((tmp_path / "store").rglob("*.lease"))

    def test_an_unauthenticated_lease_is_not_waited_for(self, secret: Path, tmp_path: Path) -> None:
        program = scripted_program("echo x")
        entry = tmp_path / "store" / entry_name(program.key)
        entry.parent.mkdir(parents=True)
        entry.with_suffix(".lease").write_bytes(b'["token", 1]')
        shared = a_store(str(tmp_path / "store"), secret)
        assert machine(tmp_path / "a", shared).compile(program).source == "compiled"
        assert shared.statistics().stored == 1

    def test_patience_ends(self, secret: Path, tmp_path: Path) -> None:
        key = scripted_program("echo x").key
        url = str(tmp_path / "store")
        with lease.acquire(a_store(url, secret), key, 30.0) as entry:
            assert entry is None
            shared = a_store(url, secret)
            with lease.acquire(shared, key, 0.3) as entry:
                assert entry is None
            assert shared.statistics().waits == 1
            assert list((tmp_path / "store").rglob("*.lease"))


class TestConfiguration:
    @pytest.mark.parametrize(
        ("variables", "message"),
        [
            ({}, "TORCHMDLA_STORE_SECRET"),
            ({"TORCHMDLA_STORE_SECRET": "{secret}", "TORCHMDLA_STORE_TRUST": "x"}, "not both"),
            ({"TORCHMDLA_STORE_SECRET": "{folder}/missing"}, "No such file"),
            ({"TORCHMDLA_STORE_SECRET": "{folder}/open"}, "chmod 400"),
            ({"TORCHMDLA_STORE_SECRET": "{folder}/short"}, "32 at least"),
            ({"TORCHMDLA_STORE_TRUST": "x", "TORCHMDLA_STORE_SIGN": "{secret}"}, "no private key"),
            (
                {"TORCHMDLA_STORE_TRUST": "{folder}/b.pub.pem", "TORCHMDLA_STORE_SIGN": "{folder}/a.pem"},
                "is not a trusted key",
            ),
            ({"TORCHMDLA_STORE": "nonsense://x", "TORCHMDLA_STORE_SECRET": "{secret}"}, "nonsense"),
            ({"TORCHMDLA_STORE_SECONDS": "soon", "TORCHMDLA_STORE_SECRET": "{secret}"}, "is not a duration"),
        ],
    )
    def test_wrong_settings_are_reported_and_the_store_is_unused(
        self, secret: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], message: str
    ) -> None:
        for name in "ab":
            generate_key(tmp_path / name)
        (tmp_path / "open").write_bytes(b"x" * 40)
        (tmp_path / "open").chmod(0o644)
        (tmp_path / "short").write_bytes(b"x")
        (tmp_path / "short").chmod(0o400)
        monkeypatch.setenv("TORCHMDLA_STORE", str(tmp_path / "store"))
        for name, value in variables.items():
            monkeypatch.setenv(name, value.format(secret=secret, folder=tmp_path))
        with pytest.warns(RuntimeWarning, match=message):
            assert CompilerService().store is None

    def test_none_is_asked_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("TORCHMDLA_STORE", raising=False)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert CompilerService().store is None


class TestCommands:
    @pytest.fixture(autouse=True)
    def environment(self, secret: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TORCHMDLA_STORE", str(tmp_path / "store"))
        monkeypatch.setenv("TORCHMDLA_STORE_SECRET", str(secret))
        monkeypatch.setenv("TORCHMDLA_CACHE_DIR", str(tmp_path / "cache"))

    def test_push(self, secret: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        programs = [scripted_program(f"echo {number}") for number in range(3)]
        for program in programs:
            machine(tmp_path / "cache", None).compile(program)
        assert main(["store", "push"]) == 0
        assert "3 of 3 artifacts" in " ".join(capsys.readouterr().out.split())
        shared = a_store(str(tmp_path / "store"), secret)
        assert all(shared.load(program.key) for program in programs)

    def test_push_reports_failures(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        machine(tmp_path / "cache", None).compile(scripted_program("echo x"))
        (tmp_path / "store").write_text("no folder")
        assert main(["store", "push"]) == 2
        assert "NotADirectoryError" in capsys.readouterr().err

    def test_push_without_a_store(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("TORCHMDLA_STORE")
        assert main(["store", "push"]) == 2
        assert "set TORCHMDLA_STORE" in capsys.readouterr().err

    def test_doctor(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        assert "a shared secret" in doctor.CHECKS["store"]()
        assert not list((tmp_path / "store").rglob("*.entry"))
        (tmp_path / "file").write_text("no folder")
        monkeypatch.setenv("TORCHMDLA_STORE", str(tmp_path / "file" / "store"))
        with pytest.raises(doctor.CheckFailure, match="compiles anew"):
            doctor.CHECKS["store"]()
        monkeypatch.delenv("TORCHMDLA_STORE_SECRET")
        with pytest.raises(doctor.CheckFailure, match="TORCHMDLA_STORE_SECRET"):
            doctor.CHECKS["store"]()
