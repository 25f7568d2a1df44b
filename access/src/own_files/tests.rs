//! Keys, logs and kept rows by other names, and data beside them.

use super::*;

/// A folder with these files.
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
fn keys_and_folders_are_known_by_any_name() {
    let folder = folder(&["keys/token", "keys/other", "data/log/1", "sets/a"]);
    let at = |name: &str| folder.path().join(name);
    let link = |to: &str, name: &str| std::os::unix::fs::symlink(at(to), at(name)).unwrap();
    link("keys/token", "sets/link");
    link("data", "sets/folder");
    fs::hard_link(at("keys/token"), at("sets/hard")).unwrap();
    let own = OwnFiles::new([at("keys/token"), at("data"), at("later")]);
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
        let told = own.check(&at(name)).unwrap_err();
        let named = format!("holds `{}`", at(of).display());
        assert!(told.contains("keeps for itself") && told.contains(&named), "{name}: {told}");
    }
    for name in ["keys/other", "sets/a", "sets", "keys", "sets/none"] {
        assert_eq!(own.check(&at(name)), Ok(()), "{name}");
    }
    let found = |name: &str| fs::metadata(at(name)).unwrap();
    let look = own.look();
    assert!(look.check_found(&at("sets/hard"), &found("sets/hard")).is_err());
    assert_eq!(look.check_found(&at("sets/a"), &found("sets/a")), Ok(()));
    // A token that was exchanged is the new one.
    fs::write(at("keys/new"), "new").unwrap();
    fs::rename(at("keys/new"), at("keys/token")).unwrap();
    assert!(own.check(&at("sets/link")).is_err());
    assert_eq!(OwnFiles::default().check(&at("keys/token")), Ok(()));
}

#[test]
fn data_beside_what_a_role_keeps_is_read() {
    let folder =
        folder(&["records.log", "1.index", "rows/part-000/ab/1.rows", "rows/mine", "sets/1.rows", "a.jsonl"]);
    let at = |name: &str| folder.path().join(name);
    std::os::unix::fs::symlink(folder.path(), at("sets/back")).unwrap();
    let own = ["records.log", "records.part", "*.index", "rows/part-*", "*/*.rows.*"].map(at);
    let own = OwnFiles::new(own);
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
        assert!(own.check(&at(name)).is_err(), "{name}");
    }
    for name in
        [".", "a.jsonl", "records", "rows", "rows/mine", "sets/1.rows", "sets/1.index", "sets/back/a.jsonl"]
    {
        assert_eq!(own.check(&at(name)), Ok(()), "{name}");
    }
    let look = own.look();
    for (name, may_lie) in
        [("", true), ("rows", true), ("sets", true), ("sets/back", true), ("rows/part-000/ab", false)]
    {
        assert_eq!(look.may_lie_in(&at(name)), may_lie, "{name}");
    }
    let log = fs::metadata(at("records.log")).unwrap();
    assert_eq!(look.files().map(id).collect::<Vec<_>>(), [id(&log)]);
}

#[test]
fn a_folder_is_refused_for_what_going_through_it_comes_upon() {
    let folder = folder(&["data/records.log", "data/sets/a", "keys/token"]);
    let at = |name: &str| folder.path().join(name);
    let look = OwnFiles::new([at("data/records.log"), at("data/*.index"), at("keys")]).look();
    let finds = |name: &str| {
        let mut found = Vec::new();
        let refused = look.check_listing(&at(name), |path| {
            found.push(path.to_str().unwrap().to_owned());
            false
        });
        assert_eq!(refused, Ok(()));
        found
    };
    assert_eq!(finds("data"), ["records.log", "*.index"]);
    assert_eq!(finds(""), ["data/records.log", "data/*.index", "keys/*"]);
    assert!(finds("data/sets").is_empty());
    let told = look.check_listing(&at("data"), |path| path.ends_with("records.log")).unwrap_err();
    assert!(told.contains(at("data/records.log").to_str().unwrap()), "{told}");
}

#[test]
fn a_star_stands_for_any_text() {
    let is = |name: &str, pattern: &str| is_like(name.as_ref(), pattern.as_ref());
    for (name, pattern) in
        [("a", "a"), ("a", "*"), ("", "*"), ("ab.c", "a*c"), ("a.part-1", "*.part-*"), ("ab", "a**b")]
    {
        assert!(is(name, pattern), "{name} {pattern}");
    }
    for (name, pattern) in [("ab", "a"), ("a", "a*a"), ("a.part", "*.part-*"), ("xa", "a*")] {
        assert!(!is(name, pattern), "{name} {pattern}");
    }
}

#[test]
fn a_refusal_says_what_can_be_done() {
    let folder = folder(&["token"]);
    let token = folder.path().join("token");
    let own = OwnFiles::new([token.clone(), PathBuf::from("/proc")]);
    assert!(own.check(&token).unwrap_err().ends_with("or start that role with it elsewhere"));
    let told = own.check(Path::new("/proc/self/environ")).unwrap_err();
    assert!(told.contains("holds `/proc`") && told.ends_with("name files without it"), "{told}");
}
