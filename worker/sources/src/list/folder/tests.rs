//! Tests of listing local directories with unusual entries.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use feedline_data::pipeline::Format;
use rustix::fs::{CWD, FileType as NodeType, Mode, mknodat};
use tempfile::TempDir;

use crate::testing::{dataset, path};

/// A directory with the files `a.txt` and `sub/b.txt`, and another entry.
fn folder(add: impl FnOnce(PathBuf)) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("sub")).unwrap();
    for name in ["a.txt", "sub/b.txt"] {
        std::fs::write(folder.path().join(name), name).unwrap();
    }
    add(folder.path().to_owned());
    folder
}

/// The names of the shards, or the error.
async fn list(folder: &TempDir, url: &str) -> Result<Vec<String>, String> {
    let dataset = dataset(&[path(folder.path(), url).as_str()], Format::Files, &[]);
    let shards = dataset.list().await.map_err(|error| error.to_string())?;
    Ok(shards.into_iter().map(|shard| shard.url.rsplit('/').next().unwrap().to_owned()).collect())
}

async fn assert_rejected(folder: &TempDir, urls: &[&str], reason: &str) {
    for url in urls {
        let error = list(folder, url).await.expect_err(url);
        assert!(error.contains(reason), "{url}: {error}");
    }
}

async fn assert_listed(folder: &TempDir, urls: &[(&str, usize)]) {
    for (url, count) in urls {
        assert_eq!(list(folder, url).await.expect(url).len(), *count, "{url}");
    }
}

#[tokio::test]
async fn a_link_without_a_target_is_an_error_if_it_is_selected() {
    let dangling = folder(|at| symlink("nowhere", at.join("gone.txt")).unwrap());
    let reason = "gone.txt` as a source: the symbolic link leads to `nowhere`, which does not exist: restore";
    assert_rejected(&dangling, &["", "*.txt", "**/*.txt", "gone.txt", "gon?.txt", "*/b.txt"], reason).await;
    assert_listed(&dangling, &[("a*", 1), ("sub/", 1), ("s*/b.txt", 1)]).await;
    let hidden = folder(|at| symlink("nowhere", at.join(".gone.txt")).unwrap());
    assert_listed(&hidden, &[("", 2), ("*.txt", 1), ("**/*.txt", 2)]).await;
    assert_rejected(&hidden, &[".gone.txt", ".g*"], "which does not exist").await;
    let itself = folder(|at| symlink("gone.txt", at.join("gone.txt")).unwrap());
    assert_rejected(&itself, &["", "*.txt", "gone.txt"], "the symbolic link leads to itself: remove").await;
}

#[tokio::test]
async fn links_to_files_and_directories_are_followed() {
    let linked = folder(|at| {
        symlink("a.txt", at.join("c.txt")).unwrap();
        symlink("sub", at.join("near")).unwrap();
    });
    assert_listed(&linked, &[("", 4), ("*.txt", 2), ("near/", 1), ("near", 1), ("*/b.txt", 2), ("c.txt", 1)])
        .await;
    let parent = folder(|at| symlink("..", at.join("sub/up")).unwrap());
    let reason = "sub/up` as a source: the symbolic link leads to a directory that contains the link: remove";
    assert_rejected(&parent, &["", "**/*.txt", "*/*/*.txt"], reason).await;
    assert_listed(&parent, &[("*.txt", 1), ("*/*.txt", 1), ("sub/*.txt", 1)]).await;
}

#[tokio::test]
async fn special_files_are_an_error_if_they_are_selected() {
    let pipe = folder(|at| mknodat(CWD, at.join("p.txt"), NodeType::Fifo, Mode::RWXU, 0).unwrap());
    let socket = folder(|at| drop(std::os::unix::net::UnixListener::bind(at.join("p.txt")).unwrap()));
    for special in [&pipe, &socket] {
        assert_rejected(special, &["", "*.txt", "p.txt"], "p.txt` as a source: the file is a named pipe")
            .await;
        assert_listed(special, &[("a*", 1), ("sub/", 1), ("*/*.txt", 1)]).await;
    }
}

#[tokio::test]
async fn names_that_urls_cannot_contain_are_an_error_if_they_are_selected() {
    for (name, reason) in
        [(&b"odd\xe9.txt"[..], "is not UTF-8"), (b"odd\n.txt", "contains a control character")]
    {
        let odd = folder(|at| std::fs::write(at.join(OsStr::from_bytes(name)), "x").unwrap());
        assert_rejected(&odd, &["", "*.txt", "**/*.txt", "o*"], reason).await;
        assert_listed(&odd, &[("a*", 1), ("sub/", 1), ("*/*.txt", 1), ("[!o]*.txt", 1)]).await;
        let below = folder(|at| {
            std::fs::rename(at.join("sub"), at.join(OsStr::from_bytes(name))).unwrap();
        });
        assert_rejected(&below, &["", "**/*.txt", "*/*.txt"], reason).await;
        assert_listed(&below, &[("*.txt", 1)]).await;
    }
}

#[tokio::test]
async fn all_other_names_are_listed_and_read() {
    let names = [
        "a#1",
        "b%41",
        "c d",
        "e?",
        "f\\g",
        "h|i",
        "{j}",
        "k\u{301}",
        "\u{e9}",
        "-",
        "~",
        "l:m",
        "Thumbs.db",
    ];
    let named = folder(|at| names.iter().for_each(|name| std::fs::write(at.join(name), name).unwrap()));
    assert_listed(&named, &[("", 15), ("*", 14)]).await;
    for name in names {
        let fixture = dataset(&[path(named.path(), name).as_str()], Format::Files, &[("b", "bytes")]);
        let shard = fixture.list().await.expect(name).remove(0);
        let index = fixture.index_shard(&shard).await.unwrap().index;
        let schema = index.schema.unwrap();
        let read = crate::BlockRead {
            shard: &shard,
            block: &index.blocks[0],
            index: None,
            schema: &schema,
            rows: None,
        };
        assert_eq!(crate::testing::lines(&fixture.read_block(&read).await.unwrap().batch), [name]);
    }
}

#[tokio::test]
async fn hidden_and_marker_files_are_not_below_a_prefix() {
    let hidden = folder(|at| {
        std::fs::create_dir(at.join(".git")).unwrap();
        for name in [".DS_Store", "._a.txt", ".git/c.txt", "_SUCCESS", "sub/_metadata", "_x.txt"] {
            std::fs::write(at.join(name), name).unwrap();
        }
    });
    assert_listed(&hidden, &[("", 3), ("*.txt", 2), ("**/*.txt", 3), (".git/", 1), (".*", 2), ("_*", 2)])
        .await;
    assert_listed(&hidden, &[(".git/*", 1), ("**/.git/*", 1), (".DS_Store", 1)]).await;
}
