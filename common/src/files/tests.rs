//! Tests of replacements: content, permissions, failures and files of killed processes.

use std::io::Write;
use std::thread;
use std::time::SystemTime;

use super::*;

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn mode_of(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn a_file_is_created_and_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("position.json");
    for content in ["first", "2nd"] {
        replace_file(&path, FileAccess::Unchanged, |file| file.write_all(content.as_bytes())).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), content);
    }
    assert_eq!(names(folder.path()), ["position.json"]);
}

#[test]
fn a_failed_write_keeps_the_old_content_and_leaves_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("position.json");
    fs::write(&path, "old").unwrap();
    let error = replace_file(&path, FileAccess::Unchanged, |file| {
        file.write_all(b"new")?;
        Err(io::ErrorKind::StorageFull.into())
    });
    assert_eq!(error.unwrap_err().kind(), io::ErrorKind::StorageFull);
    assert_eq!((fs::read_to_string(&path).unwrap().as_str(), names(folder.path()).len()), ("old", 1));
}

#[test]
fn permissions_are_kept_and_secrets_are_private() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    fs::write(&path, "old").unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
    replace_file(&path, FileAccess::Unchanged, |file| file.write_all(b"new")).unwrap();
    assert_eq!(mode_of(&path), 0o640);
    let secret = folder.path().join("secret");
    fs::write(&secret, "old").unwrap();
    fs::set_permissions(&secret, Permissions::from_mode(0o644)).unwrap();
    replace_file(&secret, FileAccess::OwnerOnly, |file| {
        assert_eq!(file.metadata()?.permissions().mode() & 0o777, 0o600);
        file.write_all(b"new")
    })
    .unwrap();
    assert_eq!(mode_of(&secret), 0o600);
}

#[test]
fn a_missing_folder_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("missing/file");
    let error = replace_file(&path, FileAccess::Unchanged, |_| Ok(())).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::NotFound);
    assert_eq!(create_incomplete_file(&path, FileAccess::Unchanged).unwrap_err().kind(), error.kind());
    assert_eq!(
        (folder_of(Path::new("file")), folder_of(Path::new("a/file"))),
        (Path::new("."), Path::new("a"))
    );
}

#[test]
fn simultaneous_replacements_leave_one_complete_file() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("key.index");
    let written: Vec<Vec<u8>> = (1..=8).map(|by| vec![by; usize::from(by) * 5_000]).collect();
    thread::scope(|scope| {
        for body in &written {
            scope.spawn(|| {
                for _ in 0..20 {
                    replace_file(&path, FileAccess::Unchanged, |file| file.write_all(body)).unwrap();
                    let read = fs::read(&path).unwrap();
                    assert!(written.contains(&read), "{} bytes of {:?}", read.len(), read.first());
                }
            });
        }
    });
    assert_eq!(names(root.path()), ["key.index"], "no incomplete file is left");
}

#[test]
fn only_old_incomplete_files_are_removed() {
    let root = tempfile::tempdir().unwrap();
    let long_ago = SystemTime::now() - INCOMPLETE_MAX_AGE * 2;
    for name in ["key.index", "key.index.newAbC", "other.index.newDeF", "theirs.newGhI"] {
        let file = File::create(root.path().join(name)).unwrap();
        if name != "other.index.newDeF" {
            file.set_modified(long_ago).unwrap();
        }
    }
    remove_incomplete_files(root.path(), ".index");
    assert_eq!(names(root.path()), ["key.index", "other.index.newDeF", "theirs.newGhI"]);
}

#[test]
fn private_folders_and_files_belong_to_their_owner_alone() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("cache/rows");
    create_private_folder(&folder).unwrap();
    assert_eq!((mode_of(&root.path().join("cache")), mode_of(&folder)), (0o700, 0o700));
    let path = folder.join("file");
    let open = || private_file_options().create(true).truncate(true).write(true).open(&path).unwrap();
    open();
    assert_eq!(mode_of(&path), 0o600);
    for existing in [&folder, &path] {
        fs::set_permissions(existing, Permissions::from_mode(0o750)).unwrap();
    }
    create_private_folder(&folder).unwrap();
    open();
    assert_eq!((mode_of(&folder), mode_of(&path)), (0o750, 0o750));
}
