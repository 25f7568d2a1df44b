"""Tests of the cache of compiled crates, with files in place of compiled ones."""

import sys
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
