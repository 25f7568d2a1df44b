"""Tests of the cache of compiled crates, with files in place of compiled ones."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from preparation import crates  # noqa: E402
from preparation.cache import Cache  # noqa: E402


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Cache:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(crates, "entry_digest", lambda root: "0")
    monkeypatch.setattr(crates, "own_crates", lambda root: {"", "feedline_data", "tidy"})
    return Cache("crates")


def write_build(root: Path) -> Path:
    """Writes the files of a build that do not exist."""
    debug = root / "target/debug"
    for name in [
        ".fingerprint/serde-json-0123456789abcdef/lib-serde_json",
        ".fingerprint/feedline-data-0123456789abcdef/lib-feedline_data",
        "build/serde_json-0123456789abcdef/out/generated.rs",
        "deps/libserde_json-0123456789abcdef.rlib",
        "deps/serde_json-0123456789abcdef.d",
        "deps/libfeedline_data-0123456789abcdef.rlib",
        "deps/tidy-0123456789abcdef",
        "feedline",
    ]:
        file = debug / name
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(name)
    return debug


def test_a_fresh_clone_has_the_third_party_crates_of_an_earlier_build(tmp_path, cache, capsys):
    built = write_build(tmp_path / "first")
    crates.restore(tmp_path / "second", cache)
    assert not (tmp_path / "second/target/debug").exists(), "the cache is empty"
    crates.save(tmp_path / "first", cache)
    crates.restore(tmp_path / "second", cache)
    restored = tmp_path / "second/target/debug"
    files = sorted(str(file.relative_to(restored)) for file in restored.rglob("*") if file.is_file())
    assert files == [
        ".fingerprint/serde-json-0123456789abcdef/lib-serde_json",
        "build/serde_json-0123456789abcdef/out/generated.rs",
        "deps/libserde_json-0123456789abcdef.rlib",
        "deps/serde_json-0123456789abcdef.d",
    ]
    for file in files:
        assert (restored / file).stat().st_mtime_ns == (built / file).stat().st_mtime_ns
    assert "restored the compiled third-party crates" in capsys.readouterr().out


def test_a_build_is_not_replaced_and_a_killed_copy_does_not_matter(tmp_path, cache):
    write_build(tmp_path / "first")
    crates.save(tmp_path / "first", cache)
    crates.restore(tmp_path / "first", cache)
    assert (tmp_path / "first/target/debug/feedline").exists()
    half = tmp_path / "second/target/.debug.partial/deps"
    half.mkdir(parents=True)
    (half / "libother-0123456789abcdef.rlib").touch()
    crates.restore(tmp_path / "second", cache)
    assert not (tmp_path / "second/target/debug/deps/libother-0123456789abcdef.rlib").exists()


SOURCES = {
    "Cargo.toml": '[workspace]\nmembers = ["lower", "upper"]\nresolver = "3"\n',
    "lower/Cargo.toml": '[package]\nname = "lower"\nedition = "2024"\n',
    "lower/build.rs": 'fn main() { println!("cargo::rerun-if-changed=data"); }\n',
    "lower/data/one": "",
    "lower/src/lib.rs": "pub mod part;\n",
    "lower/src/part.rs": "pub fn one() -> u32 { 1 }\n",
    "upper/Cargo.toml": '[package]\nname = "upper"\nedition = "2024"\n[dependencies]\nlower = { path = "../lower" }\n',
    "upper/src/main.rs": 'fn main() { println!("{}", lower::part::one()); }\n',
}


def write_clone(root: Path, changes: dict[str, str | None]) -> None:
    """Writes a clone whose files are older than any build."""
    shutil.rmtree(root, ignore_errors=True)
    for name, text in (SOURCES | changes).items():
        if text is not None:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
    for path in root.rglob("*"):
        os.utime(path, (1, 1))


def build(root: Path) -> tuple[list[str], str]:
    """Returns the crates that Cargo compiles, and what the program prints."""
    command = ["cargo", "build", "--offline"]
    built = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True, env=os.environ | {"CARGO_INCREMENTAL": "0"})
    compiled = [line.split()[1] for line in built.stderr.splitlines() if line.split()[0] == "Compiling"]
    return compiled, subprocess.run([root / "target/debug/upper"], check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.parametrize(
    ("changes", "compiled", "printed"),
    [
        ({}, [], "1"),
        ({"upper/src/main.rs": 'fn main() { println!("{}", lower::part::one() + 1); }\n'}, ["upper"], "2"),
        ({"lower/src/part.rs": "pub fn one() -> u32 { 4 }\n"}, ["lower", "upper"], "4"),
        ({"lower/data/two": ""}, ["lower", "upper"], "1"),
        ({"lower/data/one": None, "lower/data/two": ""}, ["lower", "upper"], "1"),
        ({"lower/src/part.rs": None, "lower/src/part/mod.rs": "pub fn one() -> u32 { 5 }\n"}, ["lower", "upper"], "5"),
        ({"upper/src/other.rs": ""}, ["upper"], "1"),
    ],
)
def test_crates_of_the_workspace_are_compiled_again_if_their_sources_have_changed(
    tmp_path, monkeypatch, changes, compiled, printed
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(crates, "entry_digest", lambda root: "0")
    root, cache = tmp_path / "clone", Cache("crates")
    write_clone(root, {})
    assert build(root) == (["lower", "upper"], "1")
    crates.save(root, cache)
    write_clone(root, changes)
    crates.restore(root, cache)
    assert build(root) == (compiled, printed)
    # The next run restores what this one built.
    crates.save(root, cache)
    write_clone(root, changes)
    crates.restore(root, cache)
    assert build(root) == ([], printed)
    write_clone(tmp_path / "other", {})
    crates.restore(tmp_path / "other", cache)
    assert build(tmp_path / "other")[0] == ["lower", "upper"], "crates contain the path of their clone"


def test_crates_of_the_workspace_are_used_only_with_the_third_party_crates_that_they_were_compiled_with(tmp_path, cache):
    crates.save(write_build(tmp_path / "first").parents[1], cache)
    library = "target/debug/deps/libserde_json-0123456789abcdef.rlib"
    own = "target/debug/deps/libfeedline_data-0123456789abcdef.rlib"
    for is_equal in [True, False]:
        shutil.rmtree(tmp_path / "first/target/debug")
        crates.restore(tmp_path / "first", cache)
        assert (tmp_path / "first" / library).exists()
        assert (tmp_path / "first" / own).exists() == is_equal
        [saved] = cache.directory.glob("debug-*/deps/libserde_json-*.rlib")
        os.utime(saved, (1, 1))


def test_only_the_last_clones_keep_their_crates(tmp_path, cache):
    for number in range(4):
        crates.restore(tmp_path / str(number), cache)
        crates.save(write_build(tmp_path / str(number)).parents[1], cache)
        for age, entry in enumerate(sorted(cache.directory.glob("own.*/.complete"), key=lambda file: file.stat().st_mtime)):
            os.utime(entry, (time.time() - 100 + age,) * 2)
    kept = {entry.name.partition("-")[0] for entry in cache.directory.glob("own.*")}
    assert kept == {crates.own_name(tmp_path / str(number)) for number in [2, 3]}


def test_a_damaged_entry_only_costs_time(tmp_path, cache):
    root = tmp_path / "first"
    own = root / "target/debug/deps/libfeedline_data-0123456789abcdef.rlib"
    for is_restored in [False, True]:
        crates.restore(root, cache)
        crates.save(write_build(root).parents[1], cache)
        if not is_restored:
            [build] = cache.directory.glob("own.*/build.json")
            build.write_text("{")
        shutil.rmtree(root / "target")
        crates.restore(root, cache)
        assert own.exists() == is_restored
        assert (root / "target/debug/deps/libserde_json-0123456789abcdef.rlib").exists()
        shutil.rmtree(root / "target")


def test_the_digest_depends_on_the_packages_and_not_on_the_crates_of_the_workspace():
    assert crates.entry_digest(crates.ROOT) == crates.entry_digest(crates.ROOT)
    assert {"", "feedline_data", "feedline_native", "simulation"} < crates.own_crates(crates.ROOT)
    assert "serde_json" not in crates.own_crates(crates.ROOT)
    assert crates.without_own({"serde": "1", "feedline-data": {"path": "core/data"}}) == {"serde": "1"}


@pytest.mark.parametrize(
    ("name", "crate"),
    [
        ("libserde_json-0123456789abcdef.rmeta", "serde_json"),
        ("serde-json-0123456789abcdef", "serde_json"),
        ("serde_json-0123456789abcdef.serde_json.1-cgu.0.rcgu.o", "serde_json"),
        ("libfoo.rlib", ""),
    ],
)
def test_names_of_cargo_are_parsed(name, crate):
    assert crates.crate_of(name) == crate
