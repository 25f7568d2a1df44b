//! Tests of protected files that are read under other names, and of data in the same directories.

use super::*;

/// Creates a directory with these files.
fn folder(files: &[&str]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for file in files {
        let path = folder.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, file).unwrap();
    }
    folder
}

#[test]
fn protected_files_are_recognized_under_any_name() {
    let folder = folder(&["keys/token", "keys/other", "data/log/1", "sets/a"]);
    let at = |name: &str| folder.path().join(name);
    let link = |to: &str, name: &str| std::os::unix::fs::symlink(at(to), at(name)).unwrap();
    link("keys/token", "sets/link");
    link("data", "sets/folder");
    fs::hard_link(at("keys/token"), at("sets/hard")).unwrap();
    let protected = ProtectedFiles::new([at("keys/token"), at("data"), at("later")]);
    for (name, of) in [
        ("keys/token", "keys/token"),
        ("keys/../keys/./token", "keys/token"),
        ("sets/link", "keys/token"),
        ("sets/hard", "keys/token"),
        ("data", "data"),
        ("data/log/1", "data"),
        ("data/log/none", "data"),
        ("sets/folder/log/1", "data"),
        ("later/x", "later"),
    ] {
        let error = protected.check(&at(name)).unwrap_err();
        let named = format!("the protected file `{}`", at(of).display());
        assert!(error.contains(&named), "{name}: {error}");
    }
    for name in ["keys/other", "sets/a", "sets", "keys", "sets/none"] {
        assert_eq!(protected.check(&at(name)), Ok(()), "{name}");
    }
    let metadata = |name: &str| fs::metadata(at(name)).unwrap();
    let snapshot = protected.snapshot();
    assert!(snapshot.check_metadata(&at("sets/hard"), &metadata("sets/hard")).is_err());
    assert_eq!(snapshot.check_metadata(&at("sets/a"), &metadata("sets/a")), Ok(()));
    // A replaced token is protected too.
    fs::write(at("keys/new"), "new").unwrap();
    fs::rename(at("keys/new"), at("keys/token")).unwrap();
    assert!(protected.check(&at("sets/link")).is_err());
    assert_eq!(ProtectedFiles::default().check(&at("keys/token")), Ok(()));
}

#[test]
fn data_in_the_folder_of_protected_files_is_readable() {
    let folder =
        folder(&["records.log", "1.index", "rows/part-000/ab/1.rows", "rows/mine", "sets/1.rows", "a.jsonl"]);
    let at = |name: &str| folder.path().join(name);
    std::os::unix::fs::symlink(folder.path(), at("sets/back")).unwrap();
    let protected = ["records.log", "records.part", "*.index", "rows/part-*", "*/*.rows.*"].map(at);
    let protected = ProtectedFiles::new(protected);
    for name in [
        "records.log",
        "records.part",
        "1.index",
        "2.index",
        "sets/back/1.index",
        "rows/part-000",
        "rows/part-000/ab/1.rows",
        "sets/back/rows/part-001/x",
        "x/y.rows.z",
    ] {
        assert!(protected.check(&at(name)).is_err(), "{name}");
    }
    for name in
        [".", "a.jsonl", "records", "rows", "rows/mine", "sets/1.rows", "sets/1.index", "sets/back/a.jsonl"]
    {
        assert_eq!(protected.check(&at(name)), Ok(()), "{name}");
    }
    let snapshot = protected.snapshot();
    for (name, may_be) in
        [("", true), ("rows", true), ("sets", true), ("sets/back", true), ("rows/part-000/ab", false)]
    {
        assert_eq!(snapshot.may_be_in(&at(name)), may_be, "{name}");
    }
    let log = fs::metadata(at("records.log")).unwrap();
    assert_eq!(snapshot.files().map(file_id).collect::<Vec<_>>(), [file_id(&log)]);
}

#[test]
fn a_folder_is_rejected_if_its_listing_would_contain_a_protected_file() {
    let folder = folder(&["data/records.log", "data/sets/a", "keys/token"]);
    let at = |name: &str| folder.path().join(name);
    let snapshot = ProtectedFiles::new([at("data/records.log"), at("data/*.index"), at("keys")]).snapshot();
    let listed = |name: &str| {
        let mut found = Vec::new();
        let result = snapshot.check_listing(&at(name), |path| {
            found.push(path.to_str().unwrap().to_owned());
            false
        });
        assert_eq!(result, Ok(()));
        found
    };
    assert_eq!(listed("data"), ["records.log", "*.index"]);
    assert_eq!(listed(""), ["data/records.log", "data/*.index", "keys/*"]);
    assert!(listed("data/sets").is_empty());
    let error = snapshot.check_listing(&at("data"), |path| path.ends_with("records.log")).unwrap_err();
    assert!(error.contains(at("data/records.log").to_str().unwrap()), "{error}");
}

#[test]
fn a_star_matches_any_text() {
    let matches = |name: &str, pattern: &str| matches_pattern(name.as_ref(), pattern.as_ref());
    for (name, pattern) in
        [("a", "a"), ("a", "*"), ("", "*"), ("ab.c", "a*c"), ("a.part-1", "*.part-*"), ("ab", "a**b")]
    {
        assert!(matches(name, pattern), "{name} {pattern}");
    }
    for (name, pattern) in [("ab", "a"), ("a", "a*a"), ("a.part", "*.part-*"), ("xa", "a*")] {
        assert!(!matches(name, pattern), "{name} {pattern}");
    }
}

#[test]
fn an_error_contains_the_fix() {
    let folder = folder(&["token"]);
    let token = folder.path().join("token");
    let protected = ProtectedFiles::new([token.clone(), PathBuf::from("/proc")]);
    assert!(protected.check(&token).unwrap_err().ends_with("or move the protected files"));
    let error = protected.check(Path::new("/proc/self/environ")).unwrap_err();
    assert!(error.contains("the protected file `/proc`") && error.ends_with("choose other files"), "{error}");
}
