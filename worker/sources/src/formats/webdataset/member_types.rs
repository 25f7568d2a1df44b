//! Types of tar entries: which of them are members of a sample, and why the content of some members cannot be read.

use std::fmt;

/// The role of a tar entry.
#[derive(Debug)]
pub(crate) enum MemberType {
    /// A file with its content.
    File,
    /// An extension of the next header.
    Extension,
    /// An entry that is not data, such as a directory.
    Ignored,
    /// A link, which becomes an unreadable member with its target.
    Link(fn(String) -> UnreadableMember),
    /// An entry without content that can be read.
    Unreadable(UnreadableMember),
}

/// A member whose content cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum UnreadableMember {
    /// A hard link to the member with this name.
    HardLink(String),
    /// A symbolic link to this path.
    SymbolicLink(String),
    /// A file whose ranges of zeros are not in the archive.
    Sparse,
    /// A device or a named pipe.
    SpecialFile,
    /// The rest of a member that starts in another volume.
    OtherVolume,
    /// An entry of another type.
    UnknownType(u8),
    /// A member whose name is not UTF-8.
    NameNotUtf8,
}

/// Returns the role of the entries with a type flag.
pub(crate) fn member_type(flag: u8) -> MemberType {
    match flag {
        b'0' | 0 | b'7' => MemberType::File,
        b'L' | b'K' | b'x' | b'X' | b'g' => MemberType::Extension,
        // Directories, also with the list of their files, volume labels, and access control lists.
        b'5' | b'D' | b'V' | b'A' | b'E' | b'I' => MemberType::Ignored,
        b'1' => MemberType::Link(UnreadableMember::HardLink),
        b'2' => MemberType::Link(UnreadableMember::SymbolicLink),
        b'3' | b'4' | b'6' => MemberType::Unreadable(UnreadableMember::SpecialFile),
        b'S' => MemberType::Unreadable(UnreadableMember::Sparse),
        b'M' => MemberType::Unreadable(UnreadableMember::OtherVolume),
        other => MemberType::Unreadable(UnreadableMember::UnknownType(other)),
    }
}

impl fmt::Display for UnreadableMember {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HardLink(target) => write!(
                f,
                "the member is a hard link to `{target}`: write the archive with `tar --hard-dereference`"
            ),
            Self::SymbolicLink(target) => write!(
                f,
                "the member is a symbolic link to `{target}`: write the archive with `tar --dereference`"
            ),
            Self::Sparse => f.write_str("the member is a sparse file: write the archive without `--sparse`"),
            Self::SpecialFile => {
                f.write_str("the member is a device or a named pipe: write the archive without it")
            }
            Self::OtherVolume => f.write_str(
                "the member started in another volume: write the archive without `--multi-volume`",
            ),
            Self::UnknownType(flag) => write!(
                f,
                "the member has the unknown type `{}`: write the archive with `tar --format=gnu`",
                flag.escape_ascii()
            ),
            Self::NameNotUtf8 => f.write_str(
                "the name of the member is not UTF-8: rename the file and write the archive again",
            ),
        }
    }
}
